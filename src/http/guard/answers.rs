//! Large answers that wait for their readers. They share one memory limit. They are sent in pieces, so that
//! the server knows how much a slow reader has not taken yet. They are compressed on the way if the reader
//! accepts that: each piece when it is sent, so that no other request waits long for its turn.

use std::io::Write;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body::{Frame, SizeHint};
use thiserror::Error;
use tokio::task::coop;
use tokio::time::Instant;

use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::http::body::extract::{self, BYTES};
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

/// Smaller answers are never compressed: they fit into one packet.
const COMPRESSED_BYTES_MIN: u64 = 1024;

/// Answers up to this size need no memory of the limit. They are compressed at once.
const SMALL_BYTES: u64 = 64 * 1024;

/// Bytes of one piece.
const PIECE_BYTES: usize = 64 * 1024;

/// Bytes that are compressed in one step, in about 30 µs. A connection makes up to 128 steps before others have
/// their turn: tokio's budget of a task.
const STEP_BYTES: usize = 8 * 1024;

/// Memory of a compressor, rounded up.
const COMPRESSOR_BYTES: usize = 512 * 1024;

/// The memory limit for the answers of all listeners.
pub(crate) struct Answers(MemoryBudget);

impl Answers {
    pub(crate) fn new(bytes_max: usize) -> Answers {
        Answers(MemoryBudget::new(bytes_max))
    }

    /// Reserves memory for a large answer, or returns a problem if there is none. It does not wait. `accepted`
    /// is the request's `Accept-Encoding`.
    pub(crate) async fn hold(
        &self,
        mut answer: Response,
        accepted: Option<HeaderValue>,
    ) -> Response {
        let size = answer.body().size_hint().exact();
        let Some(size) = size.filter(|&size| size >= COMPRESSED_BYTES_MIN) else { return answer };
        let gzip = compressor(answer.headers_mut(), accepted);
        if size <= SMALL_BYTES {
            let Some(gzip) = gzip else { return answer };
            return with_body(answer, |bytes| compressed(gzip, &bytes).into()).await;
        }
        let size = usize::try_from(size).expect("invariant: it is in memory");
        let needed = size + gzip.as_ref().map_or(0, |_| COMPRESSOR_BYTES);
        let Some(room) = self.0.take(needed) else {
            let detail = "Too many large answers wait here for slow readers; send the request again in \
                          a second.";
            return Problem::new(ProblemType::Overloaded, detail).into_response();
        };
        with_body(answer, |bytes| Body::new(AnswerBody::new(bytes, gzip, room))).await
    }
}

/// Changes the body of an answer, which is already in memory.
async fn with_body(answer: Response, body_of: impl FnOnce(Bytes) -> Body) -> Response {
    let (parts, body) = answer.into_parts();
    match to_bytes(body, usize::MAX).await {
        Ok(bytes) => Response::from_parts(parts, body_of(bytes)),
        Err(_) => {
            Problem::new(ProblemType::Internal, "The answer could not be made.").into_response()
        }
    }
}

type Gzip = GzEncoder<Vec<u8>>;

/// The compressor of an answer whose client accepts that. The headers say so. Sketches are dense already.
fn compressor(headers: &mut HeaderMap, accepted: Option<HeaderValue>) -> Option<Gzip> {
    if headers.get(header::CONTENT_TYPE).is_some_and(|media| media == BYTES) {
        return None;
    }
    headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    accepted.filter(extract::accepts_gzip)?;
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    // The fastest level leaves an eighth of a page at 300 MB/s. The default would leave a tenth at 60 MB/s.
    Some(GzEncoder::new(Vec::new(), Compression::fast()))
}

const IN_MEMORY: &str = "invariant: writing to memory does not fail";

fn compressed(mut gzip: Gzip, bytes: &[u8]) -> Vec<u8> {
    gzip.write_all(bytes).expect(IN_MEMORY);
    gzip.finish().expect(IN_MEMORY)
}

/// The rest of an answer.
struct AnswerBody {
    rest: Bytes,
    /// Until the end, if the answer is compressed.
    gzip: Option<Gzip>,
    until: Instant,
    _room: MemoryPermit,
}

/// A reader was so slow that other answers need the memory.
#[derive(Debug, Error)]
#[error("the answer was not taken in time")]
struct TooSlow;

impl AnswerBody {
    fn new(rest: Bytes, gzip: Option<Gzip>, room: MemoryPermit) -> AnswerBody {
        AnswerBody { rest, gzip, until: Instant::now() + limits::ANSWER_TIME_MAX, _room: room }
    }

