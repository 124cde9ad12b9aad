//! `audience`: how many different items there were, with set algebra over keys.
//!
//! A Theta sketch (Dasgupta, Lang, Rhodes and Thaler, "A Framework for Estimating Stream Expression
//! Cardinalities", ICDT 2016, <https://arxiv.org/abs/1510.01455>). Items are hashed evenly to 63 bits. The
//! sketch keeps a [`Sample`]: the hashes below a threshold theta, at most k = 2^`lg_k` of them. Hashes and
//! exchanged bytes are those of Apache DataSketches. The state is this file's own, because the library's
//! keeps up to 15/8 k hashes, and their number depends on the order of arrival.
//!
//! # Why it is exact
//!
//! For a set of hashes S, let `cut(S)` be its k smallest, with the (k+1)th as theta. If there are at most k,
//! it is all of them, with the largest possible theta. The state is `cut(S)` of all hashes S:
//!
//! * An added hash that is not below theta is not among the k smallest, now or ever. A hash below theta
//!   joins; if there are then k + 1, the largest of them is the new (k+1)th of S.
//! * Merging takes the smaller theta and the union below it, and cuts. Suppose that A and B were cut and that
//!   A's theta is the smaller. The union below it is then all of S below it. If A's theta is the (k+1)th of
//!   A's hashes, S has k + 1 hashes up to it. So the k smallest of S and the (k+1)th are among the hashes
//!   below theta and theta itself, whatever lies above.
//! * So merging is the union of sets followed by a cut to the smaller k, and cutting to k after a cut to more
//!   equals cutting to k at once. Union is commutative, associative and has an identity.
//!
//! A foreign sketch can have any theta. It then stands for all sets that agree with it below its theta.
//! Taking the smaller theta only gives up what is not known about some of them.

mod expression;
mod sample;

use datasketches::hash::value::raw_bytes;
use datasketches::theta::ThetaSketchBuilder;

use super::item::Item;
use super::sketch::{self, Sketch, SketchOp};
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Precision, Question,
    Size, Value, check_format,
};
pub use expression::{Expression, Selection};
use sample::{Sample, THETA_MAX};

/// With at most 15, the payload fits into [`STATE_BYTES_MAX`](super::STATE_BYTES_MAX) for any hashes: deltas
/// of eight bytes are at least 2^49, and 2^14 of them fit into 63 bits, so 2^15 deltas have 7.5 bytes on
/// average, or hardly more if some have nine. At 16 they would not fit.
const PRECISION: Precision = Precision { name: "lg_k", min: 5, max: 15, default: 11 };
const FINEST: u8 = 15;

/// A distinct count that keeps a sample of its items.
#[derive(Debug, Clone, PartialEq)]
pub struct Audience {
    lg_k: u8,
    /// At most 2^`lg_k` hashes.
    sample: Sample,
}

impl Audience {
    /// The sketch in the native format of the DataSketches family Theta, compact and ordered, for other
    /// systems. Equal states give equal bytes.
    #[must_use]
    pub fn to_datasketches(&self) -> Vec<u8> {
        self.sample.to_compact().serialize()
    }

    fn size_max(&self) -> usize {
        1 << self.lg_k
    }

    /// Adds a hash. Returns whether that changed anything.
    fn add(&mut self, hash: u64) -> bool {
        let is_new = hash < self.sample.theta && self.sample.hashes.insert(hash);
        self.sample.cut(self.size_max());
        is_new
    }

    /// Adds a sample. Returns whether that changed anything.
    fn unite(&mut self, other: &Sample) -> bool {
        // With the same theta, the number of hashes can only grow.
        let before = (self.sample.theta, self.sample.hashes.len());
        self.sample.unite(other);
        self.sample.cut(self.size_max());
        before != (self.sample.theta, self.sample.hashes.len())
    }
}

impl Default for Audience {
    fn default() -> Audience {
        Audience { lg_k: FINEST, sample: Sample::default() }
    }
}

