// Where the rows of a key stand between the tally and the future.
//
// The fence, the cutoff and now have fixed places. As time runs, each row moves left: past now its mutator has expired,
// past the cutoff it is final, and when a fold moves the fence past it, it is in the tally.

export interface Times {
  fence: number | undefined;
  cutoff: number;
  now: number;
}

/** Shares of the width at which zones begin. */
export const FENCE_AT = 0.14;
export const CUTOFF_AT = 0.37;
export const NOW_AT = 0.56;

const HOUR = 3_600_000;

const MINUTE = 60_000;
const HORIZONS = [1, 2, 5, 15, 30, 60, 120, 360, 720, 1_440, 2_880, 11_520].map((minutes) => minutes * MINUTE);

/** How far the picture looks ahead in ms, for a latest expiry that is so far ahead. */
export function horizon(ahead: number): number {
  return HORIZONS.find((span) => span >= ahead) ?? ahead;
}

/** The place of an expiry as a share of the width, from 0 to 1. */
export function place(expiresAt: number, { fence, cutoff, now }: Times, oldest: number, ahead: number): number {
  if (fence !== undefined && expiresAt <= fence) return FENCE_AT / 2;
  if (expiresAt <= cutoff) {
    const from = fence ?? Math.min(oldest, cutoff - HOUR);
    return within(FENCE_AT, CUTOFF_AT, (expiresAt - from) / Math.max(1, cutoff - from));
  }
  if (expiresAt <= now) return within(CUTOFF_AT, NOW_AT, (expiresAt - cutoff) / Math.max(1, now - cutoff));
  // Near now a second is wide, and far away an hour is narrow.
  return within(NOW_AT, 0.96, Math.sqrt((expiresAt - now) / ahead));
}

function within(from: number, to: number, share: number): number {
  return from + (to - from) * Math.min(1, Math.max(0, share));
}

/** The time of the fence, the cutoff and the server's clock some milliseconds after an answer. */
export function later(times: Times, elapsed: number): Times {
  return { fence: times.fence, cutoff: times.cutoff + elapsed, now: times.now + elapsed };
}
