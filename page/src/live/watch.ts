// The watch stream, read by fetch because an EventSource can't send a token.
import { useEffect, useRef, useState } from "preact/hooks";
import { EventParser } from "../logic/sse.ts";
import type { Key, ProblemBody, Reading } from "../types.ts";
import { Refused, send, token } from "./api.ts";
import { connection, pause, unanswered, whenUseful } from "./connection.ts";
import { useStore } from "./store.ts";

export type Change =
  | { type: "value"; reading: Reading }
  | { type: "absent"; key: Key; datacenter: string | undefined }
  | { type: "problem"; key: Key; problem: ProblemBody };

/** The server sends a comment every 5 s. A stream that is silent for longer has lost its connection. */
const SILENCE_MS = 15_000;
const RETRY_MS = 1_000;
const RETRY_MAX_MS = 30_000;

/** Why nothing comes, or undefined while the stream is open. */
export type Obstacle = Error | "opening" | undefined;

/** Follows these keys, up to 1,000, and reports changes until the signal aborts. */
export async function watch(
  keys: Key[],
  onChange: (change: Change) => void,
  onState: (obstacle: Obstacle) => void,
  signal: AbortSignal,
): Promise<void> {
  const body = JSON.stringify({ keys: keys.map(({ kind, group, name }) => ({ kind, group, name })) });
  let retry = RETRY_MS;
  for (;;) {
    await whenUseful(signal);
    // It ends with the caller's signal, with a silence, when the page goes to the background, and when another request
    // finds that the server is away: a proxy may hold the stream open.
    const stream = new AbortController();
    let refused = false;
    const end = () => stream.abort();
    const endIfHidden = () => document.hidden && stream.abort();
    const stopListening = connection.listen(() => connection.value.isUp || stream.abort());
    signal.addEventListener("abort", end);
    document.addEventListener("visibilitychange", endIfHidden);
    try {
      const answer = await send("/v1/watch?numbers=string", { method: "POST", body, signal: stream.signal });
      onState(undefined);
      retry = (await read(answer, onChange, stream)) ?? RETRY_MS;
    } catch (error) {
      if (signal.aborted) throw error;
      if (error instanceof Refused) {
        refused = true;
        onState(error);
        const isTemporary = error.problem.status === 429 || error.problem.status >= 500;
        if (!isTemporary) return;
        retry = error.retryAfter !== undefined ? error.retryAfter * 1000 : Math.min(RETRY_MAX_MS, retry * 2);
      } else if (!stream.signal.aborted) unanswered();
    } finally {
      end();
      stopListening();
      if (!signal.aborted && !refused) onState("opening");
      signal.removeEventListener("abort", end);
      document.removeEventListener("visibilitychange", endIfHidden);
    }
    await pause(document.hidden ? 0 : retry, signal);
  }
}

/** Reads events until the stream ends, and returns the pause that the server wants before the next connection. */
async function read(answer: Response, onChange: (change: Change) => void, stream: AbortController): Promise<number | undefined> {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = answer.body?.getReader();
  let silence = setTimeout(() => stream.abort(), SILENCE_MS);
  try {
    for (;;) {
      const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
      if (done) return parser.retry;
      clearTimeout(silence);
      silence = setTimeout(() => stream.abort(), SILENCE_MS);
      for (const { type, data } of parser.push(decoder.decode(value, { stream: true }))) {
        if (type === "end") return parser.retry;
        onChange(changeOf(JSON.parse(data)));
      }
    }
  } finally {
    clearTimeout(silence);
  }
}

/** An event has what `/v1/query` answers for a key: its value, that it is absent, or why it can't be read. */
function changeOf(result: Reading & { problem?: ProblemBody }): Change {
  if (result.problem) return { type: "problem", key: result, problem: result.problem };
  return result.absent ? { type: "absent", key: result, datacenter: result.datacenter } : { type: "value", reading: result };
}

/** Follows these keys while the component is there. Returns why nothing comes. */
export function useWatch(keys: Key[], onChange: (change: Change) => void): Obstacle {
  const [obstacle, setObstacle] = useState<Obstacle>("opening");
  const latest = useRef(onChange);
  latest.current = onChange;
  const credentials = useStore(token);
  const watched = JSON.stringify(keys.map(({ kind, group, name }) => [kind, group, name]));
  useEffect(() => {
    if (keys.length === 0) return;
    const stop = new AbortController();
    watch(keys, (change) => latest.current(change), setObstacle, stop.signal).catch(() => undefined);
    return () => stop.abort();
  }, [watched, credentials]);
  return obstacle;
}
