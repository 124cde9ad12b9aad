// A histogram's buckets as evenly spaced bins that a chart can draw.
import type { Bucket } from "../types.ts";

export interface Bins {
  /** Bins have equal widths on a logarithmic axis. */
  isLog: boolean;
  /** The middle of each bin. */
  at: number[];
  /** The number of values in each. Buckets on an edge are split in proportion. */
  counts: number[];
}

export function binsOf(buckets: Bucket[], wanted: number): Bins {
  const first = buckets[0];
  const last = buckets.at(-1);
  if (!first || !last) return { isLog: false, at: [], counts: [] };
  const isLog = first.lower > 0 && last.upper / first.lower > 20;
  const to = isLog ? Math.log : (value: number) => value;
  const from = isLog ? Math.exp : (value: number) => value;
  let [low, high] = [to(first.lower), to(last.upper)];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const width = (high - low) / wanted;
  const counts = new Array<number>(wanted).fill(0);
  const put = (index: number, count: number) => {
    const bin = Math.min(wanted - 1, Math.max(0, index));
    counts[bin] = (counts[bin] ?? 0) + count;
  };
  for (const bucket of buckets) {
    const [left, right] = [to(bucket.lower), to(bucket.upper)];
    const count = Number(bucket.count);
    if (right <= left) {
      put(Math.floor((left - low) / width), count);
      continue;
    }
    const [begin, end] = [Math.floor((left - low) / width), Math.ceil((right - low) / width)];
    for (let index = begin; index < end; index++) {
      const overlap = Math.min(right, low + (index + 1) * width) - Math.max(left, low + index * width);
      if (overlap > 0) put(index, (count * overlap) / (right - left));
    }
  }
  return { isLog, at: counts.map((_, index) => from(low + (index + 0.5) * width)), counts };
}
