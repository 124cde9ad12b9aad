//! JSON from a client, in which numbers keep their digits and no field is given twice.
//!
//! The parser of `serde_json` reads a number as a 64-bit integer, or else as the nearest double. A longer
//! number would change in silence. `read` passes on such a number as its text, in the one type of serde
//! that JSON does not have: bytes. A visitor that knows nothing of it refuses it, and one that does can keep
//! every digit.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::ops::Range;

use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Number;

/// The prefix of names that are special to `serde_json`: when it reads its own values, it parses the text of
/// such a field again.
const PRIVATE: &str = "$serde_json::private::";

/// A decimal of at most this many bytes and without exponent is the shortest one for its double, because a
/// double tells all decimals of 15 digits apart.
const PLAIN_BYTES_MAX: usize = 15;

/// The largest whole number up to which JavaScript tells all whole numbers apart.
const JAVASCRIPT_MAX: u64 = (1 << 53) - 1;

/// Reads one JSON text. Numbers that the parser would change are passed on as bytes. A text with such a number
/// is read with `deserialize_any`, as ops and JSON of any shape are.
///
/// # Errors
/// The text is not JSON, or it is not a `T`.
pub(super) fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    let tokens: Vec<_> = (numbers(text).enumerate())
        .map(|(at, range)| (at, &text[range]))
        .filter(|(_, token)| !is_kept(token))
        .collect();
    let mut json = serde_json::Deserializer::from_str(text);
    let value = match tokens.is_empty() {
        true => T::deserialize(&mut json)?,
        false => {
            let long = Long { tokens, met: Cell::new(0), passed: Cell::new(0) };
            T::deserialize(Exact { inner: &mut json, long: &long })?
        }
    };
    json.end()?;
    Ok(value)
}

/// What is wrong, without the position of the error, because the text can be a part of what a client sent.
#[must_use]
pub fn rule(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).unwrap_or(&text).trim_end_matches('.').to_owned()
}

/// A string as one line of bare text: as it is, or in quotes unless it `is_read_back` without them.
pub(super) fn bare(string: &str, is_read_back: bool) -> Cow<'_, str> {
    let is_line =
        !string.is_empty() && string.trim() == string && !string.contains(char::is_control);
    match is_line && is_read_back {
        true => string.into(),
        false => serde_json::Value::from(string).to_string().into(),
    }
}

/// Any JSON in which no object has a field twice, as text without spaces and with sorted fields. `serde_json`
/// would keep the last of two fields, and a reader of the request could expect the first. Numbers that
/// `serde_json` keeps are written as it writes them, and longer ones as they came.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Canonical(pub(super) Box<str>);

impl<'de> Deserialize<'de> for Canonical {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Canonical, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = String;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E>(self) -> Result<String, E> {
                Ok("null".to_owned())
            }

            fn visit_bool<E>(self, value: bool) -> Result<String, E> {
                Ok(value.to_string())
            }

            fn visit_i64<E>(self, value: i64) -> Result<String, E> {
                Ok(value.to_string())
            }

