import assert from "node:assert/strict";
import { test } from "node:test";
import { clock, compact, digits, double, full, item, shortClock, span } from "../src/logic/format.ts";

test("digits keep everything and get commas", () => {
  assert.equal(digits(0), "0");
  assert.equal(digits("999"), "999");
  assert.equal(digits("1000"), "1,000");
  assert.equal(digits("-1234567"), "−1,234,567");
  assert.equal(digits("170141183460469231731687303715884105727"), "170,141,183,460,469,231,731,687,303,715,884,105,727");
  assert.equal(digits("12345678901234567890.3400"), "12,345,678,901,234,567,890.3400");
  assert.equal(digits("-0.000000000000000001"), "−0.000000000000000001");
});

test("doubles have the wanted digits, and powers of ten at the ends", () => {
  assert.equal(double(0.1 + 0.2), "0.3");
  assert.equal(full(0.1 + 0.2), "0.30000000000000004");
  assert.equal(double(1234567.891), "1,234,570");
  assert.equal(double(-2), "−2");
  assert.equal(double(0), "0");
  assert.equal(double(1.5e-7), "1.5×10^−7");
  assert.equal(double(-3e20), "−3×10^20");
  assert.equal(double(null), "–");
});

test("compact counts", () => {
  assert.deepEqual([0, 12.5, 9_999, 12_345, 4_500_000, -2e9].map(compact), ["0", "12.5", "9,999", "12.3k", "4.5M", "−2G"]);
});

test("spans of time", () => {
  assert.deepEqual(
    [0.812, 994, 999.9, 12_500, 125_000, 1_800_000, 47_040_000, 86_400_000, 273_600_000].map(span),
    ["0.81 ms", "990 ms", "1 s", "12 s", "2:05 min", "30 min", "13 h 04 min", "1 d", "3 d 4 h"],
  );
});

test("a time of today has no date", () => {
  const now = new Date(2026, 10, 28, 9, 0, 0);
  assert.equal(clock(new Date(2026, 10, 28, 8, 5, 9), now), "08:05:09");
  assert.equal(clock(new Date(2026, 10, 27, 8, 5, 9), now), "2026-11-27 08:05:09");
  assert.equal(shortClock(new Date(2026, 10, 27, 8, 5, 9), now), "11-27 08:05");
  assert.equal(shortClock(new Date(2026, 10, 28, 8, 5, 9), now), "08:05:09");
  assert.equal(clock("never", now), "never");
});

test("an item is quoted if it could be taken for something else", () => {
  assert.deepEqual([7, "7", "ann", " ann", "true", "", "1.50"].map(item), ["7", '"7"', "ann", '" ann"', '"true"', '""', '"1.50"']);
});
