//! A pod reloads tokens, quotas and the certificate while it serves: on SIGHUP, and when their files change.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use orderfree::net::tls::ClientTls;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::sleep;

use crate::certificates::Authority;
use crate::pod::{Pod, Setup, metric, token};
use crate::tls;
use crate::wire::{bearer, request};

const ALL: &[(&str, &[&str])] = &[("", &["read", "write", "admin"])];
const WITHIN: Duration = Duration::from_secs(5);

/// How often a pod looks at its files.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A pod looks twice before it takes a change.
const LOOKED_WITHIN: Duration = Duration::from_secs(20);

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
    metric(&metrics, &format!("orderfree_policy_reloads_total{{result=\"{result}\"}}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_accepted_and_an_old_one_refused() {
    let (old, old_lines) = token("old", ALL, "");
    let (new, new_lines) = token("new", ALL, "");
    let mut pod = Setup::new().policy(&old_lines).start().await;
    assert_eq!((status(&pod, &old).await, status(&pod, &new).await), (200, 401));
    pod.setup.write("policy.toml", &new_lines);
    assert_eq!((status(&pod, &old).await, status(&pod, &new).await), (200, 401), "not at once");
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

/// Waits for this many lines of the log that say something of a file, and for no more.
async fn said_of(pod: &Pod, what: &str, count: usize) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let mut lines = pod.lines();
        lines.retain(|line| line["what"] == what);
        if lines.len() >= count {
            assert_eq!(lines.len(), count, "{}", pod.log());
            return lines;
        }
        assert!(began.elapsed() < LOOKED_WITHIN, "nothing is said of the {what}: {}", pod.log());
        sleep(Duration::from_millis(50)).await;
    }
}

/// As Kubernetes updates a Secret: a link to a folder is replaced, the file's own path stays.
#[tokio::test(flavor = "multi_thread")]
async fn changed_files_need_no_signal_and_wrong_ones_are_told_once() {
    let (old, old_lines) = token("old", ALL, "");
    let (new, new_lines) = token("new", ALL, "");
    let setup = Setup::new();
    let authority = Authority::new(&setup.path("ca"));
    let first = authority.sign("first", "DNS:localhost");
    let mount = |version: &str, lines: &str| {
        std::fs::create_dir(setup.path(version)).expect("a folder");
        setup.write(&format!("{version}/policy.toml"), lines);
        std::os::unix::fs::symlink(version, setup.path("..new")).expect("a link");
        std::fs::rename(setup.path("..new"), setup.path("..data")).expect("replaced");
    };
    mount("..1", &old_lines);
    std::os::unix::fs::symlink("..data/policy.toml", setup.path("policy.toml")).expect("a link");
    let pod = setup.clone().arg("--policy", setup.path("policy.toml").display());
    let pod = pod.arg("--tls-cert", first.certificate.display());
    let mut pod = pod.arg("--tls-key", first.key.display()).start().await;
    let status = async |token: &str| {
        let late = tls::connect(pod.port(), &authority.certificate, "localhost").await;
        let bearer = bearer(token);
        let add = request("POST", "/v1/counter/g/n", &[("authorization", &bearer)], "");
        late.expect("TLS").ask(&add).await.expect("an answer").status
    };
    assert_eq!((status(&old).await, status(&new).await), (200, 401));
    mount("..2", "[[token]]\nname = ");
    assert!(refuses(&said_of(&pod, "policy", 1).await[0], "policy.toml"));
    assert_eq!((status(&old).await, status(&new).await), (200, 401), "the old one stays");
    // Two more looks say nothing more.
    sleep(2 * LOOK_EVERY + Duration::from_secs(2)).await;
    mount("..3", &new_lines);
    assert_eq!(said_of(&pod, "policy", 2).await[1]["level"], "INFO");
    assert_eq!((status(&old).await, status(&new).await), (401, 200));

    let second = authority.sign("second", "DNS:localhost");
    first.replace_by(&second);
    assert_eq!(said_of(&pod, "certificate", 1).await[0]["level"], "INFO");
    let late = tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    assert_eq!(tls::shown(&late), second.der());
    std::fs::write(&first.key, "no key").expect("written");
    assert!(refuses(&said_of(&pod, "certificate", 2).await[1], "first.key"));
    let late = tls::connect(pod.port(), &authority.certificate, "localhost").await.expect("TLS");
    assert_eq!(tls::shown(&late), second.der(), "the old one stays");
    reload(&mut pod, "policy").await;
    said_of(&pod, "policy", 3).await;
}

/// What pods do with the CA and the client certificate for Cassandra.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_follows_the_authority_of_its_server() {
    let setup = Setup::new();
    let authorities = ["ca", "other"].map(|name| Authority::new(&setup.path(name)));
    let [own, other] =
        authorities.each_ref().map(|authority| ClientTls::read(&authority.certificate, None));
    let (own, other) = (own.expect("good files"), other.expect("good files"));
    let shown = authorities[1].sign("shown", "DNS:localhost");
    let setup = setup.arg("--tls-cert", shown.certificate.display());
    let pod = setup.arg("--tls-key", shown.key.display()).start().await;
    let config = own.config();
    let refused = tls::connect_by(pod.port(), Arc::clone(&config), "localhost").await;
    assert!(refused.is_err_and(|error| error.to_string().contains("certificate")));
    own.replace_by(&other);
    for name in ["localhost", "elsewhere"] {
        let connected = tls::connect_by(pod.port(), Arc::clone(&config), name).await;
        assert_eq!(connected.is_ok(), name == "localhost", "{name}: the name is checked");
    }
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
