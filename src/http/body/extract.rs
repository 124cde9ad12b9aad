//! Turns a request's parts into checked values. Unknown, repeated and malformed parts are never ignored:
//! they are refused, and the problem names the broken rule.

use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Uri, Version};
use orderfree_core::crdt::{BareValue, Kind, State};

use crate::http::body::ids::{self, IdHeaders};
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

pub(crate) const JSON: &str = "application/json";
pub(crate) const NDJSON: &str = "application/x-ndjson";
pub(crate) const TEXT: &str = "text/plain";
pub(crate) const BYTES: &str = "application/octet-stream";

/// Refuses addresses that are too long or have a broken percent-encoding.
pub(crate) fn check_address(uri: &Uri) -> Result<(), Problem> {
    let address = uri.path_and_query().map_or("/", |address| address.as_str());
    if address.len() > limits::URI_BYTES_MAX {
        let detail = format!(
            "The address has {} bytes; the limit is {}.",
            address.len(),
            limits::URI_BYTES_MAX
        );
        return Err(Problem::new(ProblemType::UriTooLong, detail));
    }
    let broken = address.match_indices('%').find(|(at, _)| {
        let digits = address.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    match broken {
        None => Ok(()),
        Some((at, _)) => Err(Problem::new(
            ProblemType::BadAddress,
            format!("The % at byte {at} of the address is not followed by two hexadecimal digits."),
        )),
    }
}

/// Refuses requests that do not name their host once, as RFC 9112, section 3.2, requires.
pub(crate) fn check_host(version: Version, headers: &HeaderMap) -> Result<(), Problem> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let detail = match (hosts.next(), hosts.next()) {
        (Some(_), None) => return Ok(()),
        (None, _) if version < Version::HTTP_11 => return Ok(()),
        (None, _) => "The request has no Host header, but HTTP/1.1 requires one; send it.",
        (Some(_), Some(_)) => "The request has more than one Host header; send one.",
    };
    Err(Problem::new(ProblemType::BadRequest, detail))
}

/// All names of NDJSON that are in use. None of them is registered, and answers have the first one.
const NDJSONS: [&str; 5] =
    [NDJSON, "application/ndjson", "application/jsonl", "application/x-jsonlines", "text/x-ndjson"];

/// The content type of a body, without its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MediaType {
    Json,
    /// By one of its names.
    Ndjson(&'static str),
    Text,
    /// What curl's `-d` sends by default.
    Form,
    Other(String),
    Missing,
}

impl MediaType {
    pub(crate) fn of(headers: &HeaderMap) -> MediaType {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return MediaType::Missing };
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        match text.split(';').next().unwrap_or("").trim() {
            "application/json" => MediaType::Json,
            "text/plain" => MediaType::Text,
            FORM => MediaType::Form,
            other => match NDJSONS.iter().find(|name| **name == other) {
                Some(name) => MediaType::Ndjson(name),
                None => MediaType::Other(other.to_owned()),
            },
        }
    }

    /// The problem for this content type. `wanted` says what to send instead.
    pub(crate) fn refuse(&self, wanted: &str) -> Problem {
        let (given, hint) = match self {
            MediaType::Json => ("application/json", ""),
            MediaType::Ndjson(name) => (*name, ""),
            MediaType::Text => ("text/plain", ""),
            MediaType::Form => (FORM, CURL),
            MediaType::Other(other) => (other.as_str(), ""),
            MediaType::Missing => ("missing", ""),
        };
        let detail = format!("The content type is {given}; send {wanted}.{hint}");
        Problem::new(ProblemType::ContentType, detail)
    }
}

const FORM: &str = "application/x-www-form-urlencoded";

/// What a user of curl does not know about `-d`.
const CURL: &str = " curl's -d sends this type unless you add one, such as -H 'content-type: \
                    application/json'. It also removes the line breaks of a file: send files with \
                    --data-binary.";

/// Checks the headers of an update. Refuses those that updates do not support, and returns what the others say
/// about ids.
pub(crate) fn of_update(headers: &HeaderMap) -> Result<IdHeaders, Problem> {
    // A request has few headers: one pass over them costs less than a lookup for each of these names.
    let mut has_ids = false;
    for name in headers.keys() {
        match name.as_str() {
            "if-match" | "if-none-match" | "if-modified-since" | "if-unmodified-since" => {
                let detail = format!(
                    "Preconditions on updates are not supported; leave out the header {name}."
                );
                return Err(Problem::new(ProblemType::BadHeader, detail));
            }
            name => has_ids |= ids::is_about_ids(name),
        }
    }
    if has_ids { IdHeaders::of(headers) } else { Ok(IdHeaders::default()) }
}

/// Refuses ids on requests that change nothing.
pub(crate) fn of_read(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.keys().find(|name| ids::is_about_ids(name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let detail =
                format!("This request changes nothing, so it needs no id; leave out {name}.");
            Err(Problem::new(ProblemType::BadHeader, detail))
        }
    }
}

