//! From a port to requests: it limits connections, speaks TLS, limits the time for headers, and ends in
//! order.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::util::MapResponse;

use crate::limits;
use crate::net::linger::{Due, IsWatch, LeavesUnread, Lingering};
use crate::net::tls::ServerTls;
use crate::runtime::tasks::{Task, Tasks};

/// A port and its settings.
#[derive(Clone)]
pub struct Listener {
    /// The bound port. Other listeners can serve it before and after this one.
    pub port: Arc<TcpListener>,
    /// `None`: without TLS.
    pub tls: Option<Arc<ServerTls>>,
    /// Concurrent connections. Further ones wait to be accepted.
    pub connections_max: usize,
    /// Counts the open connections.
    pub open: Gauge,
    /// Counts the panics of connections.
    pub tasks: Tasks,
}

/// Counts a connection while it is open, however it ends.
struct Open(Gauge);

impl Open {
    fn one(gauge: Gauge) -> Open {
        gauge.inc();
        Open(gauge)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// State that all connections share.
#[derive(Clone)]
struct Shared {
    http: http1::Builder,
    router: Router,
    tls: Option<Arc<ServerTls>>,
}

impl Listener {
    /// Serves until `closing`, then finishes the requests in progress.
    pub async fn serve(self, router: Router, closing: CancellationToken) {
        let Listener { port, tls, connections_max, open, tasks } = self;
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits::HEADER_TIME_MAX)
            .max_buf_size(limits::HEADER_BYTES_MAX);
        let (room, graceful) = (Arc::new(Semaphore::new(connections_max)), GracefulShutdown::new());
        let shared = Shared { http, router, tls };
        loop {
            let next = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit.expect("invariant: the semaphore is never closed"), port.accept().await)
            };
            let (permit, accepted) = tokio::select! {
                biased;
                () = closing.cancelled() => break,
                next = next => next,
            };
            match accepted {
                Ok((stream, _)) => {
                    let (shared, watcher) = (shared.clone(), graceful.watcher());
                    let open = open.clone();
                    tasks.spawn(Task::Connection, async move {
                        let _open = Open::one(open);
                        shared.speak(stream, watcher).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // If no file descriptor is free, a retry at once would fail too.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
        drop(port);
        graceful.shutdown().await;
    }
}

impl Shared {
    async fn speak(self, stream: TcpStream, watcher: Watcher) {
        // An answer is one small packet; waiting for more data would only delay it.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.answer(stream, limit_silence, watcher).await;
        };
        let shake_hands = TlsAcceptor::from(tls.config()).accept(stream);
        match timeout(limits::HANDSHAKE_TIME_MAX, shake_hands).await {
            Ok(Ok(stream)) => {
                let set_limit =
                    |stream: &TlsStream<_>, limit| limit_silence(stream.get_ref().0, limit);
                self.answer(stream, set_limit, watcher).await;
            }
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn answer<S: AsyncRead + AsyncWrite + Send + 'static>(
        self,
        stream: S,
        set_limit: fn(&S, Duration),
        watcher: Watcher,
    ) {
        let (lingers, watch) = (Due::default(), Due::default());
        let stream = Lingering::new(stream, lingers.clone(), watch.clone(), set_limit);
        let stream = TokioIo::new(stream);
        let service = MapResponse::new(self.router, move |answer: Response| {
            if answer.extensions().get::<LeavesUnread>().is_some() {
                lingers.set(true);
            }
            watch.set(answer.extensions().get::<IsWatch>().is_some());
            answer
        });
        let connection = self.http.serve_connection(stream, TowerToHyperService::new(service));
        // An error only means that the client hung up.
        let _ = watcher.watch(connection).await;
    }
}

/// Ends a connection whose client has vanished. Without this limit, the system sends again what the client's system does not
/// acknowledge for about 15 minutes (`tcp_retries2`), and a watch would keep its places for as long.
fn limit_silence(stream: &TcpStream, limit: Duration) {
    let millis = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
}
