//! Every bound of a pod in one place. A limit that is met gives a clear refusal, never an endless
//! wait or an unbounded memory (invariant I13). Limits of the wire live here too.

use std::hash::Hash;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use lru::LruCache;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::prefix::PartSize;

/// How many rows of a key one answer may have, and what is done with a key that has more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerBounds {
    /// Most rows of the slice that a read asks for first.
    pub look_rows: usize,
    /// Most rows and bytes of the slice that it asks for next, going by the bytes of the first.
    pub slice: (usize, usize),
    /// Most rows of the slice that a fold asks for.
    pub fold_rows: usize,
    /// Rows and bytes after which a fold of a key with more rows is written, and the next one begins.
    pub fold_step: (usize, usize),
    /// How such a key is asked for.
    pub part: PartSize,
}

/// Most rows of one slice of a key.
pub const SLICE_ROWS_MAX: usize = 100_000;

/// Most bytes of one slice of a key, as far as they can be foreseen.
pub const SLICE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Most rows of a key with one expiry, for kinds with small states.
pub const EXPIRY_ROWS_MAX: usize = 200_000;

impl AnswerBounds {
    /// Of keys of a kind.
    #[must_use]
    pub fn of(kind: Kind) -> AnswerBounds {
        let slice = (SLICE_ROWS_MAX, SLICE_BYTES_MAX);
        let (parts_bytes, steps_bytes) = (4 * 1024 * 1024, 16 * 1024 * 1024);
        match kind.about().is_small() {
            true => AnswerBounds {
                look_rows: SLICE_ROWS_MAX,
                slice,
                fold_rows: 10_000,
                fold_step: (20_000, steps_bytes),
                part: PartSize {
                    rows: (5_000, 10_000),
                    bytes: parts_bytes,
                    expiry_rows: EXPIRY_ROWS_MAX,
                },
            },
            // A row of these has up to 256 KiB, or 4 MiB if it was imported.
            false => AnswerBounds {
                look_rows: 128,
                slice,
                fold_rows: 128,
                fold_step: (10_000, steps_bytes / 2),
                part: PartSize { rows: (16, 1_000), bytes: parts_bytes, expiry_rows: 256 },
            },
        }
    }

    /// Most rows of the second slice, when the first had so many rows and bytes; none if a key is to
    /// be read in parts.
    #[must_use]
    pub fn second_rows(&self, rows: usize, bytes: usize) -> Option<usize> {
        let mean = bytes / rows.max(1) + 1;
        let fitting = self.slice.0.min(self.slice.1 / mean);
        (fitting > rows).then_some(fitting)
    }
}

/// Keys that a pod reads at once whose rows are more than [`AnswerBounds::look_rows`]; others wait.
pub const LONG_KEYS_AT_ONCE: usize = 4;

/// Longest time until the value of such a key is read.
pub const LONG_READ_TIME_MAX: Duration = Duration::from_secs(60);

/// Memory of the value of such a key, as far as it is read in parts; a larger one is an error.
pub const LONG_VALUE_BYTES_MAX: usize = 4 * VALUES_BYTES_MAX;

/// Steps of one fold of a key that has to be folded in parts; then other keys have their turn.
pub const FOLD_STEPS_MAX: usize = 32;

/// Longest time of one attempt at a read, and of a fold's write.
pub const READ_ATTEMPT_TIME_MAX: Duration = Duration::from_secs(3);

/// Longest time of a read with its retries.
pub const READ_TIME_MAX: Duration = Duration::from_secs(10);

/// A key with more rows than this is worth a warning: pods restart too often, or folds lag.
pub const ROWS_ALERT: usize = 500;

/// A group with more names than this is worth a warning: it is one partition.
pub const GROUP_NAMES_ALERT: usize = 100_000;

/// Rows of one unpaged chunk of a group, for kinds with small states.
pub const GROUP_CHUNK_ROWS: usize = 1_000;

/// The same for kinds with larger states: shards of up to 256 KiB, tallies of up to 4 MiB.
pub const GROUP_CHUNK_ROWS_LARGE: usize = 32;

/// Rows of one unpaged chunk of a group of this kind.
#[must_use]
pub fn group_chunk_rows(kind: Kind) -> usize {
    if kind.about().is_small() { GROUP_CHUNK_ROWS } else { GROUP_CHUNK_ROWS_LARGE }
}

