// Numbers, times and items as people read them.
import type { Item, Whole } from "../types.ts";

const MINUS = "−";

/** A decimal in text, such as -1234567.50, with all its digits and a comma after each three: −1,234,567.50. */
export function digits(value: Whole): string {
  const match = /^(-?)(\d+)(\.\d+)?$/.exec(String(value));
  if (!match) return String(value);
  const [, sign, whole = "", fraction = ""] = match;
  return (sign ? MINUS : "") + whole.replace(/\B(?=(\d{3})+$)/g, ",") + fraction;
}

/** A double with at most this many significant digits; very large and very small ones as a power of ten. */
export function double(value: number | null | undefined, significant = 6): string {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const short = Number(value.toPrecision(significant));
  const size = Math.abs(short);
  if (size !== 0 && (size < 1e-4 || size >= 1e15)) {
    const [mantissa, power] = short.toExponential().split("e");
    return `${mantissa}×10^${Number(power)}`.replaceAll("-", MINUS);
  }
  const [whole = "0", fraction] = String(short).split(".");
  return digits(whole === "-0" ? "-0" : whole) + (fraction ? `.${fraction}` : "");
}

/** A double with all the digits that JavaScript shows. */
export function full(value: number | null | undefined): string {
  return double(value, 17);
}

/** A count in a few characters: 950, 12.3k, 4.5M. */
export function compact(value: number): string {
  const size = Math.abs(value);
  for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]] as const) {
    if (size >= limit) {
      const scale = unit === "k" ? 1e3 : limit;
      return double(value / scale, 3) + unit;
    }
  }
  return double(value, 4);
}

export function percent(share: number): string {
  return `${double(share * 100, 3)} %`;
}

/** A time span: 0.8 ms, 12.5 s, 2:05 min, 13 h 04 min, 3 d 4 h. */
export function span(milliseconds: number): string {
  const ms = Math.abs(milliseconds);
  if (ms < 995) return `${double(ms, 2)} ms`;
  const seconds = Math.floor(ms / 1e3 + 0.005);
  if (seconds < 60) return `${seconds} s`;
  const two = (number: number) => String(number).padStart(2, "0");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 === 0 ? `${minutes} min` : `${minutes}:${two(seconds % 60)} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${two(minutes % 60)} min`;
  return hours % 24 === 0 ? `${hours / 24} d` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** The time of day here; with the date if it is not today. */
export function clock(time: string | number | Date, now: Date = new Date()): string {
  const parts = partsOf(time);
  if (!parts) return String(time);
  const { year, day, minute, second } = parts;
  return isToday(time, now) ? `${minute}:${second}` : `${year}-${day} ${minute}:${second}`;
}

/** The same with less room: the day and the minute, or the second of today. */
export function shortClock(time: string | number | Date, now: Date = new Date()): string {
  const parts = partsOf(time);
  if (!parts) return String(time);
  return isToday(time, now) ? `${parts.minute}:${parts.second}` : `${parts.day} ${parts.minute}`;
}

function isToday(time: string | number | Date, now: Date): boolean {
  return new Date(time).toDateString() === now.toDateString();
}

function partsOf(time: string | number | Date) {
  const date = new Date(time);
  if (Number.isNaN(date.getTime())) return undefined;
  const two = (number: number) => String(number).padStart(2, "0");
  return {
    year: date.getFullYear(),
    day: `${two(date.getMonth() + 1)}-${two(date.getDate())}`,
    minute: `${two(date.getHours())}:${two(date.getMinutes())}`,
    second: two(date.getSeconds()),
  };
}

/** An item as JSON shows it, so that 7 and "7" differ; strings without quotes if they can't be taken for something else. */
export function item(value: Item): string {
  if (typeof value === "number") return String(value);
  return value === "" || value.trim() !== value || /^(-?[\d.]+|true|false|null)$/.test(value) || /[\n\r\t]/.test(value)
    ? JSON.stringify(value)
    : value;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${digits(count)} ${count === 1 ? one : many}`;
}

/** Text with at most this many characters. */
export function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
