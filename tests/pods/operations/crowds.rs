//! Many connections that do nothing or only take. Other clients are served, and memory stays bounded.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use crate::bystanders::Bystander;
use crate::machine;
use crate::pod::{MIB, Pod, Setup, free_port, metric, token};
use crate::wire::{self, Connection, bearer, request};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// How long other clients may wait for their answers meanwhile.
const OTHERS_WAIT: Duration = Duration::from_millis(500);

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_connections_delay_no_request() {
    let _alone = machine::alone().await;
    const IDLE: usize = 10_000;
    /// 32 KiB per connection, and some for the clients that are served.
    const MEMORY: usize = 330 * MIB;
    machine::allow_files(12_000);
    let pod = Setup::new().start().await;
    let (before, began) = (pod.memory(), Instant::now());
    let mut idle = Vec::with_capacity(IDLE);
    for index in 0..IDLE {
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        match index % 3 {
            // One connection that never sends anything, one with incomplete headers, one that was served.
            0 => {}
            1 => connection.send(b"GET /livez HTTP/1.1\r\nx: ").await.expect("sent"),
            _ => {
                let answer = connection.ask(&request("GET", "/livez", &[], "")).await;
                assert_eq!(answer.expect("an answer").status, 200);
            }
        }
        idle.push(connection);
    }
    println!("{IDLE} connections after {:?}", began.elapsed());
    let bystander = Bystander::start(pod.port());
    sleep(Duration::from_secs(2)).await;
    bystander.was_served(OTHERS_WAIT).await;
    let metrics = pod.get("/metrics").await.text();
    let open = usize::try_from(metric(&metrics, "orderfree_connections")).expect("a number");
    assert!((IDLE..IDLE + 10).contains(&open), "{open}");
    let grown = pod.memory() - before;
    println!("{} MiB, {} bytes each", grown / MIB, grown / IDLE);
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
    drop(idle);
    let began = Instant::now();
    while !pod.get("/metrics").await.text().contains("orderfree_connections 1\n") {
        assert!(began.elapsed() < Duration::from_secs(10), "they are forgotten");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_over_the_limit_wait_and_operators_are_answered() {
    let _beside = machine::beside().await;
    let (admins, setup) = (free_port(), Setup::new().arg("--connections-max", 50));
    let pod = setup.arg("--admin-listen", format!("127.0.0.1:{admins}")).start().await;
    let mut taken = Vec::new();
    for _ in 0..50 {
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        let answer = connection.ask(&request("GET", "/livez", &[], "")).await;
        assert_eq!(answer.expect("an answer").status, 200);
        taken.push(connection);
    }
    let mut waiting = Connection::open(pod.port()).await.expect("the system takes it");
    waiting.send(&request("POST", "/v1/counter/g/n", &[], "")).await.expect("sent");
    let early = timeout(Duration::from_millis(700), waiting.answer()).await;
    assert!(early.is_err(), "a connection over the limit was served");
    for path in ["/livez", "/readyz", "/metrics"] {
        let asked = timeout(OTHERS_WAIT, wire::ask(admins, &request("GET", path, &[], ""))).await;
        assert_eq!(asked.expect("in time").expect("an answer").status, 200, "operators' {path}");
    }
    // The open connections continue, and closing one makes room.
    let answer = taken[0].ask(&request("GET", "/livez", &[], "")).await;
    assert_eq!(answer.expect("an answer").status, 200);
    taken.pop();
    let answer = timeout(OTHERS_WAIT, waiting.answer()).await;
    assert_eq!(answer.expect("in time").expect("an answer").status, 200);
}

/// A pod without free descriptors says so, continues with its connections, and accepts new ones as soon as it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_file_descriptors_continues() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let pid = i32::try_from(pod.process()).ok().and_then(rustix::process::Pid::from_raw);
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).expect("it runs");
    let mut first = Connection::open(pod.port()).await.expect("a connection");
    let live = request("GET", "/livez", &[], "");
    assert_eq!(first.ask(&live).await.expect("an answer").status, 200);
    let mut others = Vec::new();
    for _ in 0..100 {
        others.push(
            TcpStream::connect(("127.0.0.1", pod.port())).await.expect("the system takes it"),
        );
    }
    sleep(Duration::from_millis(500)).await;
    for _ in 0..10 {
        assert_eq!(first.ask(&live).await.expect("an answer").status, 200);
    }
    let said = pod.log().matches("could not be accepted").count();
    assert!((1..=20).contains(&said), "{said} lines in half a second: {}", pod.log());
    drop(others);
    let answer = timeout(Duration::from_secs(3), wire::ask(pod.port(), &live)).await;
    assert_eq!(answer.expect("in time").expect("an answer").status, 200);
}

