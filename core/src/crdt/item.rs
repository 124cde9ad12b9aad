//! Items: what sets hold and what sketches count.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::varint::{self, Reader};
use super::{DecodeError, OpError, Value, json};

/// Longest item, in bytes of UTF-8.
pub const ITEM_BYTES_MAX: usize = 1024;

/// Most items in one op.
pub const ITEMS_MAX: usize = 1_000;

/// A JSON string of 1 to 1,024 bytes, or a 64-bit whole number. A number and its digits in quotes are
/// different items. Numbers come before strings; strings are ordered by their UTF-8 bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Item {
    /// A whole number.
    Number(i64),
    /// A string.
    Text(Box<str>),
}

impl Item {
    /// Checks a string.
    ///
    /// # Errors
    /// [`OpError::Invalid`] with the rule that the text breaks.
    pub fn text(text: &str) -> Result<Item, OpError> {
        if text.is_empty() || text.len() > ITEM_BYTES_MAX {
            let rule = format!("`item` has {} bytes; give it 1 to {ITEM_BYTES_MAX}", text.len());
            return Err(OpError::Invalid(rule));
        }
        Ok(Item::Text(text.into()))
    }

    /// Reads an item from bare text: digits are a number, a JSON string is that string, and any other text is
    /// itself. White space around the text is no part of it.
    ///
    /// # Errors
    /// [`OpError::Invalid`] with the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Item, OpError> {
        let text = text.trim();
        match text.parse::<i64>() {
            Ok(number) if number.to_string() == text => Ok(Item::Number(number)),
            _ => match serde_json::from_str::<String>(text) {
                Ok(quoted) => Item::text(&quoted),
                Err(_) => Item::text(text),
            },
        }
    }

    /// Maximum bytes in a payload.
    pub(crate) fn encoded_bytes(&self) -> usize {
        match self {
            Item::Number(_) => 1 + 10,
            Item::Text(text) => 2 + text.len(),
        }
    }

    /// Memory that it holds in addition to itself.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Item::Number(_) => 0,
            Item::Text(text) => text.len(),
        }
    }

    /// Appends `0` and the number in zigzag form, or the length of the text, which is never 0, and
    /// the text.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Item::Number(number) => {
                out.push(0);
                varint::put_signed(i128::from(*number), out);
            }
            Item::Text(text) => {
                varint::put(text.len() as u128, out);
                out.extend_from_slice(text.as_bytes());
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Item, DecodeError> {
        match reader.length()? {
            0 => i64::try_from(reader.signed()?)
                .map(Item::Number)
                .map_err(|_| DecodeError::NotCanonical),
            length if length > ITEM_BYTES_MAX => Err(DecodeError::NotCanonical),
            length => match std::str::from_utf8(reader.bytes(length)?) {
                Ok(text) => Ok(Item::Text(text.into())),
                Err(_) => Err(DecodeError::NotCanonical),
            },
        }
    }
}

/// One line of bare text, which [`Item::parse`] reads back.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Number(number) => number.fmt(f),
            Item::Text(text) => json::bare(text, Item::parse(text).as_ref() == Ok(self)).fmt(f),
        }
    }
}

