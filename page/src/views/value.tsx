// A value as its kind is read best.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { binsOf } from "../logic/bins.ts";
import { ZERO, minus, near } from "../logic/decimal.ts";
import { clock, compact, digits, double, full, item, percent, plural } from "../logic/format.ts";
import { call } from "../live/api.ts";
import { usePolled } from "../live/polled.ts";
import { Chart } from "../parts/chart.tsx";
import { Card, Copy, Ticking } from "../parts/ui.tsx";
import type { Estimate, Extrema, Histogram, ItemSet, Observation, Point, Reading, Register, Stats, TopList, Whole } from "../types.ts";

interface Props {
  reading: Reading;
  points: Point[];
  keyPath: string;
  bound: string | undefined;
}

export function ValueCard({ reading, points, keyPath, bound }: Props) {
  const { value } = reading;
  switch (reading.kind) {
    case "counter":
    case "sum":
      return <NumberCard value={value as Whole} points={points} />;
    case "histogram":
      return <HistogramCard reading={reading} keyPath={keyPath} />;
    case "topk":
      return <TopCard list={value as TopList} />;
    case "distinct":
    case "audience":
      return <EstimateCard estimate={value as Estimate} />;
    case "gset":
    case "lww_set":
    case "or_set":
      return <SetCard set={value as ItemSet} />;
    case "register":
      return <RegisterCard register={value as Register} />;
    case "stats":
      return <StatsCard stats={value as Stats} />;
    case "extrema":
      return <ExtremaCard extrema={value as Extrema} />;
    default:
      return (
        <Card title="Value">
          <pre class="code">{JSON.stringify(value, null, 2)}</pre>
          {bound && <p class="soft">{bound}</p>}
        </Card>
      );
  }
}

function Big({ text, copy, unit }: { text: string; copy: string; unit?: string }) {
  // Long numbers get smaller letters, so that most stay on one line.
  const size = text.length > 36 ? "longest" : text.length > 23 ? "long" : text.length > 15 ? "middle" : "";
  return (
    <div class="big-row">
      <output class={`big ${size}`} aria-live="off">
        <Ticking text={text} />
        {unit && <small> {unit}</small>}
      </output>
      <Copy text={copy} />
    </div>
  );
}

function NumberCard({ value, points }: { value: Whole; points: Point[] }) {
  const curve = useMemo(() => curveOf(points), [points]);
  return (
    <Card title="The number" className="value">
      <Big text={digits(value)} copy={String(value)} />
      {points.length > 2 && (
        <Chart
          label={`The number since ${clock(points[0]?.at ?? 0)}, now ${digits(value)}`}
          x={curve.x}
          y={curve.y}
          format={curve.isChange ? change : compact}
          axis="time"
          height={120}
          shape="steps"
        />
      )}
    </Card>
  );
}

/** A number that moves by less than this share of itself is drawn as its change, because its first digits stay the same. */
const SMALL_CHANGE = 0.01;
/** Numbers below this are written with all their digits. */
const SHORT = 1e4;

function curveOf(points: Point[]) {
  const base = points[0]?.value ?? ZERO;
  const changes = points.map(({ value }) => near(minus(value, base)));
  const [start, most] = [near(base), Math.max(...changes.map(Math.abs))];
  const isChange = Math.abs(start) >= SHORT && most < Math.abs(start) * SMALL_CHANGE;
  return { x: points.map(({ at }) => at), y: isChange ? changes : changes.map((by) => start + by), isChange };
}

function change(by: number): string {
  return by > 0 ? `+${compact(by)}` : compact(by);
}

const QUANTILES = [0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1];
const BINS = 80;
/** A histogram that is updated all the time is read once a second. */
const AGAIN_MS = 1_000;

