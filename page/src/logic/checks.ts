// What an installation is judged by: the limits of monitoring/alerts.yaml, with what each figure means and what to do.
import { compact, digits, double, percent, span } from "./format.ts";
import { type LastMinute, total } from "./metrics.ts";

export type Mark = "good" | "look" | "bad";

export interface Check {
  title: string;
  value: string;
  mark: Mark;
  means: string;
  act: string;
  /** The metric behind it. */
  metric: string;
  /** Problem types that clients can see because of it. The page of each says what to do. */
  problems: string[];
  /** More figures, by label. */
  detail?: [string, string][];
}

export interface Section {
  title: string;
  checks: Check[];
}

const BACKLOG_S = 6 * 3600;
const GROUP_NAMES = 100_000;
const OFFSET_US = 500_000;
const LOG_AGE_S = 10;
const WAITING = 200_000;
const UNKNOWN_SHARE = 0.001;
const NEAR = 0.9;
const CONNECTIONS_NEAR = 0.8;

/** Reasons for which the server refuses updates although their clients did nothing wrong. */
const SERVER_REASONS = ["clock", "resets", "store", "limit", "births", "unsent"];

export function checksOf(minute: LastMinute): Section[] {
  const { latest } = minute;
  if (!latest) return [];
  const now = (name: string, labels?: Record<string, string>) => total(latest, name, labels) ?? 0;
  const since = (name: string, labels?: Record<string, string>) => digits(now(name, labels));
  const by = (name: string, label: string): [string, string][] =>
    (latest.get(name) ?? []).filter(({ value }) => value > 0).map(({ labels, value }) => [labels[label] ?? "", digits(value)]);
  const isNew = (name: string, labels?: Record<string, string>) => minute.rise(name, labels) > 0;
  const seldom = (name: string, mark: Mark, labels?: Record<string, string>): Mark => (now(name, labels) > 0 ? mark : "good");
  const share = (part: number, whole: number) => (whole > 0 ? part / whole : 0);
  const of = (part: string, whole: string, near: number) => {
    const used = share(now(part), now(whole));
    return { value: `${compact(now(part))} of ${compact(now(whole))}`, mark: (used > near ? "look" : "good") as Mark };
  };

  const offset = now("orderfree_clock_offset_us");
  const backlog = now("orderfree_fold_backlog_age_seconds");
  const refused = minute.rise("orderfree_refused_total");
  const refusedByServer = SERVER_REASONS.reduce((sum, reason) => sum + minute.rise("orderfree_refused_total", { reason }), 0);
  const unknown = minute.rise("orderfree_updates_total", { outcome: "unknown" });
  const updates = minute.rise("orderfree_updates_total");
  const denied = minute.rate("orderfree_denied_total") ?? 0;
  const logAge = now("orderfree_reset_log_age_seconds");
  const hasQuorum = now("orderfree_store_quorum") > 0;

  return [
    {
      title: "Folds",
      checks: [
        {
          title: "Fold backlog",
          value: backlog > 0 ? `oldest ${span(backlog * 1000)}` : "none",
          mark: backlog > BACKLOG_S ? "look" : "good",
          means: "The age of the oldest final shard that the latest fold found. Values are right, but reads merge more rows.",
          act: "Let every pod fold (ORDERFREE_FOLD=on). To fold everything now, run orderfree fold --once.",
          metric: "orderfree_fold_backlog_age_seconds",
          problems: ["fold-busy", "fold-paused"],
        },
        {
          title: "Fold queue",
          value: `${since("orderfree_fold_queue")} keys`,
          mark: isNew("orderfree_fold_dropped_total") ? "look" : "good",
          means: "Keys that wait for a fold. If the queue is full, further keys wait for the next sweep.",
          act: "More pods fold more. Nothing is lost meanwhile.",
          metric: "orderfree_fold_queue",
          problems: ["fold-paused", "too-many-rows"],
          detail: [["dropped because the queue was full", since("orderfree_fold_dropped_total")], ...by("orderfree_folds_total", "end")],
        },
        {
          title: "Blocked folds",
          value: since("orderfree_folds_total", { end: "blocked" }),
          mark: isNew("orderfree_folds_total", { end: "blocked" }) ? "look" : "good",
          means: "Folds that met something that only an operator can repair. The key takes updates all the same.",
          act: "The log says which key and why: “a key can't be folded without an operator”.",
          metric: "orderfree_folds_total",
          problems: ["undecodable", "unmergeable", "state-too-large"],
        },
        {
          title: "Full tallies",
          value: since("orderfree_full_tallies"),
          mark: seldom("orderfree_full_tallies", "look"),
          means: "Keys whose tally has reached its limit of 4 MiB. They refuse ops that add items, but can be read.",
          act: "Remove items, or spread new items over more keys.",
          metric: "orderfree_full_tallies",
          problems: ["state-too-large"],
        },
        {
          title: "Largest group",
          value: now("orderfree_group_names") > 0 ? `${since("orderfree_group_names")} names` : "known after the first sweep",
          mark: now("orderfree_group_names") > GROUP_NAMES ? "look" : "good",
          means: "A group is one Cassandra partition. Beyond 100,000 names, pages and repairs become slow. Numbers stay right.",
          act: "Spread new names over more groups, such as one group per day.",
          metric: "orderfree_group_names",
          problems: ["store-unavailable"],
        },
        {
          title: "Rows that came back",
          value: since("orderfree_zombies_total"),
          mark: isNew("orderfree_zombies_total") ? "look" : "good",
          means: "Rows below a fence that came back from a late hint or an old backup. They are ignored and deleted again.",
          act: "If they come for hours: repair the node that was down, and look at the clock offset.",
          metric: "orderfree_zombies_total",
          problems: ["clock"],
        },
      ],
    },
    {
      title: "Clocks and resets",
      checks: [
        {
          title: "Clock offset",
          value: offset === 0 ? "0 ms" : span(offset / 1000),
          mark: Math.abs(offset) > OFFSET_US ? "look" : "good",
          means: "The largest measured difference between this pod's clock and a node's. With the defaults, pods refuse updates beyond 5 s.",
          act: "Repair NTP on that machine. Slow down a clock that is ahead; do not set it back.",
          metric: "orderfree_clock_offset_us",
          problems: ["clock"],
        },
        {
          title: "Clocks that moved",
          value: since("orderfree_clock_moved_total"),
          mark: seldom("orderfree_clock_moved_total", "bad"),
          means: "Fences too far in the future of this pod's clock: a clock has moved. The pod takes no updates until its clock has caught up.",
          act: "Correct the clock. A restart does not help.",
          metric: "orderfree_clock_moved_total",
          problems: ["clock", "fold-paused"],
        },
        {
          title: "Log of resets",
          value: logAge > 1 ? `read ${span(logAge * 1000)} ago` : "just read",
          mark: logAge > LOG_AGE_S ? "bad" : "good",
          means: "A pod takes updates only while it knows the latest resets.",
          act: "Bring the nodes back: each part of the log needs a quorum of its replicas.",
          metric: "orderfree_reset_log_age_seconds",
          problems: ["reset-log-unread"],
        },
      ],
    },
    {
      title: "Updates",
      checks: [
        {
          title: "Refused",
          value: `${digits(refused)} in the last minute`,
          mark: refusedByServer > 0 ? "look" : "good",
          means: "Updates that are certainly not counted. Their clients can send them again.",
          act: "op, quota: change the client. store: bring nodes back. clock: see the clock offset. limit, unsent: add pods or nodes.",
          metric: "orderfree_refused_total",
          problems: ["unsent", "overloaded", "store-refused"],
          detail: by("orderfree_refused_total", "reason"),
        },
        {
          title: "Unknown",
          value: `${digits(unknown)} in the last minute`,
          mark: share(unknown, updates) > UNKNOWN_SHARE ? "look" : "good",
          means: "Updates that were sent to the store and not acknowledged in time. They may be counted, now or later.",
          act: "Repair the node or the network. A client can safely send such an update again only if it has an id.",
          metric: "orderfree_updates_total",
          problems: ["outcome-unknown"],
          detail: [["since the pod's start", since("orderfree_updates_total", { outcome: "unknown" })]],
        },
        {
          title: "Lost from memory",
          value: since("orderfree_memory_lost_total"),
          mark: seldom("orderfree_memory_lost_total", "look"),
          means: "Updates with ack=memory that could not be stored.",
          act: "They can't be recovered. Do not use ack=memory for updates that must not be lost.",
          metric: "orderfree_memory_lost_total",
          problems: ["store-refused", "out-of-range", "state-too-large"],
        },
        {
          title: "Mutators that died too early",
          value: since("orderfree_unresolved_deaths_total"),
          mark: seldom("orderfree_unresolved_deaths_total", "look"),
          means: "Mutators that expired before their last write was acknowledged. Their unknown updates stay unknown.",
          act: "Find out whether the store was down for long, or the pod was suspended.",
          metric: "orderfree_unresolved_deaths_total",
          problems: ["outcome-unknown"],
        },
        {
          title: "Conflicts of ids",
          value: since("orderfree_id_conflicts_total"),
          mark: isNew("orderfree_id_conflicts_total") ? "look" : "good",
          means: "One id came with several contents. One of them counts.",
          act: "Find the client, and make it use a new id for each update.",
          metric: "orderfree_id_conflicts_total",
          problems: ["id-reused"],
          detail: by("orderfree_id_conflicts_total", "by"),
        },
        {
          title: "Denied requests",
          value: `${double(denied, 2)} per second`,
          mark: denied > 1 ? "look" : "good",
          means: "Requests without a token that allows them, or beyond a rate or a quota.",
          act: "Give the client its token, or raise the limit in the policy file.",
          metric: "orderfree_denied_total",
          problems: ["unauthenticated", "forbidden", "too-fast", "over-quota"],
          detail: by("orderfree_denied_total", "reason"),
        },
      ],
    },
    {
      title: "Store",
      checks: [
        {
          title: "Quorum",
          value: hasQuorum ? "answers" : "does not answer",
          mark: hasQuorum ? "good" : "bad",
          means: "Whether a quorum of the nodes in this pod's data centre answers. Without one, updates and reads are refused.",
          act: "Bring back the nodes or the link to them. If there is another data centre, send clients there until then.",
          metric: "orderfree_store_quorum",
          problems: ["store-unavailable", "store-refused", "not-ready"],
        },
        {
          title: "Store errors",
          value: `${digits(minute.rise("orderfree_store_errors_total"))} in the last minute`,
          mark: isNew("orderfree_store_errors_total") ? "look" : "good",
          means: "Row writes and key reads that failed.",
          act: "unavailable and write_refused: bring nodes back. write_unknown: nodes are up but too slow.",
          metric: "orderfree_store_errors_total",
          problems: ["store-unavailable"],
          detail: by("orderfree_store_errors_total", "class"),
        },
        {
          title: "Keys that can't be decoded",
          value: since("orderfree_undecodable_total"),
          mark: seldom("orderfree_undecodable_total", "bad"),
          means: "Reads and folds of a key with a damaged row. Such a read fails, because a partial sum would be wrong.",
          act: "Open the key to see which row is damaged. The log names the key, with “a key can't be read”.",
          metric: "orderfree_undecodable_total",
          problems: ["undecodable", "unmergeable"],
        },
      ],
    },
    {
      title: "This pod",
      checks: [
        {
          title: "Mutators awake",
          ...of("orderfree_mutators", "orderfree_mutators_max", NEAR),
          means: "Each key that this pod updates has a mutator. At the limit, mutators go to rest earlier, which costs processor time.",
          act: "Raise ORDERFREE_MUTATORS_MAX, or add pods.",
          metric: "orderfree_mutators",
          problems: ["overloaded"],
          detail: [["at rest", since("orderfree_mutators_resting")], ["evicted", since("orderfree_evictions_total")]],
        },
        {
          title: "Memory of keys at rest",
          value: percent(share(now("orderfree_resting_bytes"), now("orderfree_resting_bytes_max"))),
          mark: share(now("orderfree_resting_bytes"), now("orderfree_resting_bytes_max")) > NEAR ? "look" : "good",
          means: "At the limit a pod forgets old keys. No number changes, but such a key gets another row.",
          act: "Raise ORDERFREE_RESTING_BYTES, or add pods behind a load balancer that hashes keys.",
          metric: "orderfree_resting_bytes",
          problems: ["born-too-often"],
        },
        {
          title: "Waiting ops",
          value: since("orderfree_waiting"),
          mark: now("orderfree_waiting") > WAITING ? "look" : "good",
          means: "Ops that wait for their write. Above 262,144, further ops are refused.",
          act: "Add nodes if shard writes are slow, and pods if processors are busy.",
          metric: "orderfree_waiting",
          problems: ["overloaded"],
        },
        {
          title: "Connections",
          ...of("orderfree_connections", "orderfree_connections_max", CONNECTIONS_NEAR),
          means: "At the limit, new connections wait, and the pod seems to hang.",
          act: "Let clients keep fewer connections open, add pods, or raise ORDERFREE_CONNECTIONS_MAX.",
          metric: "orderfree_connections",
          problems: ["overloaded"],
        },
        {
          title: "Panics",
          value: since("orderfree_panics_total"),
          mark: seldom("orderfree_panics_total", "look"),
          means: "Tasks that panicked. Each harmed only its own request, read, fold or connection.",
          act: "Report it with the log lines “a task panicked”.",
          metric: "orderfree_panics_total",
          problems: ["internal"],
          detail: by("orderfree_panics_total", "task"),
        },
        {
          title: "Refused reloads",
          value: since("orderfree_policy_reloads_total", { result: "refused" }),
          mark: isNew("orderfree_policy_reloads_total", { result: "refused" }) ? "look" : "good",
          means: "A changed policy file, certificate or Cassandra login could not be used. The old one stays in use.",
          act: "Correct the file. The log says in one sentence what is wrong.",
          metric: "orderfree_policy_reloads_total",
          problems: ["unauthenticated", "forbidden"],
        },
      ],
    },
  ];
}
