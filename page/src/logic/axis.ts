// Where an axis has its ticks.

/** Round values within a range, about this many: 0, 20, 40, … */
export function ticks(low: number, high: number, wanted: number): number[] {
  const range = high - low;
  if (!(range > 0) || !Number.isFinite(range)) return [low];
  const rough = range / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5].find((factor) => factor * power >= rough * 0.999) ?? 10) * power;
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const round = (value: number) => (decimals > 0 ? Number(value.toFixed(Math.min(100, decimals))) : Math.round(value));
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => round((first + index) * step));
}

/** Powers of ten within a range; with 2 and 5 between them if there are few. */
export function logTicks(low: number, high: number, wanted: number): number[] {
  const powers = (factors: number[]) => {
    const all: number[] = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** power).toPrecision(12));
        if (value >= low && value <= high) all.push(value);
      }
    }
    return all;
  };
  const tens = powers([1]);
  if (tens.length >= 3 || tens.length >= wanted) {
    const every = Math.ceil(tens.length / Math.max(1, wanted));
    return tens.filter((_, index) => index % every === 0);
  }
  return powers([1, 2, 5]);
}

const SECOND = 1_000;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600].map((seconds) => seconds * SECOND);

/** Whole seconds, minutes or hours between two times in ms. */
export function timeTicks(low: number, high: number, wanted: number): number[] {
  const step = STEPS.find((size) => (high - low) / size <= wanted) ?? 3_600_000;
  const all: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) all.push(at);
  return all;
}
