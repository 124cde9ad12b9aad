// What the page knows about each kind beyond `GET /v1/kinds`: how its parts come together, and how a value reads in a line.
import type { Estimate, Extrema, Histogram, ItemSet, Register, Stats, TopList, Value, Whole } from "../types.ts";
import { type Decimal, decimal } from "./decimal.ts";
import { compact, digits, double, item, plural } from "./format.ts";

export interface Shape {
  /** The amount of a row that adds up to the key's. Undefined for kinds whose rows are merged in another way. */
  amount?: (value: Value) => Decimal;
  /** What that amount, or else the size of a row, counts. */
  unit: string;
  /** How large a row is drawn. */
  size: (value: Value) => number;
  /** The value in a few words. */
  brief: (value: Value) => string;
  /** How rows become one value, as a sentence. */
  merge: string;
  /** The value is one number in the first place. */
  isNumber?: boolean;
  /** Values can be large, so the page reads few of them at once. */
  isLarge?: boolean;
  /** Reads of a group can leave out the items. */
  hasItems?: boolean;
}

const whole = (value: Whole): number => Number(value);

const SUM = { isNumber: true, unit: "", size: (value: Value) => Math.abs(Number(value)), brief: (value: Value) => digits(value as Whole) };

const estimate = (merge: string): Shape => ({
  isNumber: true,
  unit: "items",
  size: (value) => (value as Estimate).estimate,
  brief: (value) => `≈ ${digits(Math.round((value as Estimate).estimate))}`,
  merge,
});

const set = (merge: string): Shape => ({
  unit: "items",
  size: (value) => whole((value as ItemSet).size),
  brief: (value) => `${digits((value as ItemSet).size)} items`.replace(/^1 items$/, "1 item"),
  merge,
  isLarge: true,
  hasItems: true,
});

const SHAPES: Record<string, Shape> = {
  counter: { ...SUM, amount: (value) => decimal(value as Whole), merge: "The rows are added." },
  sum: { ...SUM, amount: (value) => decimal(value as Whole), merge: "The rows are added." },
  stats: {
    isNumber: true,
    amount: (value) => decimal((value as Stats).count),
    unit: "values",
    size: (value) => whole((value as Stats).count),
    brief: (value) => `${digits((value as Stats).count)} × mean ${double((value as Stats).mean, 4)}`,
    merge: "The counts and the exact sums of the rows are added. The mean and the deviation follow from them.",
  },
  extrema: {
    unit: "",
    size: () => 1,
    brief: (value) => {
      const { min, max } = value as Extrema;
      return min && max ? `${double(min.value, 4)} … ${double(max.value, 4)}` : "none";
    },
    merge: "The smallest minimum and the largest maximum of all rows win.",
  },
  histogram: {
    isNumber: true,
    amount: (value) => decimal((value as Histogram).count),
    unit: "values",
    size: (value) => whole((value as Histogram).count),
    brief: (value) => {
      const { count, quantiles } = value as Histogram;
      const half = quantiles.find(({ q }) => q === 0.5);
      return half ? `${digits(count)} × p50 ${double(half.value, 3)}` : `${digits(count)} values`;
    },
    merge: "The counts of each bucket are added. The quantiles follow from them.",
  },
  distinct: estimate("The sketches are united. An item that several rows saw counts once."),
  audience: estimate("The sketches are united. An item that several rows saw counts once."),
  gset: set("The sets are united. An item in several rows is one item."),
  lww_set: set("For each item, the last add or remove of all rows wins."),
  or_set: set("The adds of all rows are united, without those that a remove had seen."),
  register: {
    unit: "",
    size: (value) => ((value as Register).is_set ? 1 : 0.1),
    brief: (value) => ((value as Register).is_set ? JSON.stringify((value as Register).value) : "not set"),
    merge: "The write with the latest time wins.",
    isLarge: true,
  },
  topk: {
    isNumber: true,
    amount: (value) => decimal((value as TopList).total),
    unit: "weight",
    size: (value) => whole((value as TopList).total),
    brief: (value) => {
      const { total, items } = value as TopList;
      return items[0] ? `${compact(Number(total))}, first ${item(items[0].item)}` : digits(total);
    },
    merge: "The weights of each item are added, and so are the error bounds.",
    isLarge: true,
  },
};

const OTHER: Shape = { unit: "", size: () => 1, brief: (value) => JSON.stringify(value), merge: "The rows are merged.", isLarge: true };

export function shapeOf(kind: string): Shape {
  return SHAPES[kind] ?? OTHER;
}

export function rows(count: number): string {
  return plural(count, "row");
}