function HistogramCard({ reading, keyPath }: { reading: Reading; keyPath: string }) {
  const load = (signal: AbortSignal) =>
    call<Reading>(`${keyPath}?numbers=string&buckets=true&q=${QUANTILES.join(",")}`, { signal });
  const { data, refresh } = usePolled(load, null, [keyPath]);
  const lastAsked = useRef(0);
  useEffect(() => {
    const wait = Math.max(0, lastAsked.current + AGAIN_MS - Date.now());
    const timer = setTimeout(() => {
      lastAsked.current = Date.now();
      refresh();
    }, wait);
    return () => clearTimeout(timer);
  }, [reading]);
  const value = (data?.value ?? reading.value) as Histogram;
  const bins = useMemo(() => binsOf(value.buckets ?? [], BINS), [data]);
  const marks = value.quantiles
    .filter(({ q, value: at }) => [0.5, 0.9, 0.99].includes(q) && at !== null)
    .map(({ q, value: at }) => ({ at: at as number, label: `p${q * 100}` }));
  const count = Number(value.count);
  return (
    <Card title="Distribution" className="value" aside={<span class="soft">quantiles within {percent(value.relative_error)}</span>}>
      <Big text={digits(value.count)} copy={String(value.count)} unit="values" />
      {bins.at.length > 0 && (
        <Chart
          label={`The distribution of ${digits(count)} values from ${double(value.min)} to ${double(value.max)}`}
          x={bins.at}
          y={bins.counts}
          axis={bins.isLog ? "log" : "linear"}
          height={210}
          marks={marks}
          fromZero
          shape="bins"
        />
      )}
      <dl class="figures quantiles">
        {value.quantiles.map(({ q, value: at }) => (
          <div key={q}>
            <dt>{q === 0 ? "min" : q === 1 ? "max" : `p${double(q * 100, 4)}`}</dt>
            <dd title={full(at)}>{double(at, 4)}</dd>
          </div>
        ))}
      </dl>
      <Figures all={[["sum", value.sum], ["mean", count > 0 && value.sum !== null ? value.sum / count : null]]} />
    </Card>
  );
}

function Figures({ all }: { all: [string, number | null][] }) {
  return (
    <dl class="figures">
      {all.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd title={full(value)}>{double(value, 8)}</dd>
        </div>
      ))}
    </dl>
  );
}

const TOP_SHOWN = 20;

