//! Traces: a collector in the environment gets a span for each request. Without it, nothing is sent.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::machine;
use crate::pod::{Pod, Setup, token};
use crate::wire::{Connection, bearer};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const KEY: &str = "/v1/counter/site/home";

/// The head and the body of a POST.
type Posted = (String, Vec<u8>);

/// A collector that takes spans by OTLP over HTTP.
struct Collector {
    port: u16,
    taken: Arc<Mutex<Vec<Posted>>>,
}

impl Collector {
    /// Whether it answers.
    async fn start(answers: bool) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let taken = Arc::<Mutex<Vec<_>>>::default();
        let all = Arc::clone(&taken);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mut connection, all) = (Connection::over(stream), Arc::clone(&all));
                tokio::spawn(async move {
                    while let Ok((head, body)) = connection.request().await {
                        all.lock().expect("no panic").push((head, body));
                        match answers {
                            true => {
                                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                                connection.send(answer).await.expect("sent");
                            }
                            false => sleep(Duration::from_secs(3_600)).await,
                        }
                    }
                });
            }
        });
        Collector { port, taken }
    }

    fn taken(&self) -> Vec<Posted> {
        self.taken.lock().expect("no panic").clone()
    }

    async fn wait_for(&self, what: &[u8]) -> Vec<u8> {
        let began = Instant::now();
        loop {
            let found = self.taken().into_iter().find(|(_, body)| contains(body, what));
            if let Some((_, body)) = found {
                return body;
            }
            let within = Duration::from_secs(10);
            assert!(began.elapsed() < within, "not within {within:?}: {:?}", self.taken());
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn named_in(&self, setup: Setup) -> Setup {
        let url = format!("http://127.0.0.1:{}", self.port);
        setup.env("OTEL_EXPORTER_OTLP_ENDPOINT", url).env("OTEL_BSP_SCHEDULE_DELAY", 200)
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The bytes as they are in a span.
fn trace_bytes() -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&TRACE[at..at + 2], 16).expect("hexadecimal");
    (0..TRACE.len()).step_by(2).map(digits).collect()
}

/// Names of the process's threads.
fn threads(pod: &Pod) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pod.process())).expect("it runs");
    let names =
        tasks.map(|task| std::fs::read_to_string(task.expect("a task").path().join("comm")));
    names.map_while(Result::ok).map(|name| name.trim().to_owned()).collect()
}

fn exports(pod: &Pod) -> bool {
    threads(pod).iter().any(|name| name.starts_with("OpenTelemetry"))
}