impl From<&Item> for Value {
    fn from(item: &Item) -> Value {
        Value::Item(item.clone())
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
        struct Wanted;

        impl Visitor<'_> for Wanted {
            type Value = Item;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`item` as a string or a whole number from -2^63 to 2^63-1")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Item, E> {
                Ok(Item::Number(value))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Item, E> {
                i64::try_from(value)
                    .map(Item::Number)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Item, E> {
                json::whole_of_double(value, &self).map(Item::Number)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Item, E> {
                Item::text(value).map_err(E::custom)
            }

            fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<Item, E> {
                json::whole_of_bytes(token, &self).map(Item::Number)
            }
        }

        deserializer.deserialize_any(Wanted)
    }
}

/// JSON Schema of an item, without its braces.
macro_rules! one_schema {
    () => {
        r#""oneOf":[{"type":"string","minLength":1,"maxLength":1024},
            {"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807}]"#
    };
}
pub(crate) use one_schema;

/// JSON Schema of `item` and `items`; an op has exactly one of them.
macro_rules! one_or_many_schema {
    () => {
        concat!(
            r#""item":{"description":"Either this or `items`.","#,
            $crate::crdt::item::one_schema!(),
            r#"},"items":{"type":"array","minItems":1,"maxItems":1000,"items":{"#,
            $crate::crdt::item::one_schema!(),
            "}}"
        )
    };
}
pub(crate) use one_or_many_schema;

/// JSON Schema of an op that adds items.
pub(crate) const ADD_SCHEMA: &str = concat!(
    r#"{"title":"AddItems","description":"Adds `item`, or all of `items`.",
    "type":"object","required":["op"],"additionalProperties":false,
    "oneOf":[{"required":["item"]},{"required":["items"]}],"properties":{
    "op":{"type":"string","enum":["add"]},"#,
    one_or_many_schema!(),
    "}}"
);

/// JSON Schema of a set's value.
pub(crate) const SET_SCHEMA: &str = r#"{"type":"object","required":["size"],"properties":{
    "size":{"type":"integer"},
    "items":{"type":"array","items":{"type":["string","integer"]},
        "description":"Whole numbers, then strings by their UTF-8 bytes."},
    "item":{"type":["string","integer"],"description":"With ?contains=: the item."},
    "contains":{"type":"boolean","description":"With ?contains=: whether the set has it."}}}"#;

/// Memory that items hold, in bytes.
pub(crate) fn heap_bytes(items: &[Item]) -> usize {
    size_of_val(items) + items.iter().map(Item::heap_bytes).sum::<usize>()
}

/// The items of an op, which has either `item` or `items`.
///
/// # Errors
/// [`OpError::Invalid`] unless exactly one of them was given, with 1 to [`ITEMS_MAX`] items.
pub(crate) fn one_or_many(
    item: Option<Item>,
    items: Option<Vec<Item>>,
) -> Result<Vec<Item>, OpError> {
    let items = match (item, items) {
        (Some(item), None) => vec![item],
        (None, Some(items)) => items,
        _ => return Err(OpError::Invalid("give either `item` or `items`".to_owned())),
    };
    if items.is_empty() || items.len() > ITEMS_MAX {
        let rule = format!("`items` has {} items; give it 1 to {ITEMS_MAX}", items.len());
        return Err(OpError::Invalid(rule));
    }
    Ok(items)
}

/// The value of a set: its size and its items or, on request, whether it contains an item.
pub(crate) fn show_set<'a>(
    items: impl ExactSizeIterator<Item = &'a Item>,
    contains: Option<(&Item, bool)>,
) -> Value {
    let size = ("size", Value::count(items.len()));
    match contains {
        Some((item, is_in)) => {
            Value::Record(vec![size, ("item", item.into()), ("contains", Value::Bool(is_in))])
        }
        None => Value::Record(vec![size, ("items", Value::List(items.map(Value::from).collect()))]),
    }
}

/// Appends a sorted set of items.
pub(crate) fn encode_set(items: &BTreeSet<Item>, out: &mut Vec<u8>) {
    varint::put(items.len() as u128, out);
    for item in items {
        item.encode(out);
    }
}

