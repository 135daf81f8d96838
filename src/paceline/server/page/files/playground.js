// The playground: reads the form, runs one answer or two, shows them side by side.

import { ApiError } from "./api.js";
import { ask } from "./answer.js";
import { Lane } from "./lane.js";
import { verdict } from "./verdict.js";

const NOTES = {
  race: "Both at once, in one batch: they share every step, so this shows who needs fewer passes. For speeds, run in turns.",
  turns: "First without, then with speculation, each with the server to itself if nobody else asks: the speeds that one user gets.",
  on: "One answer, with speculation.",
  off: "One answer, decoded plainly.",
};
const TITLES = { on: "Speculation on", off: "Speculation off" };

export class Playground {
  /** `needKey()` is called when the server wants another key. */
  constructor(needKey) {
    this.needKey = needKey;
    this.model = null;
    this.running = null; // AbortController
    this.parts = Object.fromEntries(
      ["form", "prompt", "system", "modes", "max-tokens", "temperature", "run", "stop", "mode-note", "verdict", "answers"]
        .map((id) => [id, document.getElementById(id)]),
    );
    const { form, stop, modes, answers } = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    stop.addEventListener("click", () => this.stop());
    modes.addEventListener("change", () => this.explain());
    document.addEventListener("keydown", (event) => this.onKey(event));
    answers.replaceChildren(...this.lanes().map((lane) => lane.root));
    this.explain();
  }

  /** What is served: from the status document. */
  serve(model, speculates) {
    this.model = model;
    if (speculates) return;
    for (const input of this.parts.modes.querySelectorAll("input")) input.disabled = input.value !== "off";
    this.parts.modes.querySelector("[value=off]").checked = true;
    this.explain();
    if (!this.running) this.parts.answers.replaceChildren(...this.lanes().map((lane) => lane.root));
  }

  get mode() {
    return new FormData(this.parts.form).get("mode");
  }

  explain() {
    this.parts["mode-note"].textContent = NOTES[this.mode];
  }

  onKey(event) {
    if (event.key === "Escape" && this.running) this.stop();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      this.parts.form.requestSubmit();
    }
  }

  lanes() {
    const wanted = this.mode === "off" || this.mode === "on" ? [this.mode] : ["off", "on"];
    this.names = wanted;
    return wanted.map((name) => new Lane(TITLES[name], this.maxTokens));
  }

  get maxTokens() {
    return this.parts["max-tokens"].valueAsNumber || null;
  }

  options(name) {
    const { prompt, system, temperature } = this.parts;
    return {
      model: this.model,
      prompt: prompt.value,
      system: system.value.trim(),
      maxTokens: this.maxTokens,
      temperature: Number.isNaN(temperature.valueAsNumber) ? 1 : temperature.valueAsNumber,
      speculates: name === "on",
    };
  }

  async run() {
    if (this.running) return;
    if (this.model === null) {
      this.tell("The server has not said yet what it serves.");
      return;
    }
    const { answers, run, stop } = this.parts;
    const mode = this.mode;
    const lanes = this.lanes();
    answers.replaceChildren(...lanes.map((lane) => lane.root));
    this.running = new AbortController();
    enable(stop, run);
    this.tell("Running.");
    try {
      const asked = this.names.map((name) => this.options(name));
      const found = await this.all(lanes, asked, mode === "turns");
      this.conclude(found, { temperature: asked[0].temperature, together: mode === "race" });
    } finally {
      this.running = null;
      enable(run, stop);
    }
  }

  async all(lanes, asked, inTurns) {
    if (!inTurns) return Promise.all(lanes.map((lane, place) => this.one(lane, asked[place])));
    const found = [];
    lanes.slice(1).forEach((lane) => lane.say("waits for its turn"));
    for (const [place, lane] of lanes.entries()) found.push(await this.one(lane, asked[place]));
    return found;
  }

  /** The finished answer; null if it was stopped or failed, which the lane says. */
  async one(lane, options) {
    const { signal } = this.running;
    if (signal.aborted) {
      lane.say("stopped", "stopped");
      return null;
    }
    lane.say("waiting for the first token", "running");
    try {
      const answer = await ask(options, signal, (soFar, step) => {
        if (soFar.passes === 1) lane.say("writing", "running");
        lane.step(soFar, step);
      });
      lane.finish(answer);
      return answer;
    } catch (error) {
      if (error.name === "AbortError") lane.say("stopped", "stopped");
      else lane.fail(error.message);
      if (error instanceof ApiError && error.status === 401) this.needKey(error.message);
      if (!(error instanceof ApiError) && error.name !== "AbortError") console.error(error);
      return null;
    }
  }

  conclude(answers, how) {
    if (this.running.signal.aborted) this.tell("Stopped.");
    else if (answers.includes(null)) this.tell("Not finished.");
    else if (answers.length === 2) this.tell(verdict(answers[1], answers[0], how));
    else this.tell("Done.");
  }

  tell(message) {
    this.parts.verdict.textContent = message;
  }

  stop() {
    this.running?.abort();
  }
}

/** Enable one button in place of another, and let it have the focus if the other had it. */
function enable(button, other) {
  const hadFocus = document.activeElement === other;
  [button.disabled, other.disabled] = [false, true];
  if (hadFocus) button.focus();
}
