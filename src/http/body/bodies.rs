//! Request bodies: a limit on the memory of all bodies together, and a limit on the time until one is
//! complete.
//!
//! A body reserves a little memory before its first byte is read and more as it arrives. It releases all of
//! it when the request no longer needs the body. So a body that is declared but never arrives holds almost
//! nothing. No request waits for memory: such a queue would itself be bounded only by memory. Streams can
//! last long, so they have a separate budget: any number of them leaves the budget of whole bodies alone.

use std::ops::Deref;
use std::{io, iter};

use async_compression::tokio::bufread::GzipDecoder;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{self, HeaderMap};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};
use tokio_util::io::{ReaderStream, StreamReader};

use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

/// The most bytes that a body reserves before it arrives.
const FIRST_BYTES: usize = 8 * 1024;

/// Compressed bytes that are read before other requests get their turn. An empty gzip member costs time and gives no
/// bytes, so the readers behind the decoder can't count it.
const DECODED_AT_ONCE: usize = 1024;

/// The memory that all bodies in progress share.
#[derive(Debug)]
pub(crate) struct Bodies {
    whole: MemoryBudget,
    streams: MemoryBudget,
}

/// A whole body. It holds its reservation as long as it is in memory.
#[derive(Debug, Default)]
pub(crate) struct Received {
    bytes: Vec<u8>,
    /// None for an empty body.
    _room: Option<MemoryPermit>,
}

impl Deref for Received {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Bodies {
    pub(crate) fn new(whole_bytes_max: usize, streams_bytes_max: usize) -> Bodies {
        Bodies {
            whole: MemoryBudget::new(whole_bytes_max),
            streams: MemoryBudget::new(streams_bytes_max),
        }
    }

    /// Reserves the most memory that the lines of a stream take. Also returns a permit of nothing, which grows
    /// with the stream's summary.
    ///
    /// # Errors
    /// Too little memory is free.
    pub(crate) fn stream(&self, body: &Body) -> Result<(MemoryPermit, MemoryPermit), Problem> {
        let length = length(body).unwrap_or(usize::MAX);
        let lines = self.streams.take(length.min(limits::NDJSON_HELD_BYTES_MAX));
        lines.zip(self.streams.take(0)).ok_or_else(no_room)
    }