/// Reads a sorted set of items.
pub(crate) fn decode_set(reader: &mut Reader<'_>) -> Result<BTreeSet<Item>, DecodeError> {
    let mut items = BTreeSet::new();
    for _ in 0..reader.length()? {
        let item = Item::decode(reader)?;
        if items.last().is_some_and(|last| *last >= item) {
            return Err(DecodeError::NotCanonical);
        }
        items.insert(item);
    }
    Ok(items)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Few different items, so that they repeat, and special ones.
    pub(crate) fn items() -> impl Strategy<Value = Item> {
        prop_oneof![
            (0..20i64).prop_map(Item::Number),
            any::<i64>().prop_map(Item::Number),
            "[a-d]{1,2}".prop_map(|text| Item::Text(text.into())),
            "\\PC{1,20}".prop_map(|text| Item::Text(text.into())),
        ]
    }

    #[test]
    fn items_are_checked() {
        let read = |json: &str| serde_json::from_str::<Item>(json).map_err(|e| e.to_string());
        assert_eq!(read("-7"), Ok(Item::Number(-7)));
        assert_eq!(read("\"7\""), Ok(Item::Text("7".into())));
        for (json, says) in [
            ("\"\"", "has 0 bytes; give it 1 to 1024"),
            ("1.5", "`item` as a string or a whole number"),
            ("9223372036854775808", "`item` as a string or a whole number"),
            ("null", "`item` as a string or a whole number"),
            ("[1]", "`item` as a string or a whole number"),
        ] {
            let error = read(json).expect_err(json);
            assert!(error.contains(says), "{json}: {error}");
        }
        for (text, item) in [
            ("7", Item::Number(7)),
            ("07", Item::Text("07".into())),
            ("\"7\"", Item::Text("7".into())),
            ("a b", Item::Text("a b".into())),
            (" 7\n", Item::Number(7)),
            ("\ta b\r\n", Item::Text("a b".into())),
            ("\" a \"", Item::Text(" a ".into())),
        ] {
            assert_eq!(Item::parse(text), Ok(item));
        }
        assert!(Item::parse("\"\"").is_err());
        assert!(Item::text(&"x".repeat(1024)).is_ok());
        assert!(Item::text(&"x".repeat(1025)).is_err());
    }

    #[test]
    fn the_longest_items_have_the_expected_bytes() {
        for item in [Item::Number(i64::MIN), Item::text(&"x".repeat(1_024)).expect("an item")] {
            let mut bytes = Vec::new();
            item.encode(&mut bytes);
            assert_eq!(bytes.len(), item.encoded_bytes());
            assert_eq!(Item::decode(&mut Reader::new(&bytes)), Ok(item));
        }
        let mut bytes = Vec::new();
        Item::Text("x".repeat(1_025).into()).encode(&mut bytes);
        assert_eq!(Item::decode(&mut Reader::new(&bytes)), Err(DecodeError::NotCanonical));
    }

    #[test]
    fn an_item_is_one_line_of_bare_text() {
        assert_eq!(Item::Number(-7).to_string(), "-7");
        for (text, line) in [
            ("a b", "a b"),
            ("7", "\"7\""),
            ("007", "007"),
            ("\"7\"", r#""\"7\"""#),
            ("\"", "\""),
            (" a", "\" a\""),
            ("a\nb", r#""a\nb""#),
            ("a\u{85}b", "\"a\u{85}b\""),
        ] {
            let item = Item::Text(text.into());
            assert_eq!(item.to_string(), line);
            assert_eq!(Item::parse(line), Ok(item));
        }
    }

    proptest! {
        #[test]
        fn every_item_is_read_back_from_its_line(
            item in prop_oneof![items(), "(?s).{1,20}".prop_map(|text| Item::Text(text.into()))],
        ) {
            let line = item.to_string();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(Item::parse(&line), Ok(item));
        }
    }

    #[test]
    fn items_come_alone_or_as_a_list() {
        let item = Item::Number(1);
        assert_eq!(one_or_many(Some(item.clone()), None), Ok(vec![item.clone()]));
        for count in [1, ITEMS_MAX] {
            let items = vec![item.clone(); count];
            assert_eq!(one_or_many(None, Some(items.clone())), Ok(items));
        }
        for (one, many) in [
            (None, None),
            (Some(item.clone()), Some(vec![item.clone()])),
            (None, Some(Vec::new())),
            (None, Some(vec![item; ITEMS_MAX + 1])),
        ] {
            assert!(one_or_many(one, many).is_err());
        }
    }

    proptest! {
        #[test]
        fn sets_round_trip(items in prop::collection::btree_set(items(), 0..30)) {
            let mut bytes = Vec::new();
            encode_set(&items, &mut bytes);
            prop_assert!(bytes.len() <= 2 + items.iter().map(Item::encoded_bytes).sum::<usize>());
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(decode_set(&mut reader), Ok(items));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }

    #[test]
    fn unsorted_or_repeated_items_are_undecodable() {
        for bytes in [&[2, 1, b'b', 1, b'a'][..], &[2, 1, b'a', 1, b'a'], &[1, 1, 0xFF]] {
            let error = decode_set(&mut Reader::new(bytes)).expect_err("not canonical");
            assert_eq!(error, DecodeError::NotCanonical);
        }
    }
}
