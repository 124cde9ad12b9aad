import assert from "node:assert/strict";
import { test } from "node:test";
import { addition, isGrave, partsOf } from "../src/logic/addition.ts";
import { decimal, equals, near, text } from "../src/logic/decimal.ts";
import type { ShardRow, ShardsView, Value } from "../src/types.ts";

let ids = 0;

function row(phase: ShardRow["phase"], value: Value | null, more: Partial<ShardRow> = {}): ShardRow {
  ids += 1;
  return { mutator_id: `m${ids}`, expires_at: "2026-11-28T08:00:00.000000Z", phase, in_tally: false, cleared: false,
    value: value as ShardRow["value"], ...more } as ShardRow;
}

function view(kind: string, tally: Value | null, shards: ShardRow[], more: Partial<ShardsView> = {}): ShardsView {
  const fold = { expires_at: null, fence: "2026-11-27T08:00:00.000000Z", value: tally, full: false, forgotten: false };
  return { kind, group: "g", name: "n", now: "2026-11-28T08:00:00Z", cutoff: "2026-11-28T07:57:00Z",
    tally: tally === null ? null : fold, shards, ids: 0, id_conflicts: 0, ...more } as unknown as ShardsView;
}

function written(of: ShardsView, read?: string): string | undefined {
  const sum = addition(partsOf(of), of.ids, read === undefined ? undefined : decimal(read));
  if (!sum) return undefined;
  const terms = sum.terms.map(({ amount }) => text(amount)).join(" + ");
  const shared = sum.shared ? ` - ${text(sum.shared)}` : "";
  return `${terms}${shared} = ${text(sum.total)}`;
}

test("the tally and the rows that count add up", () => {
  assert.equal(written(view("counter", "1200", [row("live", "34"), row("final", "5")])), "1200 + 5 + 34 = 1239");
});

test("rows that are in the tally or were cleared do not count", () => {
  const shards = [row("final", "7", { in_tally: true }), row("live", "8", { cleared: true }), row("live", "1")];
  const parts = partsOf(view("counter", "10", shards));
  assert.deepEqual(parts.map(({ ignored }) => ignored), [undefined, "in_tally", "cleared", undefined]);
  assert.equal(written(view("counter", "10", shards)), "10 + 1 = 11");
});

test("digits beyond a double are exact", () => {
  const huge = "170141183460469231731687303715884105727";
  assert.equal(written(view("counter", huge, [row("live", "-1")])), `${huge} + -1 = 170141183460469231731687303715884105726`);
  assert.equal(written(view("sum", "0.1", [row("live", "0.20"), row("live", "-12345678901234567890.003")])),
    "0.1 + 0.20 + -12345678901234567890.003 = -12345678901234567889.703");
});

test("kinds that count values add their counts", () => {
  const counted = (count: string) => ({ count, sum: 1, mean: 1, variance: 0, stddev: 0, min: 1, max: 1 });
  assert.equal(written(view("stats", counted("20"), [row("live", counted("3"))])), "20 + 3 = 23");
  const list = (total: string) => ({ total, error: "0", k: "256", items: [] });
  assert.equal(written(view("topk", null, [row("live", list("5")), row("live", list("6"))])), "5 + 6 = 11");
});

test("kinds that are merged in another way have no addition", () => {
  assert.equal(written(view("gset", null, [row("live", { size: "2", items: ["a", "b"] })])), undefined);
});

test("a row that can't be decoded leaves no sum", () => {
  assert.equal(written(view("counter", "5", [row("final", null, { error: "checksum" })])), undefined);
});

test("a forgotten tally adds nothing", () => {
  const of = view("counter", "0", [row("live", "4")]);
  if (of.tally) of.tally.forgotten = true;
  assert.equal(written(of), "4 = 4");
  assert.deepEqual(partsOf(of).map(isGrave), [true, false]);
  assert.deepEqual(partsOf(view("counter", "0", [])).map(isGrave), [false]);
});

test("ids in two packs count once", () => {
  const packs = [row("live", "10", { ids: 4 }), row("live", "8", { ids: 3 })];
  assert.equal(written(view("counter", "100", packs, { ids: 5 }), "113"), "100 + 10 + 8 - 5 = 113");
  assert.equal(written(view("counter", "100", packs, { ids: 7 }), "113"), "100 + 10 + 8 = 118", "no id is in both");
});

test("many rows of a phase are one term", () => {
  const shards = [...Array.from({ length: 300 }, () => row("final", "2")), row("live", "1"), row("draining", "3")];
  const sum = addition(partsOf(view("counter", "10", shards)), 0, undefined);
  assert.deepEqual(sum?.terms.map(({ phase, amount, ids: of }) => [phase, text(amount), of.length]), [
    ["tally", "10", 1],
    ["final", "600", 300],
    ["draining", "3", 1],
    ["live", "1", 1],
  ]);
});

test("decimals keep their scale and compare by value", () => {
  assert.equal(text(decimal("-0.050")), "-0.050");
  assert.ok(equals(decimal("1.50"), decimal("1.5")));
  assert.equal(near(decimal("-2.25")), -2.25);
  assert.throws(() => decimal("1e5"), RangeError);
});
