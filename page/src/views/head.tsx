// The head: which server this is, whether it is well, and what it does now.
import { useState } from "preact/hooks";
import { double, span } from "../logic/format.ts";
import { type LastMinute, quantileOf, rateOf } from "../logic/metrics.ts";
import { token } from "../live/api.ts";
import { connection } from "../live/connection.ts";
import type { Polled } from "../live/polled.ts";
import type { Health } from "../live/sampler.ts";
import { useStore } from "../live/store.ts";
import { Spark } from "../parts/spark.tsx";
import type { VersionView } from "../types.ts";
import { TokenDialog } from "./token.tsx";

const UPDATES = "orderfree_updates_total";
const SECONDS = "orderfree_request_seconds";
/** A reading every 2 s for a minute. */
const READINGS = 30;

interface Props {
  page: string;
  version: VersionView | undefined;
  minute: Polled<LastMinute>;
  health: Polled<Health>;
}

export function Head({ page, version, minute, health }: Props) {
  const { isUp } = useStore(connection);
  const hasToken = useStore(token) !== null;
  const [asksToken, setAsksToken] = useState(false);
  return (
    <header class="head">
      <a class="brand" href="#/">
        <svg viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
          <rect x="3" y="13" width="4" height="8" rx="1" />
          <rect x="10" y="8" width="4" height="13" rx="1" />
          <rect x="17" y="3" width="4" height="18" rx="1" />
        </svg>
        Orderfree
      </a>
      <dl class="facts">
        {version && (
          <div>
            <dt class="hidden">Version and store</dt>
            <dd class="soft" title={version.commit ? `commit ${version.commit}` : undefined}>
              {version.version} · {version.store}
            </dd>
          </div>
        )}
        <HealthFact health={health} isUp={isUp} />
        {(minute.data || !minute.error) && <Figures minute={minute.data} />}
      </dl>
      <nav class="pages" aria-label="Pages">
        <a href="#/" aria-current={page !== "installation" ? "page" : undefined}>
          Keys
        </a>
        <a href="#/installation" aria-current={page === "installation" ? "page" : undefined}>
          Installation
        </a>
        <a href="/docs">API</a>
      </nav>
      <button type="button" class="small" onClick={() => setAsksToken(true)}>
        {hasToken ? "Token ✓" : "Token"}
      </button>
      {asksToken && <TokenDialog onClose={() => setAsksToken(false)} />}
    </header>
  );
}

function HealthFact({ health, isUp }: { health: Polled<Health>; isUp: boolean }) {
  const [state, text] = !isUp
    ? ["bad", "no answer"]
    : health.data === undefined
      ? ["none", "…"]
      : health.data.isReady
        ? ["good", "ready"]
        : ["bad", "not ready"];
  return (
    <div>
      <dt class="hidden">Health</dt>
      <dd>
        <span class={`dot ${state}`} aria-hidden="true" />
        <span class="health-text">
          {text}
          {/* Without an answer, the last reason is old. */}
          {isUp && health.data?.reason && <span class="soft"> · {health.data.reason}</span>}
        </span>
      </dd>
    </div>
  );
}

function Figures({ minute }: { minute: LastMinute | undefined }) {
  const rate = minute?.rate(UPDATES);
  const p99 = minute?.quantile(0.99, SECONDS);
  return (
    <>
      <div>
        <dt>updates/s</dt>
        <dd class="figure">
          <span>{rate === undefined ? "–" : double(rate, 3)}</span>
          <Spark values={minute?.series(rateOf(UPDATES)).map(({ value }) => value) ?? []} room={READINGS} />
        </dd>
      </div>
      <div>
        <dt title="99 of 100 requests of the last minute were faster">p99</dt>
        <dd class="figure">
          <span>{p99 === undefined ? "–" : span(p99 * 1000)}</span>
          <Spark values={minute?.series(quantileOf(0.99, SECONDS)).map(({ value }) => value) ?? []} room={READINGS} />
        </dd>
      </div>
    </>
  );
}
