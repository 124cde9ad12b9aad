//! Secrets of tools that open a store, ask a pod or signal it, and of collectors of traces.

use std::fs::File;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::sleep;

use super::{NO_SERVER, PASSWORD, PASSWORD_IN_FILE, Secrets, search};
use crate::certificates::Authority;
use crate::pod::{Setup, run, token};
use crate::wire::Connection;

/// Runs a command of the program with a file as its standard input.
async fn feed(arguments: &[&str], environment: &[(&str, &str)], input: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orderfree"));
    command.args(arguments).env_clear().envs(environment.iter().copied());
    let output = command.stdin(File::open(input).expect("a file")).kill_on_drop(true).output();
    output.await.expect("the program runs")
}

/// Tools that open their own store, ask a pod that requires a token, or signal it.
#[tokio::test(flavor = "multi_thread")]
async fn no_tool_prints_a_password_or_a_token() {
    let (token, lines) = token("a", &[("", &["read", "write", "admin"])], "");
    let setup = Setup::new().policy(&lines).env("RUST_LOG", "trace");
    let mut pod = setup.start().await;
    let (url, away) = (format!("http://127.0.0.1:{}", pod.port()), format!("http://{NO_SERVER}"));
    let token_file = setup.write("token", format!("{token}\n"));
    let password_file = setup.write("password", format!("{PASSWORD_IN_FILE}\n"));
    let key = Authority::new(&setup.path("ca")).sign("own", "DNS:localhost").key;
    let data = setup.path("tool.redb").display().to_string();
    let mut secrets = Secrets::default();
    secrets.plant("a token", &token);
    secrets.plant("the password", PASSWORD);
    secrets.plant("the password of the file", PASSWORD_IN_FILE);
    secrets.plant_key(&key);
    let mut search = search(secrets);
    let environment = [
        ("RUST_LOG", "trace"),
        ("ORDERFREE_DATA", data.as_str()),
        ("ORDERFREE_TOKEN", token.as_str()),
        ("ORDERFREE_CASSANDRA_PASSWORD", PASSWORD),
    ];
    for (line, code) in [
        ("doctor", 1),
        ("import", 0),
        ("doctor", 0),
        ("fold --once", 0),
        ("export", 0),
        ("export --kind nonsense", 2),
        (&format!("doctor --url {url}"), 0),
        (&format!("doctor --url {away}"), 1),
        (&format!("doctor --url https://127.0.0.1:{}", pod.port()), 1),
        (&format!("reload {}", pod.id()), 0),
        (&format!("reload {}", i32::MAX), 1),
    ] {
        let output = run(&line.split(' ').collect::<Vec<_>>(), &environment).await;
        assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
        search.look_at(&format!("`{line}`"), &output);
    }
    // The wrong file as input.
    for line in ["import", "convert"] {
        for file in [&token_file, &password_file, &key, &setup.path("policy.toml")] {
            let output = feed(&[line], &environment, file).await;
            assert_eq!(output.status.code(), Some(1), "{line}: {output:?}");
            search.look_at(&format!("`{line}` of {}", file.display()), &output);
        }
    }
    let token_file = token_file.display().to_string();
    for (line, code) in [
        (&["doctor", "--url", &url, "--token", &token][..], 0),
        (&["doctor", "--url", &url, "--token-file", &token_file], 0),
        (&["doctor", "--url", &away, "--url", &url, "--token", &token], 1),
        (&["doctor", "--url", &url, "--token", &format!("{token}\u{7f}")], 1),
        (&["doctor", "--url", "https://localhost:1", "--ca", &token_file, "--token", &token], 1),
        (&["doctor", "--url", &url, "--token", &token, "--token-file", &token_file], 2),
    ] {
        let output = run(line, &environment[..2]).await;
        assert_eq!(output.status.code(), Some(code), "{line:?}: {output:?}");
        search.look_at(&format!("`doctor` of {} words", line.len()), &output);
    }
    // A password as part of an address, as for a proxy.
    for host in [NO_SERVER, &format!("127.0.0.1:{}", pod.port())] {
        for scheme in ["http", "https"] {
            let address = format!("{scheme}://user:{PASSWORD}@{host}");
            for line in [
                &["doctor"][..],
                &["get", "counter/g/n"],
                &["add", "counter/g/n", "--no-retry"],
                &["health"],
            ] {
                let output = run(&[line, &["--url", &address]].concat(), &environment[..2]).await;
                search.look_at(&format!("`{}` of {scheme}://…@{host}", line[0]), &output);
            }
        }
    }
    for address in
        [format!("http://user:{PASSWORD}@{NO_SERVER}"), format!("user:{PASSWORD}@{NO_SERVER}")]
    {
        let output =
            run(&["load", "--ready-within", "1s", "--url", &address], &environment[..2]).await;
        assert_ne!(output.status.code(), Some(0), "{output:?}");
        search.look_at("`load`", &output);
    }
    pod.logs("reloaded", Duration::from_secs(5)).await;
    search.look("the log of the pod that was asked", pod.log().as_bytes());
    search.found_nothing();
}

