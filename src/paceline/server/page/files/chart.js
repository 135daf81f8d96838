// Small charts in SVG. Colours and fonts are the style sheet's.

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  return element;
}

/**
 * A line over time; null is a gap. `capacity`: how many values fill the width.
 * Returns the value at the top of the chart.
 */
export function line(svg, values, capacity, label) {
  const [width, height] = [600, 120];
  const top = niceTop(Math.max(0, ...values.filter((value) => value !== null)));
  const x = (place) => width - ((values.length - 1 - place) * width) / (capacity - 1);
  const y = (value) => height - 2 - (value / top) * (height - 10);
  const grid = [0.5, 1].map((part) => shape("line", { x1: 0, x2: width, y1: y(top * part), y2: y(top * part), class: "grid" }));
  const drawn = [];
  for (const run of runs(values)) {
    const points = run.map(([place, value]) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`);
    const [left, right] = [x(run[0][0]), x(run.at(-1)[0])];
    drawn.push(shape("polygon", { points: `${left},${height} ${points.join(" ")} ${right},${height}`, class: "area" }));
    drawn.push(shape("polyline", { points: points.join(" "), class: "line" }));
  }
  svg.replaceChildren(...grid, ...drawn);
  svg.setAttribute("aria-label", label);
  return top;
}

/** The values without their gaps: lists of [place, value]. */
function runs(values) {
  const found = [];
  let open = null;
  values.forEach((value, place) => {
    if (value === null) open = null;
    else if (open) open.push([place, value]);
    else found.push((open = [[place, value]]));
  });
  return found;
}

function niceTop(most) {
  if (most <= 0) return 10;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((factor) => factor * power).find((top) => top >= most);
}

/** Bars of shares 0..1; null: nothing known. `names` stand below, `words` above. */
export function bars(svg, shares, names, words, label) {
  const [width, height, foot, head] = [svg.clientWidth || 240, svg.clientHeight || 120, 18, 18];
  const slot = width / Math.max(shares.length, 4);
  const drawn = [];
  shares.forEach((share, place) => {
    const tall = share === null ? 0 : Math.max(1.5, share * (height - foot - head));
    const middle = slot * (place + 0.5);
    const wide = Math.min(40, slot - 6);
    const box = { x: middle - wide / 2, y: height - foot - tall, width: wide, height: tall, rx: 2 };
    drawn.push(shape("rect", { ...box, class: "bar" }));
    drawn.push(shape("text", { x: middle, y: height - foot - tall - 4, class: "value" }, words[place]));
    drawn.push(shape("text", { x: middle, y: height - 4, class: "name" }, names[place]));
  });
  drawn.push(shape("line", { x1: 0, x2: width, y1: height - foot, y2: height - foot, class: "grid" }));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...drawn);
  svg.setAttribute("aria-label", label);
}
