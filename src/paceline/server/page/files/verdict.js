// What two finished answers say about speculation, in words.

import { seconds } from "./words.js";

/** @param {Answer} on @param {Answer} off @param {{temperature: number, together: boolean}} how they were asked for */
export function verdict(on, off, { temperature, together }) {
  return `${together ? "In one batch" : "In turns"}: ${speeds(on, off)} ${texts(on, off, temperature)}`;
}

function speeds(on, off) {
  const isSameWork = on.tokens === off.tokens;
  const ratio = isSameWork ? off.seconds / on.seconds : on.speed / off.speed;
  if (!Number.isFinite(ratio)) return "too few tokens to compare speeds.";
  const figures = isSameWork ? `${seconds(on.seconds)} instead of ${seconds(off.seconds)}` : "by tokens a second";
  if (ratio >= 1.005) return `${ratio.toFixed(2)} times as fast with speculation, ${figures}.`;
  if (ratio > 0.995) return `as fast with speculation as without, ${figures}.`;
  return `slower with speculation, ${ratio.toFixed(2)} times the speed, ${figures}.`;
}

function texts(on, off, temperature) {
  if (temperature > 0) return "The texts are drawn at random and not compared.";
  return on.text === off.text
    ? "Same text: yes."
    : "Same text: no. In float32 it always is; in lower precision a near-tie between two tokens can flip.";
}
