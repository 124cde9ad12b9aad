// The figures of the last minute, from a look at /metrics every 2 s.
import { LastMinute, parse } from "../logic/metrics.ts";
import type { ProbeView, VersionView } from "../types.ts";
import { type Refused, call, send } from "./api.ts";
import { type Polled, usePolled } from "./polled.ts";

const EVERY_MS = 2_000;
const HEALTH_EVERY_MS = 5_000;
const lastMinute = new LastMinute();

export function useLastMinute(): Polled<LastMinute> {
  return usePolled(async (signal) => {
    const answer = await send("/metrics", { signal, needs: "admin" });
    lastMinute.add({ at: Date.now(), metrics: parse(await answer.text()) });
    return lastMinute;
  }, EVERY_MS, []);
}

export function useVersion(): Polled<VersionView> {
  return usePolled((signal) => call<VersionView>("/version", { signal }), null, []);
}

export interface Health {
  isReady: boolean;
  /** Each check with its result. */
  checks: Record<string, string>;
  /** Why the pod is not ready. */
  reason: string | undefined;
}

export function useHealth(): Polled<Health> {
  return usePolled(async (signal): Promise<Health> => {
    try {
      const { checks } = await call<ProbeView>("/readyz?verbose", { signal });
      return { isReady: true, checks: checks ?? {}, reason: undefined };
    } catch (error) {
      const problem = (error as Refused).problem;
      if (problem?.status !== 503) throw error;
      return { isReady: false, checks: {}, reason: problem.detail };
    }
  }, HEALTH_EVERY_MS, []);
}
