//! Clients that are slow on purpose. Each connection is closed at its time limit, not before and not much later, while
//! other clients are served. They run concurrently, because the longest limit is more than a minute.

use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{SockFilter, SockRef};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::bystanders::Bystander;
use crate::pod::{Setup, metric};
use crate::wire::{Answer, Connection, request};

/// Limit until headers are complete, and between requests.
const HEADERS: Duration = Duration::from_secs(75);

/// Limit until a body is complete, and of silence in a stream.
const BODY: Duration = Duration::from_secs(30);

/// Limit until a reader takes more of its answer.
const WRITE: Duration = Duration::from_secs(30);

/// Limit until the client of a watch takes more of it.
const WATCH: Duration = Duration::from_secs(10);

/// Time between two signs of life on a watch.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Number of values of 250 KB in an answer: more than the system buffers for a connection.
const LARGE: usize = 60;

/// Number of watched values of 30 KB: more than the system buffers for a connection.
const WATCHED: usize = 300;

/// Additional time on a loaded machine.
const MORE: Duration = Duration::from_secs(8);

/// How many clients of each sort there are.
const CLIENTS: usize = 5;

/// How a slow client continues.
enum Then {
    Silence,
    /// It sends one byte per second.
    Drip(&'static [u8]),
}

struct Slow {
    name: &'static str,
    begins: Vec<u8>,
    /// Whether the first bytes are a request, which is answered first.
    is_answered: bool,
    then: Then,
    limit: Duration,
    /// The status of its last answer and the type of the problem; `None` if the connection just ends.
    last: Option<(u16, &'static str)>,
}

impl Slow {
    async fn is_ended_in_time(&self, port: u16) {
        let Slow { name, limit, .. } = self;
        let mut connection = Connection::open(port).await.expect("a connection");
        connection.send(&self.begins).await.expect("sent");
        if self.is_answered {
            assert_eq!(connection.answer().await.expect("an answer").status, 200, "{name}");
        }
        let began = Instant::now();
        let (answer, rest) = timeout(*limit + MORE, self.drag_on(&mut connection))
            .await
            .unwrap_or_else(|_| panic!("{name}: not ended after {:?}", began.elapsed()));
        let took = began.elapsed();
        assert!(took >= *limit - Duration::from_secs(2), "{name}: ended after {took:?} already");
        let got = answer.as_ref().map(|answer| (answer.status, answer.problem()));
        let expected = self.last.map(|(status, problem)| (status, problem.to_owned()));
        assert_eq!(got, expected, "{name}: {}", String::from_utf8_lossy(&rest));
        println!("{name}: ended after {took:?}");
    }

