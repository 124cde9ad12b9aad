//! The bounds of a pod. A request that meets a limit gets a clear refusal: a pod never waits endlessly and never
//! takes unbounded memory (invariant I13). The numbers of attempts and hedges of a request to Cassandra are in
//! `store/cassandra/attempts.rs` and `runtime/latency.rs`. `docs/reference/http.md` says how long a read can take.

use std::hash::Hash;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::Kind;
use orderfree_core::crdt::pack::PACK_BYTES_MAX;
#[cfg(doc)]
use orderfree_core::protocol::KEY_STATES_BYTES_MAX;
use orderfree_core::protocol::prefix::PartSize;

/// How many rows of a key one answer of the store can have, and how to read and fold a key with more rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerBounds {
    /// Rows of the first slice of a read.
    pub look_rows: usize,
    /// Rows and bytes of the second slice of a read. Its rows follow from the mean size of the first slice's
    /// rows.
    pub slice: (usize, usize),
    /// Rows of a fold's slice.
    pub fold_rows: usize,
    /// Rows and bytes of one step, after which a fold of a key with more rows writes its result.
    pub fold_step: (usize, usize),
    /// Sizes of the parts in which a key with more rows is read.
    pub part: PartSize,
}

/// Rows of one slice of a key.
pub const SLICE_ROWS_MAX: usize = 100_000;

/// Bytes of one slice of a key, estimated before the read.
pub const SLICE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Rows of a key with the same expiry, for kinds with small states.
pub const EXPIRY_ROWS_MAX: usize = 200_000;

/// Rows of a key with the same expiry, for kinds with large states. Only packs have an expiry in common. A pod has
/// [`KEY_STATES_BYTES_MAX`] of these, in rows of up to [`PACK_BYTES_MAX`].
pub const EXPIRY_ROWS_MAX_LARGE: usize = 10_000;

/// Ids in the rows of a key that make reads slow. A pod that meets more takes no further ids of the key for a
/// while. They have some 5 MB, so reads are far from their own limits.
pub const KEY_IDS_MAX: usize = 200_000;

/// Resets that a pod makes at once. Each takes about ten seconds.
pub const RESETS_AT_ONCE_MAX: usize = 1_000;

/// Keys that a pod resets in a second, on average. Each pod reads the rows of the last two minutes every second.
pub const RESETS_PER_SECOND_MAX: NonZeroU32 = NonZeroU32::new(100).expect("not zero");

/// Keys that a pod resets at once after a pause: those of the largest order.
pub const RESETS_BURST_MAX: NonZeroU32 = NonZeroU32::new(1_000).expect("not zero");

/// Keys whose resets a pod remembers, and names in a part of the log or in a file. Above this no key is reset.
pub const RESETS_REMEMBERED_MAX: usize = 200_000;

/// Rows in a part of the log. Above this a pod makes no more resets there. An expired row is five dead cells for three hours,
/// and Cassandra fails a read that meets 100,000.
pub const LOG_ROWS_MAX: usize = 15_000;

/// Reads of resets whose rows a pod has in memory, as many as folds at once.
pub const RESET_READS_MAX: usize = 16;

/// Bytes of markers that are written together. Each lists ids. Cassandra's largest mutation has 16 MiB.
pub const RESET_BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Locks for the ids of orders. Orders with one id, and a few others, wait for each other.
pub const RESET_ID_LOCKS: usize = 1_024;

/// Resets of clients whose end a pod knows without asking the store.
pub const RESET_TICKETS_MAX: NonZeroUsize = NonZeroUsize::new(2_000).expect("not zero");

/// Bytes of a cleared value that a pod keeps with them. Larger ones are read from the log.
pub const RESET_TICKET_BYTES_MAX: usize = 256;

/// How long a pod remembers that a key has too many ids. A read of the key renews it.
pub const KEY_IDS_TIME_MAX: Duration = Duration::from_secs(60);

