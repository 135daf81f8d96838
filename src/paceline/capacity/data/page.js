"use strict";
// The formulas of serving.py and planner.py over the grid that page.py computed. Times in seconds.

// A length is emitted whatever K is, as far as K allows; a rate is that of every place.
function tokensPerPass(data, acceptance, k) {
  if (data.isLength) return Math.min(acceptance, k + 1);
  const rate = acceptance;
  let sum = 0;
  for (let i = 0; i <= k; i++) sum += rate ** i;
  return sum;
}

function between(grid, values, at) {
  if (at <= grid[0]) return values[0];
  for (let i = 1; i < values.length; i++)
    if (at <= grid[i]) return values[i - 1] + ((values[i] - values[i - 1]) * (at - grid[i - 1])) / (grid[i] - grid[i - 1]);
  return values[values.length - 1];
}

function operate(data, grid, input, k, concurrency) {
  const place = data.ks.indexOf(k);
  const positions = input.inputLen + input.outputLen / 2;
  const steps = grid.steps[place].map(([start, slope]) => start + slope * positions);
  const step = between(data.rows, steps, concurrency);
  const models = k > 0 ? 1 : 0, unread = Math.max(1, input.inputLen * (1 - input.cached));
  const history = grid.history[models] * unread * (input.inputLen - unread);
  const prompt = between(data.prompts, grid.prompts[models], unread) + history;
  const pass = k > 0 ? tokensPerPass(data, input.acceptance, k) : 1;
  const afterFirst = Math.max(input.outputLen - 1, 1);
  const others = (concurrency - 1) * prompt;
  const decode = (afterFirst * step) / pass + others;
  const load = Math.min(others / (decode + prompt), 0.99);
  const ttft = step / 2 + prompt + (load * prompt) / (2 * (1 - load));
  const requests = concurrency / (ttft + decode);
  return { k, concurrency, step, ttft, tpot: decode / afterFirst, requests, tokens: requests * input.outputLen };
}

function hasRoom(data, grid, input, k, concurrency) {
  const room = between(data.rows, grid.positions[data.ks.indexOf(k)], concurrency);
  return room >= concurrency * (input.inputLen + input.outputLen + k);
}

// Why a replica cannot have so many requests in flight; "" where it can.
function whatStops(data, grid, input, k, concurrency) {
  if (!hasRoom(data, grid, input, k, concurrency)) return "memory";
  const point = operate(data, grid, input, k, concurrency);
  if (point.ttft > input.ttft) return "ttft";
  return point.tpot > input.tpot ? "tpot" : "";
}

