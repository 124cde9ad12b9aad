// A long list of links of which only the visible ones are in the document. Arrow keys, Page, Home and End move the focus.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

const ROW_PX = 32;
/** Rows above and below the visible ones, so that fast scrolling shows no gaps. */
const SPARE = 12;
/** So near to its end the list asks for more. */
const NEAR_END = 150;

interface Props {
  label: string;
  count: number;
  row: (index: number) => { href: string; isCurrent: boolean; content: ComponentChildren };
  /** Called near the end of what is loaded. */
  onNearEnd?: () => void;
  /** Called with the visible rows once scrolling pauses. */
  onVisible?: (first: number, last: number) => void;
}

const PAUSE_MS = 250;

export function WindowList({ label, count, row, onNearEnd, onVisible }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  const focusNext = useRef<number | undefined>(undefined);
  const [active, setActive] = useState<number>();

  const first = Math.max(0, Math.floor(view.top / ROW_PX) - SPARE);
  const last = Math.min(count, Math.ceil((view.top + view.height) / ROW_PX) + SPARE);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setView({ top: element.scrollTop, height: element.clientHeight });
    const fit = new ResizeObserver(measure);
    fit.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      fit.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);

  useEffect(() => {
    if (last + NEAR_END >= count) onNearEnd?.();
  }, [last, count]);

  useEffect(() => {
    const timer = setTimeout(() => onVisible?.(first, last), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [first, last]);

  useLayoutEffect(() => {
    if (focusNext.current === undefined) return;
    const link = box.current?.querySelector<HTMLElement>(`[data-index="${focusNext.current}"]`);
    if (link) {
      focusNext.current = undefined;
      link.focus({ preventScroll: true });
    }
  });

  const move = (event: KeyboardEvent) => {
    const index = Number((event.target as HTMLElement).dataset["index"]);
    const element = box.current;
    if (!element || Number.isNaN(index)) return;
    const page = Math.max(1, Math.floor(element.clientHeight / ROW_PX) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const to = Math.min(count - 1, Math.max(0, index + step));
    focusNext.current = to;
    setActive(to);
    const [top, bottom] = [to * ROW_PX, (to + 1) * ROW_PX];
    if (top < element.scrollTop) element.scrollTop = top;
    else if (bottom > element.scrollTop + element.clientHeight) element.scrollTop = bottom - element.clientHeight;
    setView({ top: element.scrollTop, height: element.clientHeight });
  };

  // One row is a stop of the Tab key, and arrow keys lead to the others.
  const drawn = Array.from({ length: last - first }, (_, offset) => ({ index: first + offset, ...row(first + offset) }));
  const isDrawn = (index: number | undefined) => index !== undefined && index >= first && index < last;
  const current = drawn.find(({ isCurrent }) => isCurrent)?.index;
  const stop = isDrawn(active) ? active : (current ?? Math.min(last - 1, Math.ceil(view.top / ROW_PX)));
  const rows = [];
  for (const { index, href, isCurrent, content } of drawn) {
    rows.push(
      <li key={index} style={{ top: `${index * ROW_PX}px` }} aria-posinset={index + 1} aria-setsize={count}>
        <a href={href} data-index={index} tabIndex={index === stop ? 0 : -1} onFocus={() => setActive(index)} aria-current={isCurrent ? "page" : undefined}>
          {content}
        </a>
      </li>,
    );
  }
  return (
    <div class="window" ref={box} onKeyDown={move}>
      <ul aria-label={label} style={{ height: `${count * ROW_PX}px` }}>
        {rows}
      </ul>
    </div>
  );
}
