// Why a key has its number: its rows on their way into the tally, the addition, and each row with its part.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Addition, type Part, type Phase, PHASES, addition, isGrave, partsOf } from "../logic/addition.ts";
import { type Decimal, equals, text } from "../logic/decimal.ts";
import { foldReport } from "../logic/fold.ts";
import { clock, cut, digits, plural, span } from "../logic/format.ts";
import { shapeOf } from "../logic/shapes.ts";
import { type Times, later } from "../logic/timeline.ts";
import { call } from "../live/api.ts";
import { usePolled } from "../live/polled.ts";
import { Card, Guarded, Trouble } from "../parts/ui.tsx";
import type { FoldView, Key, Reading, ShardsView, Value } from "../types.ts";
import { Strip } from "./strip.tsx";

interface Props {
  address: Key;
  keyPath: string;
  reading: Reading | undefined;
}

const EVERY_MS = 2_000;
/** A key that is updated all the time is looked at so often. */
const AGAIN_MS = 700;

export function WhyCard({ address, keyPath, reading }: Props) {
  const load = async (signal: AbortSignal) => {
    const view = await call<ShardsView>(`${keyPath}/shards?numbers=string`, { signal, needs: `admin ${address.group}` });
    return { view, at: performance.now() };
  };
  const { data, error, refresh } = usePolled(load, EVERY_MS, [keyPath]);
  useRefreshOn(reading, refresh);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const now = useTicks(1_000);

  const shape = shapeOf(address.kind);
  const title = `Why is it this ${shape.isNumber ? "number" : "value"}?`;
  if (!data) return error ? <Card title={title}>{<Trouble error={error} />}</Card> : null;
  const { view } = data;
  const parts = partsOf(view);
  const read = reading && shape.amount?.(reading.value);
  const sum = addition(parts, view.ids, read);
  const answered: Times = {
    fence: view.tally?.fence ? Date.parse(view.tally.fence) : undefined,
    cutoff: Date.parse(view.cutoff),
    now: Date.parse(view.now),
  };
  const times = later(answered, Math.max(0, now - data.at));
  const choose = (ids: string[]) => setChosen(new Set(ids));
  return (
    <Card title={title} className="why" aside={<ReadingGuide merge={shape.merge} />}>
      {error && <Trouble error={error} />}
      {sum ? (
        <Equation sum={sum} unit={shape.unit} read={read} choose={choose} />
      ) : (
        <Merged parts={parts} kind={view.kind} merge={shape.merge} reading={reading} choose={choose} />
      )}
      <Strip parts={parts} times={times} chosen={chosen} onChoose={choose} />
      <Ledger parts={parts} times={times} sum={sum} kind={view.kind} chosen={chosen} onChoose={choose} />
      <Ids view={view} />
      <Fold keyPath={keyPath} group={address.group} onDone={refresh} />
    </Card>
  );
}

/** Asks again when the value changes, but not all the time. */
function useRefreshOn(change: Reading | undefined, refresh: () => void): void {
  const last = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, last.current + AGAIN_MS - performance.now());
    const timer = setTimeout(() => {
      last.current = performance.now();
      refresh();
    }, wait);
    return () => clearTimeout(timer);
  }, [change]);
}

/** The time since the page was opened in ms, at this interval. */
function useTicks(every: number): number {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return Math.max(now, performance.now());
}

function ReadingGuide({ merge }: { merge: string }) {
  return (
    <details class="guide">
      <summary>How to read this</summary>
      <div class="guide-body">
        <p>
          Each pod that updates a key writes a row of its own, a <em>shard</em>. No pod ever waits for another. A read merges all
          rows. {merge}
        </p>
        <dl>
          <dt class="chip live">live</dt>
          <dd>Its writer takes updates.</dd>
          <dt class="chip draining">draining</dt>
          <dd>Its writer takes no more updates, but can still write those that it has taken.</dd>
          <dt class="chip expired">expired</dt>
          <dd>Its writer is dead. A late acknowledgement is still possible.</dd>
          <dt class="chip final">final</dt>
          <dd>It can no longer change. A fold can take it.</dd>
          <dt class="chip tally">tally</dt>
          <dd>All folded rows, merged into one. Rows up to its fence never count again, however often they come back.</dd>
        </dl>
        <p>
          In the picture, rows move to the left as time passes. Past <em>now</em> they are expired, and past the{" "}
          <em>cutoff</em> they are final. When a fold moves the <em>fence</em> past them, they are in the tally. The number
          does not change on the way.
        </p>
      </div>
    </details>
  );
}

