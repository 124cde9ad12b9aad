//! Pictures of numbers: badges of keys, and pictures that count each time they are loaded.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::{BareValue, CounterOp, Op};
use orderfree_core::protocol::{Durability, Key};

use crate::http::api::read;
use crate::http::body::extract;
use crate::http::body::parameters::{NoParams, Parameter, Query, ValueParams, Values, params};
use crate::http::body::schemas::text;
use crate::http::body::wire::Shown;
use crate::http::catalog::ProblemType;
use crate::http::guard::access::{self, KeyPath};
use crate::http::problem::Problem;
use crate::http::state::{AppState, Served};
use crate::policy::Verb;

/// A transparent GIF of one pixel.
const PIXEL: &[u8] = b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\0\0\0!\xf9\x04\x01\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0;";

/// The approximate width of a character of a badge, in pixels.
const CHARACTER_WIDTH: usize = 7;

/// Longest label of a badge, in characters.
const LABEL_MAX: usize = 60;

/// A longer value is cut, in characters.
const VALUE_MAX: usize = 60;

params! {
    /// Query parameters of a badge.
    struct BadgeParams {
        label: Option<String> = LABEL,
    }
}

const LABEL: Parameter<Option<String>> = Parameter {
    name: "label",
    description: "Text on the left (default: the key's name)",
    example: Some("visits"),
    values: Values::Text {
        schema: || text().max_length(Some(LABEL_MAX)),
        parse: |text| match text.chars().count() <= LABEL_MAX {
            true => Ok(Some(text.to_owned())),
            false => Err(format!("it has more than {LABEL_MAX} characters")),
        },
    },
    absent: Some(None),
};

/// Show a key as a badge
///
/// A picture of the key's name and value, for kinds with a bare value that is not a list. An absent `counter` or `sum` shows
/// `0`, an absent key of another kind `none`. Where pods have tokens, the request needs one. An `<img>` can't send a token, so
/// use `/hit` there.
#[utoipa::path(
    get, path = "/v1/{kind}/{group}/{name}/badge.svg", tag = "keys",
    params(KeyPath, BadgeParams),
    responses((status = 200, description = "The badge", content((String = "image/svg+xml"))))
)]
pub(crate) async fn badge(
    State(served): State<Served>,
    path: KeyPath,
    Query(params): Query<BadgeParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    extract::of_read(&headers)?;
    let (key, _) = path.to(Verb::Read)?;
    let value = value(&served.app, &key).await?;
    let label = params.label.as_deref().unwrap_or(key.name.as_str());
    Ok(svg(label, &value, "no-cache"))
}

/// Count with a picture
///
/// Adds 1 to a counter, and shows its number: `.svg` is a badge, `.json` has the number, `.gif` is one transparent pixel.
/// No token is needed. The policy must have a `[[pixel]]` table for the group, which also limits the rate. The request has no
/// id: a picture that a browser or a proxy loads again counts again.
#[utoipa::path(
    get, path = "/hit/{group}/{file}", tag = "keys",
    params(("group" = String, Path, description = "The counter's group", example = "site"),
        ("file" = String, Path, description = "The counter's name, with `.svg`, `.gif` or `.json`", example = "home.svg")),
    responses((status = 200, description = "The picture, or the number", content(
        (String = "image/svg+xml"), (Vec<u8> = "image/gif"), (Hit = "application/json"))))
)]
pub(crate) async fn hit(
    State(served): State<Served>,
    method: Method,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    _params: Query<NoParams>,
) -> Result<Response, Problem> {
    const NO_STORE: (header::HeaderName, &str) = (header::CACHE_CONTROL, "no-store");
    let app = &served.app;
    let Path((group, file)) = path.map_err(|error| access::bad_path(error.status()))?;
    let Some((name, form)) = file.rsplit_once('.') else { return Err(no_form()) };
    if !["svg", "gif", "json"].contains(&form) {
        return Err(no_form());
    }
    let key = access::key_of_pixel(&app.policies, &group, name)?;
    if method != Method::HEAD {
        let op = Op::Counter(CounterOp::Add { by: 1 });
        app.service.update(&key, vec![op], Durability::Stored).await?;
    }
    if form == "gif" {
        return Ok(([(header::CONTENT_TYPE, "image/gif"), NO_STORE], PIXEL).into_response());
    }
    // It has counted: an error would have the client count again.
    let value = value(app, &key).await.ok();
    Ok(match form {
        "svg" => svg(key.name.as_str(), value.as_deref().unwrap_or("?"), NO_STORE.1),
        _ => {
            let hit = format!("{{\"value\":{}}}", value.as_deref().unwrap_or("null"));
            ([(header::CONTENT_TYPE, extract::JSON), NO_STORE], hit).into_response()
        }
    })
}

