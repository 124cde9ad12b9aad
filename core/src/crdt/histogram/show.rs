//! The values that reads of a histogram return.

use std::cmp::Reverse;

use num_bigint::BigUint;

use super::Histogram;
use super::bucket::{Bucket, relative_error};
use crate::crdt::value::Form;
use crate::crdt::{Question, Value};

/// The quantiles if the question has none.
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// Maximum number of buckets, including empty ones, in the dense form of OpenTelemetry: enough for all
/// doubles at scale 0.
const DENSE_BUCKETS_MAX: i64 = 4_200;

pub(super) fn value(histogram: &Histogram, question: &Question) -> Value {
    match question.form {
        Some(Form::OpenTelemetry) => open_telemetry(histogram.clone()),
        Some(Form::Prometheus) => prometheus(histogram),
        None => own(histogram, question),
    }
}

fn own(histogram: &Histogram, question: &Question) -> Value {
    let quantiles: &[f64] =
        if question.quantiles.is_empty() { &QUANTILES } else { &question.quantiles };
    let quantile = |q: &f64| {
        Value::Record(vec![("q", Value::Real(*q)), ("value", Value::real(quantile(histogram, *q)))])
    };
    let mut fields = vec![
        ("count", Value::count(histogram.count)),
        ("sum", Value::nearest_double(histogram.sum.to_f64())),
        ("min", Value::real(histogram.span.map(|span| span.min))),
        ("max", Value::real(histogram.span.map(|span| span.max))),
        ("relative_error", Value::Real(relative_error(histogram.scale))),
        ("quantiles", Value::List(quantiles.iter().map(quantile).collect())),
    ];
    if question.buckets {
        let bucket = |(bucket, count): (&Bucket, &u128)| {
            let (lower, upper) = bucket.bounds(histogram.scale);
            Value::Record(vec![
                ("lower", Value::Real(lower)),
                ("upper", Value::Real(upper)),
                ("count", Value::count(*count)),
            ])
        };
        fields.push(("buckets", Value::List(histogram.buckets.iter().map(bucket).collect())));
    }
    Value::Record(fields)
}

/// An estimate of the value at a quantile. The first and the last value are known exactly.
pub(super) fn quantile(histogram: &Histogram, q: f64) -> Option<f64> {
    let span = histogram.span?;
    let rank = rank(q, histogram.count)?;
    if rank == 1 {
        return Some(span.min);
    }
    if rank == histogram.count {
        return Some(span.max);
    }
    let mut passed = 0;
    let (bucket, _) = histogram.buckets.iter().find(|(_, count)| {
        passed += **count;
        passed >= rank
    })?;
    Some(bucket.estimate(histogram.scale).clamp(span.min, span.max))
}

/// The rank, from 1, of the value at a quantile: ceil(q * count). Uses the decimal that the client wrote for
/// q, which is the shortest one for the double. The double nearest to 0.9 is a little larger, and would turn
/// the ninth value of ten into the tenth.
pub(super) fn rank(q: f64, count: u128) -> Option<u128> {
    // -0.0 + 0.0 is 0.0.
    let text = format!("{:e}", q.clamp(0.0, 1.0) + 0.0);
    let (mantissa, exponent) = text.split_once('e')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let places = u32::try_from(fraction.len()).ok()?.checked_add_signed(-exponent.parse().ok()?)?;
    let divisor = BigUint::from(10_u8).pow(places);
    let rank = (BigUint::from(digits) * count + &divisor - 1_u8) / &divisor;
    u128::try_from(rank).ok().map(|rank| rank.max(1))
}

/// An `ExponentialHistogramDataPoint` of opentelemetry-proto in OTLP/JSON, with 64-bit numbers in quotes. Its
/// comments say to omit `sum` if there are negative values; one beyond the doubles is also omitted. The buckets
/// are dense; if there would be too many, the scale is lowered.
fn open_telemetry(mut histogram: Histogram) -> Value {
    let sides = loop {
        let sides = sides(&histogram);
        let dense: i64 = sides.iter().map(|side| dense_length(side)).sum();
        if dense <= DENSE_BUCKETS_MAX {
            break sides;
        }
        histogram.coarsen(histogram.scale - 1);
    };
    let [negative, positive] = sides;
    let zeros = histogram.buckets.get(&Bucket::Zero).copied().unwrap_or(0);
    let mut fields = vec![("count", Value::text(histogram.count.to_string()))];
    if let Some(sum) = histogram.sum.to_f64().filter(|_| negative.is_empty()) {
        fields.push(("sum", Value::Real(sum)));
    }
    fields.extend([
        ("scale", Value::count(histogram.scale)),
        ("zeroCount", Value::text(zeros.to_string())),
        ("positive", dense(&positive)),
        ("negative", dense(&negative)),
    ]);
    if let Some(span) = histogram.span {
        fields.extend([("min", Value::Real(span.min)), ("max", Value::Real(span.max))]);
    }
    fields.push(("zeroThreshold", Value::Real(0.0)));
    Value::Record(fields)
}

/// The negative and the positive buckets, each by ascending index.
fn sides(histogram: &Histogram) -> [Vec<(i32, u128)>; 2] {
    let mut sides = [Vec::new(), Vec::new()];
    for (bucket, count) in &histogram.buckets {
        match bucket {
            Bucket::Negative(Reverse(index)) => sides[0].push((*index, *count)),
            Bucket::Zero => {}
            Bucket::Positive(index) => sides[1].push((*index, *count)),
        }
    }
    sides[0].reverse();
    sides
}

/// The number of buckets from the first to the last, including empty ones.
fn dense_length(side: &[(i32, u128)]) -> i64 {
    match (side.first(), side.last()) {
        (Some((first, _)), Some((last, _))) => i64::from(*last) - i64::from(*first) + 1,
        _ => 0,
    }
}

/// The counts of all buckets from the first, at `offset`, to the last.
fn dense(side: &[(i32, u128)]) -> Value {
    let offset = side.first().map_or(0, |(first, _)| *first);
    let mut counts = Vec::new();
    let mut next = offset;
    for (index, count) in side {
        counts.extend((next..*index).map(|_| Value::text("0")));
        counts.push(Value::text(count.to_string()));
        next = index + 1;
    }
    Value::Record(vec![
        ("offset", Value::Integer(i128::from(offset))),
        ("bucketCounts", Value::List(counts)),
    ])
}

/// A native histogram as in the answers of Prometheus' HTTP API. Each bucket says which of its boundaries are
/// excluded: 0 the left one, 1 the right one, 3 none.
fn prometheus(histogram: &Histogram) -> Value {
    let bucket = |(bucket, count): (&Bucket, &u128)| {
        let (left, right) = bucket.bounds(histogram.scale);
        let rule = match bucket {
            Bucket::Positive(_) => 0,
            Bucket::Negative(_) => 1,
            Bucket::Zero => 3,
        };
        Value::List(vec![
            Value::Integer(rule),
            Value::text(decimal(left)),
            Value::text(decimal(right)),
            Value::text(count.to_string()),
        ])
    };
    let infinity = || if histogram.sum.is_negative() { "-Inf" } else { "+Inf" }.to_owned();
    Value::Record(vec![
        ("count", Value::text(histogram.count.to_string())),
        ("sum", Value::text(histogram.sum.to_f64().map_or_else(infinity, decimal))),
        ("buckets", Value::List(histogram.buckets.iter().map(bucket).collect())),
    ])
}

/// The shortest decimal for a double, with an exponent where JavaScript and Prometheus write one.
fn decimal(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}

#[cfg(test)]
mod tests;