interface EquationProps {
  sum: Addition;
  unit: string;
  read: Decimal | undefined;
  choose: (ids: string[]) => void;
}

/** Numbers with more digits than this are written smaller. */
const LONG = 15;

/** The addition in one line: 1,200 + 34 + 5 = 1,239. */
function Equation({ sum, unit, read, choose }: EquationProps) {
  const { terms, shared, total } = sum;
  const spoken = `${terms.map(({ amount }) => digits(text(amount))).join(" + ")}${shared ? ` − ${digits(text(shared))}` : ""} = ${digits(text(total))} ${unit}`;
  const isLong = terms.some(({ amount }) => text(amount).length > LONG);
  const isSame = read !== undefined && equals(read, total);
  return (
    <div class="equation-row">
      <p class={isLong ? "equation small" : "equation"}>
        <span class="hidden">{spoken}</span>
        {terms.map(({ phase, amount, ids }, index) => {
          const isNegative = amount.units < 0n;
          const size = digits(text(isNegative && index > 0 ? { ...amount, units: -amount.units } : amount));
          return (
            <span class="step" key={`${phase} ${ids[0]}`} aria-hidden="true">
              {index > 0 && <span class="op">{isNegative ? "−" : "+"}</span>}
              <span class={`term ${phase}`} onMouseEnter={() => choose(ids)} onMouseLeave={() => choose([])}>
                <b>{size}</b>
                <small>{ids.length > 1 ? `${digits(ids.length)} ${phase}` : phase}</small>
              </span>
            </span>
          );
        })}
        {terms.length === 0 && (
          <span class="term" aria-hidden="true">
            <b>0</b>
            <small>no row counts</small>
          </span>
        )}
        {shared && (
          <span class="step" aria-hidden="true">
            <span class="op">−</span>
            <span class="term">
              <b>{digits(text(shared))}</b>
              <small>counted in two packs</small>
            </span>
          </span>
        )}
        <span class="step" aria-hidden="true">
          <span class="op">=</span>
          <span class="term total">
            <b>{digits(text(total))}</b>
            <small title={isSame ? "A read has the same value." : undefined}>
              {unit || "the number"}
              <span class={isSame ? "same" : "same off"}> ✓ same as a read</span>
            </small>
          </span>
        </span>
      </p>
    </div>
  );
}

interface MergedProps {
  parts: Part[];
  kind: string;
  merge: string;
  reading: Reading | undefined;
  choose: (ids: string[]) => void;
}

const MERGED_MAX = 6;
const BRIEF_MAX = 28;

/** The same for kinds whose rows are merged in another way: 1,200 ∪ 34 → 1,210. */
function Merged({ parts, kind, merge, reading, choose }: MergedProps) {
  const { brief } = shapeOf(kind);
  const counting = parts.filter((part) => part.ignored === undefined && part.value !== null);
  const damaged = parts.find((part) => part.error);
  if (damaged) return <p class="note bad">A row can't be decoded, so the key has no value: {damaged.error}</p>;
  return (
    <div class="equation-row">
      {counting.length <= MERGED_MAX && (
        <p class="equation small">
          {counting.map((part, index) => (
            <span class="step" key={part.id}>
              {index > 0 && <span class="op">∪</span>}
              <span class={`term ${part.phase}`} onMouseEnter={() => choose([part.id])} onMouseLeave={() => choose([])}>
                <b>{cut(brief(part.value as Value), BRIEF_MAX)}</b>
                <small>{part.phase}</small>
              </span>
            </span>
          ))}
          {reading && (
            <span class="step">
              <span class="op">=</span>
              <span class="term total">
                <b>{cut(brief(reading.value), BRIEF_MAX)}</b>
                <small>the value</small>
              </span>
            </span>
          )}
        </p>
      )}
      <p class="soft">{merge}</p>
    </div>
  );
}