    /// The next bytes of a compressed answer. It can take many steps until there are some.
    fn poll_compressed(&mut self, mut gzip: Gzip, context: &mut Context<'_>) -> Poll<Bytes> {
        loop {
            let Poll::Ready(turn) = coop::poll_proceed(context) else {
                self.gzip = Some(gzip);
                return Poll::Pending;
            };
            turn.made_progress();
            let step = self.rest.split_to(STEP_BYTES.min(self.rest.len()));
            if self.rest.is_empty() {
                return Poll::Ready(compressed(gzip, &step).into());
            }
            gzip.write_all(&step).expect(IN_MEMORY);
            let bytes = mem::take(gzip.get_mut());
            if !bytes.is_empty() {
                self.gzip = Some(gzip);
                return Poll::Ready(bytes.into());
            }
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = TooSlow;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if Instant::now() > self.until {
            return Poll::Ready(Some(Err(TooSlow)));
        }
        let piece = match self.gzip.take() {
            Some(gzip) => ready!(self.poll_compressed(gzip, context)),
            None => {
                let piece = PIECE_BYTES.min(self.rest.len());
                self.rest.split_to(piece)
            }
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.gzip {
            Some(_) => SizeHint::new(),
            None => SizeHint::with_exact(self.rest.len() as u64),
        }
    }
}

/// The limit of every pod.
impl Default for Answers {
    fn default() -> Answers {
        Answers::new(limits::ANSWERS_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use futures::StreamExt;
    use std::io::Read;
    use std::pin::pin;

    fn answer(bytes: usize) -> Response {
        ([(header::CONTENT_TYPE, "text/plain")], vec![b'x'; bytes]).into_response()
    }

    /// An answer that can't be compressed much.
    fn noise(bytes: usize) -> Response {
        let byte = |at: usize| (at * at / 7 + at).to_le_bytes()[0];
        ([(header::CONTENT_TYPE, "text/plain")], (0..bytes).map(byte).collect::<Vec<u8>>())
            .into_response()
    }

    fn gzip() -> Option<HeaderValue> {
        Some(HeaderValue::from_static("gzip"))
    }

    fn unpack(bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        GzDecoder::new(bytes).read_to_end(&mut all).expect("gzip");
        all
    }

    #[tokio::test]
    async fn answers_of_any_size_are_compressed_if_the_client_accepts_it() {
        let answers = Answers::new(64 * 1024 * 1024);
        for make in [answer, noise] {
            for size in [0, 1, 1023, 1024, 65_536, 65_537, 65_536 + STEP_BYTES, 3_000_000] {
                let plain = answers.hold(make(size), None).await;
                let answer = answers.hold(make(size), gzip()).await;
                let is_packed = size >= 1024;
                for answer in [&plain, &answer] {
                    assert_eq!(answer.headers().contains_key(header::VARY), is_packed, "{size}");
                }
                assert!(!plain.headers().contains_key(header::CONTENT_ENCODING));
                let encoding = answer.headers().get(header::CONTENT_ENCODING);
                assert_eq!(encoding.is_some(), is_packed, "{size}");
                let plain = to_bytes(plain.into_body(), usize::MAX).await.expect("bytes");
                let exact = answer.body().size_hint().exact();
                let bytes = to_bytes(answer.into_body(), usize::MAX).await.expect("bytes");
                assert!(exact.is_none_or(|exact| exact == bytes.len() as u64), "{size}");
                let bytes = if is_packed { unpack(&bytes) } else { bytes.to_vec() };
                assert!(bytes == plain, "{size}");
            }
        }
        let sketch = ([(header::CONTENT_TYPE, BYTES)], vec![b'x'; 2_000]).into_response();
        let sketch = answers.hold(sketch, gzip()).await;
        assert!(!sketch.headers().contains_key(header::CONTENT_ENCODING));
    }

    #[tokio::test(start_paused = true)]
    async fn a_compressed_answer_takes_room_and_is_cut_off_like_any_other() {
        let answers = Answers::new(1024 * 1024 + COMPRESSOR_BYTES);
        let mut first =
            answers.hold(noise(700 * 1024), gzip()).await.into_body().into_data_stream();
        assert!(first.next().await.expect("a piece").is_ok());
        let second = answers.hold(noise(700 * 1024), gzip()).await;
        assert_eq!(second.status().as_u16(), 503, "the rest of the first is in memory");
        tokio::time::advance(limits::ANSWER_TIME_MAX + limits::ANSWER_PAUSE_MAX).await;
        assert!(first.next().await.expect("an end").is_err());
        drop(first);
        assert_eq!(answers.hold(noise(700 * 1024), gzip()).await.status().as_u16(), 200);
    }

    #[tokio::test]
    async fn other_tasks_have_their_turn_while_an_answer_is_compressed() {
        let bytes = 16 * 1024 * 1024;
        let large = Answers::new(2 * bytes).hold(answer(bytes), gzip()).await;
        let mut read = pin!(to_bytes(large.into_body(), usize::MAX));
        let mut turns = 0;
        while futures::poll!(read.as_mut()).is_pending() {
            turns += 1;
            tokio::task::yield_now().await;
        }
        assert!(turns + 1 >= bytes / STEP_BYTES / 128, "{turns}");
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_too_slowly_gets_no_end_and_gives_the_room_back() {
        let answers = Answers::new(1024 * 1024);
        let mut first = answers.hold(answer(700 * 1024), None).await.into_body().into_data_stream();
        assert!(first.next().await.expect("a piece").is_ok());
        tokio::time::advance(limits::ANSWER_TIME_MAX + limits::ANSWER_PAUSE_MAX).await;
        assert!(first.next().await.expect("an end").is_err());
        drop(first);
        assert_eq!(answers.hold(answer(700 * 1024), None).await.status().as_u16(), 200);
    }

    #[tokio::test]
    async fn large_answers_share_their_room_until_they_are_read() {
        let answers = Answers::new(1024 * 1024);
        let first = answers.hold(answer(700 * 1024), None).await;
        assert_eq!(first.body().size_hint().exact(), Some(700 * 1024));
        let second = answers.hold(answer(700 * 1024), None).await;
        assert_eq!(second.status().as_u16(), 503);
        assert_eq!(
            answers.hold(answer(10), None).await.status().as_u16(),
            200,
            "small ones need none"
        );
        let read = to_bytes(first.into_body(), usize::MAX).await.expect("bytes");
        assert!(read.len() == 700 * 1024 && read.iter().all(|&byte| byte == b'x'));
        assert_eq!(answers.hold(answer(700 * 1024), None).await.status().as_u16(), 200);
    }
}
