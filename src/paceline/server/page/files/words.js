// Figures as they are written. A dash stands where there is none.

const NONE = "–";

export function number(value, digits = null) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  return value.toFixed(digits ?? (value < 100 ? 1 : 0));
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? NONE : `${(100 * share).toFixed(digits)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  return value < 1 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
}