interface LedgerProps {
  parts: Part[];
  times: Times;
  sum: Addition | undefined;
  kind: string;
  chosen: ReadonlySet<string>;
  onChoose: (ids: string[]) => void;
}

/** More rows of a phase than this are one line until they are asked for. */
const ROWS_MAX = 6;
const ROWS_OPEN_MAX = 500;

function Ledger({ parts, times, sum, kind, chosen, onChoose }: LedgerProps) {
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const most = Math.max(1e-9, ...parts.filter(({ ignored }) => !ignored).map(({ size }) => size));
  const groups = [
    ...PHASES.map((phase) => ({ id: phase as string, phase, rows: parts.filter((part) => part.phase === phase && !part.ignored) })),
    { id: "ignored", phase: "final" as Phase, rows: parts.filter((part) => part.ignored) },
  ].filter(({ rows }) => rows.length > 0);
  const toggle = (id: string) => {
    const next = new Set(open);
    if (!next.delete(id)) next.add(id);
    setOpen(next);
  };
  const line = (part: Part) => (
    <Line key={part.id} part={part} kind={kind} most={most} times={times} isChosen={chosen.has(part.id)} onChoose={onChoose} />
  );
  return (
    <table class={sum && text(sum.total).length > LONG ? "ledger long" : "ledger"}>
      <caption class="hidden">The rows of this key and their parts of the value</caption>
      <thead>
        <tr>
          <th scope="col">Row</th>
          <th scope="col" class="hidden">
            Bar
          </th>
          <th scope="col" class="number">
            Part
          </th>
          <th scope="col">State</th>
          <th scope="col">Writer</th>
        </tr>
      </thead>
      {groups.map(({ id, phase, rows }) =>
        rows.length <= ROWS_MAX ? (
          <tbody key={id}>{rows.map(line)}</tbody>
        ) : (
          <tbody key={id}>
            <Summary
              id={id}
              phase={phase}
              rows={rows}
              kind={kind}
              most={most}
              isOpen={open.has(id)}
              onToggle={() => toggle(id)}
              isChosen={rows.some((part) => chosen.has(part.id))}
            />
            {open.has(id) && rows.slice(0, ROWS_OPEN_MAX).map(line)}
            {open.has(id) && rows.length > ROWS_OPEN_MAX && (
              <tr>
                <td colSpan={5} class="soft">
                  and {digits(rows.length - ROWS_OPEN_MAX)} more
                </td>
              </tr>
            )}
          </tbody>
        ),
      )}
      {sum && (
        <tfoot>
          <tr>
            <th scope="row">total</th>
            <td />
            <td class="number total">{digits(text(sum.total))}</td>
            <td colSpan={2} />
          </tr>
        </tfoot>
      )}
    </table>
  );
}

interface LineProps {
  part: Part;
  kind: string;
  most: number;
  times: Times;
  isChosen: boolean;
  onChoose: (ids: string[]) => void;
}

function Line({ part, kind, most, times, isChosen, onChoose }: LineProps) {
  const share = part.ignored ? 0 : part.size / most;
  return (
    <tr
      class={`${isChosen ? "chosen" : ""} ${part.ignored ? "ignored" : ""}`}
      onMouseEnter={() => onChoose([part.id])}
      onMouseLeave={() => onChoose([])}
    >
      <th scope="row">
        <span class={`chip ${part.phase}`}>{part.phase}</span>
      </th>
      <td class="track">
        <span class={`bar ${part.phase}`} style={{ width: `${100 * share}%` }} />
      </td>
      <td class="number">{part.error ? "?" : partText(part, kind)}</td>
      <td class="when">{part.error ?? stateOf(part, times)}</td>
      <td class="writer soft">
        {part.mutator && <code title={part.mutator}>{part.mutator.slice(0, 8)}</code>}
        {part.ids !== undefined && <span class="pack">pack of {plural(part.ids, "id")}</span>}
      </td>
    </tr>
  );
}

interface SummaryProps {
  id: string;
  phase: Phase;
  rows: Part[];
  kind: string;
  most: number;
  isOpen: boolean;
  isChosen: boolean;
  onToggle: () => void;
}