    /// Reads a whole body of up to `bytes_max` bytes.
    ///
    /// # Errors
    /// The body is too large, is not complete in time or ends early, or too little memory is free.
    pub(crate) async fn read(
        &self,
        headers: &HeaderMap,
        body: Body,
        bytes_max: usize,
    ) -> Result<Received, Problem> {
        check_declared(headers, bytes_max)?;
        if body.is_end_stream() {
            return Ok(Received::default());
        }
        let length = length(&body);
        let first = length.unwrap_or(usize::MAX).min(FIRST_BYTES);
        // Do not begin to read a body that will not fit.
        if !self.whole.has(length.unwrap_or(first)) {
            return Err(no_room());
        }
        let mut room = self.whole.take(first).ok_or_else(no_room)?;
        let until = Instant::now() + limits::BODY_TIME_MAX;
        let mut stream = body.into_data_stream();
        // A growing vector would take up to twice its bytes. Unwritten capacity takes no memory.
        let mut bytes = Vec::with_capacity(length.unwrap_or(0).min(bytes_max));
        while let Some(chunk) = timeout_at(until, stream.next()).await.map_err(|_| too_slow())? {
            let chunk = chunk.map_err(|_| cut_off())?;
            if bytes.len() + chunk.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            room.grow(bytes.len() + chunk.len()).ok_or_else(no_room)?;
            bytes.extend_from_slice(&chunk);
        }
        let mark = bytes.len() - without_mark(&bytes).len();
        bytes.drain(..mark);
        room.shrink(bytes.len());
        Ok(Received { bytes, _room: Some(room) })
    }
}

/// The text without the byte order mark that some editors and languages write before it.
pub(crate) fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// The length that a body declares.
fn length(body: &Body) -> Option<usize> {
    body.size_hint().exact().and_then(|length| usize::try_from(length).ok())
}

/// The body without its encoding, which is removed from the headers. Gzip is decoded, with any number of
/// members.
///
/// # Errors
/// The body has another encoding.
pub(crate) fn decoded(headers: &mut HeaderMap, body: Body) -> Result<Body, Problem> {
    // RFC 9110, section 8.4.1.3: both names mean the same.
    let names: [&[u8]; 2] = [b"gzip", b"x-gzip"];
    let mut codings = codings(headers);
    let is_gzip = match (codings.next(), codings.next()) {
        (None, _) => return Ok(body),
        (Some(only), None) => names.iter().any(|name| only.eq_ignore_ascii_case(name)),
        (Some(_), Some(_)) => false,
    };
    drop(codings);
    if !is_gzip {
        let detail = "The Content-Encoding of the body is not supported; send the body with gzip, applied \
                      once, or without an encoding.";
        return Err(Problem::new(ProblemType::ContentType, detail).accepting("gzip"));
    }
    headers.remove(header::CONTENT_ENCODING);
    let chunks = body.into_data_stream().map_err(io::Error::other);
    let pieces =
        chunks.map_ok(|chunk| stream::iter(pieces(chunk).map(io::Result::Ok))).try_flatten();
    let in_turn = pieces.and_then(async |piece| {
        yield_now().await;
        Ok(piece)
    });
    let mut decoder = GzipDecoder::new(StreamReader::new(in_turn));
    decoder.multiple_members(true);
    Ok(Body::from_stream(ReaderStream::new(decoder)))
}

fn pieces(mut chunk: Bytes) -> impl Iterator<Item = Bytes> {
    iter::from_fn(move || {
        let len = chunk.len().min(DECODED_AT_ONCE);
        (len > 0).then(|| chunk.split_to(len))
    })
}

/// The encodings of a body, first to last. `identity` is none.
fn codings(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let codings = values.flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    let codings = codings.map(<[u8]>::trim_ascii);
    codings.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

/// Refuses a body by its headers alone: because of its declared length, or of an encoding.
pub(crate) fn check_declared(headers: &HeaderMap, bytes_max: usize) -> Result<(), Problem> {
    if codings(headers).next().is_some() {
        let detail = "This endpoint reads only bodies without Content-Encoding; only POST /v1/batch \
                      accepts gzip.";
        return Err(Problem::new(ProblemType::ContentType, detail).accepting("identity"));
    }
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match declared.and_then(|text| text.parse::<usize>().ok()) {
        Some(bytes) if bytes > bytes_max => Err(too_large(bytes_max)),
        _ => Ok(()),
    }
}

pub(crate) fn too_large(bytes_max: usize) -> Problem {
    let detail = format!("The body is limited to {bytes_max} bytes; split it.");
    Problem::new(ProblemType::BodyTooLarge, detail)
}

pub(crate) fn cut_off() -> Problem {
    let detail =
        "The body ended early, or its gzip encoding is damaged or followed by other bytes.";
    Problem::new(ProblemType::BadBody, detail)
}

fn no_room() -> Problem {
    let detail = "The bodies of the requests in progress here use all the memory for bodies; \
                  send the request again in a second.";
    Problem::new(ProblemType::Overloaded, detail)
}

fn too_slow() -> Problem {
    let seconds = limits::BODY_TIME_MAX.as_secs();
    let detail = format!("The body was not complete within {seconds} s; send the request again.");
    Problem::new(ProblemType::BodyTooSlow, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::{Frame, SizeHint};

    const UNIT: usize = limits::ROOM_UNIT_BYTES;

    fn chunked(bytes: &'static [u8]) -> Body {
        Body::from_stream(stream::iter([Ok::<_, std::io::Error>(bytes)]))
    }

    #[tokio::test]
    async fn a_complete_body_keeps_only_the_room_of_its_bytes() {
        let (bodies, headers) = (Bodies::new(20 * UNIT, 0), HeaderMap::new());
        let read = async |body| bodies.read(&headers, body, 40 * UNIT).await;
        let first = read(chunked(b"first")).await.expect("room");
        assert_eq!((&*first, bodies.whole.free()), (&b"first"[..], 19));
        let second = read(Body::from(vec![b'x'; 15 * UNIT])).await.expect("room");
        assert_eq!(bodies.whole.free(), 4);
        for body in [chunked(b"x"), Body::from(vec![b'x'; 5 * UNIT])] {
            let refused = read(body).await.expect_err("no room");
            assert_eq!(refused.kind(), ProblemType::Overloaded);
            assert_eq!(bodies.whole.free(), 4);
        }
        assert!(read(Body::empty()).await.expect("an empty body needs no room").is_empty());
        drop((first, second));
        assert_eq!(bodies.whole.free(), 20);
    }

    /// A body that declares this length and panics when it is read.
    struct Untouched(u64);

    impl HttpBody for Untouched {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            panic!("it was read");
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test]
    async fn a_body_that_declares_more_than_fits_is_refused_unread() {
        let (bodies, headers) = (Bodies::new(20 * UNIT, 0), HeaderMap::new());
        let body = Body::new(Untouched(21 * UNIT as u64));
        let refused = bodies.read(&headers, body, 40 * UNIT).await.expect_err("no room");
        assert_eq!(refused.kind(), ProblemType::Overloaded);
        assert_eq!(bodies.whole.free(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_goes_on_too_long_is_given_up_and_so_is_its_room() {
        let (bodies, began) = (Bodies::new(20 * UNIT, 0), Instant::now());
        let drip = stream::unfold((), |()| async {
            tokio::time::sleep(limits::BODY_TIME_MAX / 8).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let body = Body::from_stream(Box::pin(drip));
        let refused = bodies.read(&HeaderMap::new(), body, 4 * UNIT).await.expect_err("too slow");
        assert_eq!(refused.kind(), ProblemType::BodyTooSlow);
        assert_eq!(began.elapsed().as_secs(), limits::BODY_TIME_MAX.as_secs());
        assert_eq!(bodies.whole.free(), 20);
    }
}
