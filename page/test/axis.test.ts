import assert from "node:assert/strict";
import { test } from "node:test";
import { logTicks, ticks, timeTicks } from "../src/logic/axis.ts";

test("ticks are round and within the range", () => {
  assert.deepEqual(ticks(0, 100, 5), [0, 20, 40, 60, 80, 100]);
  assert.deepEqual(ticks(-0.03, 0.31, 4), [0, 0.1, 0.2, 0.3]);
  assert.deepEqual(ticks(-7, 7, 3), [-5, 0, 5]);
  assert.deepEqual(ticks(1_000_003, 1_000_009, 3), [1_000_004, 1_000_006, 1_000_008]);
  assert.deepEqual(ticks(9_007_199_254_740_000, 9_007_199_254_740_100, 2), [9_007_199_254_740_000, 9_007_199_254_740_050, 9_007_199_254_740_100]);
  assert.deepEqual(ticks(0, 0.0003, 3), [0, 0.0001, 0.0002, 0.0003]);
  assert.deepEqual(ticks(5, 5, 3), [5]);
  assert.deepEqual(ticks(0, Infinity, 3), [0]);
});

test("logarithmic ticks are powers of ten, or finer in a short range", () => {
  assert.deepEqual(logTicks(0.02, 500, 6), [0.1, 1, 10, 100]);
  assert.deepEqual(logTicks(1, 30, 6), [1, 2, 5, 10, 20]);
  assert.deepEqual(logTicks(1, 1e9, 4).length, 4);
});

test("times are whole seconds or minutes", () => {
  assert.deepEqual(timeTicks(500, 10_500, 5), [2_000, 4_000, 6_000, 8_000, 10_000]);
  assert.deepEqual(timeTicks(0, 60_000, 4), [0, 15_000, 30_000, 45_000, 60_000]);
});
