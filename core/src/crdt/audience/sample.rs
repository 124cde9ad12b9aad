//! Hashes below a threshold, and their exchange with DataSketches.

use std::collections::BTreeSet;

use datasketches::common::NumStdDev;
use datasketches::theta::CompactThetaSketch;

use super::super::sketch::{self, SEED_HASH, refused};
use super::super::{OpError, Value};

/// The largest theta: all hashes are kept.
pub(super) const THETA_MAX: u64 = i64::MAX.cast_unsigned();

/// The family's number in an image.
const FAMILY: u8 = 3;

/// The uncompressed and the compressed format of current libraries.
const VERSION: u8 = 3;
const VERSION_COMPRESSED: u8 = 4;

const FLAG_READ_ONLY: u8 = 1 << 1;
const FLAG_EMPTY: u8 = 1 << 2;
const FLAG_COMPACT: u8 = 1 << 3;
const FLAG_ORDERED: u8 = 1 << 4;

/// All hashes below theta of a set of items.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    /// From 1 to [`THETA_MAX`].
    pub(super) theta: u64,
    /// Each from 1 to theta - 1.
    pub(super) hashes: BTreeSet<u64>,
}

impl Default for Sample {
    fn default() -> Sample {
        Sample { theta: THETA_MAX, hashes: BTreeSet::new() }
    }
}

impl Sample {
    /// Whether there are certainly no items.
    fn is_empty(&self) -> bool {
        self.theta == THETA_MAX && self.hashes.is_empty()
    }

    /// Keeps only the `size` smallest hashes; the next one becomes theta.
    pub(super) fn cut(&mut self, size: usize) {
        while self.hashes.len() > size {
            self.theta = self.hashes.pop_last().unwrap_or(self.theta);
        }
    }

    /// Drops the hashes that are not below `theta`.
    fn lower(&mut self, theta: u64) {
        if theta < self.theta {
            self.theta = theta;
            self.hashes.split_off(&theta);
        }
    }

    /// The items in either sample.
    pub(super) fn unite(&mut self, other: &Sample) {
        self.lower(other.theta);
        self.hashes.extend(other.hashes.range(..self.theta));
    }

    /// The items in both samples. With an empty set, the result is certainly empty.
    pub(super) fn intersect(&mut self, other: &Sample) {
        if self.is_empty() || other.is_empty() {
            *self = Sample::default();
            return;
        }
        self.lower(other.theta);
        self.hashes.retain(|hash| other.hashes.contains(hash));
    }

    /// The items that `other` does not contain.
    pub(super) fn subtract(&mut self, other: &Sample) {
        if !self.is_empty() {
            self.lower(other.theta);
            self.hashes.retain(|hash| !other.hashes.contains(hash));
        }
    }

    /// The library's sketch of this sample, made through the documented image of a compact sketch: a preamble
    /// of three words, then the hashes in order.
    pub(super) fn to_compact(&self) -> CompactThetaSketch {
        let empty = if self.is_empty() { FLAG_EMPTY } else { 0 };
        let flags = FLAG_READ_ONLY | FLAG_COMPACT | FLAG_ORDERED | empty;
        let mut image = vec![3, VERSION, FAMILY, 0, 0, flags];
        image.extend(SEED_HASH);
        image.extend((self.hashes.len() as u64).to_le_bytes());
        for word in std::iter::once(&self.theta).chain(&self.hashes) {
            image.extend(word.to_le_bytes());
        }
        CompactThetaSketch::deserialize(&image).expect("invariant: the image of a sample")
    }

    pub(super) fn value(&self, lg_k: u8) -> Value {
        let (compact, two) = (self.to_compact(), NumStdDev::Two);
        // The library computes ln(1 - theta), which a double rounds to zero here, and so it gives an upper
        // bound of zero. In fact almost nothing is known: there can be any number of items, up to one per
        // possible hash.
        let is_blind = self.hashes.is_empty() && compact.theta() < f64::EPSILON;
        let upper = if is_blind { 2_f64.powi(63) } else { compact.upper_bound(two) };
        sketch::show(compact.estimate(), compact.lower_bound(two), upper, lg_k)
    }

    /// Reads an image from any source and any library; keeps `size` hashes.
    pub(super) fn import(image: &[u8], size: usize) -> Result<Sample, OpError> {
        let header =
            sketch::check_header(image, (FAMILY, "Theta"), |header| header[5] & FLAG_EMPTY == 0)?;
        let [words, version, _, entry_bits, count_bytes, flags, ..] = header;
        let corrupt = |why: &str| refused(format!("is corrupt: {why}"));
        if version != VERSION && version != VERSION_COMPRESSED {
            let rule = format!("has serial version {version}; write it with a current library");
            return Err(refused(rule));
        }
        if flags & FLAG_COMPACT == 0 {
            return Err(refused("is not compact; export it as a compact sketch"));
        }
        let compact =
            CompactThetaSketch::deserialize(image).map_err(|error| corrupt(error.message()))?;
        let count = compact.num_retained();
        let beside_preamble = match version {
            VERSION => 8 * count,
            _ => usize::from(count_bytes) + (count * usize::from(entry_bits)).div_ceil(8),
        };
        if image.len() != 8 * usize::from(words) + beside_preamble {
            return Err(corrupt("it is shorter or longer than its preamble says"));
        }
        let mut hashes: Vec<u64> = compact.iter().map(|entry| entry.hash()).collect();
        if !compact.is_ordered() {
            hashes.sort_unstable();
        }
        if !hashes.is_sorted_by(|left, right| left < right) {
            return Err(corrupt("its hashes repeat or are not in order"));
        }
        let theta = hashes.get(size).copied().unwrap_or(compact.theta64());
        hashes.truncate(size);
        Ok(Sample { theta, hashes: hashes.into_iter().collect() })
    }
}
