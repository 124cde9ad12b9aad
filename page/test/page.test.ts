import assert from "node:assert/strict";
import { test } from "node:test";
import { binsOf } from "../src/logic/bins.ts";
import { foldReport } from "../src/logic/fold.ts";
import { uuid7 } from "../src/logic/ids.ts";
import { parse, toKey } from "../src/logic/route.ts";
import { CUTOFF_AT, FENCE_AT, NOW_AT, horizon, later, place } from "../src/logic/timeline.ts";
import type { FoldView } from "../src/types.ts";

test("addresses of keys survive any name", () => {
  const key = { kind: "counter", group: "a/b", name: "50 % #1?x=é/" };
  assert.deepEqual(parse(toKey(key)), { page: "key", ...key });
  assert.deepEqual(parse(""), { page: "keys" });
  assert.deepEqual(parse("#/counter"), { page: "kind", kind: "counter" });
  assert.deepEqual(parse("#/counter/site"), { page: "group", kind: "counter", group: "site" });
  assert.deepEqual(parse("#/installation"), { page: "installation" });
  assert.deepEqual(parse("#/counter/%zz"), { page: "group", kind: "counter", group: "%zz" });
});

test("ids are UUIDs of version 7 with the time inside, and sort by it", () => {
  const id = uuid7(0x0123456789ab, new Uint8Array(10).fill(0xff));
  assert.equal(id, "01234567-89ab-7fff-bfff-ffffffffffff");
  assert.match(uuid7(), /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  assert.ok(uuid7(1_000) < uuid7(2_000));
});

const TIMES = { fence: 1_000, cutoff: 5_000, now: 8_000 };

test("rows stand in the zone of their phase and never jump", () => {
  const at = (expiry: number) => place(expiry, TIMES, 500, 92_000);
  assert.ok(at(900) < FENCE_AT);
  assert.equal(at(1_001).toFixed(3), FENCE_AT.toFixed(3));
  assert.equal(at(5_000), CUTOFF_AT);
  assert.equal(at(8_000), NOW_AT);
  assert.ok(at(100_000) < 1);
  for (let expiry = 1_001, before = 0; expiry < 100_000; expiry += 100) {
    const here = at(expiry);
    assert.ok(here >= before, `${expiry}`);
    before = here;
  }
});

test("the picture looks ahead to a round time", () => {
  assert.deepEqual([0, 60_001, 80_000_000, 9e9].map(horizon), [60_000, 120_000, 86_400_000, 9e9]);
});

test("time moves the cutoff and leaves the fence", () => {
  assert.deepEqual(later(TIMES, 250), { fence: 1_000, cutoff: 5_250, now: 8_250 });
  assert.ok(place(9_000, later(TIMES, 500), 0, 60_000) < place(9_000, TIMES, 0, 60_000));
});

test("bins hold every value once", () => {
  const buckets = [
    { lower: 1, upper: 2, count: "10" },
    { lower: 2, upper: 4, count: "20" },
    { lower: 64, upper: 100, count: 7 },
  ];
  const bins = binsOf(buckets, 16);
  assert.ok(bins.isLog);
  assert.ok(Math.abs(bins.counts.reduce((sum, count) => sum + count, 0) - 37) < 1e-9);
  assert.ok((bins.at[0] ?? 0) > 1 && (bins.at[15] ?? 0) < 100);
  const signed = binsOf([{ lower: -2, upper: -1, count: 1 }, { lower: 0, upper: 0, count: 3 }], 4);
  assert.deepEqual([signed.isLog, signed.counts], [false, [0.5, 0.5, 0, 3]]);
  const single = binsOf([{ lower: 5, upper: 5, count: 2 }], 3);
  assert.deepEqual(single.counts, [0, 2, 0]);
  assert.deepEqual(binsOf([], 3).counts, []);
});

const FOLD = { kind: "counter", group: "g", name: "n", dry_run: true, written: false, fence_before: null, fence: null,
  folded: 0, cleared: 0, zombies: 0, kept: 1, more: false, full: false, forgotten: false } as FoldView;

test("a fold is told in sentences", () => {
  assert.equal(foldReport(FOLD),
    "A fold would move nothing: no shard is final. 1 shard stays: it is not final yet. The value would stay the same.");
  const done = foldReport({ ...FOLD, dry_run: false, folded: 12, kept: 0, zombies: 1, fence: "2020-01-02T03:04:05Z" });
  assert.match(done, /^The fold moved 12 final shards into the tally\. It deleted 1 row below the fence/);
  assert.match(done, /The fence moved to 2020-01-02 .*\. The value stayed the same\.$/);
});
