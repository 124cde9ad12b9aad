// A fold's report as a sentence.
import type { FoldView } from "../types.ts";
import { clock, plural } from "./format.ts";

export function foldReport(fold: FoldView): string {
  const say: string[] = [];
  const would = fold.dry_run;
  if (fold.forgotten) say.push(would ? "A fold would forget this key: it is idle." : "The fold forgot this key: it was idle.");
  else if (fold.folded > 0) {
    say.push(`${would ? "A fold would move" : "The fold moved"} ${plural(fold.folded, "final shard")} into the tally.`);
  } else say.push(would ? "A fold would move nothing: no shard is final." : "The fold moved nothing: no shard is final.");
  if (fold.cleared > 0) say.push(`It ${would ? "would delete" : "deleted"} ${plural(fold.cleared, "shard")} that a reset cleared.`);
  if (fold.zombies > 0) {
    say.push(`It ${would ? "would delete" : "deleted"} ${plural(fold.zombies, "row")} below the fence that came back.`);
  }
  if (fold.kept > 0) say.push(`${plural(fold.kept, "shard")} ${fold.kept === 1 ? "stays: it is" : "stay: they are"} not final yet.`);
  if (fold.more) say.push("More final shards are left: fold again.");
  if (fold.full) say.push("The tally is full: the oldest final shard does not fit.");
  if (fold.fence && fold.fence !== fold.fence_before) {
    say.push(`The fence ${would ? "would move" : "moved"} to ${clock(fold.fence)}.`);
  }
  if (!fold.forgotten) say.push(`The value ${would ? "would stay" : "stayed"} the same.`);
  return say.join(" ");
}
