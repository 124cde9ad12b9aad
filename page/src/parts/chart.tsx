// A curve with axes, as SVG: the style sheet gives its colours, so it follows the theme by itself.
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { logTicks, ticks, timeTicks } from "../logic/axis.ts";
import { clock, compact, double } from "../logic/format.ts";

export interface Mark {
  at: number;
  label: string;
}

interface Props {
  /** What a screen reader says instead of the picture. */
  label: string;
  /** Times in ms, or numbers on a linear or a logarithmic axis. */
  x: number[];
  y: (number | undefined)[];
  axis: "time" | "linear" | "log";
  height: number;
  /** Lines across the chart. */
  marks?: Mark[];
  fromZero?: boolean;
  /** Each value holds until the next one, or fills its bin. */
  shape?: "line" | "steps" | "bins";
  format?: (value: number) => string;
}

const [LEFT, RIGHT, BOTTOM] = [54, 10, 20];
/** Half of a time. */
const LABEL_HALF_PX = 26;

export function Chart({ label, x, y, axis, height, marks = [], fromZero = false, shape = "line", format = compact }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  const [pointed, setPointed] = useState<number>();
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const fit = new ResizeObserver(() => setWidth(element.clientWidth));
    fit.observe(element);
    return () => fit.disconnect();
  }, []);

  const top = marks.length > 0 ? 18 : 6;
  const floor = height - BOTTOM;
  const scale = useMemo(() => {
    const to = axis === "log" ? Math.log : (value: number) => value;
    // Bins reach half a bin beyond their middles.
    const half = shape === "bins" && x.length > 1 ? (to(x[1] as number) - to(x[0] as number)) / 2 : 0;
    const [first, last] = [to(x[0] as number) - half, to(x.at(-1) as number) + half];
    const [low, high] = rangeOf(y, fromZero);
    const right = width - RIGHT;
    return {
      low,
      high,
      half,
      ends: (axis === "log" ? [Math.exp(first), Math.exp(last)] : [first, last]) as [number, number],
      at: (value: number) => LEFT + ((to(value) - first) / (last - first || 1)) * (right - LEFT),
      up: (value: number) => floor - ((value - low) / (high - low || 1)) * (floor - top),
      binWidth: ((2 * half) / (last - first || 1)) * (right - LEFT),
    };
  }, [x, y, width, axis, height]);

  const line = useMemo(() => pathOf(x, y, shape, scale), [scale]);
  const wide = Math.max(2, Math.floor(width / 90));
  const [begin, end] = scale.ends;
  const xTicks = axis === "time" ? timeTicks(begin, end, wide) : axis === "log" ? logTicks(begin, end, wide) : ticks(begin, end, wide);
  const xText = (value: number) => (axis === "time" ? clock(value) : double(value, 3));
  const point = (event: PointerEvent) => {
    const left = event.clientX - (box.current?.getBoundingClientRect().left ?? 0);
    let nearest = 0;
    for (let index = 1; index < x.length; index++) {
      if (Math.abs(scale.at(x[index] as number) - left) < Math.abs(scale.at(x[nearest] as number) - left)) nearest = index;
    }
    setPointed(nearest);
  };
  const [atX, atY] = pointed === undefined ? [] : [x[pointed], y[pointed]];
  return (
    <div class="chart" ref={box} onPointerMove={point} onPointerLeave={() => setPointed(undefined)}>
      <svg width={width} height={height} role="img" aria-label={label}>
        {ticks(scale.low, scale.high, Math.max(2, Math.floor(height / 36))).map((value) => (
          <g key={value}>
            <line class="grid" x1={LEFT} x2={width - RIGHT} y1={scale.up(value)} y2={scale.up(value)} />
            <text x={LEFT - 7} y={scale.up(value) + 4} text-anchor="end">
              {format(value)}
            </text>
          </g>
        ))}
        {xTicks.map((value) => (
          <text key={value} x={Math.min(scale.at(value), width - LABEL_HALF_PX)} y={height - 4} text-anchor="middle">
            {xText(value)}
          </text>
        ))}
        {line && <path class="area" d={`${line.area}`} />}
        {line && <path class="line" d={line.line} />}
        <Marks marks={marks} at={scale.at} top={top} floor={floor} right={width - RIGHT} />
        {atX !== undefined && atY !== undefined && <circle class="point" cx={scale.at(atX)} cy={scale.up(atY)} r="3.5" />}
      </svg>
      {atX !== undefined && atY !== undefined && (
        <span class="readout" aria-hidden="true">
          {xText(atX)} · {format(atY)}
        </span>
      )}
    </div>
  );
}

interface MarksProps {
  marks: Mark[];
  at: (value: number) => number;
  top: number;
  floor: number;
  right: number;
}

/** The least distance of two labels. */
const LABEL_PX = 34;

function Marks({ marks, at, top, floor, right }: MarksProps) {
  let free = -Infinity;
  return (
    <>
      {marks.map(({ at: value, label }) => {
        const place = at(value);
        if (!(place >= LEFT - 1 && place <= right + 1)) return null;
        // A label that would cover the one before it is left out; the table has its value.
        const isFree = place >= free;
        if (isFree) free = place + LABEL_PX;
        return (
          <g key={label} class="mark">
            <line x1={place} x2={place} y1={top} y2={floor} />
            {isFree && (
              <text x={Math.min(place, right - 10)} y={top - 5} text-anchor="middle">
                {label}
              </text>
            )}
          </g>
        );
      })}
    </>
  );
}

interface Scale {
  low: number;
  at: (value: number) => number;
  up: (value: number) => number;
  binWidth: number;
}

/** The curve, and the area below it. Gaps in the values are gaps in both. */
function pathOf(x: number[], y: (number | undefined)[], shape: NonNullable<Props["shape"]>, { low, at, up, binWidth }: Scale) {
  const floor = up(low).toFixed(1);
  let line = "";
  let area = "";
  let run: string[] = [];
  const finish = (from: number, to: number) => {
    if (run.length === 0) return;
    line += `M${run.join("L")}`;
    area += `M${from.toFixed(1)},${floor}L${run.join("L")}L${to.toFixed(1)},${floor}Z`;
    run = [];
  };
  let [from, to] = [0, 0];
  const add = (left: number, value: number) => {
    if (run.length === 0) from = left;
    to = left;
    run.push(`${left.toFixed(1)},${up(value).toFixed(1)}`);
  };
  y.forEach((value, index) => {
    if (value === undefined) return finish(from, to);
    const place = at(x[index] as number);
    const before = y[index - 1];
    if (shape === "bins") {
      add(place - binWidth / 2, value);
      add(place + binWidth / 2, value);
    } else {
      if (shape === "steps" && before !== undefined) add(place, before);
      add(place, value);
    }
  });
  finish(from, to);
  return line && { line, area };
}

function rangeOf(y: (number | undefined)[], fromZero: boolean): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of y) {
    if (value === undefined) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  if (fromZero) return [0, high > 0 ? high * 1.05 : 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.02 || 1;
  return [low - room, high + room];
}
