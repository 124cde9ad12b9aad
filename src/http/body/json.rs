//! Reads clients' JSON into the types of `requests`. It refuses what those types do not describe, and a field
//! that is given twice: a parser that keeps the last one could count something different from what a reader
//! sees.

use orderfree_core::crdt::json::rule;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Error;

use crate::http::catalog::ProblemType;
use crate::http::problem::{self, Problem};

/// How gzip begins. Neither UTF-8 nor JSON begins like this.
const GZIP: &[u8] = b"\x1f\x8b";

/// Refuses the beginning of a body that is compressed without saying so.
pub(crate) fn check_plain(begin: &[u8]) -> Result<(), Problem> {
    if !begin.starts_with(GZIP) {
        return Ok(());
    }
    let detail = "This is gzip without the header that says so: send it to POST /v1/batch with \
                  content-encoding: gzip, or send it uncompressed.";
    Err(bad_body(detail.to_owned()))
}

/// The text of a body. JSON is always UTF-8.
pub(crate) fn text(body: &[u8]) -> Result<&str, Problem> {
    str::from_utf8(body).map_err(|error| {
        if let Err(compressed) = check_plain(body) {
            return compressed;
        }
        let at = error.valid_up_to();
        bad_body(format!("This is not valid JSON: the byte at {at} is not UTF-8."))
    })
}

/// Reads an object. The problem for other JSON shows `example`.
pub(crate) fn read<'a, T: Deserialize<'a>>(text: &'a str, example: &str) -> Result<T, Problem> {
    // A derived type would also accept an array of its fields.
    if !is_object(text)? {
        return Err(bad_body(format!("Send a JSON object, such as {example}.")));
    }
    serde_json::from_str(text).map_err(|error| explain::<T>(text, &error))
}

/// Whether a text that is JSON is an object. Only the beginning of an object is looked at.
///
/// # Errors
/// The text is not JSON.
pub(crate) fn is_object(text: &str) -> Result<bool, Problem> {
    if text.trim_ascii_start().starts_with('{') {
        return Ok(true);
    }
    match serde_json::from_str::<IgnoredAny>(text) {
        Ok(_) => Ok(false),
        Err(error) => Err(not_json(&error)),
    }
}

/// The problem for a text that is not a `T`. The text is read again to find the place of the error: the first
/// time, that would slow down all the texts without one.
fn explain<'a, T: Deserialize<'a>>(text: &'a str, error: &Error) -> Problem {
    if goes_on(text) {
        return several();
    }
    if !error.is_data() {
        return not_json(error);
    }
    let rule = rule(error);
    let mut again = serde_json::Deserializer::from_str(text);
    let place = match serde_path_to_error::deserialize::<_, T>(&mut again) {
        Err(error) => format!("`{}`", error.path()),
        Ok(_) => String::new(),
    };
    if place == "`.`" || rule.contains(&place) {
        return bad_body(problem::sentence(&rule));
    }
    bad_body(format!("{place}: {rule}."))
}

/// Whether another object follows the first value, as in NDJSON whose line breaks are lost.
fn goes_on(text: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let is_value = matches!(values.next(), Some(Ok(_)));
    is_value && text[values.byte_offset()..].trim_ascii_start().starts_with('{')
}

fn several() -> Problem {
    let detail = "There is more than one JSON object. Send several updates to POST /v1/batch as \
                  application/x-ndjson, one per line. curl's -d removes line breaks; --data-binary \
                  keeps them.";
    bad_body(detail.to_owned())
}

pub(crate) fn not_json(error: &Error) -> Problem {
    bad_body(format!("This is not valid JSON: {error}."))
}

pub(crate) fn bad_body(detail: String) -> Problem {
    Problem::new(ProblemType::BadBody, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        a: u8,
        #[serde(default)]
        list: Vec<u8>,
    }

    fn refused(text: &str) -> String {
        let problem = read::<Pair>(text, "THIS").expect_err(text);
        assert_eq!(problem.kind(), ProblemType::BadBody, "{text}");
        problem.detail().to_owned()
    }

    #[test]
    fn an_object_has_each_known_field_once() {
        assert_eq!(read(" {\"a\":1}\n", "THIS"), Ok(Pair { a: 1, list: Vec::new() }));
        for (text, says) in [
            ("{}", "Missing field `a`."),
            (r#"{"a":1,"\u0061":2}"#, "Duplicate field `a`."),
            (r#"{"a":1,"b":2}"#, "Unknown field `b`, expected `a` or `list`."),
            (r#"{"a":"x"}"#, "`a`: invalid type: string \"x\", expected u8."),
            (r#"{"a":1,"list":[7,null]}"#, "`list[1]`: invalid type: null, expected u8."),
        ] {
            assert_eq!(refused(text), says, "{text}");
        }
        for text in ["[1,[2]]", "1", "null", "\"a\""] {
            assert_eq!(refused(text), "Send a JSON object, such as THIS.", "{text}");
        }
    }

    #[test]
    fn what_is_not_one_json_text_is_refused() {
        let deep = format!(r#"{{"a":1,"list":{}"#, "[".repeat(100_000));
        for text in ["", " ", "{", "{\"a\":1}} x", "1 2", "nul", "{\"a\":\"\u{1}\"}", "[1,]", &deep]
        {
            let says = refused(text);
            assert!(says.starts_with("This is not valid JSON: ") || text == deep, "{says}");
        }
        assert!(refused("{\"a\":1} x").ends_with("at line 1 column 9."));
        for text in ["{\"a\":1}{\"a\":2}", "{\"b\":1}\n{", "{\"a\":1} {\"a\":2}\n{\"a\":3}"] {
            assert!(refused(text).starts_with("There is more than one JSON object."), "{text}");
        }
        let problem = text(b"\x1f\x8b\x08\0").expect_err("gzip");
        assert!(problem.detail().contains("content-encoding: gzip"), "{}", problem.detail());
        let problem = text(b"\"\xff\"").expect_err("not UTF-8");
        assert_eq!(problem.detail(), "This is not valid JSON: the byte at 1 is not UTF-8.");
    }
}