    /// Continues until the server closes the connection. Returns the answer, and the bytes after it.
    async fn drag_on(&self, connection: &mut Connection<TcpStream>) -> (Option<Answer>, Vec<u8>) {
        if let Then::Drip(bytes) = self.then {
            for byte in bytes.iter().cycle() {
                if let Ok(answer) = timeout(Duration::from_secs(1), connection.answer()).await {
                    return match answer {
                        Ok(answer) => (Some(answer), connection.ended().await),
                        Err(_) => (None, connection.ended().await),
                    };
                }
                if connection.send(&[*byte]).await.is_err() {
                    break;
                }
            }
        }
        let answer = connection.answer().await.ok();
        (answer, connection.ended().await)
    }
}

fn post(headers: &str) -> Vec<u8> {
    format!("POST /v1/counter/slow/n HTTP/1.1\r\nhost: a\r\n{headers}\r\n").into_bytes()
}

fn slow_clients() -> Vec<Slow> {
    let stream = "POST /v1/batch HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-ndjson\r\n\
                  transfer-encoding: chunked\r\n\r\n";
    let line = r#"{"kind":"counter","group":"slow","name":"n","op":{"op":"add"}}"#;
    let chunk = format!("{:x}\r\n{line}\n\r\n", line.len() + 1);
    let head = b"POST /v1/counter/slow/n HTTP/1.1\r\nx: ";
    let slow = |name, begins: Vec<u8>, then, limit, last| {
        let is_answered = begins.starts_with(b"GET");
        Slow { name, begins, is_answered, then, limit, last }
    };
    vec![
        slow("one that sends nothing", Vec::new(), Then::Silence, HEADERS, None),
        slow("a header a byte at a time", head.to_vec(), Then::Drip(b"x"), HEADERS, None),
        slow("blank lines before a request", b"\r\n".to_vec(), Then::Drip(b"\r\n"), HEADERS, None),
        slow("no further request", request("GET", "/livez", &[], ""), Then::Silence, HEADERS, None),
        slow(
            "a body a byte at a time",
            post("content-type: text/plain\r\ncontent-length: 1000\r\n"),
            Then::Drip(b"1"),
            BODY,
            Some((408, "body-too-slow")),
        ),
        slow(
            "a body that does not come",
            post("content-type: text/plain\r\ncontent-length: 1\r\n"),
            Then::Silence,
            BODY,
            Some((408, "body-too-slow")),
        ),
        slow(
            "chunks that do not come",
            post("content-type: text/plain\r\ntransfer-encoding: chunked\r\n"),
            Then::Silence,
            BODY,
            Some((408, "body-too-slow")),
        ),
        slow(
            "a stream that falls silent",
            [stream.as_bytes(), chunk.as_bytes()].concat(),
            Then::Silence,
            BODY,
            Some((400, "bad-body")),
        ),
    ]
}

/// Sends a request and reads nothing until after this limit.
async fn takes_nothing(port: u16, path: &str, limit: Duration) -> Connection<TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("a small buffer");
    let address = ([127, 0, 0, 1], port).into();
    let mut reader = Connection::over(socket.connect(address).await.expect("a connection"));
    reader.send(&request("GET", path, &[], "")).await.expect("sent");
    sleep(limit + MORE).await;
    reader
}

/// Watches many values and reads nothing. Otherwise the stream would never end.
async fn a_watcher_that_takes_nothing_is_ended(port: u16) {
    let mut watcher = takes_nothing(port, "/v1/watch?group=register/watched", WATCH).await;
    let rest = timeout(MORE, watcher.ended()).await.expect("the stream is ended");
    assert!(rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    assert!(rest.len() < WATCHED * 30_000, "the whole stream was there: {} bytes", rest.len());
}

/// Requests a large answer, reads nothing, and then finds only a part of it, because the connection was closed.
async fn a_reader_that_takes_nothing_is_ended(port: u16) {
    let mut reader = takes_nothing(port, "/v1/register/large", WRITE).await;
    let answer = timeout(MORE, reader.answer()).await.expect("the connection is ended");
    assert!(answer.is_err(), "the whole answer was there after {:?}", WRITE + MORE);
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_ended_at_their_time_limits_without_harm() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    let bystander = Bystander::start(port);
    for (group, count, bytes) in [("large", LARGE, 250_000), ("watched", WATCHED, 30_000)] {
        for index in 0..count {
            let set = json!({"op": "set", "value": "x".repeat(bytes)}).to_string();
            let headers = [("content-type", "application/json")];
            let path = format!("/v1/register/{group}/{index}");
            assert_eq!(pod.ask("POST", &path, &headers, &set).await.status, 200);
        }
    }
    let mut all = Vec::new();
    for _ in 0..CLIENTS {
        all.push(tokio::spawn(a_reader_that_takes_nothing_is_ended(port)));
        all.push(tokio::spawn(a_watcher_that_takes_nothing_is_ended(port)));
        for slow in slow_clients() {
            all.push(tokio::spawn(async move { slow.is_ended_in_time(port).await }));
        }
        sleep(Duration::from_millis(200)).await;
    }
    for one in all {
        one.await.expect("ended in time");
    }
    // Other tests may overload the machine meanwhile.
    bystander.was_served(Duration::from_secs(5)).await;
    // The complete line of the silent stream counts, the incomplete one does not.
    assert_eq!(pod.count("/v1/counter/slow/n").await, CLIENTS as u64);
}

/// Its machine does not even acknowledge what arrives, as after a power failure.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_has_vanished_leaves_its_places() {
    let pod = Setup::new().start().await;
    let mut watcher = Connection::open(pod.port()).await.expect("a connection");
    watcher.send(&request("GET", "/v1/watch?key=counter/g/n", &[], "")).await.expect("sent");
    assert_eq!(watcher.answer().await.expect("an answer").status, 200);
    let watched = async || metric(&pod.get("/metrics").await.text(), "orderfree_watched_keys");
    assert_eq!(watched().await, 1);
    const BPF_RETURN: u16 = 6;
    let drops_all = [SockFilter::new(BPF_RETURN, 0, 0, 0)];
    SockRef::from(&watcher.stream).attach_filter(&drops_all).expect("a filter");
    let began = Instant::now();
    while watched().await > 0 {
        assert!(began.elapsed() < HEARTBEAT + WATCH + MORE, "it still has its place");
        sleep(Duration::from_millis(100)).await;
    }
    println!("ended after {:?}", began.elapsed());
}