impl AnswerBounds {
    /// The bounds for keys of a kind.
    #[must_use]
    pub fn of(kind: Kind) -> AnswerBounds {
        let slice = (SLICE_ROWS_MAX, SLICE_BYTES_MAX);
        let (parts_bytes, steps_bytes) = (4 * 1024 * 1024, 16 * 1024 * 1024);
        match kind.about().is_small() {
            // A row has a few bytes, or a pack.
            true => AnswerBounds {
                look_rows: SLICE_ROWS_MAX,
                slice,
                // Twice the bytes of a slice if all rows are full packs; there are few folds at once.
                fold_rows: 2 * SLICE_BYTES_MAX / PACK_BYTES_MAX,
                fold_step: (20_000, steps_bytes),
                part: PartSize {
                    rows: (parts_bytes / PACK_BYTES_MAX, 10_000),
                    bytes: parts_bytes,
                    expiry_rows: EXPIRY_ROWS_MAX,
                },
            },
            // A row of these kinds has up to 256 KiB, or 4 MiB if it was imported.
            false => AnswerBounds {
                look_rows: 128,
                slice,
                fold_rows: 128,
                fold_step: (10_000, steps_bytes / 2),
                part: PartSize {
                    rows: (16, 1_000),
                    bytes: parts_bytes,
                    expiry_rows: EXPIRY_ROWS_MAX_LARGE,
                },
            },
        }
    }

    /// The rows of the second slice after a first one with this many rows and bytes. `None`: read the key in
    /// parts.
    #[must_use]
    pub fn second_rows(&self, rows: usize, bytes: usize) -> Option<usize> {
        let mean = bytes / rows.max(1) + 1;
        let fitting = self.slice.0.min(self.slice.1 / mean);
        (fitting > rows).then_some(fitting)
    }
}

/// Keys that a pod reads in parts at once. Other reads of such keys wait.
pub const LONG_KEYS_AT_ONCE: usize = 4;

/// Longest time for reading a key in parts.
pub const LONG_KEY_READ_TIME_MAX: Duration = Duration::from_secs(60);

/// Bytes of memory for a value that is read in parts. A larger value is an error.
pub const LONG_VALUE_BYTES_MAX: usize = 4 * VALUES_BYTES_MAX;

/// Steps of one fold of a key with too many rows for one slice. Then other keys get their turn.
pub const FOLD_STEPS_MAX: usize = 32;

/// Longest time for one request to Cassandra that is no shard write, with its retries and hedges. A client's read
/// can make several.
pub const STORE_REQUEST_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest time for one attempt of such a request.
pub const STORE_ATTEMPT_TIME_MAX: Duration = Duration::from_secs(3);

/// Longest time for one attempt if the request itself can take long: the parts of a long key, the reads of folds,
/// lists of keys. A node that says nothing takes all the time of the request, so no retry follows.
pub const STORE_SLOW_ATTEMPT_TIME_MAX: Duration = STORE_REQUEST_TIME_MAX;

/// Longest wait of a read for the memory of its value.
pub const READ_MEMORY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Longest wait of a read for its turn to read a key with many rows.
pub const LONG_KEY_TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Rows of a key above which a pod logs a warning: pods restart too often, or folds lag.
pub const ROWS_ALERT: usize = 500;

/// Names in a group above which a pod logs a warning: a group is one partition.
pub const GROUP_NAMES_ALERT: usize = 100_000;

/// Rows of one unpaged chunk of a group, for kinds with small states.
pub const GROUP_CHUNK_ROWS: usize = 1_000;

/// Rows of one unpaged chunk of a group, for kinds with large states: shards of up to 256 KiB, tallies of up
/// to 4 MiB.
pub const GROUP_CHUNK_ROWS_LARGE: usize = 32;

/// Rows of one unpaged chunk of a group of this kind.
#[must_use]
pub fn group_chunk_rows(kind: Kind) -> usize {
    if kind.about().is_small() { GROUP_CHUNK_ROWS } else { GROUP_CHUNK_ROWS_LARGE }
}

