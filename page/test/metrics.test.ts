import assert from "node:assert/strict";
import { test } from "node:test";
import { LastMinute, between, buckets, parse, quantile, quantileOf, rateOf, total } from "../src/logic/metrics.ts";

const TEXT = `# HELP orderfree_updates Updates by outcome.
# TYPE orderfree_updates counter
orderfree_updates_total{outcome="acked"} 40
orderfree_updates_total{outcome="refused"} 2
orderfree_requests_total{route="/v1/{kind}/{group}",method="GET",status="200"} 3
odd_total{name="a \\"b\\", c\\\\d"} 1.5e3
orderfree_clock_offset_us -12
t_seconds_bucket{le="0.1"} 5
t_seconds_bucket{le="+Inf"} 10
t_seconds_bucket{le="0.2"} 9
# EOF
`;

test("samples keep names, labels and values", () => {
  const metrics = parse(TEXT);
  assert.equal(total(metrics, "orderfree_updates_total"), 42);
  assert.equal(total(metrics, "orderfree_updates_total", { outcome: "refused" }), 2);
  assert.equal(total(metrics, "orderfree_clock_offset_us"), -12);
  assert.equal(total(metrics, "no_such_metric"), undefined);
  assert.deepEqual(metrics.get("odd_total"), [{ labels: { name: 'a "b", c\\d' }, value: 1500 }]);
  assert.equal(metrics.get("orderfree_requests_total")?.[0]?.labels["route"], "/v1/{kind}/{group}");
});

test("buckets rise, whatever their order was", () => {
  assert.deepEqual(buckets(parse(TEXT), "t_seconds"), [[0.1, 5], [0.2, 9], [Infinity, 10]]);
});

test("a quantile lies within its bucket, in proportion", () => {
  const all = buckets(parse(TEXT), "t_seconds");
  assert.equal(quantile(0.25, all), 0.05);
  assert.equal(quantile(0.5, all), 0.1);
  assert.ok(Math.abs((quantile(0.7, all) ?? 0) - 0.15) < 1e-12);
  assert.equal(quantile(0.99, all), 0.2, "beyond the last bound, that bound is all that is known");
  assert.equal(quantile(0.5, []), undefined);
  assert.equal(quantile(0.5, [[1, 0], [Infinity, 0]]), undefined);
});

test("the difference of two readings is what came between", () => {
  assert.deepEqual(between([[1, 2], [Infinity, 3]], [[1, 5], [Infinity, 9]]), [[1, 3], [Infinity, 6]]);
});

function reading(at: number, updates: number, requests = updates) {
  const text = `orderfree_updates_total ${updates}\norderfree_request_seconds_count ${requests}\n` +
    `orderfree_request_seconds_bucket{le="0.5"} ${requests}\norderfree_request_seconds_bucket{le="+Inf"} ${requests}\n`;
  return { at, metrics: parse(text) };
}

test("rates and quantiles are those of the last minute", () => {
  const minute = new LastMinute();
  minute.add(reading(0, 1_000_000));
  assert.equal(minute.rate("orderfree_updates_total"), undefined, "one reading has no rate");
  minute.add(reading(2_000, 1_000_020));
  assert.equal(minute.rate("orderfree_updates_total"), 10);
  assert.equal(minute.quantile(0.5, "orderfree_request_seconds"), 0.25);
  for (let at = 4_000; at <= 120_000; at += 2_000) minute.add(reading(at, 1_000_020));
  assert.equal(minute.rate("orderfree_updates_total"), 0, "what is older than a minute is gone");
  assert.ok(minute.readings.length <= 32);
});

test("a process that begins again begins a new minute", () => {
  const minute = new LastMinute();
  minute.add(reading(0, 500));
  minute.add(reading(2_000, 3));
  assert.equal(minute.rate("orderfree_updates_total"), undefined);
  minute.add(reading(4_000, 5));
  assert.equal(minute.rate("orderfree_updates_total"), 1);
});

test("a series has a figure for each pair of readings", () => {
  const minute = new LastMinute();
  minute.add(reading(0, 0));
  minute.add(reading(2_000, 10));
  minute.add(reading(4_000, 10));
  assert.deepEqual(minute.series(rateOf("orderfree_updates_total")), [{ at: 2_000, value: 5 }, { at: 4_000, value: 0 }]);
  const medians = minute.series(quantileOf(0.5, "orderfree_request_seconds"));
  assert.deepEqual(medians, [{ at: 2_000, value: 0.25 }, { at: 4_000, value: undefined }]);
});
