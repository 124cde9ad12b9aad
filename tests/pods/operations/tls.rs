//! HTTPS: the program's clients can connect, refuse wrong servers, and nothing that strangers send to the port does
//! harm.

use std::io;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orderfree::net::tls::client_config;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::Authority;
use crate::pod::{MIB, Pod, Setup, run, token};
use crate::wire::{self, Connection, request};

/// Longest time of a handshake, with some reserve.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(12);

/// Connects by TLS with this server name, and trusts the authority in this file.
pub(crate) async fn connect(
    port: u16,
    authority: &Path,
    name: &str,
) -> io::Result<Connection<TlsStream<TcpStream>>> {
    let config = client_config(authority, None).map_err(io::Error::other)?;
    connect_by(port, Arc::new(config), name).await
}

/// Connects by TLS with this configuration.
pub(crate) async fn connect_by(
    port: u16,
    config: Arc<ClientConfig>,
    name: &str,
) -> io::Result<Connection<TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let name = name.to_owned().try_into().expect("a name");
    let connected = TlsConnector::from(config).connect(name, stream);
    let connected = timeout(HANDSHAKE_WITHIN, connected).await;
    Ok(Connection::over(connected.map_err(io::Error::other)??))
}

/// The certificate that the server showed.
pub(crate) fn shown(connection: &Connection<TlsStream<TcpStream>>) -> Vec<u8> {
    let certificates = connection.stream.get_ref().1.peer_certificates();
    certificates.expect("a certificate")[0].to_vec()
}

/// A pod that serves HTTPS as `localhost` and requires a token.
pub(crate) struct Guarded {
    pub(crate) pod: Pod,
    pub(crate) authority: Authority,
    pub(crate) token: String,
}

impl Guarded {
    pub(crate) async fn start() -> Guarded {
        let (token, lines) = token("all", &[("", &["read", "write", "admin"])], "");
        let setup = Setup::new().policy(&lines);
        let authority = Authority::new(&setup.path("ca"));
        let own = authority.sign("own", "DNS:localhost");
        let setup = setup.arg("--tls-cert", own.certificate.display());
        let pod = setup.arg("--tls-key", own.key.display()).start().await;
        Guarded { pod, authority, token }
    }

    /// Runs a command of a client.
    async fn client(&self, arguments: &[&str], host: &str, authority: &Path) -> Output {
        let url = format!("https://{host}:{}", self.pod.port());
        let authority = authority.display().to_string();
        let tail = ["--url", &url, "--ca", &authority, "--token", &self.token];
        run(&[arguments, &tail].concat(), &[]).await
    }

