// One key: its number, why it is that number, and what can be done with it.
import { useEffect, useRef, useState } from "preact/hooks";
import { decimal, minus, near } from "../logic/decimal.ts";
import { clock, double, plural } from "../logic/format.ts";
import { path, toGroup, toKey } from "../logic/route.ts";
import { Refused, askForRights, call, token } from "../live/api.ts";
import { usePolled } from "../live/polled.ts";
import { useStore } from "../live/store.ts";
import { type Obstacle, useWatch } from "../live/watch.ts";
import { Copy, ProblemNote, Trouble } from "../parts/ui.tsx";
import type { Key, KindView, Point, ProblemBody, Reading, Whole } from "../types.ts";
import { AddCard } from "./add.tsx";
import { EndCard } from "./end.tsx";
import { ValueCard } from "./value.tsx";
import { WhyCard } from "./why.tsx";

interface Props {
  address: Key;
  kind: KindView | undefined;
}

/** What is known about a key. */
export type State =
  | { is: "loading" }
  | { is: "there"; reading: Reading }
  | { is: "absent"; datacenter: string | undefined }
  | { is: "trouble"; problem: ProblemBody };

const POINTS_MAX = 1_200;
const POLL_MS = 3_000;
const RATE_MS = 10_000;

export function KeyView({ address, kind }: Props) {
  const { kind: kindName, group, name } = address;
  const keyPath = `/v1/${path(kindName, group, name)}`;
  const credentials = useStore(token);
  const [state, setState] = useState<State>({ is: "loading" });
  const points = useRef<Point[]>([]);

  const take = (reading: Reading) => {
    setState({ is: "there", reading });
    if (kindName !== "counter" && kindName !== "sum") return;
    points.current = [...points.current.slice(-POINTS_MAX), { at: Date.now(), value: decimal(reading.value as Whole) }];
  };
  const obstacle = useWatch([address], (change) => {
    if (change.type === "value") take(change.reading);
    else if (change.type === "absent") setState({ is: "absent", datacenter: change.datacenter });
    else setState({ is: "trouble", problem: change.problem });
  });
  // Without the stream, the key is read every few seconds.
  const isRefused = obstacle instanceof Error;
  const read = usePolled((signal) => call<Reading>(`${keyPath}?numbers=string&default=empty`, { signal, needs: `read ${group}` }), isRefused ? POLL_MS : null, [keyPath]);
  useEffect(() => {
    if (!isRefused && state.is !== "loading") return;
    if (read.error instanceof Refused) setState({ is: "trouble", problem: read.error.problem });
    else if (read.data?.absent) setState({ is: "absent", datacenter: read.data.datacenter });
    else if (read.data) take(read.data);
  }, [read.data, read.error, isRefused]);

  useEffect(() => void askForRights(group, keyPath), [keyPath, credentials]);

  const reading = state.is === "there" ? state.reading : undefined;
  return (
    <>
      <header class="key-head">
        <p class="where">
          <a href={toGroup(kindName)}>{kindName}</a> <span aria-hidden="true">›</span> <a href={toGroup(kindName, group)}>{group}</a>
        </p>
        <h1 tabIndex={-1}>{name}</h1>
        <Live obstacle={obstacle} />
      </header>
      {state.is === "trouble" && <ProblemNote problem={state.problem} />}
      {state.is === "absent" && (
        <p class="note">
          {state.datacenter
            ? `No update of this key has arrived in data centre ${state.datacenter}.`
            : "This key does not exist. Its first update creates it."}
        </p>
      )}
      {state.is === "loading" && read.error && <Trouble error={read.error} />}
      <div class={state.is === "absent" ? "key-body alone" : "key-body"}>
        <div class="key-main">
          {reading && <ValueCard reading={reading} points={points.current} keyPath={keyPath} bound={kind?.bound} />}
          {reading && <Facts reading={reading} points={points.current} />}
          {state.is !== "absent" && state.is !== "loading" && <WhyCard address={address} keyPath={keyPath} reading={reading} />}
        </div>
        <div class="key-side">
          {kind && <AddCard key={kindName} address={address} keyPath={keyPath} kind={kind} />}
          <EndCard address={address} keyPath={keyPath} isThere={state.is === "there" || state.is === "trouble"} onEnd={() => (points.current = [])} />
        </div>
      </div>
    </>
  );
}

function Live({ obstacle }: { obstacle: Obstacle }) {
  if (obstacle instanceof Error) {
    const isDenied = obstacle instanceof Refused && obstacle.isDenied;
    return (
      <span class="liveness soft" title={obstacle.message}>
        {isDenied ? "not allowed" : `not live: read every ${POLL_MS / 1000} s`}
      </span>
    );
  }
  return (
    <span class={`liveness ${obstacle ? "soft" : ""}`}>
      <span class={`dot ${obstacle ? "none" : "good"}`} aria-hidden="true" />
      {obstacle ? "connecting" : "live"}
    </span>
  );
}

function Facts({ reading, points }: { reading: Reading; points: Point[] }) {
  const address = location.origin + location.pathname + toKey(reading);
  const rate = rateOf(points);
  return (
    <p class="key-facts soft">
      <span title="Every update that was acknowledged before this time is in the value.">as of {clock(reading.as_of)}</span>
      <span>{plural(reading.shards, "shard")}</span>
      {reading.datacenter ? (
        <span title="Updates of other data centres are included as far as they have arrived.">as seen in {reading.datacenter}</span>
      ) : (
        <span>{reading.exact ? "exact" : "estimate"}</span>
      )}
      {rate !== undefined && rate !== 0 && <span>{rate > 0 ? "+" : ""}{double(rate, 3)} per second</span>}
      <Copy text={address} label="Copy link" />
    </p>
  );
}

/** How fast the number moved in the last seconds. */
function rateOf(points: Point[]): number | undefined {
  const now = Date.now();
  const recent = points.filter(({ at }) => at > now - RATE_MS);
  const [first, last] = [recent[0], recent.at(-1)];
  if (!first || !last || last.at - first.at < 1_000) return undefined;
  return (near(minus(last.value, first.value)) * 1000) / (last.at - first.at);
}
