// Server-Sent Events from chunks of text, as the HTML standard defines them.

export interface ServerEvent {
  type: string;
  data: string;
  id: string;
}

export class EventParser {
  /** The pause before the next connection in ms, if the server named one. */
  retry: number | undefined;

  #rest = "";
  #type = "";
  #data: string[] = [];
  #id = "";
  #begun = false;

  /** The events that end in this chunk. */
  push(chunk: string): ServerEvent[] {
    let text = this.#rest + chunk;
    if (!this.#begun && text.length > 0) {
      this.#begun = true;
      if (text.startsWith("\uFEFF")) text = text.slice(1);
    }
    const events: ServerEvent[] = [];
    let start = 0;
    for (const end of text.matchAll(/\r\n|\n|\r/g)) {
      // A \r at the end can be the first half of a \r\n.
      if (end[0] === "\r" && end.index === text.length - 1) break;
      this.#line(text.slice(start, end.index), events);
      start = end.index + end[0].length;
    }
    this.#rest = text.slice(start);
    return events;
  }

  #line(line: string, events: ServerEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) {
        events.push({ type: this.#type || "message", data: this.#data.join("\n"), id: this.#id });
      }
      this.#type = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#type = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
  }
}
