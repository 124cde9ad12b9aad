//! `histogram`: the distribution of doubles in base-2 exponential buckets.
//!
//! The buckets are those of the [OpenTelemetry data model] for exponential histograms and, at the same
//! scales, of Prometheus' native histograms. At scale s the base is 2^(2^-s), and bucket i holds the values
//! greater than base^i and at most base^(i+1), because the data model requires upper-inclusive boundaries.
//! Negative values are in buckets of their magnitude; zero has its own bucket. Only populated buckets are
//! kept.
//!
//! A histogram with more than [`BUCKETS_MAX`] populated buckets halves its resolution until they fit. Its
//! content depends only on the multiset of values and on the precision that the parts began with: the scale
//! is the finest one, not beyond that of any part, at which the buckets of all values fit. The buckets that
//! some of the values populate are a subset of those that all values populate, so no part had to become
//! coarser than the whole must be. A bucket of a coarser scale is a union of whole buckets of a finer one, so
//! earlier counts are in the right bucket.
//!
//! [OpenTelemetry data model]:
//!     https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram

mod bucket;
mod show;

use std::collections::BTreeMap;

use serde::Deserialize;

use self::bucket::{Bucket, SCALE_MAX};
use super::exact::{ExactSum, Terms};
use super::number::{count, finite, once};
use super::span::Span;
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Precision, Question,
    Size, Value, check_format,
};

/// Maximum number of populated buckets: positive, negative and that of zero. At scale 0 all finite doubles
/// have fewer buckets, 2 * 2,099 + 1, so a histogram never refuses a value.
pub const BUCKETS_MAX: usize = 4_200;

/// How many values are in each bucket, their exact sum, and the smallest and the largest value.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    scale: u16,
    count: u128,
    sum: ExactSum,
    /// None if there are no values.
    span: Option<Span>,
    /// Ascending, and none of them empty.
    buckets: BTreeMap<Bucket, u128>,
}

/// A change of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum HistogramOp {
    /// Records a value.
    Record {
        /// The value: finite, and not the negative zero.
        #[serde(deserialize_with = "finite")]
        value: f64,
        /// How many times it was observed: from 1 to 2^63 - 1.
        #[serde(default = "once", deserialize_with = "count")]
        count: u64,
    },
}

impl Histogram {
    /// Moves the counts into the buckets of a scale that is not finer.
    fn coarsen(&mut self, scale: u16) {
        let by = self.scale - scale;
        if by > 0 {
            self.scale = scale;
            for (bucket, count) in std::mem::take(&mut self.buckets) {
                *self.buckets.entry(bucket.coarser(by)).or_default() += count;
            }
        }
    }

    /// Halves the resolution until there are few enough buckets, at the latest at scale 0.
    fn fit(&mut self) {
        while self.buckets.len() > BUCKETS_MAX {
            self.coarsen(self.scale - 1);
        }
    }
}

/// Empty, at the finest scale.
impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::with_precision(SCALE_MAX)
    }
}

