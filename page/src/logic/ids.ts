// UUIDs of version 7: the time of the id is inside, so the server needs no Idempotency-Time.

export function uuid7(now: number = Date.now(), random: Uint8Array = crypto.getRandomValues(new Uint8Array(10))): string {
  const time = Math.floor(now).toString(16).padStart(12, "0");
  const [a = 0, b = 0, c = 0, ...rest] = random;
  const hex = (byte: number) => byte.toString(16).padStart(2, "0");
  const version = hex(0x70 | (a & 0x0f)) + hex(b);
  const variant = hex(0x80 | (c & 0x3f)) + hex(rest[0] ?? 0);
  const tail = rest.slice(1, 7).map(hex).join("");
  return `${time.slice(0, 8)}-${time.slice(8)}-${version}-${variant}-${tail}`;
}
