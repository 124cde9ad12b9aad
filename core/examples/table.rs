//! The cost of each kind: bytes of state, and time of an op, an encoding and a merge, as in the table of
//! docs/kinds.md. `make kinds-table` runs it.

use std::time::{Duration, Instant};

use orderfree_core::crdt::envelope::{KeySeal, RowSeal, encode_shard};
use orderfree_core::crdt::{Dot, Kind, Op, State};
use orderfree_core::protocol::{MutatorId, Timestamp};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use uuid::Uuid;

const SIZES: [usize; 3] = [1, 1_000, 1_000_000];

fn main() {
    println!(
        "| kind | bytes at 1 op | at 1,000 | at 1,000,000 | ns an op | µs to encode | µs to merge |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for &kind in Kind::ALL {
        let grown: Vec<Grown> = SIZES.iter().map(|count| grow(kind, *count)).collect();
        let last = grown.last().expect("three sizes");
        let (encode, merge) = (encoding(&last.state), merging(kind, &last.state));
        println!(
            "| `{kind}` | {} | {} | {} | {:.0} | {:.1} | {:.1} |",
            grown[0].shown(),
            grown[1].shown(),
            last.shown(),
            last.per_op.as_secs_f64() * 1e9,
            encode.as_secs_f64() * 1e6,
            merge.as_secs_f64() * 1e6,
        );
    }
}

const EXPIRES_AT: Timestamp = Timestamp::from_micros(1_795_348_000_000_000);
const MUTATOR: MutatorId = MutatorId::new(Uuid::from_u128(7));

/// A state after a number of random ops.
struct Grown {
    state: State,
    per_op: Duration,
    refused: usize,
}

impl Grown {
    fn shown(&self) -> String {
        let bytes = encode_shard(seal(), &self.state, 1).len();
        if self.refused == 0 { bytes.to_string() } else { format!("{bytes} (full)") }
    }
}

fn grow(kind: Kind, count: usize) -> Grown {
    let mut dice = SmallRng::seed_from_u64(1);
    let ops: Vec<Op> = (0..count).map(|index| op(kind, index, &mut dice)).collect();
    let mut state = State::new(kind, None);
    let mut refused = 0;
    let began = Instant::now();
    for op in &ops {
        refused += usize::from(state.apply(op).is_err());
    }
    let per_op = began.elapsed().div_f64(count as f64);
    Grown { state, per_op, refused }
}

/// A random op: values like latencies, items out of a hundred thousand, times and dots in order.
fn op(kind: Kind, index: usize, dice: &mut SmallRng) -> Op {
    let body = match kind.about().bare {
        (op, "by") => json!({"op": op, "by": (index % 100).to_string()}),
        (op, "item") => {
            json!({"op": op, "item": format!("user-{}", dice.random_range(0..100_000))})
        }
        (op, field) => json!({"op": op, field: (dice.random_range(0.0..7.0_f64)).exp() / 100.0}),
    };
    let mut op = kind.parse_op(&body).expect("an op");
    let micros = 1_795_248_000_000_000 + i64::try_from(index).expect("few");
    op.stamp(Timestamp::from_micros(micros));
    let seq = index as u64 + 1;
    op.assign(&mut || Dot { expires_at: EXPIRES_AT, mutator_id: MUTATOR, seq });
    op
}

/// Any row will do: the cost is the same.
fn seal() -> RowSeal {
    KeySeal::NOWHERE.row(EXPIRES_AT, MUTATOR)
}

fn encoding(state: &State) -> Duration {
    median(|| {
        let began = Instant::now();
        std::hint::black_box(encode_shard(seal(), std::hint::black_box(state), 1));
        began.elapsed()
    })
}

fn merging(kind: Kind, state: &State) -> Duration {
    median(|| {
        let mut into = State::identity(kind);
        into.merge(state).expect("a merge");
        let began = Instant::now();
        std::hint::black_box(&mut into).merge(std::hint::black_box(state)).expect("a merge");
        began.elapsed()
    })
}

fn median(mut measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..101).map(|_| measure()).collect();
    times.sort_unstable();
    times[50]
}