/// Makes a group of values of 250 KB, and returns a request for all of them.
async fn large_group(pod: &Pod) -> Vec<u8> {
    for index in 0..64 {
        let set = json!({"op": "set", "value": "x".repeat(250_000)}).to_string();
        let path = format!("/v1/register/large/{index}");
        assert_eq!(pod.ask("POST", &path, &JSON, &set).await.status, 200);
    }
    request("GET", "/v1/register/large", &[], "")
}

/// Sends a request whose answer is not read. The system buffers almost nothing of it.
async fn ask_and_do_not_read(pod: &Pod, request: &[u8]) -> Connection<TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 * 1024).expect("a small buffer");
    let address = ([127, 0, 0, 1], pod.port()).into();
    let mut reader = Connection::over(socket.connect(address).await.expect("a connection"));
    reader.send(request).await.expect("sent");
    reader
}

/// An unread answer with this many of the values; `None` if it is refused.
async fn unread_answer(pod: &Pod, values: usize) -> Option<Connection<TcpStream>> {
    let list = request("GET", &format!("/v1/register/large?limit={values}"), &[], "");
    let (mut reader, mut head) = (ask_and_do_not_read(pod, &list).await, [0; 12]);
    reader.stream.read_exact(&mut head).await.expect("an answer's beginning");
    head.ends_with(b"200").then_some(reader)
}

/// Clients that request a lot and read nothing must not fill the pod's memory with answers.
#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_do_not_fill_memory() {
    let _beside = machine::beside().await;
    const READERS: usize = 40;
    /// The limit, and the memory of some answers in progress: one has up to 16 MiB of rows.
    const MEMORY: usize = 512 * MIB;
    let pod = Setup::new().start().await;
    let list = large_group(&pod).await;
    let before = pod.memory();
    let bystander = Bystander::start(pod.port());
    let (mut readers, mut most) = (Vec::new(), before);
    for _ in 0..READERS {
        readers.push(ask_and_do_not_read(&pod, &list).await);
        sleep(Duration::from_millis(20)).await;
        most = most.max(pod.memory());
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        most = most.max(pod.memory());
        sleep(Duration::from_millis(20)).await;
    }
    let (grown, left) = (most - before, pod.memory().saturating_sub(before));
    println!("{READERS} unread answers: {} MiB at most, {} MiB now", grown / MIB, left / MIB);
    assert!(grown <= MEMORY, "{} MiB more", grown / MIB);
    bystander.was_served(2 * OTHERS_WAIT).await;
}

/// An update whose answer finds no room is still counted. Its client must not be told that it was refused.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_without_room_for_its_answer_is_not_called_refused() {
    let _beside = machine::beside().await;
    const UPDATES: u64 = 1_000;
    let pod = Setup::new().start().await;
    large_group(&pod).await;
    let mut readers = Vec::new();
    while let Some(reader) = unread_answer(&pod, 40).await {
        readers.push(reader);
        assert!(readers.len() < 60, "there is no limit");
    }
    // Closing one makes room for an answer that takes nearly everything that is left.
    readers.pop();
    sleep(Duration::from_millis(300)).await;
    let mut last = None;
    for values in (20..=63).rev() {
        last = unread_answer(&pod, values).await;
        if last.is_some() {
            break;
        }
    }
    assert!(last.is_some(), "{} answers wait", readers.len());
    // Its answer is longer than the room that is left.
    let long = "n".repeat(250);
    let update = json!({"kind": "counter", "group": "g", "name": long, "op": {"op": "add"}});
    let batch = json!({"updates": vec![update; 1_000]}).to_string();
    let answer = pod.ask("POST", "/v1/batch", &JSON, &batch).await;
    let value = pod.count(&format!("/v1/counter/g/{long}")).await;
    let is_so = match (answer.status, answer.text()) {
        (200, text) => text.matches(r#""outcome":"acked""#).count() as u64 == value,
        (_, text) if text.contains(r#""outcome":"unknown""#) => value <= UPDATES,
        _ => value == 0,
    };
    let said: String = answer.text().chars().take(300).collect();
    assert!(is_so, "{value} were counted, and the answer was {} {said}", answer.status);
}

/// Streams with almost no data take all of their room, but no other room: further streams are shed at once, while whole
/// bodies, reads and probes work.
#[tokio::test(flavor = "multi_thread")]
async fn silent_streams_block_no_whole_body() {
    let _beside = machine::beside().await;
    let pod = Setup::new().start().await;
    let bystander = Bystander::start(pod.port());
    let mut streams = Vec::new();
    let head = "POST /v1/batch HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-ndjson\r\n\
                transfer-encoding: chunked\r\n\r\n1\r\n\n\r\n";
    for _ in 0..300 {
        let mut stream = Connection::open(pod.port()).await.expect("a connection");
        stream.send(head.as_bytes()).await.expect("sent");
        streams.push(stream);
    }
    sleep(Duration::from_millis(500)).await;
    let value = json!({"op": "set", "value": "x".repeat(250_000)}).to_string();
    let answer = pod.ask("POST", "/v1/register/g/n", &JSON, &value).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let last = streams.last_mut().expect("some");
    let answer = timeout(OTHERS_WAIT, last.answer()).await.expect("in time").expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (503, "overloaded"));
    assert_eq!(answer.header("retry-after"), "1");
    bystander.was_served(OTHERS_WAIT).await;
}