/// Awake mutators of a pod: about 1.5 KB each for kinds with small states, up to 256 KiB of state each for
/// other kinds. When all are in use, clean ones go to rest, the least recently used first.
pub const MUTATORS_MAX: usize = 200_000;

/// Bytes of memory for mutators at rest, about 150 each for counters. When it is full, the pod forgets the
/// oldest ones.
pub const RESTING_BYTES: usize = 256 * 1024 * 1024;

/// States up to this many bytes, in rows that a fold can't take yet, are too small for a successor to know about.
pub const LITTLE_BYTES: usize = 16 * 1024;

/// Births of one key in a pod per day, and of packs with one expiry. Each birth makes a row. Successors of full
/// mutators do not count: the bytes of their predecessors limit them.
pub const BIRTHS_MAX: u8 = 100;

/// Bytes of memory for large states, per mutator that the pod may have awake. All large states share the
/// total; when it is full, clean mutators go to rest.
pub const LARGE_STATES_BYTES_EACH: usize = 3_000;

/// Ops in a pod that wait for their write, over all mutators.
pub const WAITING_OPS_MAX: usize = 262_144;

/// Shard rows of one request to Cassandra that writes to several groups. With typical rows the request stays
/// below 5 KiB, above which Cassandra warns (`batch_size_warn_threshold`). Even if every row has the longest
/// names and the largest state of a small kind, it stays below 50 KiB, above which Cassandra rejects it
/// (`batch_size_fail_threshold`).
pub const BATCH_ROWS_MAX: u16 = 30;

const _: () = assert!(BATCH_ROWS_MAX as usize * (SMALL_STATE_BYTES + 2 * 256 + 128) < 50 * 1024);

/// Bytes above the largest state of a small kind, including its envelope.
const SMALL_STATE_BYTES: usize = 1_024;

/// Shard rows of one request to Cassandra that writes to one group. Cassandra's thresholds for batches apply
/// only to batches over several partitions. Even with the largest rows, the request is far smaller than
/// Cassandra's largest mutation, which is half a segment of its commit log: 16 MiB.
pub const GROUP_ROWS_MAX: u16 = 256;

const _: () = assert!(GROUP_ROWS_MAX as usize * (SMALL_STATE_BYTES + 2 * 256 + 128) < 1024 * 1024);

/// Groups of one request to Cassandra. Cassandra warns about batches over more partitions
/// (`unlogged_batch_across_partitions_warn_threshold`).
pub const BATCH_GROUPS_MAX: u16 = 10;

/// Bytes of packs in one request to Cassandra that writes to several groups. With names and statements it stays
/// below 5 KiB in most cases, and always far below 50 KiB.
pub const BATCH_PACK_BYTES_MAX: usize = 4 * 1024;

/// Bytes of packs in one request to Cassandra that writes to one group, which is one mutation. Cassandra refuses
/// mutations above half a segment of its commit log.
pub const GROUP_PACK_BYTES_MAX: usize = 1024 * 1024;

/// Requests with shard writes of one first replica that can be in flight at once without a backlog. Another
/// one is sent only if many rows wait, or if the earlier requests are overdue.
pub const WRITE_REQUESTS_OF_REPLICA: usize = 1;

/// Full requests (of rows or of groups) that must wait before one more is sent. The longer rows wait, the
/// more of them belong to one group, and the less each row costs.
pub const WRITE_REQUEST_BACKLOG: usize = 4;

/// Maximum requests with shard writes of one first replica in flight at once, including overdue ones.
pub const WRITE_REQUESTS_OF_REPLICA_MAX: usize = 128;

/// Writes that wait for the embedded store's writer. Further writes are refused.
pub const WRITE_QUEUE_MAX: usize = 4_096;

/// Writes that the embedded store commits in one transaction, with one sync.
pub const WRITE_BATCH_MAX: usize = 1_024;

/// Bytes of states in one transaction of the embedded store. When they are reached, it adds no more writes.
pub const WRITE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes that the embedded store leaves free on its disk: more than the pages of one transaction of
/// [`WRITE_BATCH_MAX`] rows, and space to close the file.
pub const DISK_RESERVE_BYTES: u64 = 64 * 1024 * 1024;

