// Why a key has its value: its rows as parts, and the addition of those that count.
import type { PhaseName, ShardsView, Value } from "../types.ts";
import { type Decimal, ZERO, equals, minus, plus } from "./decimal.ts";
import { shapeOf } from "./shapes.ts";

export type Phase = "tally" | PhaseName;

/** From what is settled to what still changes. */
export const PHASES: readonly Phase[] = ["tally", "final", "expired", "draining", "live"];

export interface Part {
  id: string;
  phase: Phase;
  value: Value | null;
  /** Undefined for kinds that do not add, and for a row that can't be decoded. */
  amount: Decimal | undefined;
  size: number;
  /** Why the row does not count, if it does not. */
  ignored: "in_tally" | "cleared" | undefined;
  /** In ms since 1970. Undefined for the tally, which never expires. */
  expiresAt: number | undefined;
  mutator: string | undefined;
  /** The number of ids in a pack; undefined for rows of updates without ids. */
  ids: number | undefined;
  error: string | undefined;
}

/** The tally of a key that was deleted, or forgotten because it was idle: it has a fence and no value. */
export function isGrave(part: Part): boolean {
  return part.phase === "tally" && part.value === null && part.error === undefined;
}

export function partsOf(view: ShardsView): Part[] {
  const shape = shapeOf(view.kind);
  const measure = (value: unknown) => ({
    value: (value ?? null) as Value | null,
    amount: value === null || value === undefined ? undefined : shape.amount?.(value as Value),
    size: value === null || value === undefined ? 0 : shape.size(value as Value),
  });
  const shards = view.shards.map((row): Part => ({
    id: `${row.mutator_id} ${row.expires_at}`,
    phase: row.phase,
    ...measure(row.value),
    ignored: row.in_tally ? "in_tally" : row.cleared ? "cleared" : undefined,
    expiresAt: Date.parse(row.expires_at),
    mutator: row.mutator_id,
    ids: row.ids,
    error: row.error ?? undefined,
  }));
  if (!view.tally) return shards;
  const tally: Part = {
    id: "tally",
    phase: "tally",
    ...measure(view.tally.forgotten ? null : view.tally.value),
    ignored: undefined,
    expiresAt: undefined,
    mutator: undefined,
    ids: undefined,
    error: view.tally.error ?? undefined,
  };
  return [tally, ...shards];
}

export interface Term {
  phase: Phase;
  amount: Decimal;
  /** The parts that this term adds. */
  ids: string[];
}

export interface Addition {
  terms: Term[];
  /** What ids in several packs would count twice. It is subtracted. */
  shared: Decimal | undefined;
  total: Decimal;
}

/** The most terms that are written out. Beyond it, the rows of a phase are one term. */
const TERMS_MAX = 8;

/**
 * The addition of the parts that count. Undefined for kinds that do not add, and if a row can't be decoded.
 * `ids` is the number of ids in all these parts, where one in several counts once, and `read` the key's value.
 */
export function addition(parts: Part[], ids: number | null | undefined, read: Decimal | undefined): Addition | undefined {
  const counting = parts.filter((part) => part.ignored === undefined && (part.value !== null || part.error));
  const terms: Term[] = [];
  let sum = ZERO;
  for (const part of counting) {
    if (!part.amount) return undefined;
    sum = plus(sum, part.amount);
    terms.push({ phase: part.phase, amount: part.amount, ids: [part.id] });
  }
  const packed = counting.reduce((count, part) => count + (part.ids ?? 0), 0);
  const shared = typeof ids === "number" && packed > ids && read && !equals(sum, read) ? minus(sum, read) : undefined;
  return { terms: grouped(terms), shared, total: shared && read ? read : sum };
}

function grouped(terms: Term[]): Term[] {
  return PHASES.flatMap((phase) => {
    const of = terms.filter((term) => term.phase === phase);
    if (terms.length <= TERMS_MAX || of.length <= 2) return of;
    return [{ phase, amount: of.map(({ amount }) => amount).reduce(plus), ids: of.flatMap((term) => term.ids) }];
  });
}
