// Whether the server answers. Without an answer the page asks again each second, and goes on by itself.
import { Store } from "./store.ts";

export interface Connection {
  isUp: boolean;
  /** When this began, in ms. */
  since: number;
  /** How often the server came back. */
  returns: number;
}

export const connection = new Store<Connection>({ isUp: true, since: Date.now(), returns: 0 });

const RETRY_MS = 1_000;

export function answered(): void {
  const { isUp, returns } = connection.value;
  if (!isUp) connection.set({ isUp: true, since: Date.now(), returns: returns + 1 });
}

export function unanswered(): void {
  if (!connection.value.isUp) return;
  connection.set({ ...connection.value, isUp: false, since: Date.now() });
  void probe();
}

async function probe(): Promise<void> {
  while (!connection.value.isUp) {
    await pause(RETRY_MS);
    try {
      const answer = await fetch("/livez", { cache: "no-store", signal: AbortSignal.timeout(5_000) });
      if (answer.ok) answered();
    } catch {
      // It is still away.
    }
  }
}

/** Resolves when the server answers and the page is visible. Rejects when the signal aborts. */
export function whenUseful(signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const check = () => {
      if (signal.aborted) done(() => reject(signal.reason));
      else if (connection.value.isUp && !document.hidden) done(resolve);
    };
    const done = (end: () => void) => {
      stopListening();
      document.removeEventListener("visibilitychange", check);
      signal.removeEventListener("abort", check);
      end();
    };
    const stopListening = connection.listen(check);
    document.addEventListener("visibilitychange", check);
    signal.addEventListener("abort", check);
    check();
  });
}

/** Resolves after this time. Rejects when the signal aborts. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}
