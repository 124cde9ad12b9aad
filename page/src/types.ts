// The shapes of the server's answers, by the names that the page uses.
import type { Decimal } from "./logic/decimal.ts";
import type { components } from "./openapi.d.ts";

type Schemas = components["schemas"];

export type KindView = Schemas["KindView"];
export type ShardsView = Schemas["ShardsView"];
export type ShardRow = Schemas["ShardRow"];
export type PhaseName = Schemas["PhaseName"];
export type FoldView = Schemas["FoldView"];
export type GroupsView = Schemas["GroupsView"];
export type ResetView = Schemas["ResetView"];
export type VersionView = Schemas["VersionView"];
export type ProbeView = Schemas["ProbeView"];
export type UpdateView = Schemas["UpdateView"];

/** An address of a key. */
export interface Key {
  kind: string;
  group: string;
  name: string;
}

/** With `numbers=string`, whole numbers come in quotes; doubles stay numbers. */
export type Whole = number | string;

/** A value of a key, and when this page got it. */
export interface Point {
  at: number;
  value: Decimal;
}

/** A key with its value, as a read or the watch stream gives it. */
export interface Reading extends Key {
  value: Value;
  /** The key does not exist, and the value is that of an empty one. */
  absent?: boolean;
  exact: boolean;
  /** Where several data centres have replicas and the read need not see all of them: that of the pod. */
  datacenter?: string;
  as_of: string;
  consistency: string;
  shards: number;
  folded_through?: string | null;
}

/** A key on a page of its group: a value, or why it can't be read. */
export interface Entry {
  name: string;
  value?: Value;
  problem?: ProblemBody;
}

export interface ProblemBody {
  type: string;
  title: string;
  status: number;
  detail: string;
  instance?: string;
  outcome?: "refused" | "unknown";
}

export interface Histogram {
  count: Whole;
  sum: number | null;
  min: number | null;
  max: number | null;
  relative_error: number;
  quantiles: { q: number; value: number | null }[];
  buckets?: Bucket[];
}

export interface Bucket {
  lower: number;
  upper: number;
  count: Whole;
}

export interface Stats {
  count: Whole;
  sum: number | null;
  mean: number | null;
  variance: number | null;
  stddev: number | null;
  min: number | null;
  max: number | null;
}

export interface Observation {
  value: number;
  label?: string | null;
}

export interface Extrema {
  min: Observation | null;
  max: Observation | null;
}

export interface Estimate {
  estimate: number;
  lower: number;
  upper: number;
  lg_k: Whole;
}

export interface TopList {
  total: Whole;
  error: Whole;
  k: Whole;
  items: { item: Item; at_least: Whole; at_most: Whole }[];
}

export type Item = number | string;

export interface ItemSet {
  size: Whole;
  items?: (Item | { item: Item; seen: string })[];
  item?: Item;
  contains?: boolean;
}

export interface Register {
  is_set: boolean;
  value: unknown;
  timestamp: Whole | null;
}

export type Value = Whole | Histogram | Stats | Extrema | Estimate | TopList | ItemSet | Register;

export interface Hottest {
  keys: (Key & { ops_per_second: number })[];
}