/// Concurrent reads of the embedded store, each on its own thread. Further reads wait.
pub const EMBEDDED_READS_MAX: u32 = 64;

/// Rows that a sweep of the embedded store passes before it releases its snapshot.
pub const SWEEP_STEP_ROWS: usize = 10_000;

/// Bytes of memory in which the embedded store caches pages of its file.
pub const EMBEDDED_CACHE_BYTES: usize = 128 * 1024 * 1024;

/// Keys that can't be folded and that the pod remembers. Reads of them do not nominate them again.
pub const FOLD_BLOCKED_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Keys with too many ids that the pod remembers.
pub const CROWDED_KEYS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Keys with a full tally that the pod remembers. It refuses updates that would add to the tally.
pub const FULL_KEYS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// How long a pod remembers that a key's tally is full. A read or a fold that meets the tally again renews
/// it.
pub const FULL_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Keys that wait to be folded. Further nominations are dropped, as the sweep finds those keys again.
pub const FOLD_QUEUE_MAX: usize = 10_000;

/// Keys with only a tally whose fence is remembered, so that sweeps need not read it again; 8 bytes each.
pub const IDLE_LOOKS_MAX: usize = 1 << 20;

/// Concurrent folds from a pod's queue, and the same number from its sweep. Each folds one key or several
/// keys of a group.
pub const FOLDS_AT_ONCE: usize = 8;

/// Updates or reads in one JSON batch or query.
pub const BATCH_ITEMS_MAX: usize = 1_000;

/// Bytes of an imported state. A key can hold more than its tally: shards that are not folded yet. Cassandra
/// takes a row of this size, as its largest mutation is half a segment of its commit log: 16 MiB.
pub const IMPORT_BYTES_MAX: usize = 3 * orderfree_core::protocol::fold::TALLY_BYTES_MAX;

/// Ops in one `{"ops":[…]}` list.
pub const OPS_MAX: usize = 1_000;

/// Bytes of a request body.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all request bodies in progress, except streams. A request whose body does not fit gets 503.
pub const BODIES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that all NDJSON streams in progress hold. Further streams get 503.
pub const STREAMS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Concurrent NDJSON streams of one token. The pod reads nothing of further ones. Streams can last long and
/// send little, so one token can take only half of the memory for streams.
pub const STREAMS_OF_TOKEN_MAX: usize = STREAMS_BYTES_MAX / NDJSON_HELD_BYTES_MAX / 2;

/// Bytes of one unit of a memory budget.
pub const ROOM_UNIT_BYTES: usize = 1024;

/// Longest time until a request body is complete, and longest silence within an NDJSON stream.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of an NDJSON request body, after decompression.
pub const NDJSON_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one NDJSON line.
pub const NDJSON_LINE_BYTES_MAX: usize = 64 * 1024;

/// Lines of one window of an NDJSON stream: they are read before any of them is applied.
pub const NDJSON_WINDOW_LINES: usize = 1_000;

/// Bytes of the lines of one window of an NDJSON stream.
pub const NDJSON_WINDOW_BYTES: usize = 1024 * 1024;

/// Longest time that a line of an NDJSON stream waits for more lines of its window.
pub const NDJSON_WINDOW_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes that one NDJSON stream holds: a window, the line that exceeded it, and the next line.
pub const NDJSON_HELD_BYTES_MAX: usize = NDJSON_WINDOW_BYTES + 2 * NDJSON_LINE_BYTES_MAX;

/// Ranges of lines in the summary of one NDJSON stream. A stream that could need more ends early.
pub const ERROR_RANGES_MAX: usize = 10_000;

/// Bytes of all details in the summary of one NDJSON stream. Further ranges have none.
pub const ERROR_DETAILS_BYTES_MAX: usize = 256 * 1024;

/// Keys that one merge reads.
pub const MERGE_KEYS_MAX: usize = 1_000;

/// Concurrent reads of one query, if all its keys have small states.
pub const QUERY_READS_AT_ONCE: usize = 64;

