//! Set algebra over audiences: the items in a and b, but not in c.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value as Json;

use super::super::json::Canonical;
use super::super::{OpError, Value};
use super::Audience;
use super::sample::Sample;
use crate::protocol::Name;

/// Maximum nesting of `and` and `or`; a `not` is part of its `and`.
const EXPRESSION_DEPTH_MAX: usize = 8;

/// Maximum keys in an expression; a key counts each time it appears.
const EXPRESSION_KEYS_MAX: usize = 100;

const NO_POSITIVE: &str = "`and` needs at least one part without `not`";

/// A set built from the audiences of a group. In JSON, a key's name stands for its audience:
/// `{"and":["a",{"or":["b","c"]},{"not":"d"}]}`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Canonical")]
pub enum Expression {
    /// The items of one key.
    Key(Name),
    /// The items in all of the first list and in none of the second. The first list has at least one part,
    /// because the items outside a set can't be counted.
    And(Vec<Expression>, Vec<Expression>),
    /// The items in any part; at least one part.
    Or(Vec<Expression>),
}

/// The result of an [`Expression`]: a sample of any size. It is a value, not a state: nothing can be added to
/// it.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// The precision of the coarsest audience.
    lg_k: u8,
    sample: Sample,
}

impl Selection {
    /// The estimated number of items, in the shape of an audience's value.
    #[must_use]
    pub fn value(&self) -> Value {
        self.sample.value(self.lg_k)
    }

    /// The sketch as [`Audience::to_datasketches`] returns it.
    #[must_use]
    pub fn to_datasketches(&self) -> Vec<u8> {
        self.sample.to_compact().serialize()
    }
}

impl Expression {
    /// The keys in the expression, each once.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&Name> {
        match self {
            Expression::Key(name) => BTreeSet::from([name]),
            Expression::And(of, not) => of.iter().chain(not).flat_map(Expression::names).collect(),
            Expression::Or(of) => of.iter().flat_map(Expression::names).collect(),
        }
    }

    /// Computes the set from the audiences of its keys.
    ///
    /// # Errors
    /// [`OpError::Invalid`] with the name of the first key that `lookup` does not find.
    pub fn evaluate<'a>(
        &self,
        lookup: &dyn Fn(&str) -> Option<&'a Audience>,
    ) -> Result<Selection, OpError> {
        let fold = |of: &[Expression], all: Selection, combine: fn(&mut Sample, &Sample)| {
            of.iter().try_fold(all, |mut all, part| {
                let part = part.evaluate(lookup)?;
                all.lg_k = all.lg_k.min(part.lg_k);
                combine(&mut all.sample, &part.sample);
                Ok(all)
            })
        };
        match self {
            Expression::Key(name) => match lookup(name.as_str()) {
                Some(Audience { lg_k, sample }) => {
                    Ok(Selection { lg_k: *lg_k, sample: sample.clone() })
                }
                None => Err(OpError::Invalid(format!("there is no key {:?}", name.as_str()))),
            },
            Expression::And(of, not) => {
                let (first, rest) =
                    of.split_first().ok_or_else(|| OpError::Invalid(NO_POSITIVE.to_owned()))?;
                let all = fold(rest, first.evaluate(lookup)?, Sample::intersect)?;
                fold(not, all, Sample::subtract)
            }
            Expression::Or(of) => {
                let Audience { lg_k, sample } = Audience::default();
                fold(of, Selection { lg_k, sample }, Sample::unite)
            }
        }
    }
}

impl TryFrom<Canonical> for Expression {
    type Error = OpError;

    fn try_from(Canonical(text): Canonical) -> Result<Expression, OpError> {
        let json = serde_json::from_str(&text);
        let json = json.map_err(|error| OpError::Invalid(super::super::json::rule(&error)))?;
        read(&json, 0, &mut 0)
    }
}