/// Mutators of a pod that are awake: about 1.5 KB each for kinds with small states, up to 256 KiB of state
/// for others. Where more are needed clean ones go to rest, the least recently used first.
pub const MUTATORS_MAX: usize = 200_000;

/// Bytes of mutators at rest, about 140 each for counters. Where more are needed the oldest ones are
/// forgotten.
pub const RESTING_BYTES: usize = 256 * 1024 * 1024;

/// How often a key may be born in a pod within a day: each time makes a row.
pub const BIRTHS_MAX: u8 = 100;

/// Bytes of memory that large states may take for each live mutator that a pod may have, whosesoever they
/// are. Beyond that clean ones go to rest.
pub const LARGE_STATES_BYTES_EACH: usize = 3_000;

/// Ops that wait in a pod for their write, over all mutators.
pub const WAITING_OPS_MAX: usize = 262_144;

/// Shard rows of one request to Cassandra over several groups. With typical ones it has less than the 5 KiB from where on
/// Cassandra warns of batches (`batch_size_warn_threshold`); even if all of them have the largest state
/// of a small kind and the longest names, less than the 50 KiB from where on it refuses them
/// (`batch_size_fail_threshold`).
pub const BATCH_ROWS_MAX: u16 = 30;

const _: () = assert!(BATCH_ROWS_MAX as usize * (SMALL_STATE_BYTES + 2 * 256 + 128) < 50 * 1024);

/// More than a state of a small kind has, with its envelope.
const SMALL_STATE_BYTES: usize = 1_024;

/// Shard rows of one request to Cassandra that are of one group: its thresholds for batches are for those
/// over several partitions. Far below its largest mutation, which is half a segment of its commit log,
/// 16 MiB, even if all of them are as large as they may be.
pub const GROUP_ROWS_MAX: u16 = 256;

const _: () = assert!(GROUP_ROWS_MAX as usize * (SMALL_STATE_BYTES + 2 * 256 + 128) < 1024 * 1024);

/// Groups of one request to Cassandra. It warns of batches over more partitions
/// (`unlogged_batch_across_partitions_warn_threshold`).
pub const BATCH_GROUPS_MAX: u16 = 10;

/// Shard writes of one lane that are sent whoever waits; a further one only if many wait, or if those before
/// it are overdue.
pub const FLIGHTS_OF_LANE: usize = 1;

/// So many full loads that wait, of rows or of groups, have one more shard write of their lane sent. The
/// longer rows wait, the more of them are of one group, and the less each of them costs.
pub const FLIGHT_BACKLOG_LOADS: usize = 4;

/// Shard writes of one lane on their way to the store at once, overdue ones included.
pub const FLIGHTS_OF_LANE_MAX: usize = 128;

/// Writes that wait for the embedded store's writer; a further one is refused.
pub const WRITE_QUEUE_MAX: usize = 4_096;

/// Writes that the embedded store commits in one transaction, with one sync.
pub const WRITE_BATCH_MAX: usize = 1_024;

/// Bytes of states from which on the embedded store adds no further write to a transaction.
pub const WRITE_BATCH_BYTES_MAX: usize = 16 * 1024 * 1024;

/// What the embedded store leaves free on its disk: more than the pages of one transaction of
/// [`WRITE_BATCH_MAX`] rows, and room to close the file.
pub const DISK_RESERVE_BYTES: u64 = 64 * 1024 * 1024;

/// Reads of the embedded store at once, each on a thread of its own; further ones wait.
pub const EMBEDDED_READS_MAX: u32 = 64;

/// Rows that a sweep of the embedded store passes before it lets its snapshot go.
pub const SWEEP_STEP_ROWS: usize = 10_000;

/// Memory in which the embedded store keeps pages of its file.
pub const EMBEDDED_CACHE_BYTES: usize = 128 * 1024 * 1024;

/// Remembered keys that can't be folded, so that their reads do not nominate them again.
pub const FOLD_BLOCKED_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Remembered keys whose tally is full, so that updates which would add to it are refused.
pub const FULL_KEYS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// For how long they are remembered so. A read or a fold of the key that meets the tally again renews it.
pub const FULL_TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// Keys that wait to be folded; further nominations are dropped, as the sweep finds them again.
pub const FOLD_QUEUE_MAX: usize = 10_000;

/// Folds at once from a pod's queue, and as many from its sweep, each of one key or of several of a
/// group.
pub const FOLDS_AT_ONCE: usize = 8;

