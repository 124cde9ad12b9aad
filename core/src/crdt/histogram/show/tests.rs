use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::crdt::Crdt;
use crate::crdt::histogram::HistogramOp;
use crate::crdt::span::tests::doubles;

fn of(values: &[f64], scale: u16) -> Histogram {
    let mut histogram = Histogram::with_precision(scale);
    for value in values {
        histogram.apply(&HistogramOp::Record { value: *value, count: 1 }).expect("small");
    }
    histogram
}

fn ask(histogram: &Histogram, question: &Question) -> serde_json::Value {
    serde_json::to_value(histogram.value(question).shown(false)).expect("JSON")
}

fn in_form(histogram: &Histogram, form: Form) -> serde_json::Value {
    ask(histogram, &Question { form: Some(form), ..Question::default() })
}

proptest! {
    #[test]
    fn quantiles_are_within_the_error(
        values in vec(doubles(), 1..200), qs in vec(0.0..=1.0, 1..9), scale in 0..=8_u16,
    ) {
        let histogram = of(&values, scale);
        let mut sorted = values;
        sorted.sort_by(f64::total_cmp);
        for q in [0.0, 0.5, 0.9, 0.99, 1.0].into_iter().chain(qs) {
            let rank = rank(q, histogram.count).expect("a rank");
            let exact = sorted[usize::try_from(rank).expect("small") - 1];
            let estimate = quantile(&histogram, q).expect("a value");
            let grid = if exact.abs() < f64::MIN_POSITIVE { 5e-324 } else { 0.0 };
            let bound = exact.abs() * relative_error(scale) + grid;
            prop_assert!((estimate - exact).abs() <= bound, "{q}: {estimate:e} {exact:e}");
        }
        prop_assert_eq!(quantile(&histogram, 0.0), Some(sorted[0]));
        prop_assert_eq!(quantile(&histogram, 1.0), sorted.last().copied());
    }

    #[test]
    fn quantiles_rise(values in vec(doubles(), 1..50), a in 0.0..=1.0, b in 0.0..=1.0) {
        let histogram = of(&values, 3);
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        prop_assert!(quantile(&histogram, low) <= quantile(&histogram, high));
    }
}

#[test]
fn the_error_is_that_of_the_scale_and_is_reached() {
    let rounded = |scale| (relative_error(scale) * 1e6).round();
    assert_eq!([8, 6, 3, 0].map(rounded), [1354.0, 5415.0, 43295.0, 333333.0]);
    let worst = |scale| {
        let (lower, upper) = Bucket::Positive(7).bounds(scale);
        let estimate = Bucket::Positive(7).estimate(scale);
        ((estimate - upper).abs() / upper).max((estimate - lower).abs() / lower)
    };
    for scale in 0..=8 {
        let (worst, bound) = (worst(scale), relative_error(scale));
        assert!(worst <= bound && bound <= worst + 1e-14, "{scale}: {worst} {bound}");
    }
}

#[test]
fn ranks_are_those_of_the_decimal() {
    for (q, count, expected) in [
        (0.0, 10, 1),
        (0.05, 10, 1),
        (0.1, 10, 1),
        (0.11, 10, 2),
        (0.5, 10, 5),
        (0.9, 10, 9),
        (0.99, 10, 10),
        (0.07, 100, 7),
        (0.999, 1000, 999),
        (1.0, 10, 10),
        (1e-300, u128::MAX, 1),
        (1.0, u128::MAX, u128::MAX),
        (2.0, 10, 10),
        (-1.0, 10, 1),
    ] {
        assert_eq!(rank(q, count), Some(expected), "{q} of {count}");
    }
    assert_eq!(rank(f64::NAN, 10), None);
}

