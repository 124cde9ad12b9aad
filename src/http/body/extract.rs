//! Turns a request's parts into checked values. Unknown, repeated and malformed parts are never ignored:
//! they are refused, and the problem names the broken rule.

use std::borrow::Cow;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use orderfree_core::protocol::Name;
use percent_encoding::percent_decode_str;

use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

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

/// The query parameters of an endpoint.
pub(crate) trait Params: Sized {
    /// Every parameter that the endpoint knows.
    const NAMES: &'static [&'static str];

    fn parse(query: &QueryParams<'_>) -> Result<Self, Problem>;
}

pub(crate) struct Query<P>(pub(crate) P);

/// Names and decoded values, each name known and given once.
pub(crate) struct QueryParams<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<S: Send + Sync, P: Params> FromRequestParts<S> for Query<P> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<P>, Problem> {
        let params = QueryParams::split(parts.uri.query().unwrap_or(""), P::NAMES)?;
        P::parse(&params).map(Query)
    }
}

/// For endpoints without query parameters.
pub(crate) struct NoParams;

impl Params for NoParams {
    const NAMES: &'static [&'static str] = &[];

    fn parse(_: &QueryParams<'_>) -> Result<NoParams, Problem> {
        Ok(NoParams)
    }
}

impl QueryParams<'_> {
    fn split<'a>(query: &'a str, known: &[&str]) -> Result<QueryParams<'a>, Problem> {
        let mut params: Vec<(Cow<'a, str>, Cow<'a, str>)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if !known.contains(&name.as_ref()) {
                let known = match known {
                    [] => "this endpoint has none".to_owned(),
                    known => format!("this endpoint has: {}", known.join(", ")),
                };
                return Err(bad_query(format!("Unknown query parameter {name:?}; {known}.")));
            }
            if params.iter().any(|(earlier, _)| *earlier == name) {
                return Err(bad_query(format!("{name} is given twice; give it once.")));
            }
            params.push((name, value));
        }
        Ok(QueryParams(params))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_ref())
    }

    /// Reads a parameter with `parse`. Its error says what is valid.
    pub(crate) fn read<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let read = |value| parse(value).map_err(|rule| bad_query(format!("{name}: {rule}.")));
        self.get(name).map(read).transpose()
    }

    /// Reads a parameter that is a group or a name.
    pub(crate) fn name(&self, name: &str) -> Result<Option<Name>, Problem> {
        self.read(name, |text| Name::new(text).map_err(|error| format!("it {error}")))
    }

    /// Reads the maximum number of entries of a page.
    pub(crate) fn limit(&self) -> Result<usize, Problem> {
        let limit = self.read("limit", |text| match text.parse() {
            Ok(limit) if (1..=limits::PAGE_MAX).contains(&limit) => Ok(limit),
            _ => Err(format!("{text:?} is not a number from 1 to {}", limits::PAGE_MAX)),
        })?;
        Ok(limit.unwrap_or(limits::PAGE_DEFAULT))
    }

    /// Reads a switch. `true` and an empty value switch it on.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        let flag = self.read(name, |text| match text {
            "" | "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("{other:?} is neither true nor false")),
        })?;
        Ok(flag.unwrap_or(false))
    }
}

fn decode(text: &str) -> Result<Cow<'_, str>, Problem> {
    let decoded = if text.contains('+') {
        let spaced = text.replace('+', " ");
        percent_decode_str(&spaced).decode_utf8().map(|text| Cow::Owned(text.into_owned()))
    } else {
        percent_decode_str(text).decode_utf8()
    };
    decoded.map_err(|_| {
        Problem::new(ProblemType::BadAddress, "The query is not UTF-8 after percent-decoding.")
    })
}

pub(crate) fn bad_query(detail: String) -> Problem {
    Problem::new(ProblemType::BadQuery, detail)
}

/// The content type of a body, without its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MediaType {
    Json,
    Ndjson,
    Text,
    Other(String),
    Missing,
}