impl Crdt for Audience {
    const NAME: &'static str = "audience";
    const CODE: u64 = 7;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "About how many different items there were, with set algebra over keys.",
        class: Class::Exact,
        is_exact: false,
        size: Size::Large { memory_factor: 5 },
        bound: "Exact up to 2^`lg_k` items, then a standard error of 2.2 % in 13 to 16 KB at \
                `lg_k` 11; half the error takes four times the bytes. The state itself is exact: \
                the same for any sharding.",
        is_idempotent: true,
        has_totals: false,
        bare: ("add", "item"),
        bare_value: BareValue::Field("estimate"),
        example_op: r#"{"op":"add","items":["u1","u2","u1"]}"#,
        example_value: r#"{"estimate":2.0,"lower":2.0,"upper":2.0,"lg_k":11}"#,
        op_schema: sketch::op_schema!("AudienceOp", "Theta"),
        value_schema: sketch::VALUE_SCHEMA,
        parameters: &[],
    };
    const PRECISION: Option<Precision> = Some(PRECISION);
    type Op = SketchOp<Audience>;

    fn with_precision(precision: u16) -> Audience {
        let lg_k = u8::try_from(precision).unwrap_or(FINEST);
        Audience { lg_k, sample: Sample::default() }
    }

    fn precision(&self) -> Option<u16> {
        Some(u16::from(self.lg_k))
    }

    fn heap_bytes(op: &Self::Op) -> usize {
        op.heap_bytes()
    }

    fn apply(&mut self, op: &Self::Op) -> Result<Effect, OpError> {
        Ok(Effect::of(match op {
            SketchOp::Add { items } => {
                let mut is_changed = false;
                hash(items, |hash| is_changed |= self.add(hash));
                is_changed
            }
            SketchOp::Merge { sketch } => self.unite(&sketch.sample),
        }))
    }

    fn merge(&mut self, other: &Audience) -> Result<(), MergeError> {
        self.lg_k = self.lg_k.min(other.lg_k);
        self.unite(&other.sample);
        Ok(())
    }

    fn export(&self) -> Option<Vec<u8>> {
        Some(self.to_datasketches())
    }

    fn value(&self, _question: &Question) -> Value {
        self.sample.value(self.lg_k)
    }

    /// Appends the distance of theta from its largest value, the number of hashes, and the difference of each
    /// hash from the one before.
    fn encode(&self, out: &mut Vec<u8>) {
        let Sample { theta, hashes } = &self.sample;
        varint::put(u128::from(THETA_MAX - theta), out);
        varint::put(hashes.len() as u128, out);
        let mut last = 0;
        for hash in hashes {
            varint::put(u128::from(hash - last), out);
            last = *hash;
        }
    }

    fn decode(
        format: u64,
        precision: Option<u16>,
        payload: &[u8],
    ) -> Result<Audience, DecodeError> {
        check_format::<Audience>(format)?;
        let precision = precision.ok_or(DecodeError::NotCanonical)?;
        let mut state = Audience::with_precision(precision);
        let mut reader = Reader::new(payload);
        let theta = THETA_MAX.checked_sub(reader.u64()?).filter(|theta| *theta > 0);
        state.sample.theta = theta.ok_or(DecodeError::NotCanonical)?;
        let count = reader.length()?;
        if count > state.size_max() {
            return Err(DecodeError::NotCanonical);
        }
        let mut hashes = Vec::with_capacity(count);
        let mut last = 0_u64;
        for _ in 0..count {
            let hash = last.checked_add(reader.u64()?).ok_or(DecodeError::NotCanonical)?;
            if hash == last || hash >= state.sample.theta {
                return Err(DecodeError::NotCanonical);
            }
            hashes.push(hash);
            last = hash;
        }
        // Built from a sorted list in linear time.
        state.sample.hashes = hashes.into_iter().collect();
        reader.end()?;
        Ok(state)
    }
}

impl Sketch for Audience {
    fn import(image: &[u8]) -> Result<Audience, OpError> {
        let finest = Audience::default();
        Ok(Audience { sample: Sample::import(image, finest.size_max())?, ..finest })
    }

    fn memory_bytes(&self) -> usize {
        // Tree nodes are half full at worst.
        size_of::<Audience>() + 2 * size_of::<u64>() * self.sample.hashes.len()
    }
}

/// Hashes items as DataSketches does. The library shows a hash only in a sketch, so each item passes through
/// an empty one. It does not count an item with hash zero; no other library does.
fn hash(items: &[Item], mut take: impl FnMut(u64)) {
    let mut probe = ThetaSketchBuilder::default()
        .lg_k(5)
        .build()
        .expect("invariant: lg_k is within the library's range");
    for item in items {
        sketch::hashed_bytes(item, |bytes| probe.update(raw_bytes::from_slice(bytes)));
        if let Some(entry) = probe.iter().next() {
            take(entry.hash());
        }
        probe.reset();
    }
}

#[cfg(test)]
mod tests;
