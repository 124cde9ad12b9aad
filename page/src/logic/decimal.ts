// Exact decimals: a counter has 128 bits and a sum has as many digits as it needs, so neither fits a number.

export interface Decimal {
  units: bigint;
  /** Digits after the point. */
  scale: number;
}

export const ZERO: Decimal = { units: 0n, scale: 0 };

export function decimal(text: string | number): Decimal {
  const match = /^(-?)(\d+)(?:\.(\d+))?$/.exec(String(text));
  if (!match) throw new RangeError(`${text} is not a decimal`);
  const [, sign, whole = "0", fraction = ""] = match;
  const units = BigInt(whole + fraction);
  return { units: sign ? -units : units, scale: fraction.length };
}

export function plus(left: Decimal, right: Decimal): Decimal {
  const scale = Math.max(left.scale, right.scale);
  return { units: lift(left, scale) + lift(right, scale), scale };
}

export function minus(left: Decimal, right: Decimal): Decimal {
  return plus(left, { units: -right.units, scale: right.scale });
}

export function equals(left: Decimal, right: Decimal): boolean {
  return minus(left, right).units === 0n;
}

/** The decimal as text, with all its digits. */
export function text({ units, scale }: Decimal): string {
  const digits = (units < 0n ? -units : units).toString().padStart(scale + 1, "0");
  const whole = digits.slice(0, digits.length - scale);
  const fraction = scale > 0 ? `.${digits.slice(digits.length - scale)}` : "";
  return (units < 0n ? "-" : "") + whole + fraction;
}

/** The nearest number, good enough to draw. */
export function near({ units, scale }: Decimal): number {
  return Number(units) / 10 ** scale;
}

function lift({ units, scale }: Decimal, to: number): bigint {
  return units * 10n ** BigInt(to - scale);
}