/// Updates or reads in one JSON batch or query.
pub const BATCH_ITEMS_MAX: usize = 1_000;

/// Bytes of a state that is imported. A key may hold more than a tally: what is not folded yet. Cassandra
/// takes a row of this size, as its largest mutation is half a segment of its commit log, 16 MiB.
pub const IMPORT_BYTES_MAX: usize = 3 * orderfree_core::protocol::fold::TALLY_BYTES_MAX;

/// Ops in one `{"ops":[…]}` list.
pub const OPS_MAX: usize = 1_000;

/// Bytes of a request body.
pub const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of all request bodies in progress but streams; a request whose body finds no room is shed with
/// 503.
pub const BODIES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that all NDJSON streams in progress hold; a further one is shed with 503.
pub const STREAMS_BYTES_MAX: usize = 64 * 1024 * 1024;

/// NDJSON streams of one token at once; of a further one nothing is read. As they may last, and say little,
/// half of what there is room for is left to others.
pub const STREAMS_OF_TOKEN_MAX: usize = STREAMS_BYTES_MAX / NDJSON_HELD_BYTES_MAX / 2;

/// Room is taken in steps of this many bytes.
pub const ROOM_UNIT_BYTES: usize = 1024;

/// Longest time until a request body is complete, and of silence within an NDJSON stream.
pub const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// Bytes of an NDJSON request body, after decompression.
pub const NDJSON_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of one NDJSON line.
pub const NDJSON_LINE_BYTES_MAX: usize = 64 * 1024;

/// Lines of an NDJSON stream that are read before any of them is applied.
pub const NDJSON_WINDOW_LINES: usize = 1_000;

/// Bytes of lines that are read before any of them is applied.
pub const NDJSON_WINDOW_BYTES: usize = 1024 * 1024;

/// Longest time that a line waits for others of its window.
pub const NDJSON_WINDOW_TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes that an NDJSON stream holds: a window, the line that went over its end, and the next one.
pub const NDJSON_HELD_BYTES_MAX: usize = NDJSON_WINDOW_BYTES + 2 * NDJSON_LINE_BYTES_MAX;

/// Keys that one merge reads.
pub const MERGE_KEYS_MAX: usize = 1_000;

/// Reads of one query in progress at once, if all keys have small states.
pub const QUERY_READS_AT_ONCE: usize = 64;

/// The same if there are large ones, and of one merge, but of a kind whose merges depend on their order.
pub const LARGE_READS_AT_ONCE: usize = 8;

/// Quantiles in one read.
pub const QUANTILES_MAX: usize = 100;

/// Bytes of a request's path and query.
pub const URI_BYTES_MAX: usize = 8 * 1024;

/// Keys on one page of a group, and partitions looked at for one page of groups.
pub const PAGE_MAX: usize = 10_000;
/// The same without `limit`.
pub const PAGE_DEFAULT: usize = 1_000;

/// Bytes of rows from which on one answer takes no further key: a page of a group ends, and the other
/// keys of a query are to be asked for again.
pub const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Connections of one listener at once; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Requests in progress at once of one listener; further ones are shed with 503. As many as connections: those
/// who wait for each other are answered soon, mostly, and sooner than if they came again.
pub const REQUESTS_MAX: usize = CONNECTIONS_MAX;

/// Connections that the kernel holds until they are accepted.
pub const LISTEN_BACKLOG: u32 = 4_096;

/// Longest time from a connection's last answer to the end of its next request's headers: longer than
/// load balancers keep idle connections, so that it is they who close one.
pub const HEADER_TIME_MAX: Duration = Duration::from_secs(75);

/// Bytes of a request's headers, its address included.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Longest time of a TLS handshake.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection whose client may still be sending stays open after its last answer, and how
/// many bytes are dropped meanwhile: those of a body that is too large by far.
pub const LINGER_TIME_MAX: Duration = Duration::from_secs(2);
/// See [`LINGER_TIME_MAX`].
pub const LINGER_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// How long nobody is accepted after one could not be.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a pod that starts waits for its store, by default.
pub const STORE_WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// How long a pod that has opened its file waits for those whom it told that it is starting.
pub const STARTING_DRAIN_MAX: Duration = Duration::from_millis(500);

/// First and longest pause between two attempts to open the store.
pub const STORE_WAIT_PAUSE: (Duration, Duration) =
    (Duration::from_millis(500), Duration::from_secs(10));