function TopCard({ list }: { list: TopList }) {
  const [isWhole, setWhole] = useState(false);
  const most = Math.max(1, ...list.items.map((entry) => Number(entry.at_most)));
  const shown = isWhole ? list.items : list.items.slice(0, TOP_SHOWN);
  return (
    <Card
      title="Top items"
      className="value"
      aside={<span class="soft">an unlisted item weighs at most {digits(list.error)}</span>}
    >
      <Big text={digits(list.total)} copy={String(list.total)} unit="total weight" />
      <table class="bars">
        <thead>
          <tr>
            <th scope="col">Item</th>
            <th scope="col" class="hidden">
              Bar
            </th>
            <th scope="col" class="number">
              Weight
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((entry) => {
            const [least, top] = [Number(entry.at_least), Number(entry.at_most)];
            const isSure = String(entry.at_least) === String(entry.at_most);
            return (
              <tr key={JSON.stringify(entry.item)}>
                <th scope="row" class="name" title={item(entry.item)}>
                  {item(entry.item)}
                </th>
                <td class="track">
                  <span class="bar" style={{ width: `${(100 * least) / most}%` }} />
                  <span class="bar unsure" style={{ width: `${(100 * (top - least)) / most}%` }} />
                </td>
                <td class="number">{isSure ? digits(entry.at_least) : `${digits(entry.at_least)} – ${digits(entry.at_most)}`}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {list.items.length > TOP_SHOWN && (
        <button type="button" class="small" onClick={() => setWhole(!isWhole)}>
          {isWhole ? `Show the first ${TOP_SHOWN}` : `Show all ${list.items.length}`}
        </button>
      )}
    </Card>
  );
}

/** Of fewer items, one item is more than a hundredth. */
const SHARES_FROM = 100;

function EstimateCard({ estimate }: { estimate: Estimate }) {
  const { lower, upper } = estimate;
  const middle = estimate.estimate;
  const room = Math.max(1, (upper - lower) * 0.6);
  const place = (value: number) => `${(100 * (value - lower + room)) / (upper - lower + 2 * room)}%`;
  const isExact = lower === upper;
  return (
    <Card title="Different items" className="value" aside={<span class="soft">lg_k {estimate.lg_k}</span>}>
      <Big text={`${isExact ? "" : "≈ "}${digits(Math.round(middle))}`} copy={String(middle)} />
      {isExact ? (
        <p class="soft">With so few items, the count is exact.</p>
      ) : (
        <figure class="band">
          <div class="band-line" aria-hidden="true">
            <span class="band-range" style={{ left: place(lower), right: `calc(100% - ${place(upper)})` }} />
            <span class="band-middle" style={{ left: place(middle) }} />
            <span class="band-text" style={{ left: place(lower) }}>
              {digits(Math.round(lower))}
            </span>
            <span class="band-text" style={{ left: place(upper) }}>
              {digits(Math.round(upper))}
            </span>
          </div>
          <figcaption>
            With 95 % confidence between {digits(Math.round(lower))} and {digits(Math.round(upper))}
            {middle >= SHARES_FROM &&
              `: −${percent((middle - lower) / middle)}, +${percent((upper - middle) / middle)}`}
            .
          </figcaption>
        </figure>
      )}
    </Card>
  );
}

const ITEMS_SHOWN = 200;

function SetCard({ set }: { set: ItemSet }) {
  const [text, setText] = useState("");
  const items = (set.items ?? []).map((entry) => (typeof entry === "object" ? entry.item : entry));
  const fitting = items.filter((entry) => String(entry).includes(text));
  return (
    <Card title="Items" className="value">
      <Big text={digits(set.size)} copy={items.map(item).join("\n")} unit={String(set.size) === "1" ? "item" : "items"} />
      {items.length > 10 && (
        <label class="field">
          Items that contain
          <input value={text} placeholder="all" onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <ul class="items">
        {fitting.slice(0, ITEMS_SHOWN).map((entry) => (
          <li key={JSON.stringify(entry)}>{item(entry)}</li>
        ))}
      </ul>
      {fitting.length > ITEMS_SHOWN && <p class="soft">and {plural(fitting.length - ITEMS_SHOWN, "other")}: type some text to find them.</p>}
    </Card>
  );
}

function RegisterCard({ register }: { register: Register }) {
  const text = register.is_set ? JSON.stringify(register.value, null, 2) : "";
  const time = register.timestamp === null ? undefined : Number(register.timestamp) / 1000;
  return (
    <Card title="Value" className="value" aside={register.is_set && <Copy text={text} />}>
      {register.is_set ? <pre class="code">{text}</pre> : <p>No value is set.</p>}
      {time !== undefined && <p class="soft">Written at {clock(time)}, by the clock of the pod that took it. The last write wins.</p>}
    </Card>
  );
}

function StatsCard({ stats }: { stats: Stats }) {
  const { min, max, mean, stddev } = stats;
  const width = min !== null && max !== null ? max - min : 0;
  const place = (value: number) => `${Math.min(100, Math.max(0, (100 * (value - (min ?? 0))) / width))}%`;
  return (
    <Card title="Statistics" className="value">
      <Big text={digits(stats.count)} copy={String(stats.count)} unit={String(stats.count) === "1" ? "value" : "values"} />
      {width > 0 && mean !== null && stddev !== null && (
        <div class="band-line" aria-hidden="true">
          <span class="band-range" style={{ left: place(mean - stddev), right: `calc(100% - ${place(mean + stddev)})` }} />
          <span class="band-middle" style={{ left: place(mean) }} />
          <span class="band-text first" style={{ left: "0%" }}>
            min {double(min, 4)}
          </span>
          <span class="band-text" style={{ left: place(mean) }}>
            mean {double(mean, 4)}
          </span>
          <span class="band-text last" style={{ left: "100%" }}>
            max {double(max, 4)}
          </span>
        </div>
      )}
      <Figures all={[["mean", mean], ["stddev", stddev], ["variance", stats.variance], ["sum", stats.sum], ["min", min], ["max", max]]} />
    </Card>
  );
}

function ExtremaCard({ extrema }: { extrema: Extrema }) {
  const side = (name: string, seen: Observation | null) => (
    <div class="extreme">
      <dt>{name}</dt>
      <dd>
        <span class="big middle" title={full(seen?.value)}>
          <Ticking text={double(seen?.value, 10)} />
        </span>
        <span class="soft">{seen?.label ?? "no label"}</span>
      </dd>
    </div>
  );
  return (
    <Card title="Smallest and largest" className="value">
      <dl class="extremes">
        {side("min", extrema.min)}
        {side("max", extrema.max)}
      </dl>
    </Card>
  );
}

