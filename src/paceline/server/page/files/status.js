// The live status: the server's own document, once a second while somebody looks.

import { get } from "./api.js";
import { bars, line } from "./chart.js";
import { number, percent } from "./words.js";

const EVERY = 1000; // milliseconds
const SLOWEST = 8000; // between two tries while the server is away
const CAPACITY = 120; // samples in the chart
const RESTS = {
  acceptance: "Drafts rest: too few of them were kept.",
  load: "Drafts rest: at this load they would cost more than they bring.",
};

export class Status {
  /** `onDocument(document)` with every one that came; `onError(error)` when none did. */
  constructor(onDocument, onError) {
    this.onDocument = onDocument;
    this.onError = onError;
    this.throughput = [];
    this.wait = EVERY;
    this.timer = null;
    this.isAsking = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
  }

  resume() {
    this.pause();
    if (!this.isAsking && !document.hidden) this.poll();
  }

  pause() {
    clearTimeout(this.timer);
    this.timer = null;
  }

  async poll() {
    this.isAsking = true;
    try {
      const found = await get("v1/paceline/status");
      this.wait = EVERY;
      this.show(found);
      this.onDocument(found);
    } catch (error) {
      this.wait = Math.min(SLOWEST, 2 * this.wait);
      this.throughput.push(null);
      text("state", error.status === 401 ? "needs a key" : error.status === 0 ? "unreachable" : "unhealthy");
      document.getElementById("state").dataset.state = "unhealthy";
      this.onError(error);
      if (error.status === 401) return; // until there is a key
    } finally {
      this.isAsking = false;
    }
    if (!document.hidden) this.timer = setTimeout(() => this.poll(), this.wait);
  }

  show(found) {
    text("state", found.state);
    document.getElementById("state").dataset.state = found.state;
    text("model", found.model);
    text("version", `Paceline ${found.version}, up ${duration(found.uptime_seconds)}`);
    text("live-note", `rates over the last ${Math.round(found.window_seconds)} s`);
    this.showThroughput(found.throughput);
    showQueue(found.requests);
    showCache(found.kv_cache, found.prefix_cache);
    showSpeculation(found.speculation);
  }

  showThroughput(throughput) {
    const now = throughput.generation_tokens_per_second;
    this.throughput = [...this.throughput, now].slice(-CAPACITY);
    text("throughput", number(now));
    text("finished", throughput.tokens_per_pass ? `${number(throughput.tokens_per_pass, 2)} tokens per pass` : "");
    const chart = document.getElementById("throughput-chart");
    const top = line(chart, this.throughput, CAPACITY, `Generated tokens per second, now ${number(now)}`);
    text("throughput-top", `top of the chart: ${top} tok/s`);
  }
}

function text(id, value) {
  const element = document.getElementById(id);
  if (element.textContent !== value) element.textContent = value;
}

function showQueue(requests) {
  text("running", String(requests.running));
  text("waiting", String(requests.waiting));
  document.getElementById("places").value = requests.running / requests.max_num_seqs;
  text("places-note", `${requests.max_num_seqs} places in the batch`);
}

function showCache(cache, prefix) {
  text("kv", percent(cache.usage, cache.usage < 0.1 ? 1 : 0));
  document.getElementById("kv-meter").value = cache.usage;
  const hits = prefix.hit_rate === null ? "" : `; ${percent(prefix.hit_rate)} of prompt tokens found in it`;
  text("kv-note", `${(cache.num_blocks * cache.block_size).toLocaleString("en")} tokens fit${hits}`);
}

function showSpeculation(found) {
  for (const tile of document.querySelectorAll(".spec")) tile.hidden = found === null;
  text("draft", found === null ? "without speculation" : `drafts: ${found.draft ?? found.method}, K ≤ ${found.num_speculative_tokens}`);
  if (found === null) return;
  text("k", String(found.k_in_use));
  text("k-note", found.mean_k === null ? "" : `mean ${number(found.mean_k)}`);
  text("k-why", resting(found));
  const counts = padded(found.passes_by_k, found.num_speculative_tokens + 1, 0);
  const all = counts.reduce((sum, count) => sum + count, 0);
  const shares = counts.map((count) => (all ? count / all : null));
  const label = `Passes by number of drafts: ${shares.map((share, k) => `${k}: ${percent(share)}`).join(", ")}`;
  bars(document.getElementById("k-chart"), shares, counts.map((_, k) => String(k)), shares.map((share) => percent(share)), label);
  showAcceptance(found);
}

function showAcceptance(found) {
  text("acceptance", percent(found.acceptance_rate));
  text("length", found.mean_acceptance_length ? `${number(found.mean_acceptance_length, 2)} tokens a drafted pass` : "");
  text("acceptance-note", found.is_synthetic ? "Synthetic: drafts are kept at given rates; the text is not the model’s." : "");
  const shares = padded(found.acceptance_by_position, found.num_speculative_tokens, null);
  const label = `Drafts kept by position: ${shares.map((share, place) => `${place + 1}: ${percent(share)}`).join(", ")}`;
  const names = shares.map((_, place) => String(place + 1));
  bars(document.getElementById("acceptance-chart"), shares, names, shares.map((share) => percent(share)), label);
}

function resting(found) {
  const reason = Object.entries(found.is_resting ?? {}).find(([, rests]) => rests)?.[0];
  if (reason) return RESTS[reason] ?? `Drafts rest: ${reason}.`;
  if (found.is_off) return RESTS.acceptance;
  return found.is_resting === null ? "K is fixed." : "K follows load and acceptance.";
}

function padded(list, length, filler) {
  return [...list, ...Array(Math.max(0, length - list.length)).fill(filler)];
}

function duration(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
