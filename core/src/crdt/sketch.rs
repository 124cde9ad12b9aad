//! The common parts of the sketches [`Distinct`](super::Distinct) and [`Audience`](super::Audience): their
//! ops, how items are hashed, and the shape of their values.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::item::{self, Item};
use super::{OpError, Value};

/// Maximum length of a foreign sketch in an op, in bytes of base64.
pub const SKETCH_TEXT_BYTES_MAX: usize = 256 * 1024;

/// Size of the header of every DataSketches image: preamble size, serial version, family, one byte of the
/// family, another one, flags, and the hash of the seed.
pub(super) const HEADER_BYTES: usize = 8;

/// MurmurHash3 of DataSketches' default seed 9001, as `computeSeedHash` returns it in every language.
pub(super) const SEED_HASH: [u8; 2] = [0xCC, 0x93];

/// A kind that can read the sketches of a DataSketches family.
pub trait Sketch: Sized {
    /// Reads an image from any source and any library.
    ///
    /// # Errors
    /// [`OpError::Invalid`] with the rule that the image breaks.
    fn import(image: &[u8]) -> Result<Self, OpError>;

    /// Memory that it holds, in bytes.
    fn memory_bytes(&self) -> usize;
}

/// A change of a sketch. A foreign sketch is decoded once, when the op is read, which can take a while.
/// Applying the op is then quick.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "RawOp", bound = "S: Sketch")]
pub enum SketchOp<S> {
    /// Counts items: `{"op":"add","item":"a"}`, or several at once as `items`.
    Add {
        /// 1 to 1,000 items.
        items: Vec<Item>,
    },
    /// Adds everything that a foreign sketch has counted: `{"op":"merge","sketch":"…"}`.
    Merge {
        /// In JSON: its image in the native format of its DataSketches family, in base64.
        sketch: Box<S>,
    },
}

/// An op as it is written in JSON.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum RawOp {
    Add { item: Option<Item>, items: Option<Vec<Item>> },
    Merge { sketch: String },
}

impl<S: Sketch> TryFrom<RawOp> for SketchOp<S> {
    type Error = OpError;

    fn try_from(raw: RawOp) -> Result<SketchOp<S>, OpError> {
        match raw {
            RawOp::Add { item, items } => {
                item::one_or_many(item, items).map(|items| SketchOp::Add { items })
            }
            RawOp::Merge { sketch } if sketch.len() > SKETCH_TEXT_BYTES_MAX => {
                let length = sketch.len();
                Err(refused(format!("has {length} bytes; give it at most {SKETCH_TEXT_BYTES_MAX}")))
            }
            RawOp::Merge { sketch } => match STANDARD.decode(&sketch) {
                Ok(image) => {
                    S::import(&image).map(|sketch| SketchOp::Merge { sketch: sketch.into() })
                }
                Err(error) => Err(refused(format!("is not standard base64 with padding: {error}"))),
            },
        }
    }
}

impl<S: Sketch> SketchOp<S> {
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            SketchOp::Add { items } => item::heap_bytes(items),
            SketchOp::Merge { sketch } => sketch.memory_bytes(),
        }
    }
}

/// Why an op's `sketch` was refused.
pub(super) fn refused(rule: impl std::fmt::Display) -> OpError {
    OpError::Invalid(format!("`sketch` {rule}"))
}

/// Passes on the bytes that DataSketches hashes for an item: the UTF-8 bytes of a string, or the eight bytes
/// of a number, least significant first. Java, C++ and Python do the same for `String` and `long`.
pub(super) fn hashed_bytes(item: &Item, take: impl FnOnce(&[u8])) {
    match item {
        Item::Number(number) => take(&number.to_le_bytes()),
        Item::Text(text) => take(text.as_bytes()),
    }
}

