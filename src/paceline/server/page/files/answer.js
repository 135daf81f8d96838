// One answer: what was asked, what came, and the figures of it. Nothing here touches the page.

import { stream } from "./api.js";

export class Answer {
  constructor() {
    this.tokens = 0;
    this.passes = 0; // of the target, that gave tokens
    this.drafted = 0;
    this.accepted = 0;
    this.text = "";
    this.finish = null; // the server's finish_reason, once there
    this.sent = performance.now();
    this.first = null; // milliseconds on the page's clock
    this.last = null;
    this.tokensOfFirst = 0;
  }

  take(step, now) {
    if (this.first === null) {
      this.first = now;
      this.tokensOfFirst = step.origins.length;
    }
    this.last = now;
    this.tokens += step.origins.length;
    this.passes += 1;
    this.drafted += step.num_drafted;
    this.accepted += step.origins.filter((origin) => origin === "accepted").length;
    this.text += step.texts.join("");
  }

  get firstSeconds() {
    return this.first === null ? null : (this.first - this.sent) / 1000;
  }

  get seconds() {
    return this.last === null ? null : (this.last - this.sent) / 1000;
  }

  /** Tokens per second behind the first step; null before there are any. */
  get speed() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.tokens - this.tokensOfFirst) / seconds : null;
  }

  get tokensPerPass() {
    return this.passes ? this.tokens / this.passes : null;
  }

  get shareKept() {
    return this.drafted ? this.accepted / this.drafted : null;
  }
}

/**
 * Ask for one answer and call `onStep(answer, step)` for every pass of the target.
 * `options`: model, prompt, system, maxTokens (null: the server's own limit), temperature, speculates.
 */
export async function ask(options, signal, onStep) {
  const answer = new Answer();
  for await (const chunk of stream("v1/chat/completions", body(options), signal)) {
    for (const choice of chunk.choices) {
      if (choice.paceline) {
        answer.take(choice.paceline, performance.now());
        onStep(answer, choice.paceline);
      }
      answer.finish = choice.finish_reason ?? answer.finish;
    }
  }
  return answer;
}

function body(options) {
  const system = options.system ? [{ role: "system", content: options.system }] : [];
  return {
    model: options.model,
    messages: [...system, { role: "user", content: options.prompt }],
    temperature: options.temperature,
    stream: true,
    stream_options: { include_token_origins: true },
    cache_salt: crypto.getRandomValues(new Uint32Array(2)).join("-"), // neither answer finds the other's prompt cached
    ...(options.maxTokens === null ? {} : { max_tokens: options.maxTokens }),
    ...(options.speculates ? {} : { speculation: { num_speculative_tokens: 0 } }),
  };
}