function smallest(holds, most) {
  let low = 1, high = most;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (holds(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

const isArrivals = (input) => input.requestsPerSecond !== null;

function mostSequences(data, grid, input, k) {
  const holds = (b) => !whatStops(data, grid, input, k, b);
  const most = Math.min(isArrivals(input) ? Infinity : input.users, data.rows[data.rows.length - 1], data.maxNumSeqs);
  return holds(most) ? most : smallest((b) => !holds(b), most) - 1;
}

function fleet(data, gpu, tp, input, k) {
  const grid = gpu.tps[tp];
  const most = mostSequences(data, grid, input, k);
  if (most < 1) return null;
  const at = (b) => operate(data, grid, input, k, b);
  const arriving = input.requestsPerSecond;
  const replicas = Math.ceil(isArrivals(input) ? arriving / at(most).requests : input.users / most);
  const enough = (b) => at(b).requests >= arriving / replicas;
  const point = at(isArrivals(input) ? smallest(enough, most) : Math.ceil(input.users / replicas));
  const gpus = replicas * tp;
  const machine = gpu.price ? gpu.price.gpus : 1;
  const rented = Math.ceil(gpus / machine) * machine;
  const requests = isArrivals(input) ? arriving : (input.users / point.concurrency) * point.requests;
  const month = 730 * 3600 * requests * input.utilization;
  const cost = rented * input.price * 730;
  const revenue = (month * (input.inputLen * input.sellInput + input.outputLen * input.sellOutput)) / 1e6;
  return {
    tp, k, replicas, gpus, rented, most, point, cost,
    limit: most < data.rows[data.rows.length - 1] ? whatStops(data, grid, input, k, most + 1) : "",
    nodes: Math.ceil(replicas / Math.max(1, Math.floor(gpu.gpusPerNode / tp))),
    tokens: requests * input.outputLen,
    perMillionOutput: (cost / (month * input.outputLen)) * 1e6,
    perMillion: (cost / (month * (input.inputLen + input.outputLen))) * 1e6,
    margin: revenue > 0 ? (revenue - cost) / revenue : null,
  };
}

function answer(data, input) {
  const gpu = data.gpus[input.gpu];
  const tps = Object.keys(gpu.tps).map(Number).filter((tp) => !input.tp || tp === input.tp);
  const fleets = [];
  for (const tp of tps)
    for (const k of data.ks) {
      const found = fleet(data, gpu, tp, input, k);
      if (found) fleets.push(found);
    }
  fleets.sort((a, b) => a.rented - b.rented || a.gpus - b.gpus || a.point.tpot - b.point.tpot);
  const sweptTp = fleets.length ? fleets[0].tp : tps[tps.length - 1];
  const sweep = [];
  if (sweptTp !== undefined)
    for (const concurrency of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) {
      const points = data.ks
        .filter((k) => concurrency <= data.maxNumSeqs && hasRoom(data, gpu.tps[sweptTp], input, k, concurrency))
        .map((k) => operate(data, gpu.tps[sweptTp], input, k, concurrency));
      if (!points.length || points[0].k !== 0) continue;
      const best = points.reduce((a, b) => (b.tokens > a.tokens ? b : a));
      sweep.push({ concurrency, points, best, gain: best.tokens / points[0].tokens });
    }
  const plain = fleets.find((f) => f.k === 0) || null;
  return {
    fleets, sweep, sweptTp,
    plain,
    speculative: fleets.find((f) => f.k > 0) || null,
    alike: (plain && fleets.find((f) => f.k > 0 && f.tp === plain.tp)) || null, // with the plain fleet's TP
    onlyPlain: (tp) => fleets.find((f) => f.k === 0 && f.tp === tp) || null,
  };
}

// The plan's own figures, as the command computed them: nothing between grid points, which `answer` interpolates.
function planned(data) {
  const plan = data.plan;
  const made = (f) => f && {
    tp: f.tp, k: f.k, replicas: f.replicas, gpus: f.gpus, rented: f.rented_gpus, nodes: f.nodes,
    most: f.most_sequences_per_replica, limit: f.limit, tokens: f.tokens_per_second, point: operated(f.replica),
    cost: f.money ? f.money.usd_per_month : null, perMillion: f.money ? f.money.usd_per_million_tokens : null,
    perMillionOutput: f.money ? f.money.usd_per_million_output_tokens : null,
    margin: f.money ? f.money.gross_margin : null,
  };
  const operated = (p) => ({
    k: p.k, concurrency: p.concurrency, step: p.step, ttft: p.ttft, tpot: p.tpot, requests: p.requests_per_second,
    tokens: p.tokens_per_second,
  });
  const fleets = plan.fleets.map(made);
  const sweep = plan.sweep.rows.map((row) => {
    const points = row.points.map(operated);
    return { concurrency: row.concurrency, points, best: points.find((p) => p.k === row.best_k), gain: row.gain };
  });
  return {
    fleets, sweep, sweptTp: plan.sweep.tp,
    plain: made(plan.plain), speculative: made(plan.speculative), alike: made(plan.speculative_at_plain_tp),
    onlyPlain: (tp) => fleets.find((f) => f.k === 0 && f.tp === tp) || null,
  };
}

// What is shown for `input`: at the plan's own question its own answer, elsewhere the grid's.
function shown(data, input) {
  const start = initial(data);
  const isPlan = start.gpu === data.plan.gpu.key && Object.keys(start).every((name) => start[name] === input[name]);
  return { found: isPlan ? planned(data) : answer(data, input), isPlan };
}

// ---- the page -------------------------------------------------------------------------------------------------

const milliseconds = (digits) => (v) => (v === Infinity ? "any" : (v * 1e3).toFixed(digits) + " ms");
const options = (data) => [
  data.plan.question.requests_per_second === null ? ["users", "requests in flight", 1, 4096, (v) => v, "log"]
    : ["requestsPerSecond", "requests a second", 0.1, 1000, (v) => v.toFixed(2), "log"],
  ["inputLen", "tokens in", 16, 32768, (v) => v, "log"],
  ["outputLen", "tokens out", 2, 8192, (v) => v, "log"],
  data.isLength ? ["acceptance", "tokens a pass", 1, Math.max(...data.ks) + 1, (v) => v.toFixed(2), 0.01]
    : ["acceptance", "acceptance (a draft, if those before it were kept)", 0, 1, (v) => v.toFixed(2), 0.01],
  ["tpot", "time a token, at most", 0.002, 0.5, milliseconds(1), "log"],
  ["ttft", "first token, at most", 0.02, 20, milliseconds(0), "log"],
  ["price", "price of a GPU and hour", 0.1, 20, (v) => "$" + v.toFixed(2), 0.01],
  ["sellInput", "selling price, million tokens in", 0, 10, (v) => "$" + v.toFixed(2), 0.01],
  ["sellOutput", "selling price, million tokens out", 0, 20, (v) => "$" + v.toFixed(2), 0.01],
  ["utilization", "share of the month with this load", 0.05, 1, (v) => Math.round(v * 100) + " %", 0.01],
];
const WHOLE = new Set(["users", "inputLen", "outputLen"]);
const OBJECTIVES = new Set(["tpot", "ttft"]); // at the end of their sliders any latency will do

function initial(data) {
  const asked = data.plan.question;
  const gpu = data.plan.gpu.key in data.gpus ? data.plan.gpu.key : Object.keys(data.gpus)[0];
  const price = data.gpus[gpu].price;
  return {
    gpu, tp: 0, users: data.users, inputLen: asked.input_len, outputLen: asked.output_len, cached: asked.cached,
    acceptance: data.acceptance, requestsPerSecond: asked.requests_per_second,
    tpot: asked.tpot_seconds ?? Infinity, ttft: asked.ttft_seconds ?? Infinity, price: price ? price.usd_per_gpu_hour : 3,
    sellInput: asked.selling.usd_per_million_input, sellOutput: asked.selling.usd_per_million_output,
    utilization: asked.utilization,
  };
}

function element(name, text, parent, attributes) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  if (parent) parent.appendChild(made);
  return made;
}

function choice(form, title, options, value, changed) {
  const select = element("select", null, element("label", title, form));
  for (const [key, words] of options) element("option", words, select, { value: key });
  select.value = value;
  select.addEventListener("change", () => changed(select.value));
}

function slider(form, option, input, changed) {
  const [name, title, low, high, words, step] = option;
  const label = element("label", title, form);
  const shown = element("span", "", label);
  const range = element("input", null, label, { type: "range", id: name });
  const log = step === "log";
  range.min = log ? Math.log(low) : low;
  range.max = log ? Math.log(high) : high;
  range.step = log ? "any" : step;
  const show = () => {
    range.value = Math.min(range.max, log ? Math.log(input[name]) : input[name]);
    shown.textContent = words(input[name]);
  };
  range.addEventListener("input", () => {
    const isAny = OBJECTIVES.has(name) && Number(range.value) >= Number(range.max) - 1e-6;
    const value = isAny ? Infinity : log ? Math.exp(range.value) : Number(range.value);
    input[name] = WHOLE.has(name) ? Math.round(value) : value;
    shown.textContent = words(input[name]);
    changed();
  });
  show();
  return show;
}

function number(value, digits) {
  return value.toLocaleString("en-US", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

function money(value, digits) {
  return value === null ? "-" : number(value, digits);
}

function fill(table, headings, rows) {
  table.textContent = "";
  const head = element("tr", null, element("thead", null, table));
  headings.forEach((words) => element("th", words, head));
  const body = element("tbody", null, table);
  rows.forEach((cells) => {
    const row = element("tr", null, body);
    cells.forEach((words) => element("td", words, row));
  });
}

function fleetCells(name, f) {
  return [
    name, f.tp, f.k, f.rented === f.gpus ? f.gpus : `${f.gpus} of ${f.rented} rented`, f.nodes,
    `${f.point.concurrency} (up to ${f.most})`, number(f.point.ttft * 1e3, 0), number(f.point.tpot * 1e3, 1),
    number(f.tokens, 0), money(f.cost, 0), money(f.perMillionOutput, 2), money(f.perMillion, 2),
    f.margin === null ? "-" : Math.round(f.margin * 100) + " %",
  ];
}

const WITHIN = {
  memory: "the cache is short, and within its room",
  ttft: "the first token comes later with drafts, and within its objective",
  tpot: "a step with drafts takes longer, and within the objective of a token",
};
const ALONE = { // of one request on a replica
  memory: "the cache has no room for a request with a draft beside the target",
  ttft: "even alone a request's first token misses it",
  tpot: "even alone a request's time a token misses it",
};

// In brackets, each cause once; as the command names them.
function whyNone(data, gpu, input, tps) {
  const drafted = data.ks.filter((k) => k > 0);
  const causes = tps.flatMap((tp) => drafted.map((k) => whatStops(data, gpu.tps[tp], input, k, 1)));
  const words = Object.keys(ALONE).filter((name) => causes.includes(name)).map((name) => ALONE[name]);
  return words.length ? ` (${words.join(", ")})` : "";
}

function verdict(data, found, gpu, input) {
  const { plain, speculative: drafted, alike } = found;
  const tps = Object.keys(gpu.tps).map(Number).filter((tp) => !input.tp || tp === input.tp);
  if (!tps.length) return `${gpu.name} cannot be planned with TP=${input.tp}: the weights do not fit, or a node has fewer GPUs.`;
  if (!plain && !drafted) return `${gpu.name} cannot meet this objective at any number of requests.`;
  if (!plain) return `Only speculation meets this objective: ${gpuCount(drafted)} at TP=${drafted.tp}, K=${drafted.k}.`;
  if (!drafted) return data.ks.length > 1 ? `No K meets this objective${whyNone(data, gpu, input, tps)}; without speculation ${gpuCount(plain)} do.` : `${gpuCount(plain)}, without a draft.`;
  const first = alike ? `Speculation alone, TP=${plain.tp} with and without: ${against(alike, plain)}` : `At TP=${plain.tp}, the best without speculation, no K meets this objective${whyNone(data, gpu, input, [plain.tp])}.`;
  if (drafted.tp === plain.tp) return first;
  const only = found.onlyPlain(drafted.tp);
  const there = `without speculation TP=${drafted.tp} ${only ? "needs " + gpuCount(only) : "misses the objective"}`;
  return `${first} Each at its best TP (TP=${drafted.tp} with, TP=${plain.tp} without; ${there}): ${against(drafted, plain)}`;
}

function whyMore(drafted, plain) {
  if (drafted.most >= plain.most || !(drafted.limit in WITHIN)) return "batching serves this load better";
  return `${WITHIN[drafted.limit]} a replica can have ${drafted.most} requests in flight with drafts, and ${plain.most} without`;
}

function gpuCount(f) {
  return f.gpus === 1 ? "1 GPU" : `${f.gpus} GPUs`;
}

function against(drafted, plain) {
  const words = `${gpuCount(drafted)} with K=${drafted.k} instead of ${plain.gpus}`, saved = 1 - drafted.rented / plain.rented;
  if (saved > 0) return `${words}, ${Math.round(saved * 100)} % of the hosting cost saved.`;
  if (saved < 0) return `${words}, which costs ${Math.round(-saved * 100)} % more: ${whyMore(drafted, plain)}.`;
  if (drafted.gpus !== plain.gpus) return `${words}, but machines are rented whole: no cost is saved.`;
  return `as many GPUs (${plain.gpus}), and with K=${drafted.k} a token every ${number(drafted.point.tpot * 1e3, 1)} ms instead of ${number(plain.point.tpot * 1e3, 1)}.`;
}

const NS = "http://www.w3.org/2000/svg";

function chart(svg, series, xName, yName, logX) {
  svg.textContent = "";
  const draw = (name, attributes, text) => {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    svg.appendChild(made);
  };
  const all = series.flatMap((s) => s.points);
  if (!all.length) return;
  const scale = logX ? Math.log2 : (v) => v;
  const xs = all.map((p) => scale(p[0])), ys = all.map((p) => p[1]);
  const x0 = logX ? Math.min(...xs) : 0, x1 = Math.max(...xs, x0 + 1e-9), y1 = Math.max(...ys) * 1.08;
  const X = (v) => 48 + ((scale(v) - x0) / (x1 - x0)) * 396, Y = (v) => 222 - (v / y1) * 200;
  for (let i = 0; i <= 4; i++) {
    const value = (y1 * i) / 4;
    draw("line", { x1: 48, x2: 444, y1: Y(value), y2: Y(value), stroke: "#8884" });
    draw("text", { x: 44, y: Y(value) + 4, "text-anchor": "end" }, y1 < 20 ? value.toFixed(1) : Math.round(value).toLocaleString("en-US"));
  }
  const ticks = logX ? [...new Set(all.map((p) => p[0]))] : [0, 0.25, 0.5, 0.75, 1].map((s) => s * x1);
  ticks.forEach((tick) => draw("text", { x: X(tick), y: 238, "text-anchor": "middle" }, Math.round(tick).toLocaleString("en-US")));
  draw("text", { x: 246, y: 254, "text-anchor": "middle" }, xName);
  draw("text", { x: 48, y: 12 }, yName);
  series.forEach((s, index) => {
    draw("polyline", { points: s.points.map((p) => `${X(p[0])},${Y(p[1])}`).join(" "), fill: "none", stroke: s.color, "stroke-width": 2 });
    s.points.forEach((p) => draw("circle", { cx: X(p[0]), cy: Y(p[1]), r: 3, fill: s.color }));
    draw("text", { x: 440, y: 14 + 14 * index, "text-anchor": "end", style: `fill:${s.color}` }, s.name);
  });
}

function show(data, input) {
  const gpu = data.gpus[input.gpu], { found, isPlan } = shown(data, input);
  document.getElementById("verdict").textContent = verdict(data, found, gpu, input);
  const named = [];
  if (found.plain) named.push(["without speculation", found.plain]);
  if (found.speculative) named.push(["with", found.speculative]);
  fill(document.getElementById("fleets"),
    ["", "TP", "K", "GPUs", "nodes", "requests a replica", "first token ms", "ms a token", "tok/s", "$ a month", "$/M output", "$/M tokens", "margin"],
    named.map(([name, f]) => fleetCells(name, f)));
  const speeds = (row) => data.ks.map((k) => row.points.find((p) => p.k === k)).map((p) => (p ? number(p.tokens, 0) : "no room"));
  fill(document.getElementById("sweep"),
    ["requests on a replica" + (found.sweptTp ? `, TP=${found.sweptTp}` : ""), ...data.ks.map((k) => `K=${k} tok/s`), "best K", "gain", "ms a token"],
    found.sweep.map((row) => [row.concurrency, ...speeds(row), row.best.k, number(row.gain, 2) + "x", number(row.best.tpot * 1e3, 1)]));
  chart(document.getElementById("gain"), [
    { name: "no speculation = 1", color: "#888", points: found.sweep.map((row) => [row.concurrency, 1]) },
    { name: "best K", color: "#0a7d5a", points: found.sweep.map((row) => [row.concurrency, row.gain]) },
  ], "requests in flight", "times", true);
  chart(document.getElementById("pareto"), [
    { name: "K = 0", color: "#888", points: found.sweep.map((row) => [1 / row.points[0].tpot, row.points[0].tokens]) },
    { name: "best K", color: "#0a7d5a", points: found.sweep.map((row) => [1 / row.best.tpot, row.best.tokens]) },
  ], "tokens a second that a user sees", "tokens a second of a replica", false);
  const price = gpu.price;
  document.getElementById("origin").textContent =
    (price ? `Price at the start: ${price.words}. ` : "No price is known for this GPU: the slider is a guess. ") +
    "A month is 730 hours. " +
    (gpu.runsPaceline ? "" : "Paceline's kernels were not written for this GPU: these are its bytes and rates at the same efficiency. ") +
    "Times are means of the engine, without network and server. " +
    (isPlan ? "These are the figures of the command above; away from them the page interpolates between the points of a grid, within about 2 %."
      : "Interpolated between the points of a grid, within about 2 %; the command gives the exact figures.");
}

function start(data) {
  const input = initial(data), form = document.getElementById("inputs"), plan = data.plan;
  const draft = plan.question.draft && (plan.question.draft.name || plan.question.draft);
  document.getElementById("about").textContent =
    `${plan.question.model.name} with ${draft || "no draft"}. Computed ${plan.date.slice(0, 10)} by: ${plan.command}. ` +
    (plan.efficiency.calibrated_with ? `Calibrated with ${plan.efficiency.calibrated_with}.` : "From first principles, with kernels measured one by one on an H200.");
  const update = () => show(data, input);
  const shows = {}, degrees = [...new Set(Object.values(data.gpus).flatMap((gpu) => Object.keys(gpu.tps).map(Number)))];
  degrees.sort((a, b) => a - b);
  choice(form, "GPU", Object.entries(data.gpus).map(([key, gpu]) => [key, gpu.name]), input.gpu, (key) => {
    input.gpu = key;
    if (data.gpus[key].price) input.price = data.gpus[key].price.usd_per_gpu_hour;
    shows.price();
    update();
  });
  choice(form, "tensor parallelism", [[0, "best"], ...degrees.map((tp) => [tp, `TP=${tp}`])], 0, (tp) => {
    input.tp = Number(tp);
    update();
  });
  for (const option of options(data)) shows[option[0]] = slider(form, option, input, update);
  update();
}

if (typeof module !== "undefined") module.exports = { answer, shown, initial, operate, fleet, verdict };
