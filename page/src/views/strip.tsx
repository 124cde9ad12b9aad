// The rows of a key between the future and the tally. They move left as time runs.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Part, isGrave } from "../logic/addition.ts";
import { near } from "../logic/decimal.ts";
import { compact, digits, shortClock, span } from "../logic/format.ts";
import { CUTOFF_AT, FENCE_AT, NOW_AT, type Times, horizon, place } from "../logic/timeline.ts";

interface Props {
  parts: Part[];
  times: Times;
  chosen: ReadonlySet<string>;
  onChoose: (ids: string[]) => void;
}

/** How long a row takes to move into the tally, as in the style sheet. */
const FOLDING_MS = 900;

export function Strip({ parts, times, chosen, onChoose }: Props) {
  const shards = parts.filter((part) => part.expiresAt !== undefined);
  const expiries = shards.map(({ expiresAt }) => expiresAt as number);
  const [oldest, latest] = [Math.min(times.cutoff, ...expiries), Math.max(times.now, ...expiries)];
  // It grows and never shrinks, so that rows move and the picture does not.
  const ahead = useRef(0);
  ahead.current = Math.max(ahead.current, horizon(latest - times.now));
  const most = Math.max(1e-9, ...shards.filter(({ ignored }) => !ignored).map(({ size }) => size));
  const folded = useFolded(shards, times.fence);
  const tally = parts.find((part) => part.phase === "tally");
  const at = (part: Part) => place(part.expiresAt as number, times, oldest, ahead.current);
  const labels = labelled(shards, at);
  const count = (of: (part: Part) => boolean) => shards.filter(of).length;
  const final = count((part) => part.phase === "final");
  const width = (part: Part) => widthOf(part.phase === "final" ? final : shards.length - final);
  const label =
    `${tally ? "A tally" : "No tally yet"}, ${digits(final)} final, ` +
    `${digits(count((part) => part.phase === "expired"))} expired, ${digits(count((part) => part.phase === "draining"))} draining ` +
    `and ${digits(count((part) => part.phase === "live"))} live shards.`;
  return (
    <div class="strip" role="img" aria-label={label}>
      <Zone name="tally" from={0} to={FENCE_AT} text={!tally ? "no tally" : isGrave(tally) ? "deleted" : "in the tally"} />
      <Zone name="final" from={FENCE_AT} to={CUTOFF_AT} text="final" />
      <Zone name="expired" from={CUTOFF_AT} to={NOW_AT} text="expired" />
      <Zone name="live" from={NOW_AT} to={1} text="live and draining" />
      <div class="stems">
        {tally && (
          <span
            class={`tally-block ${isGrave(tally) ? "grave" : ""} ${chosen.has("tally") ? "chosen" : ""} ${folded.length > 0 ? "taking" : ""}`}
            style={{ width: `${100 * FENCE_AT}%` }}
            onMouseEnter={() => onChoose(["tally"])}
            onMouseLeave={() => onChoose([])}
          >
            {tally.amount && compact(near(tally.amount))}
          </span>
        )}
        {shards.map((part) => (
          <span
            key={part.id}
            class={`stem ${part.phase} ${width(part)} ${part.ignored ? "ignored" : ""} ${part.ids !== undefined ? "pack" : ""} ${chosen.has(part.id) ? "chosen" : ""}`}
            style={{ left: `${100 * at(part)}%`, height: `${height(part.size, most)}%` }}
            onMouseEnter={() => onChoose([part.id])}
            onMouseLeave={() => onChoose([])}
          >
            {labels.has(part.id) && part.amount && <i>{compact(near(part.amount))}</i>}
          </span>
        ))}
        {folded.map((part) => (
          <span
            key={part.id}
            class="stem final folding"
            style={{ left: `${50 * FENCE_AT}%`, height: `${height(part.size, most)}%` }}
          />
        ))}
      </div>
      <Border name="fence" at={FENCE_AT} time={times.fence} />
      <Border name="cutoff" at={CUTOFF_AT} time={times.cutoff} />
      <Border name="now" at={NOW_AT} time={times.now} />
      <span class="horizon">{span(ahead.current)} from now</span>
    </div>
  );
}

/** The least distance of two labels, as a share of the width. */
const LABEL = 0.08;

/** The stems that have room for their number. */
function labelled(shards: Part[], at: (part: Part) => number): Set<string> {
  const labels = new Set<string>();
  const sorted = shards.filter(({ ignored }) => !ignored).map((part) => ({ part, place: at(part) })).sort((a, b) => a.place - b.place);
  sorted.forEach(({ part, place: here }, index) => {
    const [before, after] = [sorted[index - 1]?.place ?? -1, sorted[index + 1]?.place ?? 2];
    if (here - before >= LABEL && after - here >= LABEL) labels.add(part.id);
  });
  return labels;
}

/** Stems are thinner where many stand together. */
function widthOf(neighbours: number): string {
  return neighbours > 60 ? "thinnest" : neighbours > 20 ? "thin" : "";
}

/** Small parts stay visible. */
function height(size: number, most: number): number {
  return 14 + 86 * Math.sqrt(Math.min(1, size / most));
}

/** Shards that a fold has just taken: they leave the list, and the fence has moved past them. */
function useFolded(shards: Part[], fence: number | undefined): Part[] {
  const before = useRef<Part[]>([]);
  const [folded, setFolded] = useState<Part[]>([]);
  const ids = shards.map(({ id }) => id).join();
  useEffect(() => {
    const present = new Set(shards.map(({ id }) => id));
    const gone = before.current.filter(
      (part) => !present.has(part.id) && !part.ignored && fence !== undefined && (part.expiresAt as number) <= fence,
    );
    before.current = shards;
    if (gone.length === 0) return;
    setFolded(gone);
    const timer = setTimeout(() => setFolded([]), FOLDING_MS);
    return () => clearTimeout(timer);
  }, [ids]);
  return folded;
}

function Zone({ name, from, to, text }: { name: string; from: number; to: number; text: string }) {
  return (
    <span class={`zone ${name}`} style={{ left: `${100 * from}%`, width: `${100 * (to - from)}%` }}>
      <span>{text}</span>
    </span>
  );
}

function Border({ name, at, time }: { name: string; at: number; time: number | undefined }) {
  return (
    <span class={`border ${name}`} style={{ left: `${100 * at}%` }}>
      <span class="border-text">
        <b>{name}</b> {time === undefined ? "–" : shortClock(time)}
      </span>
    </span>
  );
}