impl Crdt for Histogram {
    const NAME: &'static str = "histogram";
    const CODE: u64 = 5;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "The distribution of doubles: quantiles, count, sum, minimum and maximum.",
        class: Class::Exact,
        is_exact: false,
        size: Size::Large { memory_factor: 30 },
        bound: "Quantiles within `relative_error`: 0.55 % at scale 6, twice that for each scale \
            less. Count, sum, minimum and maximum are exact. About 2 bytes for each populated \
            bucket; it keeps at most 4,200 by lowering the scale.",
        is_idempotent: false,
        has_totals: true,
        bare: ("record", "value"),
        bare_value: BareValue::Nothing,
        example_op: r#"{"op":"record","value":0.231,"count":1}"#,
        example_value: r#"{"count":1,"sum":0.231,"min":0.231,"max":0.231,
            "relative_error":0.005415159415903354,"quantiles":[{"q":0.5,"value":0.231},
            {"q":0.9,"value":0.231},{"q":0.99,"value":0.231}]}"#,
        op_schema: r#"{"title":"HistogramOp","description":"Records `value`, `count` times.",
            "type":"object","required":["op","value"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["record"]},
            "value":{"description":"A whole number must equal a double. Any other number means the nearest double: 1e-400 is 0. 1e400 is beyond the doubles and refused.",
                "type":"number","format":"double"},
            "count":{"description":"In quotes for languages without 64-bit integers.","default":1,
                "oneOf":[{"type":"integer","minimum":1,"maximum":9223372036854775807},
                {"type":"string","pattern":"^[+]?[0-9]{1,19}$"}]}}}"#,
        value_schema: r#"{"anyOf":[
            {"type":"object","required":["count","sum","min","max","relative_error","quantiles"],
            "properties":{
            "count":{"type":"integer","minimum":0},
            "sum":{"type":["number","null"],"description":"Null beyond the range of doubles."},
            "min":{"type":["number","null"],"description":"Null without values."},
            "max":{"type":["number","null"]},
            "relative_error":{"type":"number",
                "description":"Relative error of the quantiles; subnormal ones can be another 2^-1074 off."},
            "quantiles":{"type":"array","items":{"type":"object","properties":{
                "q":{"type":"number"},"value":{"type":["number","null"]}}}},
            "buckets":{"type":"array",
                "description":"With `buckets`. The bound with the larger magnitude is inclusive.",
                "items":{"type":"object","properties":{"lower":{"type":"number"},
                "upper":{"type":"number"},"count":{"type":"integer","minimum":1}}}}}},
            {"type":"object","description":"as=opentelemetry: ExponentialHistogramDataPoint",
            "required":["count","scale","zeroCount","positive","negative"]},
            {"type":"object","description":"as=prometheus: as in the answers of its HTTP API",
            "required":["count","sum","buckets"]}]}"#,
        parameters: &["q", "buckets", "as"],
    };
    const PRECISION: Option<Precision> =
        Some(Precision { name: "scale", min: 0, max: SCALE_MAX, default: 6 });
    type Op = HistogramOp;

    fn with_precision(precision: u16) -> Histogram {
        Histogram {
            scale: precision,
            count: 0,
            sum: ExactSum::default(),
            span: None,
            buckets: BTreeMap::new(),
        }
    }

    fn precision(&self) -> Option<u16> {
        Some(self.scale)
    }

    fn apply(&mut self, op: &HistogramOp) -> Result<Effect, OpError> {
        let HistogramOp::Record { value, count } = *op;
        let overflow = OpError::Overflow { kind: Self::NAME };
        // No bucket can have more than the total.
        self.count = self.count.checked_add(u128::from(count)).ok_or(overflow)?;
        *self.buckets.entry(Bucket::of(value, self.scale)).or_default() += u128::from(count);
        self.sum.add(value, count);
        self.span = Span::join(self.span, Some(Span::of(value)));
        self.fit();
        Ok(Effect::Changed)
    }

    fn merge(&mut self, other: &Histogram) -> Result<(), MergeError> {
        let overflow = MergeError::Overflow { kind: Self::NAME };
        self.count = self.count.checked_add(other.count).ok_or(overflow)?;
        self.coarsen(self.scale.min(other.scale));
        let by = other.scale - self.scale;
        for (bucket, count) in &other.buckets {
            *self.buckets.entry(bucket.coarser(by)).or_default() += count;
        }
        self.sum.merge(&other.sum);
        self.span = Span::join(self.span, other.span);
        self.fit();
        Ok(())
    }

    fn value(&self, question: &Question) -> Value {
        show::value(self, question)
    }

    /// Appends nothing without values; otherwise the sum, the minimum, the maximum, and the number of
    /// buckets. The buckets follow in ascending order, each with its count. The first has its position in
    /// zigzag form, each other one the number of positions skipped since the one before.
    fn encode(&self, out: &mut Vec<u8>) {
        let Some(span) = self.span else { return };
        self.sum.encode(out);
        span.encode(out);
        varint::put(self.buckets.len() as u128, out);
        let mut last: Option<i128> = None;
        for (bucket, count) in &self.buckets {
            let position = i128::from(bucket.position(self.scale));
            match last {
                None => varint::put_signed(position, out),
                Some(last) => varint::put((position - last - 1).cast_unsigned(), out),
            }
            varint::put(*count, out);
            last = Some(position);
        }
    }

    fn decode(
        format: u64,
        precision: Option<u16>,
        payload: &[u8],
    ) -> Result<Histogram, DecodeError> {
        check_format::<Histogram>(format)?;
        let scale = precision.filter(|scale| *scale <= SCALE_MAX).ok_or(DecodeError::Flags)?;
        let mut histogram = Histogram::with_precision(scale);
        if payload.is_empty() {
            return Ok(histogram);
        }
        let mut reader = Reader::new(payload);
        histogram.sum = ExactSum::decode(&mut reader, Terms::Doubles)?;
        let span = Span::decode(&mut reader)?;
        histogram.span = Some(span);
        let length = reader.length()?;
        if length > BUCKETS_MAX {
            return Err(DecodeError::NotCanonical);
        }
        let mut last: Option<i128> = None;
        for _ in 0..length {
            let position = match last {
                None => reader.signed()?,
                Some(last) => last + 1 + i128::from(reader.u64()?),
            };
            let bucket = Bucket::at(position, scale).ok_or(DecodeError::NotCanonical)?;
            let count = reader.u128()?;
            let total = histogram.count.checked_add(count).filter(|_| count > 0);
            histogram.count = total.ok_or(DecodeError::NotCanonical)?;
            histogram.buckets.insert(bucket, count);
            last = Some(position);
        }
        reader.end()?;
        let ends = (histogram.buckets.keys().next(), histogram.buckets.keys().next_back());
        let wanted = (Bucket::of(span.min, scale), Bucket::of(span.max, scale));
        let is_possible = ends == (Some(&wanted.0), Some(&wanted.1));
        if !is_possible || !span.allows(&histogram.sum, histogram.count) {
            return Err(DecodeError::NotCanonical);
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests;