/// Concurrent reads of one query, if some of its keys can have large states, and of one merge. A merge of a
/// kind that depends on the order reads one key at a time.
pub const LARGE_READS_AT_ONCE: usize = 8;

/// Quantiles that one read can ask for.
pub const QUANTILES_MAX: usize = 100;

/// Bytes of a request's path and query.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Keys on one page of a group, and partitions that are read for one page of groups.
pub const PAGE_MAX: usize = 10_000;
/// Keys or partitions on one page, for requests without `limit`.
pub const PAGE_DEFAULT: usize = 1_000;

/// Bytes of rows in one answer. When they are reached, a page of a group ends, and a client must query the
/// other keys of a query again.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Concurrent connections of one listener. Further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Concurrent requests of one listener. Further ones get 503. The default equals the connections: a request
/// that waits for others mostly gets its answer soon, and sooner than by a retry.
pub const REQUESTS_MAX: usize = CONNECTIONS_MAX;

/// Connections that the kernel queues until the pod accepts them.
pub const LISTEN_BACKLOG: u32 = 4_096;

/// Longest time from a connection's last answer to the end of its next request's headers. It is longer than
/// load balancers keep idle connections, so the load balancer closes them first.
pub const HEADER_TIME_MAX: Duration = Duration::from_secs(75);

/// Bytes of a request's head: its request line and its headers.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Longest time for a TLS handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection stays open after its last answer if its client can still be sending. The pod drops
/// what arrives in that time.
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes that the pod drops during [`LINGER_TIME_MAX`]: enough for the rest of a body that is far too large.
pub const LINGER_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// Pause after a failed `accept()`.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Default for how long a starting pod waits for its store.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// How long a pod, after it has opened its file, waits for probes that it answers with "starting".
pub const STARTING_DRAIN_MAX: Duration = Duration::from_millis(500);

/// The first and the longest pause between two attempts to open the store.
pub const STORE_WAIT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));

/// Bytes of all large answers that wait for their readers. Further ones get 503.
pub const ANSWERS_BYTES_MAX: usize = 128 * 1024 * 1024;

/// JSON batches that are parsed and applied at once. Each takes up to a few MB.
pub const BATCHES_AT_ONCE: usize = 64;

/// JSON batches with a complete body that wait for their turn. The pod does not read the bodies of further
/// ones.
pub const BATCHES_WAITING_MAX: usize = 256;

/// Answers with many values that are made at once, for kinds with small states and few keys.
pub const PAGES_AT_ONCE: u32 = 32;

/// Answers with many values that are made at once, for kinds with large states. Each takes a chunk of rows,
/// one value, and 16 MiB of text.
pub const LARGE_PAGES_AT_ONCE: u32 = 4;

/// Keys of a kind with small states that add one to the weight of an answer with many values.
pub const PAGE_KEYS_LIGHT: usize = 2_000;

/// Concurrent reads of keys of kinds with large states. Each counts until its rows have arrived.
pub const LARGE_KEYS_AT_ONCE: usize = 64;

/// Bytes of memory for values that were read. A value counts until its last user drops it; a value larger
/// than this takes all of it.
pub const VALUES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of memory of a value that does not count towards [`VALUES_BYTES_MAX`] and never waits for it.
pub const VALUE_SMALL_BYTES: usize = 8 * 1024;

/// Bytes of rows that wait for memory for their value. Further reads are refused. It fits the tallies of half
/// a merge's reads.
pub const WAITING_ROWS_BYTES_MAX: usize =
    LARGE_READS_AT_ONCE / 2 * orderfree_core::protocol::fold::TALLY_BYTES_MAX;

/// Longest time from a request for a key of a kind with large states to its answer, with all waits. Reads of other
/// kinds have no such limit.
pub const LARGE_KEY_READ_TIME_MAX: Duration = Duration::from_secs(115);

