//! HTTP by hand, so that a test can also send what no client library would.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than everything that is not meant to take long.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// One answer.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Headers,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// A header's value; empty if it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The last part of the problem's type.
    pub(crate) fn problem(&self) -> String {
        let problem = serde_json::from_slice::<Value>(&self.body).unwrap_or_default();
        let kind = problem["type"].as_str().unwrap_or_default();
        kind.trim_start_matches("/problems/").to_owned()
    }

    /// All bytes of the answer, for searches.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}\n"));
        [headers.collect::<String>().into_bytes(), self.body.clone()].concat()
    }
}

/// A connection, and the received bytes that are not a whole answer yet.
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    buffer: Vec<u8>,
}

impl Connection<TcpStream> {
    pub(crate) async fn open(port: u16) -> io::Result<Connection<TcpStream>> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection::over(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn over(stream: S) -> Connection<S> {
        Connection { stream, buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next answer. An error if the connection ends before it is complete.
    pub(crate) async fn answer(&mut self) -> io::Result<Answer> {
        let Whole { head, headers, body } = self.whole().await?;
        let status = head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        let status = status.and_then(|digits| digits.parse().ok()).ok_or(ErrorKind::InvalidData)?;
        Ok(Answer { status, headers, body })
    }

    async fn whole(&mut self) -> io::Result<Whole> {
        let mut seen = 0;
        let head_end = loop {
            let end = self.buffer[seen..].windows(4).position(|four| four == b"\r\n\r\n");
            match end {
                Some(end) => break seen + end + 4,
                None => {
                    seen = self.buffer.len().saturating_sub(3);
                    self.fill().await?;
                }
            }
        };
        let head = self.buffer[..head_end].to_vec();
        let headers = headers(&head);
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length = length.and_then(|(_, value)| value.parse::<usize>().ok()).unwrap_or(0);
        while self.buffer.len() < head_end + length {
            self.fill().await?;
        }
        let body = self.buffer[head_end..head_end + length].to_vec();
        self.buffer.drain(..head_end + length);
        Ok(Whole { head, headers, body })
    }

    /// For a server: the next request's head and body.
    pub(crate) async fn request(&mut self) -> io::Result<(String, Vec<u8>)> {
        let whole = self.whole().await?;
        Ok((String::from_utf8_lossy(&whole.head).into_owned(), whole.body))
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn ask(&mut self, request: &[u8]) -> io::Result<Answer> {
        // A server may answer before it has read everything.
        let sent = self.send(request).await;
        let answer = timeout(ANSWER_WITHIN, self.answer()).await;
        let answer = answer.map_err(|_| io::Error::new(ErrorKind::TimedOut, "no answer"))?;
        answer.or_else(|error| sent.and(Err(error)))
    }

    /// Waits until the other side closes the connection, and returns what it sent before.
    pub(crate) async fn ended(&mut self) -> Vec<u8> {
        while self.fill().await.is_ok() {}
        std::mem::take(&mut self.buffer)
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

/// A message with the body length that it declares.
struct Whole {
    head: Vec<u8>,
    headers: Headers,
    body: Vec<u8>,
}

/// Names in lower case, and values.
type Headers = Vec<(String, String)>;

fn headers(head: &[u8]) -> Headers {
    let text = String::from_utf8_lossy(head);
    let lines = text.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect()
}

/// A request as bytes.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl AsRef<[u8]>,
) -> Vec<u8> {
    let body = body.as_ref();
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        text += &format!("content-length: {}\r\n", body.len());
    }
    [text.as_bytes(), b"\r\n", body].concat()
}

/// Sends one request on a new connection.
pub(crate) async fn ask(port: u16, request: &[u8]) -> io::Result<Answer> {
    Connection::open(port).await?.ask(request).await
}

/// A header with the caller's token.
pub(crate) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}
