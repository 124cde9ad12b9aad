// A form for an op, made from the example op of its kind.

export type Input = "number" | "decimal" | "text" | "lines" | "json";

export interface Field {
  name: string;
  input: Input;
  example: string;
}

type Op = Record<string, unknown>;

export function fieldsOf(example: Op): Field[] {
  return Object.entries(example)
    .filter(([name]) => name !== "op")
    .map(([name, value]): Field => {
      if (typeof value === "number") return { name, input: "number", example: String(value) };
      if (Array.isArray(value)) return { name, input: "lines", example: [...new Set(value.map(String))].join("\n") };
      if (typeof value === "string") {
        const input = /^-?\d+(\.\d+)?$/.test(value) ? "decimal" : "text";
        return { name, input, example: value };
      }
      return { name, input: "json", example: JSON.stringify(value) };
    })
    .sort((left, right) => RANK.indexOf(left.name) - RANK.indexOf(right.name));
}

/** What the op is about comes first, then how much of it. */
const RANK = ["item", "items", "value", "by", "label", "count"];

/** What people call a field. */
export function labelOf(name: string): string {
  return LABELS[name] ?? name;
}

const LABELS: Record<string, string> = {
  by: "Amount",
  value: "Value",
  item: "Item",
  items: "Items, one per line",
  label: "Label",
  count: "How many times",
};

export class BadField extends Error {}

/** The op as JSON text. Numbers keep all the digits that were typed. A field that is left empty is left out. */
export function opText(example: Op, typed: Record<string, string>): string {
  const parts = [`"op":${JSON.stringify(example["op"])}`];
  for (const { name, input } of fieldsOf(example)) {
    const text = typed[name] ?? "";
    if (text.trim() === "") continue;
    parts.push(`${JSON.stringify(name)}:${literal(name, input, text)}`);
  }
  return `{${parts.join(",")}}`;
}

function literal(name: string, input: Input, text: string): string {
  switch (input) {
    case "number":
    case "decimal": {
      const plain = text.trim().replace(/^−/, "-").replace(/^\+/, "").replaceAll(",", "");
      if (!/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(plain)) throw new BadField(`${labelOf(name)}: type a number, such as 5.`);
      // JSON has no leading zeros.
      const number = plain.replace(/^(-?)0+(?=\d)/, "$1");
      return input === "decimal" ? JSON.stringify(number) : number;
    }
    case "lines":
      return JSON.stringify(text.split("\n").map((line) => line.trim()).filter((line) => line !== ""));
    case "json":
      return isJson(text) ? text.trim() : JSON.stringify(text);
    case "text":
      return JSON.stringify(text);
  }
}

export function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