/// However many streams one token opens, other tokens have room for theirs.
#[tokio::test(flavor = "multi_thread")]
async fn the_streams_of_one_token_leave_room_for_those_of_others() {
    let _beside = machine::beside().await;
    let (many, lines) = token("many", &[("", &["write"])], "");
    let (other, more) = token("other", &[("", &["write"])], "");
    let pod = Setup::new().policy(&(lines + &more)).start().await;
    let head = |token: &str| {
        format!(
            "POST /v1/batch HTTP/1.1\r\nhost: a\r\nauthorization: {}\r\ncontent-type: application/x-ndjson\r\n\
             transfer-encoding: chunked\r\n\r\n",
            bearer(token)
        )
    };
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = Connection::open(pod.port()).await.expect("a connection");
        stream.send(format!("{}1\r\n\n\r\n", head(&many)).as_bytes()).await.expect("sent");
        streams.push(stream);
    }
    let last = streams.last_mut().expect("some");
    let answer = timeout(OTHERS_WAIT, last.answer()).await.expect("in time").expect("an answer");
    assert_eq!((answer.status, answer.problem().as_str()), (429, "too-fast"), "{}", answer.text());
    assert!(!answer.header("retry-after").is_empty());
    let update = r#"{"kind":"counter","group":"g","name":"n","op":{"op":"add"}}"#;
    let mut stream = Connection::open(pod.port()).await.expect("a connection");
    let body = format!("{:x}\r\n{update}\r\n0\r\n\r\n", update.len());
    stream.send(format!("{}{body}", head(&other)).as_bytes()).await.expect("sent");
    let answer = timeout(OTHERS_WAIT, stream.answer()).await.expect("in time").expect("an answer");
    assert_eq!((answer.status, &answer.json()["acked"]), (200, &json!(1)), "{}", answer.text());
}

/// Requests over the limit of concurrent requests are refused at once, and the others are done.
#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_are_shed_and_probes_are_answered() {
    let _beside = machine::beside().await;
    const MOST: usize = 10;
    let pod = Setup::new().arg("--requests-max", MOST).start().await;
    let body = r#"{"op":"add"}"#;
    let all = request("POST", "/v1/counter/g/n", &JSON, body);
    let (head, rest) = all.split_at(all.len() - 1);
    let mut taken = Vec::new();
    for _ in 0..MOST {
        let mut connection = Connection::open(pod.port()).await.expect("a connection");
        connection.send(head).await.expect("sent");
        taken.push(connection);
    }
    sleep(Duration::from_millis(300)).await;
    for _ in 0..3 {
        let answer = timeout(OTHERS_WAIT, pod.ask("POST", "/v1/counter/g/n", &JSON, body));
        let answer = answer.await.expect("at once");
        assert_eq!((answer.status, answer.problem().as_str()), (503, "overloaded"));
        assert_eq!(answer.header("retry-after"), "1");
        assert_eq!(pod.get("/livez").await.status, 200);
    }
    for mut connection in taken {
        connection.send(rest).await.expect("sent");
        assert_eq!(connection.answer().await.expect("an answer").status, 200);
    }
    assert_eq!(pod.count("/v1/counter/g/n").await, MOST as u64);
}
