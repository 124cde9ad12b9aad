//! The live page at `/`, and the documentation of the HTTP interface at `/docs`. The source of the page is in `page/`. Its
//! built files are part of the program, so nothing is loaded from elsewhere.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::http::api::picture::escaped;
use crate::http::api::read::matches_tag;
use crate::http::body::extract;
use crate::http::openapi;

/// The content security policy: the page can talk only to this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A built file.
struct File {
    media: &'static str,
    bytes: &'static [u8],
    gzip: Bytes,
    tag: String,
}

impl File {
    fn new(media: &'static str, bytes: &'static [u8]) -> File {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(bytes).expect("invariant: writing to memory does not fail");
        let gzip = gzip.finish().expect("invariant: writing to memory does not fail");
        let digest = Sha256::digest(bytes);
        let tag = digest[..8].iter().fold(String::new(), |mut tag, byte| {
            let _ = write!(tag, "{byte:02x}");
            tag
        });
        // Weak, because the file has other bytes when it is compressed.
        File { media, bytes, gzip: gzip.into(), tag: format!("W/\"{tag}\"") }
    }

    fn answer(&'static self, headers: &HeaderMap) -> Response {
        let fixed = [
            (header::CONTENT_TYPE, self.media),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
            (header::ETAG, &self.tag),
        ];
        if matches_tag(headers, &self.tag) {
            return (StatusCode::NOT_MODIFIED, fixed).into_response();
        }
        match headers.get(header::ACCEPT_ENCODING).is_some_and(extract::accepts_gzip) {
            true => {
                let gzip = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
                (fixed, gzip, self.gzip.clone()).into_response()
            }
            false => (fixed, self.bytes).into_response(),
        }
    }
}

/// The live page
///
/// Shows in a browser what this server counts: keys, their values as they change, and the shards behind each number.
#[utoipa::path(
    get, path = "/", tag = "operations",
    responses((status = 200, description = "The page", content((String = "text/html"))))
)]
pub(crate) async fn page(request: Request) -> Response {
    static FILE: LazyLock<File> = LazyLock::new(|| {
        File::new("text/html; charset=utf-8", include_bytes!("../../../page/dist/index.html"))
    });
    FILE.answer(request.headers())
}

/// The script of the live page
#[utoipa::path(
    get, path = "/page/app.js", tag = "operations",
    responses((status = 200, description = "The script", content((String = "text/javascript"))))
)]
pub(crate) async fn script(request: Request) -> Response {
    static FILE: LazyLock<File> = LazyLock::new(|| {
        File::new("text/javascript; charset=utf-8", include_bytes!("../../../page/dist/app.js"))
    });
    FILE.answer(request.headers())
}

/// The styles of the live page
#[utoipa::path(
    get, path = "/page/app.css", tag = "operations",
    responses((status = 200, description = "The styles", content((String = "text/css"))))
)]
pub(crate) async fn styles(request: Request) -> Response {
    static FILE: LazyLock<File> = LazyLock::new(|| {
        File::new("text/css; charset=utf-8", include_bytes!("../../../page/dist/app.css"))
    });
    FILE.answer(request.headers())
}

/// The HTTP interface as a page
///
/// A page with every endpoint, made from `/openapi.json`.
#[utoipa::path(
    get, path = "/docs", tag = "operations",
    responses((status = 200, description = "The page", content((String = "text/html"))))
)]
pub(crate) async fn docs(request: Request) -> Response {
    static FILE: LazyLock<File> = LazyLock::new(|| {
        let page = description(&openapi());
        File::new("text/html; charset=utf-8", Box::leak(page.into_boxed_str()).as_bytes())
    });
    FILE.answer(request.headers())
}

/// Every endpoint of an OpenAPI document: its summary, description, parameters and answers.
fn description(document: &Value) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Orderfree: HTTP</title>\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <link rel=\"stylesheet\" href=\"/page/app.css\">\n</head>\n<body class=\"docs\">\n<main>\n\
         <h1>HTTP</h1>\n<p>For programs: <a href=\"/openapi.json\">/openapi.json</a>. Errors: \
         <a href=\"/problems\">/problems</a>.</p>\n",
    );
    let paths = document["paths"].as_object().into_iter().flatten();
    for (path, item) in paths {
        for (method, operation) in item.as_object().into_iter().flatten() {
            endpoint(&mut page, &method.to_uppercase(), path, operation);
        }
    }
    page + "</main>\n</body>\n</html>\n"
}

fn endpoint(page: &mut String, method: &str, path: &str, operation: &Value) {
    let text = |value: &Value| marked(value.as_str().unwrap_or_default());
    let _ = write!(
        page,
        "<section>\n<h2><code>{method} {}</code></h2>\n<p><strong>{}</strong></p>\n",
        escaped(path),
        text(&operation["summary"])
    );
    for part in text(&operation["description"]).split("\n\n").filter(|part| !part.is_empty()) {
        let _ = writeln!(page, "<p>{part}</p>");
    }
    let mut list = |rows: Vec<(String, String)>| {
        if !rows.is_empty() {
            *page += "<dl>\n";
            for (name, meaning) in rows {
                let _ = writeln!(page, "<dt><code>{name}</code></dt><dd>{meaning}</dd>");
            }
            *page += "</dl>\n";
        }
    };
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let of_query = parameters.filter(|parameter| parameter["in"] != "path");
    list(of_query.map(|one| (text(&one["name"]), text(&one["description"]))).collect());
    let answers = operation["responses"].as_object().into_iter().flatten();
    let answers = answers.filter(|(status, _)| status.starts_with('2'));
    list(answers.map(|(status, one)| (escaped(status), text(&one["description"]))).collect());
    *page += "</section>\n";
}

/// Escaped text. What is between backticks becomes code.
fn marked(text: &str) -> String {
    let mut all = String::new();
    for (at, part) in escaped(text).split('`').enumerate() {
        let _ = match at % 2 {
            0 => write!(all, "{part}"),
            _ => write!(all, "<code>{part}</code>"),
        };
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_names_every_endpoint_and_escapes_texts() {
        let document = openapi();
        let page = description(&document);
        for (path, item) in document["paths"].as_object().expect("paths") {
            for method in item.as_object().expect("methods").keys() {
                let heading = format!("<code>{} {}</code>", method.to_uppercase(), escaped(path));
                assert!(page.contains(&heading), "{heading}");
            }
        }
        assert!(!page.contains("<script") && !page.contains(" style="), "the policy forbids both");
        assert!(!page.contains('`'), "backticks mark code");
        assert_eq!(marked("<a> `x`"), "&lt;a&gt; <code>x</code>");
    }
}
