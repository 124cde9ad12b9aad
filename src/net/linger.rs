//! A connection that its answers can change: how long its client may take nothing, and how it ends if the client may
//! still be sending.
//!
//! Closing a socket with unread bytes of a body resets the connection. A reset takes the answer from a client
//! that has not read it yet: the client would not learn that it was refused. So the pod closes only its own
//! half, and drops what still arrives until the client has read the answer and closes the other half (RFC
//! 9112, section 9.6).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

use crate::limits;

/// Bytes that one read drops.
const SCRAP_BYTES: usize = 64 * 1024;

/// An extension of an answer that is sent before its whole request was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeavesUnread;

/// An extension of an answer that is a stream of watched values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IsWatch;

/// Whether a connection lingers at its end, or has a watch now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Due(Arc<AtomicBool>);

impl Due {
    pub(crate) fn set(&self, is_due: bool) {
        self.0.store(is_due, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection; see the [module documentation](self).
pub(crate) struct Lingering<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    due: Due,
    watch: Due,
    /// Tells the system the limit of now, too.
    set_limit: fn(&S, Duration),
    /// When lingering ends. Set once our half is closed.
    until: Option<Pin<Box<Sleep>>>,
    dropped: usize,
}

impl<S: AsyncRead + AsyncWrite> Lingering<S> {
    /// A connection that lingers at its end if `due` is set by then, and whose client may pause for less time while
    /// `watch` is set. `set_limit` limits the time in which the client's system acknowledges nothing.
    pub(crate) fn new(
        stream: S,
        due: Due,
        watch: Due,
        set_limit: fn(&S, Duration),
    ) -> Lingering<S> {
        let stream = Box::pin(TimeoutStream::new(stream));
        Lingering { stream, due, watch, set_limit, until: None, dropped: 0 }
    }

    /// The stream to write to, with the limit of now. A pause that has begun starts again when its limit changes.
    fn writer(&mut self) -> Pin<&mut TimeoutStream<S>> {
        let is_watch = self.watch.is_set();
        let limit = if is_watch { limits::WATCH_PAUSE_MAX } else { limits::ANSWER_PAUSE_MAX };
        if self.stream.write_timeout() != Some(limit) {
            self.stream.as_mut().set_write_timeout_pinned(Some(limit));
            (self.set_limit)(self.stream.get_ref(), limit);
        }
        self.stream.as_mut()
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.writer().poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Lingering { stream, due, until, dropped, .. } = &mut *self;
        let until = match until {
            Some(until) => until,
            None => {
                ready!(Pin::new(&mut *stream).poll_shutdown(context))?;
                if !due.is_set() {
                    return Poll::Ready(Ok(()));
                }
                until.insert(Box::pin(sleep(limits::LINGER_TIME_MAX)))
            }
        };
        ready!(drop_rest(stream, until, dropped, context));
        Poll::Ready(Ok(()))
    }
}

/// Drops what arrives until its end or a limit. Never inlined: otherwise every poll of a connection would
/// need the scrap buffer on its stack.
#[inline(never)]
fn drop_rest<S: AsyncRead + Unpin>(
    stream: &mut S,
    until: &mut Pin<Box<Sleep>>,
    dropped: &mut usize,
    context: &mut Context<'_>,
) -> Poll<()> {
    // Not zeroed: only the length of what is read matters.
    let mut scrap = [MaybeUninit::uninit(); SCRAP_BYTES];
    while *dropped < limits::LINGER_BYTES_MAX && until.as_mut().poll(context).is_pending() {
        let mut read = ReadBuf::uninit(&mut scrap);
        // An error ends the connection like its regular end: the answer is already sent.
        let result = ready!(Pin::new(&mut *stream).poll_read(context, &mut read));
        if result.is_err() || read.filled().is_empty() {
            break;
        }
        *dropped += read.filled().len();
    }
    Poll::Ready(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn the_client_of_a_watch_may_pause_for_less_time() {
        let (stream, _client) = duplex(1);
        let watch = Due::default();
        let mut stream = Lingering::new(stream, Due::default(), watch.clone(), |_, _| ());
        stream.write_all(b"x").await.expect("room");
        for limit in [limits::ANSWER_PAUSE_MAX, limits::WATCH_PAUSE_MAX, limits::ANSWER_PAUSE_MAX] {
            watch.set(limit == limits::WATCH_PAUSE_MAX);
            let began = Instant::now();
            let error = stream.write_all(b"x").await.expect_err("the client takes nothing");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(began.elapsed().as_secs(), limit.as_secs());
        }
    }
}