/// Reads an expression inside `depth` others; `keys` is the number of keys so far.
fn read(json: &Json, depth: usize, keys: &mut usize) -> Result<Expression, OpError> {
    let refused = |rule: &str| Err(OpError::Invalid(rule.to_owned()));
    if let Json::String(text) = json {
        *keys += 1;
        if *keys > EXPRESSION_KEYS_MAX {
            return refused(&format!("an expression can have at most {EXPRESSION_KEYS_MAX} keys"));
        }
        return match Name::requested(text) {
            Ok(name) => Ok(Expression::Key(name)),
            Err(error) => refused(&format!("a key's name {error}")),
        };
    }
    let Some((operator, part)) = only_field(json) else {
        return refused(r#"an expression must be a key's name, {"and":[…]} or {"or":[…]}"#);
    };
    let parts = match (operator, part) {
        ("and" | "or", Json::Array(parts)) => parts,
        ("and" | "or", _) => return refused(&format!("`{operator}` needs a list")),
        ("not", _) => return refused("`not` must be inside an `and`, with what it subtracts from"),
        _ => return refused(&format!("`{operator}` is unknown; use `and`, `or` or `not`")),
    };
    if depth == EXPRESSION_DEPTH_MAX {
        return refused(&format!("`and` and `or` can nest at most {EXPRESSION_DEPTH_MAX} deep"));
    }
    let (mut of, mut not) = (Vec::new(), Vec::new());
    for part in parts {
        match only_field(part) {
            Some(("not", part)) if operator == "and" => not.push(read(part, depth + 1, keys)?),
            _ => of.push(read(part, depth + 1, keys)?),
        }
    }
    match operator {
        "and" if of.is_empty() => refused(NO_POSITIVE),
        "and" => Ok(Expression::And(of, not)),
        _ if of.is_empty() => refused("`or` needs at least one part"),
        _ => Ok(Expression::Or(of)),
    }
}

/// The field of an object that has exactly one.
fn only_field(json: &Json) -> Option<(&str, &Json)> {
    let fields = json.as_object()?;
    let (name, value) = fields.iter().next()?;
    (fields.len() == 1).then_some((name.as_str(), value))
}

#[cfg(test)]
mod tests {
    use super::super::tests::of_numbers;
    use super::*;

    fn parse(json: &str) -> Result<Expression, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn nested(levels: usize) -> String {
        format!("{}\"a\"{}", r#"{"or":["#.repeat(levels), "]}".repeat(levels))
    }

    /// Nesting inside the subtracted part.
    fn nested_in_not(levels: usize) -> String {
        let begin = r#"{"and":["a",{"not":"#.repeat(levels);
        format!("{begin}\"b\"{}", "}]}".repeat(levels))
    }

    fn keys(count: usize) -> String {
        format!(r#"{{"or":["a"{}]}}"#, r#","a""#.repeat(count - 1))
    }

    #[test]
    fn expressions_are_read_from_json() {
        let key = |name| Expression::Key(Name::new(name).expect("a name"));
        let json = r#"{"and":["a",{"or":["b","c"]},{"not":"d"}]}"#;
        let of = vec![key("a"), Expression::Or(vec![key("b"), key("c")])];
        let expression = Expression::And(of, vec![key("d")]);
        assert_eq!(parse(json), Ok(expression.clone()));
        let names: Vec<&str> = expression.names().into_iter().map(Name::as_str).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        assert_eq!(parse("\"a\""), Ok(key("a")));
        assert!(parse(&nested(8)).is_ok() && parse(&nested_in_not(8)).is_ok());
        assert!(parse(&keys(100)).is_ok());
    }

    #[test]
    fn bad_expressions_are_refused_with_the_rule() {
        for (json, says) in [
            ("5", "an expression must be a key's name"),
            (r#"{"and":["a"],"or":["b"]}"#, "an expression must be a key's name"),
            ("{}", "an expression must be a key's name"),
            (r#"{"xor":["a"]}"#, "`xor` is unknown"),
            (r#"{"and":"a"}"#, "`and` needs a list"),
            (r#"{"or":[]}"#, "`or` needs at least one part"),
            (r#"{"and":[]}"#, "`and` needs at least one part without `not`"),
            (r#"{"and":[{"not":"a"}]}"#, "`and` needs at least one part without `not`"),
            (r#"{"not":"a"}"#, "`not` must be inside an `and`"),
            (r#"{"or":["a",{"not":"b"}]}"#, "`not` must be inside an `and`"),
            (r#"{"and":["a",{"not":{"not":"b"}}]}"#, "`not` must be inside an `and`"),
            (r#"{"or":[""]}"#, "a key's name is empty"),
            (r#"{"or":["a",".."]}"#, "a key's name can't be `.` or `..`"),
            (&nested(9), "`and` and `or` can nest at most 8 deep"),
            (&nested_in_not(9), "`and` and `or` can nest at most 8 deep"),
            (&keys(101), "an expression can have at most 100 keys"),
        ] {
            let error = parse(json).expect_err(json);
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    /// Checks that the bounds enclose the expected number, and returns the selection.
    fn check(json: &str, audiences: &[(&str, Audience)], expected: f64) -> Selection {
        let lookup =
            |name: &str| audiences.iter().find(|(key, _)| *key == name).map(|(_, state)| state);
        let selection = parse(json).expect(json).evaluate(&lookup).expect(json);
        let value = selection.value();
        let [lower, upper] = ["lower", "upper"].map(|field| match value.field(field) {
            Some(Value::Real(real)) => *real,
            other => panic!("{other:?}"),
        });
        assert!(lower <= expected && expected <= upper, "{json}: {value:?}");
        selection
    }

    #[test]
    fn sets_are_combined() {
        let exact = [
            ("a", of_numbers(11, 0, 100)),
            ("b", of_numbers(12, 50, 100)),
            ("c", of_numbers(13, 80, 100)),
            ("none", of_numbers(11, 0, 0)),
        ];
        let many = [
            ("a", of_numbers(11, 0, 50_000)),
            ("b", of_numbers(12, 25_000, 50_000)),
            ("c", of_numbers(13, 40_000, 50_000)),
            ("none", of_numbers(11, 0, 0)),
        ];
        for (audiences, unit) in [(exact, 1.0), (many, 500.0)] {
            for (json, expected) in [
                (r#""a""#, 100.0),
                (r#"{"or":["a","b"]}"#, 150.0),
                (r#"{"and":["a","b"]}"#, 50.0),
                (r#"{"and":["a","b","c"]}"#, 20.0),
                (r#"{"and":["a",{"not":"b"}]}"#, 50.0),
                (r#"{"and":[{"not":"a"},{"not":"c"},"b"]}"#, 0.0),
                (r#"{"and":[{"or":["a","c"]},{"not":{"and":["a","c"]}}]}"#, 160.0),
                (r#"{"and":["a","none"]}"#, 0.0),
                (r#"{"and":["none",{"not":"a"}]}"#, 0.0),
                (r#"{"and":["a",{"not":"none"}]}"#, 100.0),
            ] {
                let selection = check(json, &audiences, expected * unit);
                if unit == 1.0 || json.contains(r#"["none""#) {
                    let exactly = Some(Value::Real(expected * unit));
                    assert_eq!(selection.value().field("upper").cloned(), exactly, "{json}");
                }
            }
        }
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let error = parse(r#"{"and":["a","b"]}"#).expect("an expression").evaluate(&|_| None);
        assert_eq!(error, Err(OpError::Invalid("there is no key \"a\"".to_owned())));
    }
}
