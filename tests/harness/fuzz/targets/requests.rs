//! Requests as text, so that inputs are easy to read, to write and to mutate:
//!
//! ```text
//! POST /v1/counter/site/home?ack=memory
//! content-type: text/plain
//!
//! 5
//! ---
//! advance 100
//! ---
//! GET /v1/counter/site/home
//! ```
//!
//! Two headers control the sender: `:chunk: 7` sends the body in chunks of seven bytes, without a length. `:gzip: 1`
//! compresses the body.

use std::convert::Infallible;
use std::io::Write;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;

/// Maximum number of requests in one input.
const REQUESTS_MAX: usize = 12;

/// Maximum time of one step.
const ADVANCE_MAX_S: u32 = 100_000;

/// One step of an input.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Advance(u32),
    Send(Sent),
}

/// A request that can be sent several times.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    pub(super) method: Method,
    pub(super) uri: Uri,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
    chunk: Option<usize>,
}

/// The steps of an input. Anything that is not an HTTP request is left out: a server's HTTP library would refuse it
/// before the router sees it.
pub(super) fn parse(input: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = Some(input);
    while let Some(text) = rest.filter(|_| steps.len() < REQUESTS_MAX) {
        let (part, behind) = split(text, b"\n---\n");
        steps.extend(step(part));
        rest = behind;
    }
    steps
}

/// The bytes before a mark, and those after it if there is one.
fn split<'a>(text: &'a [u8], mark: &[u8]) -> (&'a [u8], Option<&'a [u8]>) {
    match text.windows(mark.len()).position(|window| window == mark) {
        Some(at) => (&text[..at], Some(&text[at + mark.len()..])),
        None => (text, None),
    }
}

fn step(part: &[u8]) -> Option<Step> {
    let (line, behind) = split(part, b"\n");
    if let Some(seconds) = line.strip_prefix(b"advance ") {
        let seconds: u32 = std::str::from_utf8(seconds).ok()?.trim().parse().ok()?;
        return Some(Step::Advance(seconds.min(ADVANCE_MAX_S)));
    }
    let (method, uri) = split(line, b" ");
    let mut sent = Sent {
        method: Method::from_bytes(method).ok()?,
        uri: Uri::try_from(uri?).ok()?,
        headers: Vec::new(),
        body: Vec::new(),
        chunk: None,
    };
    let (mut rest, mut is_gzip) = (behind, false);
    while let Some(text) = rest {
        let (line, behind) = split(text, b"\n");
        rest = behind;
        if line.is_empty() {
            sent.body = behind.unwrap_or_default().to_vec();
            break;
        }
        match split(line, b": ") {
            (b":chunk", value) => {
                let size = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
                sent.chunk = Some(size.unwrap_or(1).max(1));
            }
            (b":gzip", _) => is_gzip = true,
            (name, value) => {
                let name = HeaderName::from_bytes(name).ok()?;
                sent.headers.push((name, HeaderValue::from_bytes(value?).ok()?));
            }
        }
    }
    if is_gzip {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&sent.body).expect("memory");
        sent.body = encoder.finish().expect("memory");
        let (name, value) = ("content-encoding", HeaderValue::from_static("gzip"));
        sent.headers.push((HeaderName::from_static(name), value));
    }
    Some(Step::Send(sent))
}

impl Sent {
    pub(super) fn request(&self) -> Request<Body> {
        let body = match self.chunk {
            None => Body::from(self.body.clone()),
            Some(size) => chunked(&self.body, size),
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        request.headers_mut().extend(self.headers.iter().cloned());
        request
    }
}

/// A body in chunks of this size.
pub(super) fn chunked(body: &[u8], size: usize) -> Body {
    let chunks: Vec<_> = body.chunks(size).map(<[u8]>::to_vec).map(Ok::<_, Infallible>).collect();
    Body::from_stream(stream::iter(chunks))
}
