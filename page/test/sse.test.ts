import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser, type ServerEvent } from "../src/logic/sse.ts";

const STREAM = 'retry: 1000\n\n: beat\n\nevent: value\nid: 7\ndata: {"value":\ndata: 5}\n\nevent: end\r\ndata:{}\r\n\r\ndata: lone\r\r';

const EVENTS: ServerEvent[] = [
  { type: "value", data: '{"value":\n5}', id: "7" },
  { type: "end", data: "{}", id: "7" },
  { type: "message", data: "lone", id: "7" },
];

function read(chunks: string[]): { events: ServerEvent[]; retry: number | undefined } {
  const parser = new EventParser();
  // The last \r is held back until it is clear that no \n follows it.
  const events = [...chunks, ":"].flatMap((chunk) => parser.push(chunk));
  return { events, retry: parser.retry };
}

test("events have types, ids and lines of data", () => {
  assert.deepEqual(read([STREAM]), { events: EVENTS, retry: 1000 });
});

test("events are the same wherever the stream is cut", () => {
  for (let at = 0; at <= STREAM.length; at++) {
    assert.deepEqual(read([STREAM.slice(0, at), STREAM.slice(at)]).events, EVENTS, `cut at ${at}`);
  }
  assert.deepEqual(read([...STREAM]).events, EVENTS, "one character at a time");
});

test("an event that has not ended is not an event", () => {
  assert.deepEqual(new EventParser().push("data: 1\n"), []);
});

test("events without data, comments and unknown fields are skipped", () => {
  assert.deepEqual(new EventParser().push("event: value\n\n: data: 2\nother: 3\n\n"), []);
});

test("a byte order mark and one space after the colon are no part of the data", () => {
  assert.deepEqual(new EventParser().push("\uFEFFdata:  two\n\n"), [{ type: "message", data: " two", id: "" }]);
});
