//! The end of a connection whose client may still be sending.
//!
//! To close a socket while bytes of a body lie there unread resets the connection, and a reset takes the
//! answer from a client that has not read it yet: it would not know that it was refused. So only our half
//! is closed, and what still comes is dropped until the client has read the answer and closes the other
//! (RFC 9112, section 9.6).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::limits;

/// How much is dropped by one read.
const SCRAP_BYTES: usize = 64 * 1024;

/// Marks an answer, as its extension, that does not wait for the end of its request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeavesUnread;

/// Whether the end of a connection waits for its client.
#[derive(Debug, Clone, Default)]
pub(crate) struct Due(Arc<AtomicBool>);

impl Due {
    /// From now on it does.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection; see the [module documentation](self).
pub(crate) struct Lingering<S> {
    stream: S,
    due: Due,
    /// Since our half is closed: until when.
    until: Option<Pin<Box<Sleep>>>,
    dropped: usize,
}

impl<S> Lingering<S> {
    /// Lingers in the end only if that is due then.
    pub(crate) fn new(stream: S, due: Due) -> Lingering<S> {
        Lingering { stream, due, until: None, dropped: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Lingering { stream, due, until, dropped } = &mut *self;
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

/// Drops what comes until there is no more, or enough. Never inlined: every poll of a connection would
/// make room for the scrap on its stack.
#[inline(never)]
fn drop_rest<S: AsyncRead + Unpin>(
    stream: &mut S,
    until: &mut Pin<Box<Sleep>>,
    dropped: &mut usize,
    context: &mut Context<'_>,
) -> Poll<()> {
    // Not zeroed: of what is read, only the length is looked at.
    let mut scrap = [MaybeUninit::uninit(); SCRAP_BYTES];
    while *dropped < limits::LINGER_BYTES_MAX && until.as_mut().poll(context).is_pending() {
        let mut read = ReadBuf::uninit(&mut scrap);
        // Whatever ends the reading ends the connection, which has said all it had to say.
        let result = ready!(Pin::new(&mut *stream).poll_read(context, &mut read));
        if result.is_err() || read.filled().is_empty() {
            break;
        }
        *dropped += read.filled().len();
    }
    Poll::Ready(())
}
