//! `distinct`: how many different items there were, in about a kilobyte.
//!
//! The algorithm is Compressed Probabilistic Counting (Lang, "Back to the Future: an Even More Nearly Optimal
//! Cardinality Estimation Algorithm", 2017, <https://arxiv.org/abs/1708.06839>), from the library of Apache
//! DataSketches. A sketch is a bit matrix of k = 2^`lg_k` rows and 64 columns. An item sets the bit that its
//! hash names, its *coupon*, and merging is bitwise or. So the matrix is a pure function of the set of items
//! and of k, and a matrix with fewer rows follows from one with more, because the row is the hash modulo k.
//!
//! Two measures make the library's bytes such a function too. First, it has two estimators: HIP depends on
//! the order of arrival, ICON only on the number of coupons. Here every sketch begins as an empty *merged*
//! one, and merged sketches keep to ICON. Second, a sketch that saw updates remembers a column that is only a
//! short cut. A union recalculates it, so [`Crdt::encode`] writes a union's result.

use std::panic::{AssertUnwindSafe, catch_unwind};

use datasketches::common::NumStdDev;
use datasketches::cpc::{CpcSketch, CpcUnion};
use datasketches::hash::value::raw_bytes;

use super::sketch::{self, HEADER_BYTES, SEED_HASH, Sketch, SketchOp, refused};
use super::varint::Reader;
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Precision, Question,
    Size, Value, check_format,
};

/// At 14 the error is 0.5 %, and even a sketch of chosen coupons is refused within a tenth of a second.
const PRECISION: Precision = Precision { name: "lg_k", min: 4, max: 14, default: 11 };
const FINEST: u8 = 14;

/// The family's number in an image.
const FAMILY: u8 = 16;

/// Flags of an image: it has the state of the HIP estimator, a table of coupons, a window.
const FLAG_HIP: u8 = 1 << 2;
const FLAG_TABLE: u8 = 1 << 3;
const FLAG_WINDOW: u8 = 1 << 4;

/// A distinct count.
#[derive(Debug, Clone)]
pub struct Distinct {
    /// Without the state of the HIP estimator; it has passed [`is_sound`].
    sketch: CpcSketch,
}

impl Distinct {
    /// The sketch in the native format of the DataSketches family CPC, for other systems. Equal states give
    /// equal bytes.
    #[must_use]
    pub fn to_datasketches(&self) -> Vec<u8> {
        united(self.sketch.lg_k(), &[&self.sketch]).serialize()
    }

    /// The union of both sketches, with the coarser precision; none if they have more coupons than items can
    /// make.
    fn union(&self, other: &Distinct) -> Option<CpcSketch> {
        let lg_k = self.sketch.lg_k().min(other.sketch.lg_k());
        checked(|| united(lg_k, &[&self.sketch, &other.sketch]))
    }
}

impl Default for Distinct {
    fn default() -> Distinct {
        Distinct { sketch: empty(FINEST) }
    }
}

impl PartialEq for Distinct {
    fn eq(&self, other: &Distinct) -> bool {
        self.to_datasketches() == other.to_datasketches()
    }
}