/// The number after a picture has counted.
#[derive(utoipa::ToSchema)]
#[allow(dead_code, reason = "described, and written by `hit`")]
pub(crate) struct Hit {
    /// Null if the number can't be read now.
    #[schema(example = 1234)]
    value: Option<i64>,
}

fn no_form() -> Problem {
    let detail =
        "The last part of the path is a counter's name with .svg, .gif or .json, such as home.svg.";
    Problem::new(ProblemType::BadAddress, detail)
}

/// The bare value of a key.
async fn value(app: &AppState, key: &Key) -> Result<String, Problem> {
    let read = app.service.read(key, None).await;
    let read = read.map_err(|error| read::problem_of(error, &key.to_string()))?;
    let params = ValueParams::of_numbers(false);
    let is_estimate = !key.kind.about().is_exact;
    let bare = match (key.kind.about().bare_value, &read) {
        (BareValue::Nothing | BareValue::Items, _) => None,
        (_, Some(read)) => Shown::of(&read.state, Some(key), &params).bare(key.kind),
        (BareValue::Whole, None) => Some("0".to_owned()),
        (BareValue::Field(_), None) => Some("none".to_owned()),
    };
    let text = bare.ok_or_else(|| {
        let detail = format!("A badge shows one value, and kind {} has none.", key.kind);
        Problem::new(ProblemType::NotAcceptable, detail)
    })?;
    let text = text.trim_end();
    match text.parse::<f64>() {
        Ok(estimate) if is_estimate => Ok(format!("{estimate:.0}")),
        _ => Ok(text.chars().take(VALUE_MAX).collect()),
    }
}

fn svg(label: &str, value: &str, cache: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml; charset=utf-8"),
        (header::CACHE_CONTROL, cache),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, drawn(label, value)).into_response()
}

fn drawn(label: &str, value: &str) -> String {
    let width = |text: &str| CHARACTER_WIDTH * text.chars().count() + 12;
    let (left, right) = (width(label), width(value));
    let (all, label, value) = (left + right, escaped(label), escaped(value));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"20\" role=\"img\" \
         aria-label=\"{label}: {value}\"><title>{label}: {value}</title>\
         <rect width=\"{left}\" height=\"20\" fill=\"#444\"/>\
         <rect x=\"{left}\" width=\"{right}\" height=\"20\" fill=\"#0b7a68\"/>\
         <g fill=\"#fff\" text-anchor=\"middle\" font-family=\"Verdana,DejaVu Sans,sans-serif\" font-size=\"11\">\
         <text x=\"{}\" y=\"14\">{label}</text><text x=\"{}\" y=\"14\">{value}</text></g></svg>\n",
        left / 2,
        left + right / 2
    )
}

/// Text for an element or an attribute of XML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_badge_shows_any_text_as_text() {
        let svg = drawn("<a & \"b\">", "5");
        assert!(svg.contains("&lt;a &amp; &quot;b&quot;&gt;: 5"), "{svg}");
        assert!(!svg.contains("<a ") && svg.starts_with("<svg "), "{svg}");
    }
}
