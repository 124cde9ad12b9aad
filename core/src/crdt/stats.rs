//! `stats`: count, sum, mean, variance and extremes of doubles, from exact sums.

use num_bigint::BigUint;
use serde::Deserialize;

use super::exact::{ExactSum, Terms};
use super::number::{count, finite, once};
use super::span::Span;
use super::varint::{self, Reader};
use super::{
    About, BareValue, Class, Crdt, DecodeError, Effect, MergeError, OpError, Question, Size, Value,
    check_format,
};

/// Exact sums of the values and of their squares. Nothing is rounded until it is read, and each result is
/// then rounded once. So large values do not swallow small ones, and a variance does not suffer from
/// cancellation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stats {
    count: u128,
    sum: ExactSum,
    squares: ExactSum,
    /// None if there are no values.
    span: Option<Span>,
}

/// A change of [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum StatsOp {
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

impl Stats {
    /// The population variance times the square of the count: n Σx² - (Σx)².
    fn spread(&self) -> ExactSum {
        self.squares.times(self.count).minus(&self.sum.squared())
    }
}

impl Crdt for Stats {
    const NAME: &'static str = "stats";
    const CODE: u64 = 3;
    const FORMAT: u64 = 1;
    const ABOUT: About = About {
        summary: "Count, sum, mean, population variance, standard deviation, minimum and maximum \
            of doubles.",
        class: Class::Exact,
        is_exact: true,
        size: Size::Small,
        bound: "Exact sums. Each result is rounded once to the nearest double. A result beyond their \
            range, or too near to 0, is null, and `exact` is then false. 50 to 100 bytes for values \
            of similar size, at most 900.",
        is_idempotent: false,
        has_totals: true,
        bare: ("record", "value"),
        bare_value: BareValue::Nothing,
        example_op: r#"{"op":"record","value":12.5}"#,
        example_value: r#"{"count":1,"sum":12.5,"mean":12.5,"variance":0.0,"stddev":0.0,
            "min":12.5,"max":12.5}"#,
        op_schema: r#"{"title":"StatsOp","description":"Records `value`, `count` times.",
            "type":"object","required":["op","value"],"additionalProperties":false,"properties":{
            "op":{"type":"string","enum":["record"]},
            "value":{"description":"A whole number must equal a double. Any other number means the nearest double: 1e-400 is 0. 1e400 is beyond the doubles and refused.",
                "type":"number","format":"double"},
            "count":{"description":"In quotes for languages without 64-bit integers.","default":1,
                "oneOf":[{"type":"integer","minimum":1,"maximum":9223372036854775807},
                {"type":"string","pattern":"^[+]?[0-9]{1,19}$"}]}}}"#,
        value_schema: r#"{"type":"object",
            "required":["count","sum","mean","variance","stddev","min","max"],"properties":{
            "count":{"type":"integer","minimum":0},
            "sum":{"type":["number","null"],
                "description":"Null beyond the range of doubles; `exact` is then false."},
            "mean":{"type":["number","null"],"description":"Null without values. This, the variance and the standard deviation are also null if they are beyond the range of doubles or too near to 0; `exact` is then false."},
            "variance":{"type":["number","null"],"description":"Of the population."},
            "stddev":{"type":["number","null"],"description":"Of the population."},
            "min":{"type":["number","null"]},
            "max":{"type":["number","null"]}}}"#,
        parameters: &[],
    };
    type Op = StatsOp;

    fn apply(&mut self, op: &StatsOp) -> Result<Effect, OpError> {
        let StatsOp::Record { value, count } = *op;
        let overflow = OpError::Overflow { kind: Self::NAME };
        self.count = self.count.checked_add(u128::from(count)).ok_or(overflow)?;
        self.sum.add(value, count);
        self.squares.add_square(value, count);
        self.span = Span::join(self.span, Some(Span::of(value)));
        Ok(Effect::Changed)
    }

    fn merge(&mut self, other: &Stats) -> Result<(), MergeError> {
        let overflow = MergeError::Overflow { kind: Self::NAME };
        self.count = self.count.checked_add(other.count).ok_or(overflow)?;
        self.sum.merge(&other.sum);
        self.squares.merge(&other.squares);
        self.span = Span::join(self.span, other.span);
        Ok(())
    }

    fn value(&self, _question: &Question) -> Value {
        let if_any = |result: &dyn Fn() -> Option<f64>| match self.span {
            None => Value::Null,
            Some(_) => Value::nearest_double(result()),
        };
        let count = BigUint::from(self.count);
        let count_squared = &count * &count;
        Value::Record(vec![
            ("count", Value::count(self.count)),
            ("sum", Value::nearest_double(self.sum.to_f64())),
            ("mean", if_any(&|| self.sum.over(&count))),
            ("variance", if_any(&|| self.spread().over(&count_squared))),
            ("stddev", if_any(&|| self.spread().root_over(&count_squared))),
            ("min", Value::real(self.span.map(|span| span.min))),
            ("max", Value::real(self.span.map(|span| span.max))),
        ])
    }

    /// Appends nothing without values; otherwise the count, the sum, the sum of squares, the minimum and the
    /// maximum.
    fn encode(&self, out: &mut Vec<u8>) {
        let Some(span) = self.span else { return };
        varint::put(self.count, out);
        self.sum.encode(out);
        self.squares.encode(out);
        span.encode(out);
    }

    fn decode(format: u64, _: Option<u16>, payload: &[u8]) -> Result<Stats, DecodeError> {
        check_format::<Stats>(format)?;
        if payload.is_empty() {
            return Ok(Stats::default());
        }
        let mut reader = Reader::new(payload);
        let count = reader.u128()?;
        let sum = ExactSum::decode(&mut reader, Terms::Doubles)?;
        let squares = ExactSum::decode(&mut reader, Terms::Squares)?;
        let span = Span::decode(&mut reader)?;
        reader.end()?;
        let is_possible = count > 0 && span.allows(&sum, count);
        let stats = Stats { count, sum, squares, span: Some(span) };
        // A negative variance has no root.
        if !is_possible || stats.spread().is_negative() {
            return Err(DecodeError::NotCanonical);
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::span::tests::doubles;
    use crate::crdt::{Kind, Op, laws};
    use proptest::prelude::*;

    fn ops() -> impl Strategy<Value = StatsOp> {
        let count = prop_oneof![Just(1), 1..9_u64, 1..1_u64 << 63, Just((1 << 63) - 1)];
        (doubles(), count).prop_map(|(value, count)| StatsOp::Record { value, count })
    }

    laws::suite!(Stats, ops());

    fn parse(json: &str) -> Result<Op, OpError> {
        Kind::Stats.parse_op(&serde_json::from_str(json).expect("JSON"))
    }

    fn of(values: &[f64]) -> Stats {
        let ops: Vec<_> =
            values.iter().map(|value| StatsOp::Record { value: *value, count: 1 }).collect();
        laws::accumulate(&ops)
    }

    fn real(stats: &Stats, field: &str) -> f64 {
        match stats.value(&Question::default()).field(field) {
            Some(Value::Real(real)) => *real,
            other => panic!("{field}: {other:?}"),
        }
    }

    fn out_of_range(stats: &Stats) -> Vec<&'static str> {
        let Value::Record(fields) = stats.value(&Question::default()) else { panic!("no record") };
        let is_out = |(_, value): &(&str, Value)| *value == Value::OutOfRange;
        fields.into_iter().filter(is_out).map(|(field, _)| field).collect()
    }

    #[test]
    fn ops_are_read_from_json() {
        let record = |value, count| Ok(Op::Stats(StatsOp::Record { value, count }));
        assert_eq!(parse(r#"{"op":"record","value":12.5}"#), record(12.5, 1));
        assert_eq!(parse(r#"{"op":"record","value":-3,"count":7}"#), record(-3.0, 7));
        let most = r#"{"op":"record","value":0,"count":"9223372036854775807"}"#;
        assert_eq!(parse(most), record(0.0, (1 << 63) - 1));
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        for (json, says) in [
            (r#"{"op":"record"}"#, "missing field `value`"),
            (r#"{"op":"record","value":"1"}"#, "`value` as a finite JSON number"),
            (r#"{"op":"record","value":null}"#, "`value` as a finite JSON number"),
            (r#"{"op":"record","value":1,"count":0}"#, "`count` as a whole number from 1"),
            (r#"{"op":"record","value":1,"count":1.5}"#, "`count` as a whole number from 1"),
            (r#"{"op":"record","value":1,"count":9223372036854775808}"#, "to 9223372036854775807"),
            (r#"{"op":"record","value":1,"by":1}"#, "unknown field"),
            (r#"{"op":"add","value":1}"#, "unknown variant"),
        ] {
            let error = parse(json).expect_err(json).to_string();
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn results_are_those_of_the_textbook() {
        let stats = of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        let fields = ["sum", "mean", "variance", "stddev", "min", "max"];
        assert_eq!(fields.map(|field| real(&stats, field)), [40.0, 5.0, 4.0, 2.0, 2.0, 9.0]);
        assert_eq!(stats.value(&Question::default()).field("count"), Some(&Value::Integer(8)));
        // NIST StRD, NumAcc4: mean 10000000.2, sample standard deviation 0.1, by decimals.
        let mut values = vec![10_000_000.2];
        (0..500).for_each(|_| values.extend([10_000_000.1, 10_000_000.3]));
        let stats = of(&values);
        assert_eq!(real(&stats, "mean"), 10_000_000.2);
        let sample = (real(&stats, "variance") * 1001.0 / 1000.0).sqrt();
        assert!((sample - 0.1).abs() < 1e-8, "{sample}");
    }

    #[test]
    fn small_differences_of_large_values_survive() {
        let stats = of(&[1e15 + 1.0, 1e15 + 2.0, 1e15 + 3.0]);
        assert_eq!(real(&stats, "variance"), 2.0 / 3.0);
        assert_eq!(real(&stats, "stddev"), (2.0_f64 / 3.0).sqrt());
        let stats = of(&[1e300, 1e-300, -1e300]);
        assert_eq!(real(&stats, "sum"), 1e-300);
        assert_eq!(real(&stats, "mean"), 1e-300 / 3.0);
        assert_eq!(out_of_range(&stats), ["variance"], "2e600 / 3 is beyond the doubles");
        assert_eq!(real(&stats, "stddev"), 8.164965809277261e299);
        let stats = of(&[5e-324, 1.5e-323]);
        assert_eq!(real(&stats, "mean"), 1e-323);
        assert_eq!(out_of_range(&stats), ["variance"], "2^-2148 is below the doubles");
        assert_eq!(real(&stats, "stddev"), 5e-324);
        assert_eq!(out_of_range(&of(&[0.0, 5e-324])), ["mean", "variance", "stddev"]);
        assert_eq!(out_of_range(&of(&[f64::MAX, f64::MAX])), ["sum"]);
        let stats = of(&[1e200, -1e200, 3e200]);
        assert_eq!(out_of_range(&stats), ["variance"]);
        assert!(!stats.value(&Question::default()).is_exact());
        assert!(of(&[5e-324, 5e-324]).value(&Question::default()).is_exact(), "all the same");
    }

    #[test]
    fn nothing_has_no_mean() {
        let json = Stats::default().value(&Question::default()).to_string();
        assert!(json.starts_with(r#"{"count":0,"sum":0.0,"mean":null,"variance":null"#), "{json}");
        assert!(json.ends_with(r#""stddev":null,"min":null,"max":null}"#), "{json}");
    }

    #[test]
    fn overflow_leaves_the_state_untouched() {
        let mut stats = of(&[1.0]);
        stats.count = u128::MAX;
        let before = stats.clone();
        let refused = stats.apply(&StatsOp::Record { value: 1.0, count: 1 });
        assert_eq!(refused, Err(OpError::Overflow { kind: "stats" }));
        assert_eq!(stats, before);
        assert_eq!(stats.merge(&of(&[1.0])), Err(MergeError::Overflow { kind: "stats" }));
    }

    /// Kept permanently: a release that can't read these bytes loses data.
    #[test]
    fn golden_payload_of_format_1() {
        let mut golden = vec![2, 1, 1, 3, 2, 3, 5];
        golden.extend([0, 0, 0, 0, 0, 0, 0xF0, 0xBF, 0, 0, 0, 0, 0, 0, 0xE0, 0xBF]);
        let stats = of(&[-1.0, -0.5]);
        assert_eq!(laws::bytes(&stats), golden);
        assert_eq!(Stats::decode(1, None, &golden), Ok(stats));
    }

    #[test]
    fn impossible_states_are_undecodable() {
        let good = of(&[1.0, 2.0, 4.0]);
        assert!(Stats::decode(1, None, &laws::bytes(&good)).is_ok());
        for bad in [
            Stats { count: 0, ..good.clone() },
            Stats { count: 0, span: of(&[0.0]).span, ..Stats::default() },
            Stats { count: 1, ..good.clone() },
            Stats { sum: ExactSum::of(12.5), ..good.clone() },
            Stats { sum: ExactSum::of(2.5), ..good.clone() },
            Stats { squares: ExactSum::of(16.0), ..good.clone() },
        ] {
            let decoded = Stats::decode(1, None, &laws::bytes(&bad));
            assert_eq!(decoded, Err(DecodeError::NotCanonical), "{bad:?}");
        }
        assert_eq!(Stats::decode(2, None, &[]), Err(DecodeError::Format(2)));
    }

    #[test]
    fn the_largest_state_is_small() {
        let mut stats = of(&[f64::MAX, 5e-324]);
        stats = laws::grown(stats, 126);
        let size = laws::bytes(&stats).len();
        assert!(size <= 900, "{size} bytes");
        let typical: Vec<f64> = (0..10_000).map(|value| f64::from(value) * 0.001).collect();
        let size = laws::bytes(&of(&typical)).len();
        assert!((40..=100).contains(&size), "{size} bytes");
    }
}
