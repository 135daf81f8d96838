// Light or dark: the system's choice until the button is pressed. Not a module: it must run before the first paint.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem("paceline.theme");
    } catch {
      return null; // storage is forbidden here
    }
  }

  const ofSystem = () => (system.matches ? "dark" : "light");

  function show(theme) {
    root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = theme === "dark" ? "Light colours" : "Dark colours";
  }

  function toggle() {
    const wanted = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      if (wanted === ofSystem()) localStorage.removeItem("paceline.theme");
      else localStorage.setItem("paceline.theme", wanted);
    } catch {
      // for this page alone, then
    }
    show(wanted);
  }

  show(kept() ?? ofSystem());
  system.addEventListener("change", () => show(kept() ?? ofSystem()));
  document.addEventListener("DOMContentLoaded", () => {
    show(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", toggle);
  });
})();