impl Crdt for Distinct {
    const NAME: &'static str = "distinct";
    const CODE: u64 = 6;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "About how many different items there were.",
        class: Class::Exact,
        is_exact: false,
        size: Size::Large { memory_factor: 5 },
        bound: "A standard error of 1.5 % in at most 1.3 KB at `lg_k` 11; half the error takes four \
                times the bytes. The state itself is exact: the same for any sharding.",
        is_idempotent: true,
        has_totals: false,
        bare: ("add", "item"),
        bare_value: BareValue::Field("estimate"),
        example_op: r#"{"op":"add","items":["u1","u1"]}"#,
        example_value: r#"{"estimate":1.0,"lower":1.0,"upper":2.0,"lg_k":11}"#,
        op_schema: sketch::op_schema!("DistinctOp", "CPC"),
        value_schema: sketch::VALUE_SCHEMA,
        parameters: &[],
    };
    const PRECISION: Option<Precision> = Some(PRECISION);
    type Op = SketchOp<Distinct>;

    fn with_precision(precision: u16) -> Distinct {
        Distinct { sketch: empty(u8::try_from(precision).unwrap_or(FINEST)) }
    }

    fn precision(&self) -> Option<u16> {
        Some(u16::from(self.sketch.lg_k()))
    }

    fn heap_bytes(op: &Self::Op) -> usize {
        op.heap_bytes()
    }

    fn apply(&mut self, op: &Self::Op) -> Result<Effect, OpError> {
        let next = match op {
            SketchOp::Add { items } => checked(|| {
                let mut next = self.sketch.clone();
                for item in items {
                    sketch::hashed_bytes(item, |bytes| next.update(raw_bytes::from_slice(bytes)));
                }
                next
            }),
            SketchOp::Merge { sketch } => self.union(sketch),
        };
        let next = next.ok_or_else(|| {
            OpError::Invalid("the sketch would have more coupons than items can make".to_owned())
        })?;
        // The number of coupons can only grow, and ICON's estimate rises by at least one with each: it is the
        // inverse of the expected number of coupons after n items, which rises by less than one with each
        // item. So the same estimate means the same coupons.
        let is_same =
            next.lg_k() == self.sketch.lg_k() && next.estimate() <= self.sketch.estimate();
        if !is_same {
            self.sketch = next;
        }
        Ok(Effect::of(!is_same))
    }

    fn merge(&mut self, other: &Distinct) -> Result<(), MergeError> {
        self.sketch = self.union(other).ok_or(MergeError::Implausible { kind: Self::NAME })?;
        Ok(())
    }

    fn export(&self) -> Option<Vec<u8>> {
        Some(self.to_datasketches())
    }

    fn value(&self, _question: &Question) -> Value {
        let (sketch, two) = (&self.sketch, NumStdDev::Two);
        sketch::show(
            sketch.estimate(),
            sketch.lower_bound(two),
            sketch.upper_bound(two),
            sketch.lg_k(),
        )
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_datasketches());
    }

    fn decode(
        format: u64,
        precision: Option<u16>,
        payload: &[u8],
    ) -> Result<Distinct, DecodeError> {
        check_format::<Distinct>(format)?;
        let state = Distinct::import(payload).map_err(|_| DecodeError::NotCanonical)?;
        if state.precision() != precision || state.sketch.serialize() != payload {
            return Err(DecodeError::NotCanonical);
        }
        Ok(state)
    }
}

impl Sketch for Distinct {
    fn import(image: &[u8]) -> Result<Distinct, OpError> {
        let header = sketch::check_header(image, (FAMILY, "CPC"), |_| true)?;
        let (lg_k, flags) = (header[3], header[5]);
        let Precision { min, max, .. } = PRECISION;
        if !(min..=max).contains(&u16::from(lg_k)) {
            return Err(refused(format!("has lg_k {lg_k}; build it with {min} to {max}")));
        }
        let corrupt = |why: &str| refused(format!("is corrupt: {why}"));
        let sizes = Sizes::read(header[0], flags, &image[HEADER_BYTES..])
            .map_err(|_| corrupt("it is cut off within its preamble"))?;
        if sizes.image_bytes != image.len() as u64 {
            return Err(corrupt("it is shorter or longer than its preamble says"));
        }
        if sizes.entries_beside_window as usize > slots_max(lg_k) || sizes.coupons >> lg_k > 56 {
            return Err(corrupt("it has more coupons than items can make"));
        }
        let sketch = CpcSketch::deserialize(image).map_err(|error| corrupt(error.message()))?;
        // The library trusts the stated number of coupons; a union counts the matrix.
        checked(|| united(lg_k, &[&sketch]))
            .filter(|united| coupons(united) == sizes.coupons)
            .map(|sketch| Distinct { sketch })
            .ok_or_else(|| corrupt("its number of coupons is not the one in its preamble"))
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Distinct>() + self.sketch.estimated_size()
    }
}