/// Bytes of the large answers that wait for their readers; a further one is a 503.
pub const ANSWERS_BYTES_MAX: usize = 128 * 1024 * 1024;

/// JSON batches that are parsed and applied at once: each takes up to some MB.
pub const BATCHES_AT_ONCE: usize = 64;

/// JSON batches whose bodies are there and that wait for those; of a further one the body is not even read.
pub const BATCHES_WAITING_MAX: usize = 256;

/// Answers with many values that are made at once, of small kinds and few keys.
pub const PAGES_AT_ONCE: u32 = 32;

/// The same of kinds whose states may be large: a chunk of rows, one value, and 16 MiB of text.
pub const LARGE_PAGES_AT_ONCE: u32 = 4;

/// So many keys of a small kind count as one such answer more.
pub const PAGE_KEYS_LIGHT: usize = 2_000;

/// Reads at once of keys whose states may be large, each until its rows are there.
pub const LARGE_KEYS_AT_ONCE: usize = 64;

/// Memory of values that were read, each until nobody has it any more. A larger one takes all of it.
pub const VALUES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Memory of a value that is not counted there, and waits for none.
pub const VALUE_SMALL_BYTES: usize = 8 * 1024;

/// Bytes of rows that wait until there is room for their value; a further read is refused. As large as the
/// tallies of half a merge's reads.
pub const WAITING_ROWS_BYTES_MAX: usize =
    LARGE_READS_AT_ONCE / 2 * orderfree_core::protocol::fold::TALLY_BYTES_MAX;

/// Longest time until a value that may be large is read, by however many reads.
pub const LARGE_READ_TIME_MAX: Duration = Duration::from_secs(90);

const _: () = assert!(
    LONG_READ_TIME_MAX.as_secs() + 2 * READ_TIME_MAX.as_secs() < LARGE_READ_TIME_MAX.as_secs(),
    "a walk through a long key ends before those who asked for it give up"
);

/// Memory of what merges have made of the values that they read; also of one alone.
pub const MERGED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Memory of values that a merge takes in before it looks how large it has become, or twice what it was.
pub const MERGE_LOOK_BYTES: usize = 1024 * 1024;

/// So few small keys are read without a turn.
pub const KEYS_WITHOUT_TURN: usize = 100;

/// How long such requests wait for their turn.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Lines of requests that fail and of strangers that a listener writes to its log in a second; metrics count
/// the others as well.
pub const LOG_LINES_A_SECOND: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// Longest time until a reader has taken all of an answer.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// Longest time in which a reader takes nothing of an answer.
pub const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// Keys that are being read at once. A read goes on when its clients have gone, so that requests in
/// progress do not bound it; further ones are answered with 503.
pub const READS_MAX: usize = 16_384;

/// Remembered fences, so that reads skip what was folded.
pub const FENCES_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();

/// Keys whose last value is kept, for reads that accept staleness.
pub const RECENT_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// Memory of these values; for a further one, those that nobody asked for longest go.
pub const RECENT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Memory of one of them.
pub const RECENT_VALUE_BYTES_MAX: usize = 256 * 1024;

/// Longest staleness that a read may accept.
pub const STALENESS_MAX: Duration = Duration::from_secs(60 * 60);

/// How long the listener stays open after SIGTERM, so that load balancers notice.
pub const UNREADY_GRACE: Duration = Duration::from_secs(5);

/// How long requests that were taken may go on after that.
pub const REQUESTS_DRAIN_MAX: Duration = Duration::from_secs(12);

/// How long these requests and the writes of all mutators may take together.
pub const DRAIN_MAX: Duration = Duration::from_secs(25);

/// How long the collector of traces may then take for the last spans.
pub const LAST_SPANS_TIME_MAX: Duration = Duration::from_secs(5);

/// An empty cache of at most so many entries. Its memory grows with them: `LruCache::new` would take
/// all of it at once.
#[must_use]
pub fn cache<K: Hash + Eq, V>(entries_max: NonZeroUsize) -> LruCache<K, V> {
    let mut cache = LruCache::unbounded();
    cache.resize(entries_max);
    cache
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_the_latest_up_to_its_bound() {
        let mut cache = cache(NonZeroUsize::new(2).expect("two"));
        for entry in 1..=3 {
            cache.put(entry, ());
        }
        assert!(cache.len() == 2 && !cache.contains(&1), "{cache:?}");
    }
}
