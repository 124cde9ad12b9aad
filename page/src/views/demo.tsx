// The panel of `orderfree demo`: three numbers side by side, and buttons for what goes wrong in production.
import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";
import { clock, digits, plural, span } from "../logic/format.ts";
import { path as pathOf, toKey } from "../logic/route.ts";
import { foldReport } from "../logic/fold.ts";
import { call } from "../live/api.ts";
import { type Polled, usePolled } from "../live/polled.ts";
import { Trouble } from "../parts/ui.tsx";
import type { FoldView } from "../types.ts";

interface Status {
  sent: number;
  acknowledged: number;
  unknown: number;
  native: number;
  attempts: number;
  looks: number;
  wrong: number;
  storms: boolean;
  pods: { is_alive: boolean; ahead_ms: number }[];
  nodes: ("up" | "cut" | "paused")[];
}

/** What the pods count, with what was acknowledged before it was read and what had been sent after it. */
interface Books {
  acknowledged: number;
  counted: number;
  sent: number;
  native: number;
  at: number;
}

const EVERY_MS = 500;
const ORDERS = { kind: "counter", group: "shop", name: "orders" };
const GROUP = `/v1/${pathOf(ORDERS.kind, ORDERS.group)}`;
/** The counters of the demo's clients. */
const COUNTERS = new Set(["orders", "visits", "carts", "refunds", "signups", "searches"]);
const AHEAD_MS = 3_000;

async function readBooks(signal: AbortSignal): Promise<Books> {
  const { acknowledged } = await call<Status>("/demo", { signal });
  const { keys } = await call<{ keys: { name: string; value?: number }[] }>(GROUP, { signal });
  const counted = keys.filter(({ name }) => COUNTERS.has(name)).reduce((sum, { value = NaN }) => sum + value, 0);
  if (Number.isNaN(counted)) throw new Error("A counter of the demo can't be read.");
  const { sent, native } = await call<Status>("/demo", { signal });
  return { acknowledged, counted, sent, native, at: Date.now() };
}

export function DemoPanel() {
  const status = usePolled((signal) => call<Status>("/demo", { signal }), EVERY_MS, []);
  const books = usePolled(readBooks, EVERY_MS, []);
  const [told, setTold] = useState<string | Error>("Press a button. Then compare the first two numbers.");
  const turn = useRef(0);
  const { data, refresh } = status;
  const press = async (path: string, report: string | ((answer: FoldView) => string)) => {
    const mine = ++turn.current;
    const tell = (text: string | Error) => mine === turn.current && setTold(text);
    if (typeof report === "string") tell(report);
    try {
      const answer = await call<FoldView>(path, { method: "POST" });
      if (typeof report !== "string") tell(report(answer));
    } catch (error) {
      tell(error as Error);
    }
    refresh();
  };
  if (!data) return status.error ? <Trouble error={status.error} /> : null;
  const isBroken = data.storms || data.pods.some(({ ahead_ms }) => ahead_ms !== 0) || data.nodes.some((health) => health !== "up");
  return (
    <section class="card demo" aria-labelledby="demo">
      <header>
        <h2 id="demo">Break it. The number stays right.</h2>
        <p class="soft">
          Three pods count what clients send. A client that gets no answer sends its update again, with the same id.
          Open one of the counters, <a href={toKey(ORDERS)}>{ORDERS.name}</a>, to see why it has this number.
        </p>
      </header>
      <Numbers books={books} status={data} />
      <div class="parts">
        {data.pods.map((pod, at) => (
          <PodCard key={`pod ${at}`} name={`Pod ${at + 1}`} path={`/demo/pods/${at}`} pod={pod} press={press} />
        ))}
        {data.nodes.map((health, at) => (
          <NodeCard key={`node ${at}`} name={`Replica ${at + 1}`} path={`/demo/nodes/${at}`} health={health} press={press} />
        ))}
      </div>
      <div class="deeds">
        <div class="row">
          <Toggle
            isOn={data.storms}
            onPress={() =>
              press("/demo/storm", data.storms ? "Clients no longer repeat acknowledged updates." : "Clients send each acknowledged update two more times. Only the counter without ids counts them again.")
            }
          >
            Retry storm
          </Toggle>
          <button type="button" onClick={() => press(`${GROUP}/${ORDERS.name}/fold`, foldReport)}>
            Fold now
          </button>
          <button type="button" class={isBroken ? "main" : ""} onClick={() => press("/demo/heal", "All replicas answer, all clocks are right, and the retry storm is over.")}>
            Heal everything
          </button>
        </div>
        <div class="told" role="status">
          {told instanceof Error ? <Trouble error={told} /> : <p>{told}</p>}
        </div>
      </div>
    </section>
  );
}

const RULE = "Each check reads all counters. Their sum must be at least what was acknowledged when the check began, and at most what had been sent when it ended.";

