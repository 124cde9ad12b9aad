// Addresses inside the page: `#/counter/site/home` is a key, `#/counter/site` a group, `#/installation` a page.

export type Route =
  | { page: "keys" }
  | { page: "installation" }
  | { page: "group"; kind: string; group: string }
  | { page: "kind"; kind: string }
  | { page: "key"; kind: string; group: string; name: string };

export function parse(fragment: string): Route {
  const parts = fragment.replace(/^#?\/?/, "").split("/").filter((part) => part !== "").map(decode);
  const [first, group, name] = parts;
  if (first === undefined) return { page: "keys" };
  if (first === "installation") return { page: "installation" };
  if (group === undefined) return { page: "kind", kind: first };
  return name === undefined ? { page: "group", kind: first, group } : { page: "key", kind: first, group, name };
}

export function toKey(key: { kind: string; group: string; name: string }): string {
  return `#/${path(key.kind, key.group, key.name)}`;
}

export function toGroup(kind: string, group?: string): string {
  return group === undefined ? `#/${path(kind)}` : `#/${path(kind, group)}`;
}

/** Parts of a path, each percent-encoded. */
export function path(...parts: string[]): string {
  return parts.map(encodeURIComponent).join("/");
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