// Two slices and their turns, a turn for the parts, memory for the value, and the walk. A read that starts again
// because a fold moved its fence, or that waits for another read of the key, can still give up.
const _: () = assert!(
    TURN_WAIT_MAX.as_secs()
        + 2 * STORE_REQUEST_TIME_MAX.as_secs()
        + 2 * LONG_KEY_TURN_WAIT_MAX.as_secs()
        + READ_MEMORY_WAIT_MAX.as_secs()
        + LONG_KEY_READ_TIME_MAX.as_secs()
        < LARGE_KEY_READ_TIME_MAX.as_secs(),
    "a walk through a long key ends before its requests give up"
);

/// Bytes of memory for the results of all merges in progress, and for the result of one merge.
pub const MERGED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of memory of values that a merge takes in, beyond twice its last measured size, before it measures
/// its size again.
pub const MERGE_LOOK_BYTES: usize = 1024 * 1024;

/// Keys with small states that a request reads without waiting for a turn.
pub const KEYS_WITHOUT_TURN: usize = 100;

/// Longest time that a request waits for its turn.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Log lines per second of one listener about failed requests and unknown callers. Metrics count all of them.
pub const LOG_LINES_A_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// Longest time until a client has read a whole answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Longest time in which a client reads nothing of an answer.
pub const ANSWER_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Longest time in which a watching client reads nothing. After a longer pause its values are old.
pub const WATCH_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Keys that are read at once. Further reads get 503. A read goes on after its clients have left, so the
/// limit of concurrent requests does not bound reads.
pub const READS_MAX: usize = 16_384;

/// Keys whose fence the pod remembers, so that reads skip folded rows.
pub const FENCES_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Keys whose last value the pod keeps, for reads that accept staleness.
pub const RECENT_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Bytes of memory for the values that the pod keeps. A new value displaces the least recently used ones.
pub const RECENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Bytes of memory of one value that the pod keeps. It does not keep larger ones.
pub const RECENT_VALUE_BYTES_MAX: usize = 256 * 1024;

/// The least time between two log lines about one key that can't be decoded. A watched key is read every second.
pub const UNREADABLE_LOG_EVERY: Duration = Duration::from_secs(60);

/// Keys that can't be decoded and whose last log line the pod remembers.
pub const UNREADABLE_KEYS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Keys that a pod watches. Each is read once a second, or twice with many watchers.
pub const WATCHED_KEYS_MAX: usize = 10_000;

/// Keys of all watchers together, and their groups. Each is an entry of some 100 bytes.
pub const WATCHED_PLACES_MAX: usize = 200_000;

/// Different keys that one token watches. A stream can last long, and its keys count only once for the token's rate, so one
/// token can take only half of the keys, and half of the places.
pub const WATCHED_KEYS_OF_TOKEN_MAX: usize = WATCHED_KEYS_MAX / 2;
pub const WATCHED_PLACES_OF_TOKEN_MAX: usize = WATCHED_PLACES_MAX / 2;

/// Bytes of the names of watched groups: a thousand names of each group.
pub const WATCHED_NAMES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of the texts that are kept for watchers.
pub const WATCHED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Longest text of a watched key, in bytes. Each of its watchers gets a copy.
pub const WATCHED_TEXT_BYTES_MAX: usize = 32 * 1024;

/// Longest read of a watched key.
pub const WATCH_READ_TIME_MAX: Duration = Duration::from_secs(15);

/// Reads of watched keys of small kinds at once.
pub const WATCH_READS_AT_ONCE: usize = 32;

/// The longest time until the last watcher of a key is told of another pod's update.
pub const WATCH_TOLD_WITHIN: Duration = Duration::from_secs(1);

/// The least time between two events of a watched key.
pub const WATCH_EVENT_PAUSE: Duration = Duration::from_millis(100);

/// The watchers of a key are told of a change in parts, so that updates need not wait for all of them. A part has at least this
/// many watchers, and there are at most this many parts.
pub const WATCHERS_AT_ONCE: usize = 10;
pub const WATCHERS_PARTS_MAX: usize = 70;