impl MediaType {
    pub(crate) fn of(headers: &HeaderMap) -> MediaType {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return MediaType::Missing };
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        match text.split(';').next().unwrap_or("").trim() {
            "application/json" => MediaType::Json,
            "application/x-ndjson" => MediaType::Ndjson,
            "text/plain" => MediaType::Text,
            other => MediaType::Other(other.to_owned()),
        }
    }

    /// The problem for this content type. `wanted` says what to send instead.
    pub(crate) fn refuse(&self, wanted: &str) -> Problem {
        let given = match self {
            MediaType::Json => "application/json",
            MediaType::Ndjson => "application/x-ndjson",
            MediaType::Text => "text/plain",
            MediaType::Other(other) => other,
            MediaType::Missing => "missing",
        };
        let detail = format!("The content type is {given}; send {wanted}.");
        Problem::new(ProblemType::ContentType, detail)
    }
}

/// Refuses headers that updates do not support yet.
pub(crate) fn refuse_unsupported(headers: &HeaderMap) -> Result<(), Problem> {
    // A request has few headers: one pass over them costs less than a lookup for each of these names.
    let unsupported = headers.keys().find_map(|name| match name.as_str() {
        "idempotency-key" => Some((name, "Idempotency keys are")),
        "if-match" | "if-none-match" | "if-modified-since" | "if-unmodified-since" => {
            Some((name, "Preconditions on updates are"))
        }
        _ => None,
    });
    match unsupported {
        None => Ok(()),
        Some((name, what)) => Err(Problem::new(
            ProblemType::BadHeader,
            format!("{what} not supported yet; leave out the header {name}."),
        )),
    }
}

/// The media type of `offered` that the client prefers, or the first one if it has no preference.
pub(crate) fn negotiate<'a>(headers: &HeaderMap, offered: &[&'a str]) -> &'a str {
    let mut chosen = (offered[0], quality(headers, offered[0]));
    for &media in &offered[1..] {
        let quality = quality(headers, media);
        if quality > chosen.1 {
            chosen = (media, quality);
        }
    }
    chosen.0
}

/// Whether the client accepts this media type. Without an `Accept` header it accepts all.
pub(crate) fn accepts(headers: &HeaderMap, media: &str) -> bool {
    !headers.contains_key(header::ACCEPT) || quality(headers, media) > 0.0
}

/// The client's preference for a media type, from 0 to 1 (RFC 9110, section 12.5.1).
fn quality(headers: &HeaderMap, media: &str) -> f32 {
    let family = media.split('/').next().unwrap_or("");
    let of_range = |range: &str| {
        let range = range.trim().to_ascii_lowercase();
        let mut parts = range.split(';').map(str::trim);
        let specificity = match parts.next()? {
            exact if exact == media => 3,
            half if half.strip_suffix("/*") == Some(family) => 2,
            "*/*" => 1,
            _ => return None,
        };
        let q = parts.find_map(|part| part.strip_prefix("q="));
        let q: f32 = q.map_or(Some(1.0), |q| q.parse().ok())?;
        Some((specificity, q))
    };
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = values.flat_map(|value| value.split(',')).filter_map(of_range);
    ranges.max_by_key(|(specificity, _)| *specificity).map_or(0.0, |(_, q)| q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn split(query: &str) -> Result<Vec<(String, String)>, String> {
        let params = QueryParams::split(query, &["a", "b"]);
        let owned = |params: QueryParams<'_>| {
            params.0.into_iter().map(|(k, v)| (k.into_owned(), v.into_owned())).collect()
        };
        params.map(owned).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn query_parameters_are_known_and_given_once() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(split("a=1&b=x+y%2B").unwrap(), [pair("a", "1"), pair("b", "x y+")]);
        assert_eq!(split("a&&").unwrap(), [pair("a", "")]);
        assert!(split("c=1").unwrap_err().contains("this endpoint has: a, b"));
        assert!(split("a=1&%61=2").unwrap_err().contains("twice"));
        assert!(split("a=%FF").unwrap_err().contains("UTF-8"));
    }

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
    fn content_types_are_compared_without_case_and_parameters() {
        let of = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            MediaType::of(&HeaderMap::from_iter([(header::CONTENT_TYPE, value)]))
        };
        assert_eq!(of("Application/JSON; charset=utf-8"), MediaType::Json);
        assert_eq!(of("text/plain"), MediaType::Text);
        assert_eq!(of("text/html"), MediaType::Other("text/html".to_owned()));
    }
}
