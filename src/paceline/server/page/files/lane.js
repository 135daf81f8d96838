// A lane: one answer as it is shown. Text gets in as text nodes alone.

import { number, percent, seconds } from "./words.js";

const SIZE = { stop: "ended by itself", length: "reached its length" };
const NAMES = { accepted: "accepted draft", recovered: "recovered", bonus: "bonus", plain: "plain" };

export class Lane {
  constructor(title, maxTokens) {
    const root = document.getElementById("lane").content.firstElementChild.cloneNode(true);
    this.root = root;
    this.maxTokens = maxTokens;
    this.text = root.querySelector(".text");
    this.ended = root.querySelector(".ended");
    this.error = root.querySelector(".error");
    this.bar = root.querySelector(".progress > div");
    this.figures = Object.fromEntries([...root.querySelectorAll("[data-figure]")].map((e) => [e.dataset.figure, e]));
    root.querySelector("h3").textContent = title;
    this.text.setAttribute("aria-label", `Answer, ${title.toLowerCase()}`);
  }

  say(state, kind = "") {
    this.ended.textContent = state;
    this.root.dataset.kind = kind;
  }

  step(answer, step) {
    const follows = this.text.scrollHeight - this.text.scrollTop - this.text.clientHeight < 40;
    const pass = document.createElement("span");
    pass.className = "pass";
    step.texts.forEach((text, place) => pass.append(token(text, step.origins[place])));
    this.text.append(pass);
    if (follows) this.text.scrollTop = this.text.scrollHeight;
    this.show(answer);
  }

  show(answer) {
    this.figures.speed.textContent = number(answer.speed);
    this.figures["per-pass"].textContent = number(answer.tokensPerPass, 2);
    this.figures.first.textContent = seconds(answer.firstSeconds);
    this.figures.tokens.textContent = String(answer.tokens);
    this.figures.kept.textContent = percent(answer.shareKept);
    if (this.maxTokens) this.bar.style.width = `${Math.min(100, (100 * answer.tokens) / this.maxTokens)}%`;
  }

  finish(answer) {
    this.show(answer);
    this.bar.style.width = "100%";
    this.say(`${SIZE[answer.finish] ?? answer.finish ?? "ended"} after ${seconds(answer.seconds)}`, "done");
  }

  fail(message) {
    this.error.textContent = message;
    this.error.hidden = false;
    this.say("failed", "failed");
  }
}

function token(text, origin) {
  const span = document.createElement("span");
  span.className = `token ${origin}`;
  span.title = NAMES[origin] ?? origin;
  span.textContent = text;
  return span;
}