/// Checks the header that all families share, before the library sees the bytes.
pub(super) fn check_header(
    image: &[u8],
    family: (u8, &str),
    has_seed: impl FnOnce(&[u8; HEADER_BYTES]) -> bool,
) -> Result<[u8; HEADER_BYTES], OpError> {
    let Some(header) = image.first_chunk::<HEADER_BYTES>() else {
        let length = image.len();
        return Err(refused(format!("is corrupt: it has {length} bytes, but a header has 8")));
    };
    let (code, name) = family;
    if header[2] != code {
        let found = header[2];
        return Err(refused(format!(
            "is of another family: its family byte is {found}, but that of {name} is {code}"
        )));
    }
    if has_seed(header) && header[6..8] != SEED_HASH {
        return Err(refused("has another hash seed; build it with the default seed 9001"));
    }
    Ok(*header)
}

/// The value of a sketch.
pub(super) fn show(estimate: f64, lower: f64, upper: f64, lg_k: u8) -> Value {
    Value::Record(vec![
        ("estimate", Value::Real(estimate)),
        ("lower", Value::Real(lower)),
        ("upper", Value::Real(upper)),
        ("lg_k", Value::Integer(i128::from(lg_k))),
    ])
}

/// JSON Schema of an op, with its title and the family of its foreign sketches.
macro_rules! op_schema {
    ($title:literal, $family:literal) => {
        concat!(
            r#"{"title":""#,
            $title,
            r#"","description":"Counts one item or several, or all that a sketch has counted.",
            "oneOf":[
            {"type":"object","required":["op"],"additionalProperties":false,
                "oneOf":[{"required":["item"]},{"required":["items"]}],"properties":{
                "op":{"type":"string","enum":["add"]},"#,
            $crate::crdt::item::one_or_many_schema!(),
            r#"}},
            {"type":"object","required":["op","sketch"],"additionalProperties":false,"properties":{
                "op":{"type":"string","enum":["merge"]},
                "sketch":{"description":"Image of a DataSketches "#,
            $family,
            r#" sketch in standard base64.",
                    "type":"string","contentEncoding":"base64","maxLength":262144}}}]}"#
        )
    };
}
pub(super) use op_schema;

/// JSON Schema of the value.
pub(super) const VALUE_SCHEMA: &str = r#"{"title":"DistinctCount","type":"object",
    "required":["estimate","lower","upper","lg_k"],"additionalProperties":false,"properties":{
    "estimate":{"description":"About how many different items there were.","type":"number","minimum":0},
    "lower":{"description":"With 95 % confidence the number is between this and `upper`.","type":"number","minimum":0},
    "upper":{"description":"Two standard deviations above the estimate.","type":"number","minimum":0},
    "lg_k":{"description":"The precision: adding two halves the error.","type":"integer"}}}"#;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::crdt::{Audience, Kind, Op, State};
    use proptest::sample::Index;

    /// Mutates an image: another tail, and changed bytes anywhere and in its header.
    pub(in crate::crdt) fn mutated(
        mut image: Vec<u8>,
        tail: Option<(usize, Vec<u8>)>,
        changes: Vec<(Index, u8)>,
        header_changes: Vec<(usize, u8)>,
    ) -> Vec<u8> {
        if let Some((at, tail)) = tail {
            image.truncate(at);
            image.extend(tail);
        }
        for (index, byte) in changes {
            let at = index.index(image.len());
            image[at] = byte;
        }
        for (at, byte) in header_changes {
            if let Some(old) = image.get_mut(at) {
                *old = byte;
            }
        }
        image
    }

    fn parse(json: &str) -> Result<SketchOp<Audience>, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn ops_are_read_from_json() {
        let add = |items| Ok(SketchOp::Add { items });
        let text = Item::Text("u1".into());
        assert_eq!(parse(r#"{"op":"add","item":"u1"}"#), add(vec![text.clone()]));
        assert_eq!(parse(r#"{"op":"add","items":["u1",-7]}"#), add(vec![text, Item::Number(-7)]));
        let empty = Audience::default();
        let image = STANDARD.encode(empty.to_datasketches());
        assert_eq!(
            parse(&format!(r#"{{"op":"merge","sketch":"{image}"}}"#)),
            Ok(SketchOp::Merge { sketch: empty.into() })
        );
    }

    #[test]
    fn bad_ops_are_refused_with_the_rule() {
        let long = format!(r#"{{"op":"merge","sketch":"{}"}}"#, "A".repeat(262_148));
        for (json, says) in [
            (r#"{"op":"add"}"#, "either `item` or `items`"),
            (r#"{"op":"add","item":1,"items":[1]}"#, "either `item` or `items`"),
            (r#"{"op":"add","items":[]}"#, "`items` has 0 items"),
            (r#"{"op":"add","item":""}"#, "`item` has 0 bytes"),
            (r#"{"op":"add","item":1.5}"#, "`item` as a string or a whole number"),
            (r#"{"op":"add","item":1,"by":2}"#, "unknown field `by`"),
            (r#"{"op":"remove","item":1}"#, "unknown variant `remove`"),
            (r#"{"op":"merge"}"#, "missing field `sketch`"),
            (r#"{"op":"merge","sketch":"AQI"}"#, "`sketch` is not standard base64"),
            (r#"{"op":"merge","sketch":"_-8="}"#, "`sketch` is not standard base64"),
            (r#"{"op":"merge","sketch":"AQID"}"#, "`sketch` is corrupt: it has 3 bytes"),
            (&long, "`sketch` has 262148 bytes; give it at most 262144"),
        ] {
            let error = parse(json).expect_err(json);
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    #[test]
    fn an_op_weighs_what_it_holds() {
        let items = vec![Item::Text("abcd".into()), Item::Number(1)];
        let weight = 2 * size_of::<Item>() + 4;
        assert_eq!(SketchOp::<Audience>::Add { items }.heap_bytes(), weight);
        let sketch = Box::new(Audience::default());
        assert_eq!(SketchOp::Merge { sketch: sketch.clone() }.heap_bytes(), sketch.memory_bytes());
    }

    #[test]
    fn the_longest_text_is_not_refused_for_its_length() {
        for more in [0, 1] {
            let sketch = "A".repeat(SKETCH_TEXT_BYTES_MAX + more);
            let json = serde_json::json!({"op": "merge", "sketch": sketch});
            let error = Kind::Distinct.parse_op(&json).expect_err("no sketch").to_string();
            assert_eq!(error.contains("give it at most 262144"), more > 0, "{error}");
        }
    }

    /// Reads an image that must be refused with this message.
    pub(crate) fn check_refused<S: Sketch>(image: &[u8], says: &str) {
        let error = S::import(image).err().expect(says).to_string();
        assert!(error.contains(says), "expected {says:?}: {error}");
    }

    /// The mean and the root mean square of the relative errors of 200 estimates of `n` items.
    pub(crate) fn relative_errors(kind: Kind, lg_k: u16, n: u32) -> (f64, f64) {
        let trials = 200;
        let (mut sum, mut squares) = (0.0, 0.0);
        for trial in 0..trials {
            let mut state = State::new(kind, Some(lg_k));
            let numbers: Vec<i64> =
                (0..n).map(|i| (i64::from(trial) << 40) | i64::from(i)).collect();
            for items in numbers.chunks(1_000) {
                let items = items.iter().copied().map(Item::Number).collect();
                state.apply(&add(kind, items)).expect("items");
            }
            let error = estimate(&state) / f64::from(n) - 1.0;
            sum += error;
            squares += error * error;
        }
        (sum / f64::from(trials), (squares / f64::from(trials)).sqrt())
    }

    fn add(kind: Kind, items: Vec<Item>) -> Op {
        match kind {
            Kind::Distinct => Op::Distinct(SketchOp::Add { items }),
            Kind::Audience => Op::Audience(SketchOp::Add { items }),
            other => panic!("{other} is no sketch"),
        }
    }

    pub(crate) fn estimate(state: &State) -> f64 {
        match state.value(&crate::crdt::Question::default()).field("estimate") {
            Some(Value::Real(estimate)) => *estimate,
            other => panic!("no estimate: {other:?}"),
        }
    }
}