            fn visit_u64<E>(self, value: u64) -> Result<String, E> {
                Ok(value.to_string())
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<String, E> {
                let number = Number::from_f64(value).ok_or_else(|| E::custom("not finite"))?;
                Ok(number.to_string())
            }

            fn visit_bytes<E: de::Error>(self, token: &[u8]) -> Result<String, E> {
                Ok(token_text(token).to_owned())
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<String, E> {
                serde_json::to_string(value).map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<String, A::Error> {
                let mut items: Vec<String> = Vec::new();
                while let Some(Canonical(item)) = seq.next_element()? {
                    items.push(item.into());
                }
                Ok(format!("[{}]", items.join(",")))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<String, A::Error> {
                let mut fields: BTreeMap<String, Box<str>> = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name.starts_with(PRIVATE) {
                        let rule = format!("field names must not start with {PRIVATE}");
                        return Err(de::Error::custom(rule));
                    }
                    let Canonical(field) = map.next_value()?;
                    match fields.entry(name) {
                        Entry::Vacant(entry) => entry.insert(field),
                        Entry::Occupied(entry) => {
                            let rule = format!("the field `{}` is given twice", entry.key());
                            return Err(de::Error::custom(rule));
                        }
                    };
                }
                let mut text = Vec::with_capacity(fields.len());
                for (name, field) in fields {
                    let name = serde_json::to_string(&name).map_err(de::Error::custom)?;
                    text.push(format!("{name}:{field}"));
                }
                Ok(format!("{{{}}}", text.join(",")))
            }
        }

        deserializer.deserialize_any(Written).map(|text| Canonical(text.into()))
    }
}

/// The text of a number that [`read`] passed on.
pub(super) fn token_text(token: &[u8]) -> &str {
    std::str::from_utf8(token).unwrap_or("a number")
}

/// Reads a whole number from a number that the parser read as a double, for a visitor that wants one. JSON
/// has only one type of number, so `100.0` and `1e2` are the whole number 100.
pub(super) fn whole_of_double<T: TryFrom<i128>, E: de::Error>(
    double: f64,
    wanted: &dyn de::Expected,
) -> Result<T, E> {
    // A double stands for a token that is equal to its shortest decimal. Its own digits can be others.
    let number = Number::from_f64(double).and_then(|number| whole(&number.to_string()));
    number.ok_or_else(|| E::invalid_type(Unexpected::Float(double), wanted))
}

/// Reads a whole number from a number that [`read`] passed on as bytes.
pub(super) fn whole_of_bytes<T: TryFrom<i128>, E: de::Error>(
    token: &[u8],
    wanted: &dyn de::Expected,
) -> Result<T, E> {
    let token = token_text(token);
    whole(token).ok_or_else(|| E::invalid_value(Unexpected::Other(token), wanted))
}

/// The whole number that a token is equal to; none if it has a fraction or does not fit.
fn whole<T: TryFrom<i128>>(token: &str) -> Option<T> {
    /// A number with more digits before the point has more than 128 bits.
    const PLACES_MAX: i64 = 40;
    let Decimal { is_negative, digits, point } = Decimal::of(token);
    let places = usize::try_from(point.min(PLACES_MAX)).ok()?;
    if digits.len() > places {
        return None;
    }
    let sign = if is_negative { "-" } else { "" };
    let number: i128 = format!("{sign}0{digits:0<places$}").parse().ok()?;
    T::try_from(number).ok()
}

/// The digits of the whole number that a token is equal to. None for 0, if it has a fraction, or beyond all doubles.
pub(super) fn digits_of_whole(token: &str) -> Option<String> {
    let Decimal { is_negative, digits, point } = Decimal::of(token);
    let places = usize::try_from(point).ok().filter(|places| *places <= DOUBLE_PLACES_MAX)?;
    let sign = if is_negative { "-" } else { "" };
    (1..=places).contains(&digits.len()).then(|| format!("{sign}{digits:0<places$}"))
}

/// Whether programs print this double so: with the fewest digits that tell it from all others, or with 17 digits.
pub(super) fn is_printed(token: &str, double: f64) -> bool {
    let token = Decimal::of(token);
    [format!("{double:e}"), format!("{double:.16e}")].iter().any(|text| token == Decimal::of(text))
}

/// Whether a token is written without fraction and exponent.
pub(super) fn is_whole(token: &str) -> bool {
    token.strip_prefix('-').unwrap_or(token).bytes().all(|byte| byte.is_ascii_digit())
}

/// JSON text with every number in quotes that JavaScript would change or not tell from its neighbours.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut from = 0;
    for range in numbers(text) {
        let token = &text[range.clone()];
        let is_held = match is_whole(token) {
            true => token.parse().is_ok_and(|number: i64| number.unsigned_abs() <= JAVASCRIPT_MAX),
            false => is_kept(token),
        };
        out.push_str(&text[from..range.start]);
        match is_held {
            true => out.push_str(token),
            false => out.extend(["\"", token, "\""]),
        }
        from = range.end;
    }
    out.push_str(&text[from..]);
    out
}

/// Whether JavaScript tells a whole number from all others.
pub(super) fn is_held_by_javascript(number: i64) -> bool {
    number.unsigned_abs() <= JAVASCRIPT_MAX
}

