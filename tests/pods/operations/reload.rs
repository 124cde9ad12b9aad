//! SIGHUP reloads tokens, quotas and the certificate while the pod serves.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;

use crate::certificates::Authority;
use crate::pod::{Pod, Setup, token};
use crate::tls;
use crate::wire::{bearer, request};

const ALL: &[(&str, &[&str])] = &[("", &["read", "write", "admin"])];
const WITHIN: Duration = Duration::from_secs(5);

async fn status(pod: &Pod, token: &str) -> u16 {
    let bearer = bearer(token);
    pod.ask("POST", "/v1/counter/g/n", &[("authorization", &bearer)], "").await.status
}

/// Reloads the files, and waits until this one is done. Returns its line of the log.
async fn reload(pod: &mut Pod, what: &str) -> Value {
    let before = pod.lines().len();
    pod.signal(Signal::HUP);
    let began = Instant::now();
    loop {
        let line = pod.lines().into_iter().skip(before).find(|line| line["what"] == what);
        if let Some(line) = line {
            return line;
        }
        assert!(began.elapsed() < WITHIN, "nothing is said of the {what}: {}", pod.log());
        sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a line says that this file can't be used.
fn refuses(line: &Value, file: &str) -> bool {
    line["level"] == "ERROR" && line["message"].as_str().is_some_and(|text| text.contains(file))
}

/// The number of reloads with this result.
async fn reloads(pod: &Pod, token: &str, result: &str) -> u64 {
    let bearer = bearer(token);
    let metrics = pod.ask("GET", "/metrics", &[("authorization", &bearer)], "").await.text();
    let line = format!("orderfree_policy_reloads_total{{result=\"{result}\"}} ");
    let found = metrics.lines().find_map(|text| text.strip_prefix(&line));
    found.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("{line} in {metrics}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_accepted_and_an_old_one_refused() {
    let (old, old_lines) = token("old", ALL, "");
    let (new, new_lines) = token("new", ALL, "");
    let mut pod = Setup::new().policy(&old_lines).start().await;
    assert_eq!((status(&pod, &old).await, status(&pod, &new).await), (200, 401));
    pod.setup.write("policy.toml", &new_lines);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(
        (status(&pod, &old).await, status(&pod, &new).await),
        (200, 401),
        "the pod must not reload by itself"
    );
    reload(&mut pod, "policy").await;
    assert_eq!((status(&pod, &old).await, status(&pod, &new).await), (401, 200));
    assert!(reloads(&pod, &new, "ok").await >= 1);
    assert_eq!(reloads(&pod, &new, "refused").await, 0);
    assert_eq!(pod.count_as(&new).await, 3, "what was counted before is there");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_file_changes_nothing_and_is_logged() {
    let (old, lines) = token("old", ALL, "");
    let (new, new_lines) = token("new", ALL, "");
    let mut pod = Setup::new().policy(&lines).start().await;
    let broken = [
        format!("{new_lines}\n[[token]]\nname = "),
        format!("{new_lines}\n{new_lines}"),
        format!("{new_lines}\n[[tokens]]\n"),
    ];
    for (count, broken) in (1..).zip(&broken) {
        pod.setup.write("policy.toml", broken);
        let said = reload(&mut pod, "policy").await;
        assert!(refuses(&said, "policy.toml"), "{said}");
        assert_eq!((status(&pod, &old).await, status(&pod, &new).await), (200, 401));
        assert_eq!(reloads(&pod, &old, "refused").await, count);
    }
    std::fs::remove_file(pod.setup.path("policy.toml")).expect("it was there");
    reload(&mut pod, "policy").await;
    assert_eq!(status(&pod, &old).await, 200, "a file that is gone changes nothing either");
    // An empty file is valid: it gives access to no token, and does not open the pod.
    pod.setup.write("policy.toml", "");
    reload(&mut pod, "policy").await;
    assert_eq!(status(&pod, &old).await, 401);
    assert_eq!(pod.ask("POST", "/v1/counter/g/n", &[], "").await.status, 401);
    pod.setup.write("policy.toml", &lines);
    reload(&mut pod, "policy").await;
    assert_eq!((status(&pod, &old).await, reloads(&pod, &old, "refused").await), (200, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_used_for_later_connections() {
    let setup = Setup::new();
    let authority = Authority::new(&setup.path("ca"));
    let first = authority.sign("first", "DNS:localhost");
    let setup = setup.arg("--tls-cert", first.certificate.display());
    let setup = setup.arg("--tls-key", first.key.display());
    let mut pod = setup.start().await;
    let mut early =
        tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    assert_eq!(tls::shown(&early), first.der());

    let second = authority.sign("second", "DNS:localhost");
    assert_ne!(first.der(), second.der());
    first.replace_by(&second);
    let said = reload(&mut pod, "certificate").await;
    assert_eq!(said["level"], "INFO", "{said}");
    let mut late =
        tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    assert_eq!(tls::shown(&late), second.der());
    for connection in [&mut early, &mut late] {
        let answer = connection.ask(&request("GET", "/livez", &[], "")).await;
        assert_eq!(answer.expect("an answer").status, 200);
    }

    // The key of another certificate.
    let third = authority.sign("third", "DNS:localhost");
    std::fs::copy(&third.key, &first.key).expect("a copy");
    let said = reload(&mut pod, "certificate").await;
    assert!(refuses(&said, "first.pem"), "{said}");
    let again = tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    assert_eq!(tls::shown(&again), second.der());
}

/// A certificate that expires soon must not depend on another file without mistakes.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_policy_does_not_keep_a_new_certificate_out() {
    let (good, lines) = token("good", ALL, "");
    let setup = Setup::new().policy(&lines);
    let authority = Authority::new(&setup.path("ca"));
    let first = authority.sign("first", "DNS:localhost");
    let setup = setup.arg("--tls-cert", first.certificate.display());
    let mut pod = setup.arg("--tls-key", first.key.display()).start().await;
    pod.setup.write("policy.toml", "[[token]]\nname = ");
    let second = authority.sign("second", "DNS:localhost");
    first.replace_by(&second);
    let said = reload(&mut pod, "policy").await;
    assert!(refuses(&said, "policy.toml"), "{said}");
    let began = Instant::now();
    while !pod.lines().iter().any(|line| line["what"] == "certificate") {
        assert!(began.elapsed() < WITHIN, "nothing is said of the certificate: {}", pod.log());
        sleep(Duration::from_millis(20)).await;
    }
    let mut late =
        tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    let bearer = bearer(&good);
    let add = request("POST", "/v1/counter/g/n", &[("authorization", &bearer)], "");
    assert_eq!(late.ask(&add).await.expect("an answer").status, 200, "the policy is as it was");
    assert_eq!(tls::shown(&late), second.der(), "the certificate is the new one");
}

/// A SIGHUP without files to reload must not end the pod, as it would by default. `orderfree reload` sends the signal
/// if there is no `kill`, and reports if there is no server.
#[tokio::test(flavor = "multi_thread")]
async fn sighup_without_files_does_no_harm() {
    let pod = Setup::new().start().await;
    pod.signal(Signal::HUP);
    let reload = |pid: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_orderfree")).args(["reload", pid]).output();
        let output = output.expect("it starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stderr), text(&output.stdout))
    };
    let (code, said, told) = reload(&pod.id().to_string());
    assert_eq!((code, said), (Some(0), String::new()));
    assert!(told.contains("its log says"), "{told}");
    let (code, said, _) = reload("2147483647");
    assert!(code == Some(1) && said.contains("2147483647"), "{code:?} {said}");
    assert_eq!(reload("0").0, Some(2), "that would be the whole process group");
    sleep(Duration::from_millis(500)).await;
    assert_eq!(pod.get("/readyz").await.status, 200);
}

impl Pod {
    async fn count_as(&self, token: &str) -> u64 {
        let bearer = bearer(token);
        let answer = self.ask("GET", "/v1/counter/g/n", &[("authorization", &bearer)], "").await;
        answer.json()["value"].as_u64().expect("a number")
    }
}
