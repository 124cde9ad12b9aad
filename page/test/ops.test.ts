import assert from "node:assert/strict";
import { test } from "node:test";
import { BadField, fieldsOf, opText } from "../src/logic/ops.ts";
import { snippet } from "../src/logic/snippets.ts";

test("fields follow from the example op", () => {
  assert.deepEqual(fieldsOf({ label: "eu-1", op: "observe", value: 9 }), [
    { name: "value", input: "number", example: "9" },
    { name: "label", input: "text", example: "eu-1" },
  ]);
  assert.deepEqual(fieldsOf({ by: "12.34", op: "add" }), [{ name: "by", input: "decimal", example: "12.34" }]);
  assert.deepEqual(fieldsOf({ items: ["u1", "u1"], op: "add" }), [{ name: "items", input: "lines", example: "u1" }]);
  assert.deepEqual(fieldsOf({ op: "set", value: { theme: "dark" } })[0]?.input, "json");
});

test("numbers keep all their digits", () => {
  assert.equal(opText({ op: "add", by: 5 }, { by: "9007199254740993" }), '{"op":"add","by":9007199254740993}');
  assert.equal(opText({ op: "add", by: 5 }, { by: " −1,000 " }), '{"op":"add","by":-1000}');
  assert.equal(opText({ op: "add", by: "1.5" }, { by: "0012.30" }), '{"op":"add","by":"12.30"}');
  assert.throws(() => opText({ op: "add", by: 5 }, { by: "five" }), BadField);
});

test("empty fields are left out", () => {
  assert.equal(opText({ op: "observe", value: 9, label: "x" }, { value: "1", label: "" }), '{"op":"observe","value":1}');
});

test("items are one per line, and text that is not JSON is a string", () => {
  assert.equal(opText({ op: "add", items: ["a"] }, { items: "ann\n\n bob \n" }), '{"op":"add","items":["ann","bob"]}');
  assert.equal(opText({ op: "set", value: {} }, { value: '{"a":1.10}' }), '{"op":"set","value":{"a":1.10}}');
  assert.equal(opText({ op: "set", value: {} }, { value: 'dark "mode"' }), '{"op":"set","value":"dark \\"mode\\""}');
});

const KEY = { kind: "counter", group: "a/b", name: "it's" };

test("snippets quote names and ops for their language", () => {
  const op = '{"op":"add","item":"it\'s"}';
  const curl = snippet("curl", "http://h:1", KEY, op, true);
  assert.ok(curl.includes("'http://h:1/v1/counter/a%2Fb/it'\\''s'"), curl);
  assert.ok(curl.includes(`-d '{"op":"add","item":"it'\\''s"}'`), curl);
  assert.ok(curl.includes("$ORDERFREE_TOKEN"));
  const python = snippet("Python", "http://h:1", KEY, op, false);
  assert.ok(python.includes(`requests.post(url, "{\\"op\\":\\"add\\",\\"item\\":\\"it's\\"}", headers=headers)`), python);
  assert.ok(!python.includes("TOKEN"));
  const typescript = snippet("TypeScript", "http://h:1", KEY, op, false);
  assert.ok(typescript.includes(`const url = "http://h:1/v1/counter/a%2Fb/it's";`), typescript);
});
