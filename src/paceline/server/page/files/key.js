// The dialog that asks for an API key, where the server wants one.

import { get, setKey } from "./api.js";

/** Returns a function that asks, with a reason. `onKey()` is called when a key was taken. */
export function keyDialog(onKey) {
  const [dialog, form, input, error] = ["key-dialog", "key-form", "key", "key-error"].map((id) => document.getElementById(id));
  const button = document.getElementById("open-key");

  function say(message) {
    error.textContent = message;
    error.hidden = !message;
  }

  function ask(reason = "") {
    button.hidden = false;
    document.getElementById("links").hidden = true; // a link cannot carry a key
    if (dialog.open) return;
    say(reason);
    input.value = "";
    dialog.showModal();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = input.value.trim();
    if (/[^\x21-\x7e]/.test(wanted)) {
      say("A key has no spaces and no letters outside of ASCII.");
      return;
    }
    try {
      await get("v1/models", wanted);
    } catch (problem) {
      say(problem.message);
      return;
    }
    setKey(wanted);
    dialog.close();
    onKey();
  });
  document.getElementById("key-cancel").addEventListener("click", () => dialog.close());
  button.addEventListener("click", () => ask());
  return ask;
}
