// Answers that are asked for again and again, while the server answers and the page is visible.
import { useEffect, useReducer, useRef } from "preact/hooks";
import { Refused, token } from "./api.ts";
import { connection, pause, whenUseful } from "./connection.ts";
import { useStore } from "./store.ts";

export interface Polled<T> {
  data: T | undefined;
  /** Why the last request has no answer. `data` then is from an earlier one. */
  error: Error | undefined;
  /** Asks at once. */
  refresh: () => void;
}

/**
 * Asks now, then at this interval in ms, or only once if it is null. Other `inputs`, another token and a server that
 * came back begin it again. Answers to other inputs, or with another token, are dropped.
 */
export function usePolled<T>(load: (signal: AbortSignal) => Promise<T>, every: number | null, inputs: unknown[]): Polled<T> {
  const [, render] = useReducer((count: number) => count + 1, 0);
  const wake = useRef(() => {});
  const refresh = useRef(() => wake.current()).current;
  const { returns } = useStore(connection);
  const asked = [...inputs, useStore(token)];
  const state = useRef<Polled<T> & { asked: unknown[] }>({ data: undefined, error: undefined, refresh, asked });
  if (asked.some((input, index) => !Object.is(input, state.current.asked[index]))) {
    state.current = { ...state.current, data: undefined, error: undefined, asked };
  }
  useEffect(() => {
    const stop = new AbortController();
    const run = async () => {
      for (;;) {
        await whenUseful(stop.signal);
        let asksAgain = false;
        wake.current = () => (asksAgain = true);
        try {
          const data = await load(stop.signal);
          if (stop.signal.aborted) return;
          state.current = { ...state.current, data, error: undefined };
        } catch (error) {
          if (stop.signal.aborted) return;
          state.current = { ...state.current, error: error as Error };
        }
        render(undefined);
        if (asksAgain) continue;
        const woken = new Promise<void>((resolve) => (wake.current = resolve));
        // What the token may not see, it may not see in 2 s either.
        const isOver = every === null || (state.current.error instanceof Refused && state.current.error.isDenied);
        await (isOver ? woken : Promise.race([woken, pause(every, stop.signal)]));
      }
    };
    run().catch(() => undefined);
    return () => stop.abort();
  }, [...asked, every, returns]);
  return state.current;
}