/// The ids of traces in lines of the log with this message.
fn trace_ids(pod: &Pod, message: &str) -> Vec<String> {
    let lines = pod.lines().into_iter().filter(|line| line["message"] == message);
    lines.map(|line| line["trace_id"].as_str().unwrap_or("none").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_of_its_trace_for_the_collector() {
    let collector = Collector::start(true).await;
    let (good, lines) = token("good", &[("", &["read", "write", "admin"])], "");
    let setup = Setup::new().policy(&lines).arg("--unready-grace", "1s");
    let mut pod = collector.named_in(setup).start().await;
    assert!(exports(&pod), "{:?}", threads(&pod));
    let bearer = bearer(&good);
    let headers = [("authorization", bearer.as_str()), ("traceparent", PARENT)];
    assert_eq!(pod.ask("POST", KEY, &headers, "").await.status, 200);
    let span = collector.wait_for(&trace_bytes()).await;
    for part in ["service.name", "orderfree", "POST /v1/{kind}/{group}/{name}"] {
        assert!(contains(&span, part.as_bytes()), "{part} in {}", String::from_utf8_lossy(&span));
    }
    assert!(!contains(&span, b"home"), "keys are in no span: {}", String::from_utf8_lossy(&span));
    for (head, body) in collector.taken() {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        assert!(!contains(&body, good.as_bytes()) && !head.contains(&good), "a token is sent");
    }
    // The client says that it is not sampled.
    let other = format!("00-{}-00f067aa0ba902b7-00", TRACE.replace('4', "5"));
    pod.ask("POST", KEY, &[headers[0], ("traceparent", &other)], "").await;
    // A request without a parent gets its own trace.
    let shards = format!("{KEY}/shards");
    pod.ask("GET", &shards, &[headers[0]], "").await;
    collector.wait_for(b"GET /v1/{kind}/{group}/{name}/shards").await;
    assert_eq!(trace_ids(&pod, "audit")[0].len(), TRACE.len(), "{}", pod.log());
    pod.ask("GET", &shards, &headers, "").await;
    assert_eq!(trace_ids(&pod, "audit")[1], TRACE);

    pod.signal(Signal::TERM);
    pod.logs("unready", Duration::from_secs(2)).await;
    assert_eq!(pod.ask("GET", "/readyz", &headers, "").await.status, 503);
    assert_eq!(trace_ids(&pod, "request"), [TRACE], "{}", pod.log());
    assert_eq!(pod.ended(Duration::from_secs(10)).await.0, Some(0));
    // The remaining spans are sent at the end.
    collector.wait_for(b"GET /readyz").await;
    let unsampled: Vec<u8> = trace_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}").replace('4', "5"))
        .map(|text| u8::from_str_radix(&text, 16).expect("hexadecimal"))
        .collect();
    assert!(!collector.taken().iter().any(|(_, body)| contains(body, &unsampled)));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_only_the_log_has_the_clients_trace() {
    let mut pod = Setup::new().arg("--unready-grace", "1s").start().await;
    assert!(!exports(&pod), "{:?}", threads(&pod));
    let shards = format!("{KEY}/shards");
    for parent in [PARENT, "nonsense"] {
        pod.ask("GET", &shards, &[("traceparent", parent)], "").await;
    }
    pod.get(&shards).await;
    assert_eq!(trace_ids(&pod, "audit"), [TRACE, "none", "none"], "{}", pod.log());
    pod.signal(Signal::TERM);
    pod.logs("unready", Duration::from_secs(2)).await;
    assert_eq!(pod.ask("GET", "/readyz", &[("traceparent", PARENT)], "").await.status, 503);
    assert_eq!(trace_ids(&pod, "request"), [TRACE], "{}", pod.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_has_the_name_that_the_environment_gives() {
    let collector = Collector::start(true).await;
    let setup = Setup::new().env("OTEL_SERVICE_NAME", "counts-of-the-shop");
    let pod = collector.named_in(setup).start().await;
    pod.ask("GET", "/livez", &[("traceparent", PARENT)], "").await;
    let span = collector.wait_for(&trace_bytes()).await;
    assert!(contains(&span, b"counts-of-the-shop"), "{}", String::from_utf8_lossy(&span));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_waits_for_no_collector() {
    let _beside = machine::beside().await;
    let silent = Collector::start(false).await;
    let setup = silent.named_in(Setup::new()).arg("--unready-grace", "60s");
    let mut pod = setup.start().await;
    pod.get("/livez").await;
    silent.wait_for(b"/livez").await;
    pod.signal(Signal::TERM);
    pod.logs("unready", Duration::from_secs(2)).await;
    pod.signal(Signal::TERM);
    let (code, took) = pod.ended(Duration::from_secs(20)).await;
    assert_eq!(code, Some(1), "{}", pod.log());
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// A collector that is away or never answers does not slow down requests, or delay a pod's end for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_delays_no_request() {
    let silent = Collector::start(false).await;
    let away = Setup::new().env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1");
    for setup in [silent.named_in(Setup::new()), away] {
        let mut pod = setup.arg("--unready-grace", "100ms").start().await;
        let began = Instant::now();
        for _ in 0..100 {
            assert_eq!(pod.get("/livez").await.status, 200);
        }
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        pod.signal(Signal::TERM);
        let (code, took) = pod.ended(Duration::from_secs(20)).await;
        assert_eq!(code, Some(0), "{}", pod.log());
        assert!(took < Duration::from_secs(12), "{took:?}");
    }
}
