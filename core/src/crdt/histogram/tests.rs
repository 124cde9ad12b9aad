use proptest::collection::vec;
use proptest::prelude::*;

use super::bucket::tests::power;
use super::*;
use crate::crdt::laws::{self, bytes, merged, stored};
use crate::crdt::span::tests::doubles;
use crate::crdt::{Kind, Op, STATE_BYTES_MAX, State};

fn ops() -> impl Strategy<Value = HistogramOp> {
    let count = prop_oneof![Just(1), 1..9_u64, 1..1_u64 << 63, Just((1 << 63) - 1)];
    (doubles(), count).prop_map(|(value, count)| HistogramOp::Record { value, count })
}

laws::suite!(Histogram, ops());

fn record(value: f64) -> HistogramOp {
    HistogramOp::Record { value, count: 1 }
}

fn parse(json: &str) -> Result<Op, OpError> {
    Kind::Histogram.parse_op(&serde_json::from_str(json).expect("JSON"))
}

fn recorded(scale: u16, ops: &[HistogramOp]) -> Histogram {
    let mut histogram = Histogram::with_precision(scale);
    for op in ops {
        assert_eq!(histogram.apply(op), Ok(Effect::Changed));
    }
    histogram
}

/// Values in this many adjacent buckets of the finest scale, far from sorted.
fn in_buckets(buckets: u32) -> Vec<HistogramOp> {
    let values = (0..buckets).map(|i| f64::from(i * 7919 % buckets));
    values.map(|i| record(((i + 0.5) / 256.0 - 9.0).exp2())).collect()
}

proptest! {
    #[test]
    fn coarser_is_as_if_recorded_coarser(
        ops in vec(ops(), 0..40), scale in 0..=8_u16, coarser in 0..=8_u16,
    ) {
        let mut histogram = recorded(scale, &ops);
        let coarser = coarser.min(scale);
        histogram.coarsen(coarser);
        prop_assert_eq!(&histogram, &recorded(coarser, &ops));
        prop_assert_eq!(stored(&histogram), histogram);
    }

    #[test]
    fn states_of_different_scales_merge_to_the_coarser(
        a in vec(ops(), 0..20), b in vec(ops(), 0..20), left in 0..=8_u16, right in 0..=8_u16,
    ) {
        let (one, other) = (recorded(left, &a), recorded(right, &b));
        let all: Vec<_> = a.into_iter().chain(b).collect();
        let whole = recorded(left.min(right), &all);
        prop_assert_eq!(merged(&one, &other), whole.clone());
        prop_assert_eq!(merged(&other, &one), whole);
    }
}

/// Parts that fit at different scales give the same as one histogram of all values, in any grouping.
#[test]
fn the_scale_does_not_depend_on_how_values_were_spread() {
    for (buckets, scale) in [(4_200, 8), (4_201, 7), (9_000, 6)] {
        let ops = in_buckets(buckets);
        let whole: Histogram = recorded(8, &ops);
        assert_eq!(whole.precision(), Some(scale), "{buckets} buckets");
        let (first, rest) = ops.split_at(ops.len() / 7);
        let (second, third) = rest.split_at(rest.len() / 5);
        let [a, b, c] = [first, second, third].map(|ops| stored(&recorded(8, ops)));
        assert_eq!(merged(&merged(&a, &b), &c), whole);
        assert_eq!(merged(&c, &merged(&b, &a)), whole);
        assert_eq!(merged(&merged(&c, &a), &b), whole);
        let mut reversed = ops.clone();
        reversed.reverse();
        assert_eq!(recorded(8, &reversed), whole);
    }
}

#[test]
fn the_widest_histogram_is_never_refused() {
    let mut histogram = Histogram::default();
    for exponent in -1074..1024 {
        let power = power(exponent);
        for value in [power, power * 1.25, -power, power * -1.25] {
            let op = HistogramOp::Record { value, count: (1 << 63) - 1 };
            assert_eq!(histogram.apply(&op), Ok(Effect::Changed));
        }
    }
    let grown = laws::grown(histogram, 50);
    assert_eq!(grown.precision(), Some(0));
    assert!(grown.buckets.len() <= BUCKETS_MAX);
    let size = bytes(&grown).len();
    assert!(size <= STATE_BYTES_MAX, "{size} bytes");
    assert_eq!(stored(&grown), grown);
}

#[test]
fn a_histogram_of_as_many_buckets_as_fit_keeps_its_scale() {
    let value =
        |bucket: usize| ((f64::from(u16::try_from(bucket).expect("few")) + 0.5) / 256.0).exp2();
    let ops: Vec<_> = (0..BUCKETS_MAX).map(|bucket| record(value(bucket))).collect();
    let full = recorded(8, &ops);
    assert_eq!((full.buckets.len(), full.precision()), (BUCKETS_MAX, Some(8)));
    assert_eq!(stored(&full), full);
    let mut more = full;
    assert_eq!(more.apply(&record(value(BUCKETS_MAX))), Ok(Effect::Changed));
    assert_eq!(more.precision(), Some(7));
}