/// The empty merged sketch. The library has no function for it, but reads it from this image.
fn empty(lg_k: u8) -> CpcSketch {
    let [low, high] = SEED_HASH;
    let image = [2, 1, FAMILY, lg_k, 0, 1 << 1, low, high];
    CpcSketch::deserialize(&image).expect("invariant: the image of an empty sketch")
}

/// The canonical sketch of all coupons.
fn united(lg_k: u8, sketches: &[&CpcSketch]) -> CpcSketch {
    let mut union = CpcUnion::new(lg_k).expect("invariant: lg_k is within the library's range");
    for sketch in sketches {
        union.update(sketch).expect("invariant: every sketch has the default seed");
    }
    let united = union.to_sketch();
    if united.is_empty() { empty(lg_k) } else { united }
}

/// Lets the library work on copies, and checks the result.
///
/// The library's table of coupons outside the window can hold 24 k of them, and panics beyond that. Honest
/// items need a hundredth of it, but an attacker who computes the hash backwards can choose every coupon, in tens
/// of thousands of items or in sketches that are each valid alone. Only the library knows the coupons, so the
/// only way to find out is to try.
fn checked(compute: impl FnOnce() -> CpcSketch) -> Option<CpcSketch> {
    catch_unwind(AssertUnwindSafe(compute)).ok().filter(is_sound)
}

/// Whether the library can handle a sketch: beyond 59 coupons per row the window would leave the matrix.
/// Honest items do not reach that: 56 per row need 2^55 items for each row.
fn is_sound(sketch: &CpcSketch) -> bool {
    let k = f64::from(1_u32 << sketch.lg_k());
    // ICON estimates 0.794 k 2^(C/k) for C coupons when C > 5.7 k.
    sketch.estimate() <= k * 2_f64.powi(56) && sketch.estimated_size() <= size_max(sketch.lg_k())
}

/// Memory of a sketch, in bytes: one byte for each row of the window, four for each slot of the table.
fn size_max(lg_k: u8) -> usize {
    (1 << lg_k) + 4 * slots_max(lg_k)
}

/// Slots of the table; at least a fourth of them is free. Honest items need k/8 or, if k is small, a dozen.
/// The library can read back at most 4 k slots, and so 3 k coupons: it refuses an image with more coupons
/// outside the window than in total, and a window that has moved has 27/8 k. The limit also keeps the bytes
/// far below [`STATE_BYTES_MAX`](super::STATE_BYTES_MAX).
fn slots_max(lg_k: u8) -> usize {
    64 + (1 << lg_k) / 2
}

/// What an image says about its own size, in the layout of `CpcSketch::serialize`.
struct Sizes {
    coupons: u32,
    /// Coupons in the table, if there is a window for the others.
    entries_beside_window: u32,
    image_bytes: u64,
}

impl Sizes {
    fn read(preamble_words: u8, flags: u8, behind_header: &[u8]) -> Result<Sizes, DecodeError> {
        let has = |flag| flags & flag != 0;
        let mut reader = Reader::new(behind_header);
        let mut word = |is_there: bool| -> Result<u32, DecodeError> {
            let bytes = if is_there { reader.bytes(4)? } else { &[0; 4] };
            Ok(bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)))
        };
        let has_both = has(FLAG_TABLE) && has(FLAG_WINDOW);
        let coupons = word(has(FLAG_TABLE) || has(FLAG_WINDOW))?;
        let entries_beside_window = word(has_both)?;
        for _ in 0..4 {
            word(has_both && has(FLAG_HIP))?;
        }
        let (table_words, window_words) = (word(has(FLAG_TABLE))?, word(has(FLAG_WINDOW))?);
        let words = u64::from(preamble_words) + u64::from(table_words) + u64::from(window_words);
        Ok(Sizes { coupons, entries_beside_window, image_bytes: 4 * words })
    }
}

/// The number of coupons of a canonical sketch: only its image tells, not its interface.
fn coupons(sketch: &CpcSketch) -> u32 {
    let image = sketch.serialize();
    Sizes::read(image[0], image[5], &image[HEADER_BYTES..]).map_or(0, |sizes| sizes.coupons)
}

#[cfg(test)]
mod tests;