/// The media type of `offered` that the client prefers, or the first one if it has no preference.
pub(crate) fn negotiate<'a>(headers: &HeaderMap, offered: &[&'a str]) -> &'a str {
    // Most clients have no preference, and the rest takes time.
    let is_any = |accept: &HeaderValue| accept == "*/*" || accept == offered[0];
    if headers.get_all(header::ACCEPT).iter().all(is_any) {
        return offered[0];
    }
    let mut chosen = (offered[0], quality(headers, offered[0]));
    for &media in &offered[1..] {
        let quality = quality(headers, media);
        if quality > chosen.1 {
            chosen = (media, quality);
        }
    }
    chosen.0
}

/// The media type of `offered` that the client prefers for a value of this kind. A kind can lack one that is
/// not JSON. Another one takes its place if the client accepts that too.
pub(crate) fn negotiate_value(
    headers: &HeaderMap,
    offered: &[&'static str],
    kind: Kind,
) -> Result<&'static str, Problem> {
    let has = |media: &&'static str| match *media {
        TEXT => kind.about().bare_value != BareValue::Nothing,
        BYTES => State::new(kind, None).export().is_some(),
        _ => true,
    };
    let preferred = negotiate(headers, offered);
    if has(&preferred) {
        return Ok(preferred);
    }
    let offered: Vec<&str> = offered.iter().copied().filter(has).collect();
    let next = negotiate(headers, &offered);
    if accepts(headers, next) {
        return Ok(next);
    }
    let what = if preferred == TEXT { "bare value" } else { "binary format" };
    let detail = format!("Kind {kind} has no {what}; accept {JSON}.");
    Err(Problem::new(ProblemType::NotAcceptable, detail))
}

/// Whether the client accepts this media type. Without an `Accept` header it accepts all.
fn accepts(headers: &HeaderMap, media: &str) -> bool {
    !headers.contains_key(header::ACCEPT) || quality(headers, media) > 0.0
}

/// The client's preference for a media type, from 0 to 1 (RFC 9110, section 12.5.1).
fn quality(headers: &HeaderMap, media: &str) -> f32 {
    let family = media.split('/').next().unwrap_or("");
    let of_range = |range: &str| {
        let range = range.trim().to_ascii_lowercase();
        let mut parts = range.split(';').map(str::trim);
        let specificity = match parts.next()? {
            exact if exact == media || both_are_ndjson(exact, media) => 3,
            half if half.strip_suffix("/*") == Some(family) => 2,
            "*/*" => 1,
            _ => return None,
        };
        Some((specificity, weight(parts)?))
    };
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(',')).filter_map(of_range);
    ranges.max_by_key(|(specificity, _)| *specificity).map_or(0.0, |(_, q)| q)
}

/// The weight of an element of a list: 1 if it has no `q`.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a str>) -> Option<f32> {
    let q = parameters.find_map(|parameter| parameter.strip_prefix("q="));
    q.map_or(Some(1.0), |q| q.parse().ok())
}

/// Whether this `Accept-Encoding` has gzip (RFC 9110, section 12.5.3).
pub(crate) fn accepts_gzip(encodings: &HeaderValue) -> bool {
    let encodings = String::from_utf8_lossy(encodings.as_bytes()).to_ascii_lowercase();
    let find = |wanted| {
        encodings.split(',').find_map(|encoding| {
            let mut parts = encoding.split(';').map(str::trim);
            (parts.next() == Some(wanted)).then(|| weight(parts).is_some_and(|q| q > 0.0))
        })
    };
    find("gzip").or_else(|| find("*")).unwrap_or(false)
}

fn both_are_ndjson(one: &str, other: &str) -> bool {
    NDJSONS.contains(&one) && NDJSONS.contains(&other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_percent_encodings_are_refused_everywhere() {
        for (address, is_right) in
            [("/a%2Fb?c=%20", true), ("/a%", false), ("/a%2", false), ("/?a=%zz", false)]
        {
            let uri: Uri = address.parse().expect("URI");
            assert_eq!(check_address(&uri).is_ok(), is_right, "{address}");
        }
    }

    #[test]
    fn the_preferred_media_type_wins_and_json_otherwise() {
        for (accept, expected) in [
            ("text/plain", "text/plain"),
            ("*/*", "application/json"),
            ("text/html,application/xml;q=0.9,*/*;q=0.8", "application/json"),
            ("text/plain, */*;q=0.5", "text/plain"),
            ("text/plain;q=0.5, application/json", "application/json"),
            ("text/*", "text/plain"),
            ("image/png", "application/json"),
            ("text/plain;q=nonsense", "application/json"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            let chosen = negotiate(&headers, &["application/json", "text/plain"]);
            assert_eq!(chosen, expected, "{accept}");
        }
    }

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        for (given, is_accepted) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("deflate, *", true),
            ("*;q=1, gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("gzip;q=nonsense", false),
            ("br", false),
            ("", false),
            ("x-gzip-not", false),
        ] {
            assert_eq!(accepts_gzip(&HeaderValue::from_static(given)), is_accepted, "{given}");
        }
    }

    #[test]
    fn content_types_are_compared_without_case_and_parameters() {
        let of = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            MediaType::of(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]))
        };
        assert_eq!(of("Application/JSON; charset=utf-8"), MediaType::Json);
        assert_eq!(of("text/plain"), MediaType::Text);
        assert_eq!(of("Application/JSONL; charset=utf-8"), MediaType::Ndjson("application/jsonl"));
        assert_eq!(of("text/html"), MediaType::Other("text/html".to_owned()));
    }
}