/// The places of the numbers in a text, in order. If the text is not JSON, they mean nothing.
fn numbers(text: &str) -> impl Iterator<Item = Range<usize>> {
    let (text, mut at) = (text.as_bytes(), 0);
    std::iter::from_fn(move || {
        while let Some(&byte) = text.get(at) {
            match byte {
                b'"' => at = string_end(text, at + 1),
                b'-' | b'0'..=b'9' => {
                    let is_inside =
                        |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                    let length = text[at..].iter().take_while(|byte| is_inside(byte)).count();
                    let from = at;
                    at += length;
                    return Some(from..at);
                }
                _ => at += 1,
            }
        }
        None
    })
}

/// The place after the quote that ends the string whose inside begins here.
fn string_end(text: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// Whether `serde_json` reads a number as one that is equal: a 64-bit integer, or a double whose shortest
/// decimal is equal. A number beyond the range of doubles also counts, because the parser refuses it.
fn is_kept(text: &str) -> bool {
    if text.len() <= PLAIN_BYTES_MAX && !text.contains(['e', 'E']) {
        return true;
    }
    if is_whole(text) {
        return text.parse::<i64>().is_ok() || text.parse::<u64>().is_ok();
    }
    match text.parse().ok().and_then(Number::from_f64) {
        // Most doubles come as `serde_json` writes them.
        Some(number) => {
            let number = number.to_string();
            number == text || Decimal::of(text) == Decimal::of(&number)
        }
        None => true,
    }
}

/// Digits before the point of the largest double.
const DOUBLE_PLACES_MAX: usize = 309;

/// A decimal number in one form: `0.DIGITS * 10^point`, where the digits neither begin nor end with a zero.
#[derive(PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: String,
    point: i64,
}

impl Decimal {
    fn of(token: &str) -> Decimal {
        let is_negative = token.starts_with('-');
        let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
        let mantissa = mantissa.trim_start_matches('-');
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let significant = digits.trim_start_matches('0');
        let zeros = digits.len() - significant.len();
        // Only the exponent of a zero, or of what no double can tell from zero, is beyond 64 bits.
        let exponent: i64 = exponent.parse().unwrap_or(i64::MIN);
        let places = i64::try_from(whole.len()).unwrap_or_default()
            - i64::try_from(zeros).unwrap_or_default();
        let significant = significant.trim_end_matches('0');
        let point = match significant {
            "" => 0,
            _ => exponent.saturating_add(places),
        };
        Decimal { is_negative, digits: significant.to_owned(), point }
    }
}

/// The numbers of a text that the parser would change, each with its place among all numbers.
struct Long<'a> {
    tokens: Vec<(usize, &'a str)>,
    /// How many numbers the parser has read.
    met: Cell<usize>,
    /// How many of `tokens` were among them.
    passed: Cell<usize>,
}

impl<'a> Long<'a> {
    /// The text of the number that the parser has just read, if it has changed it.
    fn of_next(&self) -> Option<&'a str> {
        let met = self.met.replace(self.met.get() + 1);
        let passed = self.passed.get();
        let (_, token) = self.tokens.get(passed).filter(|(at, _)| *at == met)?;
        self.passed.set(passed + 1);
        Some(token)
    }
}