/// A server that refuses each POST and keeps its head.
async fn refusing_collector() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let kept = Arc::clone(&heads);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut connection = Connection::over(stream);
            while let Ok((head, _)) = connection.request().await {
                kept.lock().expect("no panic").push(head);
                let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
                connection.send(answer).await.expect("sent");
            }
        }
    });
    (format!("http://{address}"), heads)
}

/// A collector's credentials, in headers that the environment has.
#[tokio::test(flavor = "multi_thread")]
async fn a_collectors_headers_are_sent_only_to_it() {
    let mut secrets = Secrets::default();
    secrets.plant("the collector's token", PASSWORD);
    let mut search = search(secrets);
    let (refusing, heads) = refusing_collector().await;
    let away = format!("http://{NO_SERVER}");
    let right = format!("authorization=Bearer%20{PASSWORD},x-tenant=shop");
    for (endpoint, headers) in [
        (&refusing, right.clone()),
        (&away, right.clone()),
        // A likely mistake.
        (&refusing, format!("Bearer {PASSWORD}")),
        (&refusing, format!("authorization: Bearer {PASSWORD}")),
        (&refusing, format!("authorization=Bearer {PASSWORD}\u{7f}")),
        (&refusing, format!("authorization=%ff{PASSWORD}")),
        (&refusing, format!("{PASSWORD}=authorization ä")),
        (&format!("https://{NO_SERVER}"), right.clone()),
        (&"nonsense".to_owned(), right),
    ] {
        let setup = Setup::new().env("RUST_LOG", "trace").env("OTEL_BSP_SCHEDULE_DELAY", 50);
        let setup = setup.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint);
        let setup = setup.env("OTEL_EXPORTER_OTLP_HEADERS", &headers);
        let mut pod = setup.arg("--unready-grace", "100ms").start().await;
        let told = heads.lock().expect("no panic").len();
        search.look("an answer", &pod.ask("POST", "/v1/counter/g/n", &[], "").await.bytes());
        let began = Instant::now();
        while *endpoint == refusing && heads.lock().expect("no panic").len() == told {
            assert!(began.elapsed() < Duration::from_secs(10), "no span of {headers}");
            sleep(Duration::from_millis(20)).await;
        }
        pod.signal(Signal::TERM);
        assert_eq!(pod.ended(Duration::from_secs(20)).await.0, Some(0), "{}", pod.log());
        assert!(pod.log().contains("\"DEBUG\""), "the log has everything");
        let place = format!("the log with the collector {endpoint} and {headers:?}");
        search.look(&place, pod.log().as_bytes());
        let environment = [
            ("RUST_LOG", "trace"),
            ("ORDERFREE_DATA", &pod.setup.path("rows.redb").display().to_string()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_HEADERS", &headers),
        ];
        search.look_at("`fold --once`", &run(&["fold", "--once"], &environment).await);
    }
    let heads = heads.lock().expect("no panic");
    assert!(heads.iter().any(|head| head.contains(&format!("Bearer {PASSWORD}\r\n"))), "{heads:?}");
    search.found_nothing();
}