function Summary({ id, phase, rows, kind, most, isOpen, isChosen, onToggle }: SummaryProps) {
  const isIgnored = id === "ignored";
  const adds = shapeOf(kind).amount !== undefined && !isIgnored && rows.every((part) => part.amount);
  const sum = useMemo(() => (adds ? addition(rows, null, undefined)?.total : undefined), [rows]);
  const size = rows.reduce((whole, part) => whole + part.size, 0);
  const packs = rows.filter((part) => part.ids !== undefined);
  const ids = packs.reduce((count, part) => count + (part.ids ?? 0), 0);
  return (
    <tr class={`summary ${isChosen ? "chosen" : ""} ${isIgnored ? "ignored" : ""}`}>
      <th scope="row">
        <span class={`chip ${phase}`}>
          {digits(rows.length)} {isIgnored ? "do not count" : phase}
        </span>
      </th>
      <td class="track">
        <span class={`bar ${phase}`} style={{ width: `${adds ? Math.min(100, (100 * size) / most) : 0}%` }} />
      </td>
      <td class="number">{sum ? digits(text(sum)) : ""}</td>
      <td class="when">
        <button type="button" class="small" aria-expanded={isOpen} onClick={onToggle}>
          {isOpen ? "Hide" : "Show"} the rows
        </button>
      </td>
      <td class="writer soft">{packs.length > 0 && <span class="pack">{plural(packs.length, "pack")}, {plural(ids, "id")}</span>}</td>
    </tr>
  );
}

function partText(part: Part, kind: string): string {
  if (part.value === null) return "–";
  return part.amount ? digits(text(part.amount)) : cut(shapeOf(kind).brief(part.value), BRIEF_MAX);
}

function stateOf(part: Part, { fence, cutoff, now }: Times): string {
  const { phase, ignored, expiresAt } = part;
  if (isGrave(part) && fence !== undefined) return `deleted or forgotten: shards that expired up to ${clock(fence)} do not count`;
  if (ignored === "in_tally") return "came back after a fold: already in the tally";
  if (ignored === "cleared") return "a reset cleared it";
  if (expiresAt === undefined) return fence === undefined ? "" : `all shards that expired up to ${clock(fence)}`;
  switch (phase) {
    case "live":
      return `takes updates, expires in ${span(Math.max(0, expiresAt - now))}`;
    case "draining":
      return `takes no more updates, expires in ${span(Math.max(0, expiresAt - now))}`;
    case "expired":
      return `becomes final in ${span(Math.max(0, expiresAt - cutoff))}`;
    default:
      return "waits for a fold";
  }
}

function Ids({ view }: { view: ShardsView }) {
  const packed = view.shards.some((row) => row.ids !== undefined);
  if (!packed) return null;
  return (
    <p class="soft">
      A pack is a row of updates with ids. All copies of an id are in packs with the same expiry, and count once
      {typeof view.ids === "number" && `: ${plural(view.ids, "id")} now`}.
      {(view.id_conflicts ?? 0) > 0 && (
        <strong> {plural(view.id_conflicts ?? 0, "id")} came with different contents. For each id, only one content counts.</strong>
      )}
    </p>
  );
}

interface FoldProps {
  keyPath: string;
  group: string;
  onDone: () => void;
}

function Fold({ keyPath, group, onDone }: FoldProps) {
  const [state, setState] = useState<FoldView | Error | "busy">();
  const fold = async (isDry: boolean) => {
    setState("busy");
    try {
      setState(await call<FoldView>(`${keyPath}/fold${isDry ? "?dry_run=true" : ""}`, { method: "POST", needs: `admin ${group}` }));
      onDone();
    } catch (error) {
      setState(error as Error);
    }
  };
  useEffect(() => setState(undefined), [keyPath]);
  return (
    <div class="fold">
      <Guarded right={`admin ${group}`}>
        <div class="row">
          <button type="button" disabled={state === "busy"} onClick={() => fold(true)}>
            What would a fold do?
          </button>
          <button type="button" disabled={state === "busy"} onClick={() => fold(false)}>
            Fold now
          </button>
          <span class="soft">Pods fold automatically. A fold changes no value, unless it forgets an idle key.</span>
        </div>
      </Guarded>
      <div role="status">
        {state instanceof Error ? <Trouble error={state} /> : state !== undefined && state !== "busy" && <p class="note">{foldReport(state)}</p>}
      </div>
    </div>
  );
}

