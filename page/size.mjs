// Ends with an error if the built page is larger than it may be.
import { readdirSync, readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const MAX_BYTES = 60 * 1024;
const dist = new URL("dist/", import.meta.url);
const bytes = readdirSync(dist).reduce((sum, name) => sum + gzipSync(readFileSync(new URL(name, dist)), { level: 9 }).length, 0);
console.log(`dist has ${(bytes / 1024).toFixed(1)} KiB with gzip, of ${MAX_BYTES / 1024} KiB`);
process.exit(bytes > MAX_BYTES ? 1 : 0);
