//! Large answers that wait for their readers. They share one memory limit. They are sent in pieces, so that
//! the server knows how much a slow reader has not taken yet.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use thiserror::Error;
use tokio::time::Instant;

use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;
use crate::limits;

/// Answers up to this size pass unchanged.
const SMALL_BYTES: u64 = 64 * 1024;

/// Bytes of one piece.
const PIECE_BYTES: usize = 64 * 1024;

/// The memory limit for the answers of all listeners.
pub(crate) struct Answers(MemoryBudget);

impl Answers {
    pub(crate) fn new(bytes_max: usize) -> Answers {
        Answers(MemoryBudget::new(bytes_max))
    }

    /// Reserves memory for a large answer, or returns a problem if there is none. It does not wait.
    pub(crate) async fn hold(&self, answer: Response) -> Response {
        let size = answer.body().size_hint().exact();
        let Some(size) = size.filter(|&size| size > SMALL_BYTES) else { return answer };
        let size = usize::try_from(size).expect("invariant: it is in memory");
        let Some(room) = self.0.take(size) else {
            let detail = "Too many large answers wait here for slow readers; send the request again in \
                          a second.";
            return Problem::new(ProblemType::Overloaded, detail).into_response();
        };
        let (parts, body) = answer.into_parts();
        // The whole body is already in memory.
        match to_bytes(body, usize::MAX).await {
            Ok(rest) => Response::from_parts(parts, Body::new(Held::new(rest, room))),
            Err(_) => {
                Problem::new(ProblemType::Internal, "The answer could not be made.").into_response()
            }
        }
    }
}

/// The rest of an answer.
struct Held {
    rest: Bytes,
    until: Instant,
    _room: MemoryPermit,
}

/// A reader was so slow that other answers need the memory.
#[derive(Debug, Error)]
#[error("the answer was not taken in time")]
struct TooSlow;

impl Held {
    fn new(rest: Bytes, room: MemoryPermit) -> Held {
        Held { rest, until: Instant::now() + limits::ANSWER_TIME_MAX, _room: room }
    }
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = TooSlow;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if Instant::now() > self.until {
            return Poll::Ready(Some(Err(TooSlow)));
        }
        let piece = PIECE_BYTES.min(self.rest.len());
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
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
    use futures::StreamExt;

    fn answer(bytes: usize) -> Response {
        vec![b'x'; bytes].into_response()
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_too_slowly_gets_no_end_and_gives_the_room_back() {
        let answers = Answers::new(1024 * 1024);
        let mut first = answers.hold(answer(700 * 1024)).await.into_body().into_data_stream();
        assert!(first.next().await.expect("a piece").is_ok());
        tokio::time::advance(limits::ANSWER_TIME_MAX + limits::ANSWER_PAUSE_MAX).await;
        assert!(first.next().await.expect("an end").is_err());
        drop(first);
        assert_eq!(answers.hold(answer(700 * 1024)).await.status().as_u16(), 200);
    }

    #[tokio::test]
    async fn large_answers_share_their_room_until_they_are_read() {
        let answers = Answers::new(1024 * 1024);
        let first = answers.hold(answer(700 * 1024)).await;
        assert_eq!(first.body().size_hint().exact(), Some(700 * 1024));
        let second = answers.hold(answer(700 * 1024)).await;
        assert_eq!(second.status().as_u16(), 503);
        assert_eq!(answers.hold(answer(10)).await.status().as_u16(), 200, "small ones need none");
        let read = to_bytes(first.into_body(), usize::MAX).await.expect("bytes");
        assert!(read.len() == 700 * 1024 && read.iter().all(|&byte| byte == b'x'));
        assert_eq!(answers.hold(answer(700 * 1024)).await.status().as_u16(), 200);
    }
}
