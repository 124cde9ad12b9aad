import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { checksOf } from "../src/logic/checks.ts";
import { LastMinute, parse } from "../src/logic/metrics.ts";

function minuteOf(...texts: string[]): LastMinute {
  const minute = new LastMinute();
  texts.forEach((text, index) => minute.add({ at: index * 2_000, metrics: parse(text) }));
  return minute;
}

function look(minute: LastMinute): string[] {
  return checksOf(minute).flatMap(({ checks }) => checks).filter(({ mark }) => mark !== "good").map(({ title }) => title);
}

const WELL = `orderfree_updates_total{outcome="acked"} 100
orderfree_updates_total{outcome="unknown"} 0
orderfree_refused_total{reason="op"} 0
orderfree_mutators 10
orderfree_mutators_max 200000
orderfree_connections 1
orderfree_connections_max 16384
orderfree_store_quorum 1
`;

test("without a reading there is nothing to judge", () => {
  assert.deepEqual(checksOf(new LastMinute()), []);
});

test("a pod that is well needs no look", () => {
  assert.deepEqual(look(minuteOf(WELL, WELL)), []);
});

test("the limits are those of the alerts", () => {
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_clock_offset_us 500001\n`)), ["Clock offset"]);
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_clock_offset_us -500001\n`)), ["Clock offset"]);
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_clock_offset_us 500000\n`)), []);
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_fold_backlog_age_seconds 21601\n`)), ["Fold backlog"]);
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_group_names 100001\n`)), ["Largest group"]);
  assert.deepEqual(look(minuteOf(`${WELL}orderfree_reset_log_age_seconds 11\n`)), ["Log of resets"]);
  assert.deepEqual(look(minuteOf(WELL.replace("mutators 10", "mutators 190000"))), ["Mutators awake"]);
  assert.deepEqual(look(minuteOf(WELL.replace("quorum 1", "quorum 0"))), ["Quorum"]);
});

test("every check links to pages that the server has", () => {
  const slugs: string[] = readFileSync("../docs/reference/problems.md", "utf8").match(/(?<=^## ).+$/gm) ?? [];
  for (const { title, problems } of checksOf(minuteOf(WELL)).flatMap(({ checks }) => checks)) {
    assert.notEqual(problems.length, 0, `${title} has no link`);
    for (const slug of problems) assert.ok(slugs.includes(slug), `${title}: there is no problem ${slug}`);
  }
});

test("a client's mistakes are no reason to look, the server's are", () => {
  assert.deepEqual(look(minuteOf(WELL, WELL.replace('{reason="op"} 0', '{reason="op"} 50'))), []);
  const store = `${WELL}orderfree_refused_total{reason="store"} `;
  assert.deepEqual(look(minuteOf(`${store}3\n`, `${store}4\n`)), ["Refused"]);
  assert.deepEqual(look(minuteOf(`${store}4\n`, `${store}4\n`)), [], "what happened long ago is over");
});

test("one unknown update in a thousand is the limit", () => {
  const after = (acked: number, unknown: number) =>
    WELL.replace('"acked"} 100', `"acked"} ${100 + acked}`).replace('"unknown"} 0', `"unknown"} ${unknown}`);
  assert.deepEqual(look(minuteOf(WELL, after(999, 1))), []);
  assert.deepEqual(look(minuteOf(WELL, after(998, 1))), ["Unknown"]);
});