/// A latency between one and a hundred milliseconds has 425 buckets at scale 6.
#[test]
fn a_typical_histogram_is_small() {
    let ops: Vec<_> = (0..20_000).map(|i| record((f64::from(i) / 3_010.3).exp2() / 1e3)).collect();
    let histogram = recorded(6, &ops);
    let size = bytes(&histogram).len();
    assert!(histogram.buckets.len() == 426 && size < 1_000, "{size} bytes");
}

#[test]
fn ops_are_read_from_json() {
    let good = |value, count| Ok(Op::Histogram(HistogramOp::Record { value, count }));
    assert_eq!(parse(r#"{"op":"record","value":0.231,"count":3}"#), good(0.231, 3));
    assert_eq!(parse(r#"{"op":"record","value":-1}"#), good(-1.0, 1));
}

#[test]
fn bad_ops_are_refused_with_the_rule() {
    for (json, says) in [
        (r#"{"op":"record","count":1}"#, "missing field `value`"),
        (r#"{"op":"record","value":"0.1"}"#, "`value` as a finite JSON number"),
        (r#"{"op":"record","value":1,"count":-1}"#, "`count` as a whole number from 1"),
        (r#"{"op":"record","value":1,"weight":1}"#, "unknown field"),
        (r#"{"op":"observe","value":1}"#, "unknown variant"),
    ] {
        let error = parse(json).expect_err(json).to_string();
        assert!(error.contains(says), "{json}: {error}");
    }
}

#[test]
fn overflow_leaves_the_state_untouched() {
    let mut histogram = recorded(6, &[record(1.0)]);
    histogram.count = u128::MAX;
    histogram.buckets.values_mut().for_each(|count| *count = u128::MAX);
    let before = histogram.clone();
    let overflow = OpError::Overflow { kind: "histogram" };
    assert_eq!(histogram.apply(&record(1.0)), Err(overflow));
    assert_eq!(histogram, before);
    let more = recorded(6, &[record(2.0)]);
    assert_eq!(histogram.merge(&more), Err(MergeError::Overflow { kind: "histogram" }));
}

#[test]
fn a_new_state_has_the_scale_of_the_policy() {
    assert_eq!(State::new(Kind::Histogram, None).precision(), Some(6));
    assert_eq!(State::new(Kind::Histogram, Some(3)).precision(), Some(3));
    assert_eq!(State::identity(Kind::Histogram).precision(), Some(8));
}

/// Kept permanently: a release that can't read these bytes loses data.
#[test]
fn golden_payload_of_format_1() {
    let histogram = recorded(0, &[record(-1.0), record(0.0), record(2.0), record(1.5)]);
    // The sum 5 * 2^-1; -1.0 and 2.0; three buckets, the first at -1075.
    let mut golden = vec![2, 1, 5, 0, 0, 0, 0, 0, 0, 0xF0, 0xBF, 0, 0, 0, 0, 0, 0, 0, 0x40];
    golden.extend([3, 0xE5, 0x10, 1, 0xB2, 0x08, 1, 0xB3, 0x08, 2]);
    assert_eq!(bytes(&histogram), golden);
    assert_eq!(Histogram::decode(1, Some(0), &golden), Ok(histogram));
}

#[test]
fn impossible_states_are_undecodable() {
    let good = recorded(3, &[record(-1.0), record(0.0), record(2.0), record(2.0)]);
    let buckets = |change: &dyn Fn(&mut BTreeMap<Bucket, u128>)| {
        let mut bad = good.clone();
        change(&mut bad.buckets);
        bad
    };
    let span = |min, max| Histogram { span: Some(Span { min, max }), ..good.clone() };
    for bad in [
        span(-1.2, 2.0),
        span(-1.0, 1.5),
        span(-1.0, 2.1),
        span(2.0, -1.0),
        Histogram { sum: ExactSum::of(9.0), ..good.clone() },
        Histogram { sum: ExactSum::of(-4.5), ..good.clone() },
        buckets(&|buckets| buckets.clear()),
        buckets(&|buckets| *buckets.entry(Bucket::Zero).or_default() = 0),
        buckets(&|buckets| *buckets.entry(Bucket::Zero).or_default() = u128::MAX),
        buckets(&|buckets| buckets.retain(|bucket, _| *bucket <= Bucket::Zero)),
        buckets(&|buckets| *buckets.entry(Bucket::Positive(-1074 * 8)).or_default() = 1),
    ] {
        let decoded = Histogram::decode(1, Some(3), &bytes(&bad));
        assert_eq!(decoded, Err(DecodeError::NotCanonical), "{bad:?}");
    }
    let mut many = recorded(8, &in_buckets(4_200));
    let extra = Bucket::of(1e9, 8);
    many.buckets.insert(extra, 1);
    many.span = Span::join(many.span, Some(Span::of(1e9)));
    many.sum.add(1e9, 1);
    assert_eq!(Histogram::decode(1, Some(8), &bytes(&many)), Err(DecodeError::NotCanonical));
    for scale in [None, Some(9)] {
        assert_eq!(Histogram::decode(1, scale, &bytes(&good)), Err(DecodeError::Flags));
    }
    assert_eq!(Histogram::decode(2, Some(3), &[]), Err(DecodeError::Format(2)));
}