function Numbers({ books: { data, error }, status }: { books: Polled<Books>; status: Status }) {
  const { looks, wrong, attempts, unknown } = status;
  const isRight = wrong === 0 && (!data || (data.acknowledged <= data.counted && data.counted <= data.sent));
  // An update whose answer is still under way may be there or not. More than all that were sent is too much.
  const excess = data ? Math.max(0, data.native - data.sent) : 0;
  const show = (count: number | undefined) => (count === undefined ? "–" : digits(count));
  return (
    <dl class="numbers">
      <div>
        <dt>Acknowledged to clients</dt>
        <dd class="big">{show(data?.acknowledged)}</dd>
        <dd class="soft">
          {data ? `of ${digits(data.sent)} sent` : "…"}
          {unknown > 0 && `, ${digits(unknown)} given up`}, in {plural(attempts, "request")}
        </dd>
      </div>
      <div class={isRight ? "right" : "wrong"}>
        <dt>Counted by the pods</dt>
        <dd class="big">{show(data?.counted)}</dd>
        <dd class="sign-of" title={RULE}>
          {!isRight ? (
            <>
              <strong>✗ wrong in {digits(wrong)}</strong> of {plural(looks, "check")}. Updates and resets by other clients can also cause this.
            </>
          ) : error && data ? (
            <>No pod answers. This number is from {clock(data.at)}.</>
          ) : (
            <>
              <strong>✓ right</strong> in all {plural(looks, "check")}
            </>
          )}
        </dd>
      </div>
      <div class={excess > 0 ? "excess" : ""}>
        <dt>A counter without ids</dt>
        <dd class="big">{show(data?.native)}</dd>
        <dd class="sign-of">{excess > 0 ? <strong>{digits(excess)} too many</strong> : "right so far"}</dd>
      </div>
    </dl>
  );
}

type Press = (path: string, report: string) => void;

interface PartProps {
  name: string;
  path: string;
  press: Press;
}

function PodCard({ name, path, pod, press }: PartProps & { pod: Status["pods"][number] }) {
  const isAhead = pod.ahead_ms !== 0;
  const state = !pod.is_alive ? "killed" : isAhead ? `clock ${span(pod.ahead_ms)} ahead` : "running";
  return (
    <Part name={name} mark={!pod.is_alive ? "bad" : isAhead ? "look" : "good"} state={state}>
      <button
        type="button"
        class="small"
        aria-label={`Kill ${name}`}
        onClick={() => press(`${path}/kill`, `${name} was killed, and its memory is lost. Its clients send their updates again, to the other pods. It starts again in 3 s.`)}
      >
        Kill
      </button>
      <Toggle
        isOn={isAhead}
        label={`Clock of ${name} ahead`}
        onPress={() =>
          press(
            `${path}/clock?ahead_ms=${isAhead ? 0 : AHEAD_MS}`,
            isAhead ? `The clock of ${name} is right again.` : `The clock of ${name} is 3 s ahead. The demo allows 2 s: the pod notices, and refuses updates until its clock is right.`,
          )
        }
      >
        Clock +3 s
      </Toggle>
    </Part>
  );
}

const HEALTH = {
  up: { mark: "good", state: "up" },
  cut: { mark: "bad", state: "cut off" },
  paused: { mark: "look", state: "paused" },
} as const;

function NodeCard({ name, path, health, press }: PartProps & { health: keyof typeof HEALTH }) {
  const back = `${name} answers again.`;
  const set = (to: "cut" | "paused", report: string) => (health === to ? press(`${path}/up`, back) : press(`${path}/${to}`, report));
  return (
    <Part name={name} {...HEALTH[health]}>
      <Toggle
        isOn={health === "cut"}
        label={`Cut off ${name}`}
        onPress={() => set("cut", `Nothing reaches ${name}. The others store the writes that it misses. Two of three replicas are enough for updates and reads; folds wait.`)}
      >
        Cut off
      </Toggle>
      <Toggle
        isOn={health === "paused"}
        label={`Pause ${name}`}
        onPress={() => set("paused", `${name} does not answer, and pods still believe that it is up. When it goes on, it applies all writes that it received. Folds wait until then.`)}
      >
        Pause
      </Toggle>
    </Part>
  );
}

function Part({ name, mark, state, children }: { name: string; mark: string; state: string; children: ComponentChildren }) {
  return (
    <div class="part" role="group" aria-label={`${name}: ${state}`}>
      <p>
        <span class={`dot ${mark}`} aria-hidden="true" />
        <strong>{name}</strong> <span class="soft">{state}</span>
      </p>
      <div class="row">{children}</div>
    </div>
  );
}

interface ToggleProps {
  isOn: boolean;
  label?: string;
  onPress: () => void;
  children: ComponentChildren;
}

function Toggle({ isOn, label, onPress, children }: ToggleProps) {
  return (
    <button type="button" class={label ? "small" : ""} aria-label={label} aria-pressed={isOn} onClick={onPress}>
      {children}
    </button>
  );
}