/// Stands between the parser and what is read, and puts the text of long numbers in their place.
struct Exact<'l, 'a, I> {
    inner: I,
    long: &'l Long<'a>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Exact<'_, 'de, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_any(Exact { inner: visitor, long: self.long })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Exact<'_, 'de, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<V::Value, E> {
        self.inner.visit_bool(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<V::Value, E> {
        match self.long.of_next() {
            None => self.inner.visit_i64(value),
            Some(token) => self.inner.visit_borrowed_bytes(token.as_bytes()),
        }
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<V::Value, E> {
        match self.long.of_next() {
            None => self.inner.visit_u64(value),
            Some(token) => self.inner.visit_borrowed_bytes(token.as_bytes()),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<V::Value, E> {
        match self.long.of_next() {
            None => self.inner.visit_f64(value),
            Some(token) => self.inner.visit_borrowed_bytes(token.as_bytes()),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<V::Value, E> {
        self.inner.visit_str(value)
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.inner.visit_borrowed_str(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(Exact { inner: seq, long: self.long })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(Exact { inner: map, long: self.long })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Exact<'_, 'de, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_element_seed(Exact { inner: seed, long: self.long })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Exact<'_, 'de, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.inner.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.next_value_seed(Exact { inner: seed, long: self.long })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Exact<'_, 'de, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Exact { inner: deserializer, long: self.long })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expression, Kind};
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> String {
        read::<Canonical>(text).expect_err(text).to_string()
    }

    fn canonical(text: &str) -> String {
        read::<Canonical>(text).expect(text).0.into()
    }

    #[test]
    fn a_value_is_read_as_it_is() {
        for text in [
            "null",
            "[true,false]",
            r#"{"a":{"b":[1,-2,18446744073709551615],"c":1.5},"é":"\"\n"}"#,
            "-0.0",
            "1e300",
            "0.1",
        ] {
            let json: serde_json::Value = serde_json::from_str(text).expect("JSON");
            assert_eq!(canonical(text), json.to_string());
        }
        assert_eq!(canonical("-0.0"), "-0.0");
        for text in ["\"\\ud800\"", "1e400", &"[".repeat(100_000)] {
            assert!(read::<Canonical>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_that_the_parser_keeps_are_known() {
        for token in [
            "0",
            "-0",
            "-0.0",
            "0e999999999999999999999",
            "7",
            "1.10",
            "0.1",
            "1e2",
            "1E+2",
            "123456789012345",
            "9223372036854775807",
            "18446744073709551615",
            "-9223372036854775808",
            "1.7976931348623157e308",
            "5e-324",
            "0.30000000000000004",
            "1e400",
            "100.00000000000000000000",
            "1e23",
        ] {
            assert!(is_kept(token), "{token}");
        }
        for token in [
            "18446744073709551616",
            "-9223372036854775809",
            "10769150350006150715113082367",
            "100000000000000000000",
            "0.1000000000000000055511151231257827",
            "1e-400",
            "3e-324",
            "1e-99999999999999999999",
            "1.7976931348623158e308",
            "9007199254740993.0",
            // The double is 887591114325653.25, and `serde_json` writes 887591114325653.2.
            "887591114325653.3",
        ] {
            assert!(!is_kept(token), "{token}");
        }
    }

    #[test]
    fn long_numbers_keep_their_digits_wherever_they_are() {
        for text in [
            "10769150350006150715113082367",
            "0.1000000000000000055511151231257827",
            "[1,18446744073709551616,2.5,-1e-400,{\"a\":[99999999999999999999],\"b\":7}]",
            "{\"\\\"1\":12345678901234567890123,\"12345678901234567890123\":\"98765432109876543210987\"}",
        ] {
            assert_eq!(canonical(text), text);
        }
        assert_eq!(
            canonical("{\"b\": 1, \"a\": [1e0, 100000000000000000000 ]}"),
            "{\"a\":[1.0,100000000000000000000],\"b\":1}"
        );
    }

    #[test]
    fn a_field_given_twice_is_refused_at_any_depth() {
        for value in [
            r#"{"a":1,"a":2}"#,
            r#"[{"b":{"a":1,"c":0,"a":1}}]"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"{"a":1e-400,"a":1e-400}"#,
        ] {
            assert!(refused(value).contains("`a` is given twice"));
            let op = format!(r#"{{"op":"set","value":{value}}}"#);
            let error = Kind::Register.read_op(&op).expect_err(value).to_string();
            assert!(error.contains("`a` is given twice"), "{error}");
            let error = Kind::Register.read_bare_op(value).expect_err(value).to_string();
            assert!(error.contains("`a` is given twice"), "{error}");
        }
        let expression = r#"{"and":["a"],"and":["b"]}"#;
        assert!(serde_json::from_str::<Expression>(expression).is_err());
    }

    #[test]
    fn names_that_are_special_to_the_parser_are_refused() {
        for value in
            [r#"{"$serde_json::private::RawValue":"5"}"#, r#"[{"$serde_json::private::x":1}]"#]
        {
            assert!(refused(value).contains("must not start with"));
            let error = Kind::Register.read_bare_op(value).expect_err("a special name");
            assert!(error.to_string().contains("must not start with"), "{error}");
        }
    }

    #[test]
    fn what_is_not_json_is_refused_with_and_without_long_numbers() {
        for text in ["", "[1", "1 2", "18446744073709551616 1", "[18446744073709551616", "1e400"] {
            assert!(read::<Canonical>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_whole_number_is_read_however_it_is_written() {
        let (least, most) = (i128::MIN, i128::MAX);
        for (token, number) in [
            ("0", 0),
            ("-0", 0),
            ("-0.0", 0),
            ("0e999999999999999999999", 0),
            ("0.00e-999999999999999999999", 0),
            ("100", 100),
            ("1.0", 1),
            ("-1e2", -100),
            ("1E+2", 100),
            ("1200e-2", 12),
            ("0.0012e4", 12),
            ("9007199254740993.0", 9_007_199_254_740_993),
            ("9007199254740993000e-3", 9_007_199_254_740_993),
            (&format!("{most}.00"), most),
            (&format!("{least}e0"), least),
        ] {
            assert_eq!(whole::<i128>(token), Some(number), "{token}");
        }
        for token in [
            "1.5",
            "0.1",
            "12e-2",
            "9007199254740992.5",
            "1e-400",
            "1e-99999999999999999999",
            "170141183460469231731687303715884105728.0",
            "1e39",
            "1e40",
            "1e300",
            &"9".repeat(50),
        ] {
            assert_eq!(whole::<i128>(token), None, "{token}");
        }
        assert_eq!(
            (whole("2.55e2"), whole::<u8>("2.56e2"), whole::<u8>("-1.0")),
            (Some(255_u8), None, None)
        );
    }

    #[test]
    fn numbers_that_javascript_changes_are_quoted() {
        for (text, expected) in [
            ("9007199254740991", "9007199254740991"),
            ("-9007199254740992", "\"-9007199254740992\""),
            ("{\"9007199254740993\":[0.1,1e300]}", "{\"9007199254740993\":[0.1,1e300]}"),
            (
                "[0.1000000000000000055511151231257827]",
                "[\"0.1000000000000000055511151231257827\"]",
            ),
            ("\"a\\\"9007199254740993\"", "\"a\\\"9007199254740993\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    proptest! {
        /// With and without a long number next to it, JSON is read as `serde_json` reads it.
        #[test]
        fn everything_else_is_read_as_before(
            text in "[\\[{]?(\"(\\\\\"|[a-z0-9\\\\])*\"|-?[0-9]{1,17}([.][0-9]{1,4})?|null|true)([,:](\"a\"|[0-9]{1,3}))?[\\]}]?",
        ) {
            let plain = serde_json::from_str::<serde_json::Value>(&text);
            let expected = plain.as_ref().ok().map(|json| format!("[{json},18446744073709551616]"));
            if numbers(&text).all(|range| is_kept(&text[range])) {
                let beside = format!("[{text},18446744073709551616]");
                let beside = read::<Canonical>(&beside).ok().map(|json| json.0.into());
                // A text that is not JSON can become JSON in a list.
                if plain.is_ok() {
                    prop_assert_eq!(beside, expected);
                }
                let alone = read::<Canonical>(&text).ok().map(|json| json.0.into());
                prop_assert_eq!(alone, plain.ok().map(|json| json.to_string()));
            }
        }

        /// A double is kept as `serde_json` writes it, and a decimal of 15 digits however it is written.
        #[test]
        fn doubles_are_kept(value: f64, digits in 0..10_u64.pow(15), point in -300..290_i32) {
            let double = Number::from_f64(value).map(|number| number.to_string());
            let decimals = [format!("0.{digits}"), format!("{digits}e{point}")];
            for token in decimals.into_iter().chain(double) {
                prop_assert!(is_kept(&token), "{}", token);
            }
        }
    }
}