#[test]
fn a_question_chooses_quantiles_and_buckets() {
    let histogram = of(&[-3.0, 0.0, 1.0, 1.5, 2.0, 7.0], 0);
    let question = Question { quantiles: vec![0.5], buckets: true, ..Question::default() };
    let value = ask(&histogram, &question);
    let error = relative_error(0);
    // The median is the third of six, 1, in the bucket from 0.5 to 1.
    let expected = serde_json::json!({
        "count": 6, "sum": 8.5, "min": -3.0, "max": 7.0, "relative_error": error,
        "quantiles": [{"q": 0.5, "value": 1.0_f64 * (0.5 / 0.75)}],
        "buckets": [
            {"lower": -4.0, "upper": -2.0, "count": 1},
            {"lower": 0.0, "upper": 0.0, "count": 1},
            {"lower": 0.5, "upper": 1.0, "count": 1},
            {"lower": 1.0, "upper": 2.0, "count": 2},
            {"lower": 4.0, "upper": 8.0, "count": 1},
        ],
    });
    assert_eq!(value, expected);
    let nothing = ask(&Histogram::default(), &Question::default());
    assert_eq!(nothing["quantiles"][2], serde_json::json!({"q": 0.99, "value": null}));
    assert_eq!(nothing["min"], serde_json::Value::Null);
    assert_eq!(nothing["sum"], serde_json::json!(0.0));
}

#[test]
fn a_side_is_as_long_as_from_its_first_to_its_last_bucket() {
    assert_eq!(dense_length(&[]), 0);
    assert_eq!(dense_length(&[(7, 1)]), 1);
    assert_eq!(dense_length(&[(-3, 1), (0, 1), (4, 1)]), 8);
    assert_eq!(dense_length(&[(i32::MIN, 1), (i32::MAX, 1)]), 1 << 32);
}

#[test]
fn opentelemetry_has_dense_buckets() {
    let value = in_form(&of(&[0.0, 1.0, 1.5, 2.0, 7.0], 0), Form::OpenTelemetry);
    let expected = serde_json::json!({
        "count": "5", "sum": 11.5, "scale": 0, "zeroCount": "1",
        "positive": {"offset": -1, "bucketCounts": ["1", "2", "0", "1"]},
        "negative": {"offset": 0, "bucketCounts": []},
        "min": 0.0, "max": 7.0, "zeroThreshold": 0.0,
    });
    assert_eq!(value, expected);
    let value = in_form(&of(&[-16.0, -3.0], 0), Form::OpenTelemetry);
    let negative = serde_json::json!({"offset": 1, "bucketCounts": ["1", "0", "1"]});
    assert_eq!(value["negative"], negative);
    assert_eq!(value.get("sum"), None, "not filled out with negative values");
    let nothing = in_form(&Histogram::default(), Form::OpenTelemetry);
    assert_eq!(nothing["count"], "0");
    assert_eq!(nothing.get("min"), None);
}

#[test]
fn opentelemetry_is_coarser_rather_than_huge() {
    let widest = of(&[5e-324, f64::MAX, -5e-324, f64::MIN], 8);
    let value = in_form(&widest, Form::OpenTelemetry);
    assert_eq!(value["scale"], 0);
    assert_eq!(value["positive"]["offset"], -1074 - 1);
    let counts = value["negative"]["bucketCounts"].as_array().expect("a list");
    assert_eq!(counts.len(), 1074 + 1024 + 1);
    let one_side = in_form(&of(&[5e-324, f64::MAX], 8), Form::OpenTelemetry);
    assert_eq!(one_side["scale"], 1);
}

#[test]
fn prometheus_names_the_boundaries() {
    let value = in_form(&of(&[-3.0, 0.0, 0.0, 1e-9, 1.5, 1e300], 0), Form::Prometheus);
    let expected = serde_json::json!({
        "count": "6",
        "sum": "1e300",
        "buckets": [
            [1, "-4", "-2", "1"],
            [3, "0", "0", "2"],
            [0, "9.313225746154785e-10", "1.862645149230957e-9", "1"],
            [0, "1", "2", "1"],
            [0, "6.696928794914171e299", "1.3393857589828342e300", "1"],
        ],
    });
    assert_eq!(value, expected);
}
