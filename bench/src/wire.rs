//! HTTP/1.1 at the lowest cost: a keep-alive connection, requests whose bytes are made in advance, and answers of which
//! only the status and the body are parsed.
//!
//! A client library would cost as much as the measured server, and both run on the same two cores.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Headers of an answer that are parsed.
const HEADERS_MAX: usize = 32;

/// Initial size of the buffer, which grows.
const ROOM: usize = 16 * 1024;

/// Longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A keep-alive connection.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

/// The parts of an answer that matter here.
#[derive(Debug)]
pub(crate) struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

/// The bytes of a request.
#[must_use]
pub(crate) fn request(method: &str, path: &str, content_type: &str, body: &str) -> Vec<u8> {
    let content_type = match content_type {
        "" => String::new(),
        media => format!("content-type: {media}\r\n"),
    };
    request_with(method, path, &content_type, body)
}

/// The bytes of a request with these header lines.
#[must_use]
pub(crate) fn request_with(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: bench\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl Connection {
    /// # Errors
    /// If no server listens there.
    pub(crate) async fn open(address: SocketAddr) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("no server listens at {address}"))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, read: Vec::with_capacity(ROOM) })
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    /// If the connection breaks, the answer is late, or this client does not understand it. The connection is unusable
    /// then.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> anyhow::Result<Answer<'_>> {
        let answer = timeout(ANSWER_WITHIN, async {
            self.stream.write_all(request).await?;
            self.receive().await
        });
        let (status, body) = answer.await.context("no answer in time")??;
        Ok(Answer { status, body: &self.read[body..] })
    }

    /// Reads one answer into `self.read`. Returns its status and where its body begins.
    async fn receive(&mut self) -> anyhow::Result<(u16, usize)> {
        self.read.clear();
        loop {
            let count = self.stream.read_buf(&mut self.read).await?;
            ensure!(count > 0, "the connection was closed");
            let Some((status, head, length)) = head_of(&self.read)? else { continue };
            while self.read.len() < head + length {
                let count = self.stream.read_buf(&mut self.read).await?;
                ensure!(count > 0, "the connection was closed within an answer");
            }
            ensure!(
                self.read.len() == head + length,
                "an answer is longer than its content-length"
            );
            return Ok((status, head));
        }
    }
}

/// Status, bytes of the head and bytes of the body, once the head is complete.
fn head_of(bytes: &[u8]) -> anyhow::Result<Option<(u16, usize, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = answer.parse(bytes)? else { return Ok(None) };
    let length = answer.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
    let Some(length) = length else { bail!("an answer without content-length") };
    let length = std::str::from_utf8(length.value)?.parse()?;
    let status = answer.code.context("an answer without a status")?;
    Ok(Some((status, head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn a_head_is_understood_once_it_is_complete() {
        let answer = b"HTTP/1.1 503 Busy\r\nx: y\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(head_of(answer).expect("fine"), Some((503, answer.len() - 2, 2)));
        assert_eq!(head_of(&answer[..20]).expect("fine"), None);
        assert!(head_of(b"HTTP/1.1 200 OK\r\n\r\n").is_err(), "no length");
        assert!(head_of(b"nonsense\r\n\r\n").is_err());
    }

    #[tokio::test]
    async fn answers_in_pieces_are_joined_on_a_kept_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = async {
            let (mut stream, _) = listener.accept().await.expect("a client");
            for body in ["one", "three"] {
                let mut room = [0; 1024];
                let count = stream.read(&mut room).await.expect("a request");
                assert_eq!(&room[..count], request("GET", "/x", "", ""));
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                for piece in [head.as_str(), &body[..2], &body[2..]] {
                    stream.write_all(piece.as_bytes()).await.expect("written");
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        let client = async {
            let mut connection = Connection::open(address).await.expect("a connection");
            for expected in ["one", "three"] {
                let answer = connection.ask(&request("GET", "/x", "", "")).await.expect("fine");
                assert_eq!((answer.status, answer.body), (200, expected.as_bytes()));
            }
        };
        tokio::join!(server, client);
    }
}