/// The pause after each part. With the rounding of timers, a part takes up to [`WATCHERS_PART_TIME`].
pub const WATCHERS_PAUSE: Duration = Duration::from_millis(4);
pub const WATCHERS_PART_TIME: Duration = Duration::from_millis(6);
// An update that comes just too late for a read waits until all watchers are told of that one, and then for the next read.
const _: () = assert!(
    2 * WATCHERS_PART_TIME.as_millis() * (WATCHERS_PARTS_MAX as u128)
        + WATCH_EVENT_PAUSE.as_millis()
        < WATCH_TOLD_WITHIN.as_millis()
);

/// The time between two signs of life on a stream without events.
pub const WATCH_HEARTBEAT_EVERY: Duration = Duration::from_secs(5);

/// How long a client waits before it connects again.
pub const WATCH_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The time between two looks for new keys of a watched group.
pub const WATCH_GROUP_EVERY: Duration = Duration::from_secs(10);

/// Longest staleness that a read may accept.
pub const STALENESS_MAX: Duration = Duration::from_secs(60 * 60);

/// How long the listeners stay open after SIGTERM, so that load balancers notice.
pub const UNREADY_GRACE: Duration = Duration::from_secs(5);

/// Longest time for requests in progress, after the listeners have closed.
pub const REQUESTS_DRAIN_MAX: Duration = Duration::from_secs(12);

/// Longest time for requests in progress and the writes of all mutators together.
pub const DRAIN_MAX: Duration = Duration::from_secs(25);

/// Longest time for the trace collector to take the last spans, after the drain.
pub const LAST_SPANS_TIME_MAX: Duration = Duration::from_secs(5);

/// An empty cache for up to `entries_max` entries. Its memory grows with its entries, while `LruCache::new`
/// takes all of it at once.
#[must_use]
pub fn cache<K: Hash + Eq, V>(entries_max: NonZeroUsize) -> LruCache<K, V> {
    let mut cache = LruCache::unbounded();
    cache.resize(entries_max);
    cache
}

#[cfg(test)]
mod tests {
    use orderfree_core::crdt::STATE_BYTES_MAX;
    use orderfree_core::protocol::{KEY_STATES_BYTES_MAX, PACK_BYTES_CHEAP};

    use super::*;

    /// Before a read, the size of a key's rows is not known.
    #[test]
    fn the_largest_rows_fit_into_the_first_answers() {
        for kind in Kind::ALL {
            let largest = match kind.about().is_small() {
                true => PACK_BYTES_MAX,
                false => STATE_BYTES_MAX,
            };
            let AnswerBounds { look_rows, slice, fold_rows, part, .. } = AnswerBounds::of(*kind);
            // The first slice of kinds with small states is not limited by bytes: see `KEY_IDS_MAX`.
            assert!(kind.about().is_small() || look_rows * largest <= slice.1, "{kind}: a read");
            assert!(fold_rows * largest <= 2 * slice.1, "{kind}: a fold's slice");
            assert!(part.rows.0 * largest <= part.bytes, "{kind}: a first part");
        }
    }

    /// An expiry is read at once or not at all, so what pods can give one expiry must fit.
    #[test]
    fn tens_of_pods_can_have_all_their_packs_in_one_expiry() {
        for kind in Kind::ALL {
            let rows_of_pod = match kind.about().is_small() {
                true => KEY_STATES_BYTES_MAX / PACK_BYTES_CHEAP,
                // Two entries of half a pack, and a little, do not fit into one.
                false => 2 * KEY_STATES_BYTES_MAX / PACK_BYTES_MAX,
            };
            let pods = AnswerBounds::of(*kind).part.expiry_rows / rows_of_pod;
            assert!(pods >= 50, "{kind}: {pods} pods");
        }
    }

    #[test]
    fn a_cache_keeps_the_latest_up_to_its_bound() {
        let mut cache = cache(NonZeroUsize::new(2).expect("two"));
        for entry in 1..=3 {
            cache.put(entry, ());
        }
        assert!(cache.len() == 2 && !cache.contains(&1), "{cache:?}");
    }
}