    async fn is_well(&self) {
        let connection = connect(self.pod.port(), &self.authority.certificate, "localhost").await;
        let answer = connection.expect("TLS").ask(&request("GET", "/livez", &[], "")).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_counts_and_reads_by_https_with_a_token() {
    let guarded = Guarded::start().await;
    let authority = &guarded.authority.certificate;
    let added = guarded.client(&["add", "counter/site/home", "5"], "localhost", authority).await;
    assert_eq!(
        (said(&added.stdout).as_str(), added.status.code()),
        ("acked", Some(0)),
        "{added:?}"
    );
    let got = guarded.client(&["get", "counter/site/home"], "localhost", authority).await;
    assert_eq!((said(&got.stdout).as_str(), got.status.code()), ("5", Some(0)), "{got:?}");

    let url = format!("https://localhost:{}", guarded.pod.port());
    let authority = authority.display().to_string();
    let without = run(&["get", "counter/site/home", "--url", &url, "--ca", &authority], &[]).await;
    assert_eq!(without.status.code(), Some(1), "{without:?}");
    assert!(said(&without.stderr).contains("requires a token"), "{without:?}");
    let file = guarded.pod.setup.write("token", format!("{}\n", guarded.token));
    let file = file.display().to_string();
    let environment = [
        ("ORDERFREE_URL", url.as_str()),
        ("ORDERFREE_CA", &authority),
        ("ORDERFREE_TOKEN_FILE", &file),
    ];
    let got = run(&["get", "counter/site/home"], &environment).await;
    assert_eq!(said(&got.stdout), "5", "{got:?}");
    // For probes inside a container, with any address.
    let url = format!("https://127.0.0.1:{}", guarded.pod.port());
    let health = run(&["health", "--url", &url], &[]).await;
    assert_eq!(health.status.code(), Some(0), "{health:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_wrong_certificate_is_refused_with_a_reason() {
    let guarded = Guarded::start().await;
    let own = &guarded.authority.certificate;
    let other = Authority::new(&guarded.pod.setup.path("other")).certificate;
    for (host, authority) in [("localhost", &other), ("127.0.0.1", own)] {
        for arguments in [&["get", "counter/site/home"][..], &["add", "counter/site/home"]] {
            let output = guarded.client(arguments, host, authority).await;
            let error = said(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{arguments:?} {host}: {output:?}");
            assert!(
                error.to_lowercase().contains("certificate"),
                "{host} by {}: the error does not say that it is the certificate: {error}",
                authority.display()
            );
            assert!(!error.contains(&guarded.token), "{error}");
        }
    }
    let missing = guarded.pod.setup.path("nowhere.pem");
    let output = guarded.client(&["get", "counter/site/home"], "localhost", &missing).await;
    assert!(said(&output.stderr).contains("nowhere.pem"), "{output:?}");
    let answer = guarded.client(&["get", "counter/site/home"], "localhost", own).await;
    assert_eq!(answer.status.code(), Some(3), "nothing was counted: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn http_at_the_tls_port_and_tls_at_the_http_port_do_no_harm() {
    let (guarded, plain) = (Guarded::start().await, Setup::new().start().await);
    let (before, before_plain) = (guarded.pod.memory(), plain.memory());
    for _ in 0..200 {
        let mut confused = Connection::open(guarded.pod.port()).await.expect("a connection");
        confused.send(&request("POST", "/v1/counter/g/n", &[], "")).await.expect("sent");
        let ended = timeout(Duration::from_secs(3), confused.ended()).await.expect("it is ended");
        assert!(!ended.starts_with(b"HTTP"), "{ended:?}");
        let refused = connect(plain.port(), &guarded.authority.certificate, "localhost").await;
        assert!(refused.is_err(), "no TLS there");
    }
    guarded.is_well().await;
    assert_eq!(plain.get("/readyz").await.status, 200);
    let grown = (guarded.pod.memory() - before).max(plain.memory() - before_plain) / MIB;
    assert!(grown <= 32, "{grown} MiB more");
    for pod in [&guarded.pod, &plain] {
        let log = pod.log();
        assert_eq!(log.lines().count(), 1, "strangers can't fill the log: {log}");
    }
}

/// Other clients are served meanwhile, and a handshake that stalls is ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_stalls_is_ended() {
    let guarded = Guarded::start().await;
    // The head of a ClientHello of 512 bytes, which never arrive.
    let beginning = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let began = Instant::now();
    let mut stalled = Vec::new();
    for index in 0..50 {
        let mut connection = Connection::open(guarded.pod.port()).await.expect("a connection");
        connection.send(&beginning[..index % beginning.len()]).await.expect("sent");
        stalled.push(connection);
    }
    guarded.is_well().await;
    for connection in &mut stalled {
        let ended = timeout(HANDSHAKE_WITHIN.saturating_sub(began.elapsed()), connection.ended());
        assert!(ended.await.is_ok(), "not ended after {:?}", began.elapsed());
    }
    assert!(began.elapsed() > Duration::from_secs(5), "a slow client has some time");
    guarded.is_well().await;
}

/// A client that speaks plain HTTP gets nothing, not even a redirect that would make it send its token again.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_answered_in_clear_text_at_the_tls_port() {
    let guarded = Guarded::start().await;
    let answer = wire::ask(guarded.pod.port(), &request("GET", "/livez", &[], "")).await;
    assert!(answer.is_err(), "{answer:?}");
}
