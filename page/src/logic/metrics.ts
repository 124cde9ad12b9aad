// OpenMetrics text, and rates and quantiles of the last minute from samples of it.

export interface Sample {
  labels: Record<string, string>;
  value: number;
}

export type Metrics = Map<string, Sample[]>;

export function parse(text: string): Metrics {
  const metrics: Metrics = new Map();
  for (const line of text.split("\n")) {
    if (line === "" || line.startsWith("#")) continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name = "", labels = "", value = ""] = match;
    const samples = metrics.get(name) ?? [];
    samples.push({ labels: parseLabels(labels), value: parseNumber(value) });
    metrics.set(name, samples);
  }
  return metrics;
}

function parseLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name = "", value = ""] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replace(/\\(.)/g, (_, char: string) => (char === "n" ? "\n" : char));
  }
  return labels;
}

function parseNumber(text: string): number {
  if (text === "+Inf") return Infinity;
  return text === "-Inf" ? -Infinity : Number(text);
}

/** The sum of a metric's samples with these labels. Undefined if the server has no such metric. */
export function total(metrics: Metrics, name: string, labels: Record<string, string> = {}): number | undefined {
  const samples = metrics.get(name);
  if (!samples) return undefined;
  const fits = (sample: Sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value);
  return samples.filter(fits).reduce((sum, sample) => sum + sample.value, 0);
}

/** Upper bounds with the number of observations up to each, by rising bound. */
export type Buckets = [bound: number, upTo: number][];

export function buckets(metrics: Metrics, name: string): Buckets {
  const samples = metrics.get(`${name}_bucket`) ?? [];
  const pairs = samples.map(({ labels, value }): [number, number] => [parseNumber(labels["le"] ?? ""), value]);
  return pairs.sort(([left], [right]) => left - right);
}

/** What was observed between two readings of a histogram. */
export function between(before: Buckets, after: Buckets): Buckets {
  const earlier = new Map(before);
  return after.map(([bound, upTo]) => [bound, upTo - (earlier.get(bound) ?? 0)]);
}

/**
 * A quantile from buckets, linear within its bucket as Prometheus estimates it. Undefined without observations.
 * Beyond the last finite bound, that bound is all that is known.
 */
export function quantile(q: number, all: Buckets): number | undefined {
  const count = all.at(-1)?.[1] ?? 0;
  if (count <= 0) return undefined;
  const rank = q * count;
  let [lower, below] = [0, 0];
  for (const [bound, upTo] of all) {
    if (upTo >= rank && upTo > below) {
      return bound === Infinity ? lower : lower + (bound - lower) * ((rank - below) / (upTo - below));
    }
    if (bound !== Infinity) lower = bound;
    below = upTo;
  }
  return lower;
}

export interface Reading {
  /** When it was read, in ms. */
  at: number;
  metrics: Metrics;
}

const MINUTE = 60_000;

/** Readings of the last minute. */
export class LastMinute {
  readings: Reading[] = [];

  add(reading: Reading): void {
    const last = this.readings.at(-1);
    // A counter that fell belongs to a new process.
    const requests = (metrics: Metrics) => total(metrics, "orderfree_request_seconds_count") ?? 0;
    if (last && requests(reading.metrics) < requests(last.metrics)) this.readings = [];
    this.readings = [...this.readings.filter(({ at }) => at >= reading.at - MINUTE - 1_000), reading];
  }

  get latest(): Metrics | undefined {
    return this.readings.at(-1)?.metrics;
  }

  /** How much a counter rose. */
  rise(name: string, labels?: Record<string, string>): number {
    const [first, last] = [this.readings[0], this.readings.at(-1)];
    if (!first || !last) return 0;
    return (total(last.metrics, name, labels) ?? 0) - (total(first.metrics, name, labels) ?? 0);
  }

  /** How much a counter rose each second. Undefined before there are two readings. */
  rate(name: string, labels?: Record<string, string>): number | undefined {
    const [first, last] = [this.readings[0], this.readings.at(-1)];
    if (!first || !last || last.at <= first.at) return undefined;
    return (this.rise(name, labels) / (last.at - first.at)) * 1000;
  }

  quantile(q: number, name: string): number | undefined {
    const [first, last] = [this.readings[0], this.readings.at(-1)];
    if (!first || !last || first === last) return undefined;
    return quantile(q, between(buckets(first.metrics, name), buckets(last.metrics, name)));
  }

  /** A figure of each two neighbouring readings, with the time of the later one. */
  series(figure: (before: Reading, after: Reading) => number | undefined): { at: number; value: number | undefined }[] {
    return this.readings.slice(1).map((after, index) => {
      const before = this.readings[index] as Reading;
      return { at: after.at, value: figure(before, after) };
    });
  }
}

/** The rate of a counter between two readings. */
export function rateOf(name: string, labels?: Record<string, string>) {
  return (before: Reading, after: Reading): number =>
    (((total(after.metrics, name, labels) ?? 0) - (total(before.metrics, name, labels) ?? 0)) * 1000) / (after.at - before.at);
}

/** A quantile of a histogram between two readings. */
export function quantileOf(q: number, name: string) {
  return (before: Reading, after: Reading): number | undefined =>
    quantile(q, between(buckets(before.metrics, name), buckets(after.metrics, name)));
}
