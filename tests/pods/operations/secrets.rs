//! Secrets appear nowhere. Tokens, Cassandra's password and the bytes of a private key are placed where they belong
//! and where an operator may put them by mistake. All output of the program is searched for them: here that of pods,
//! in `tools` that of tools and requests to collectors.

mod tools;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use orderfree::policy::NewToken;
use rustix::process::Signal;

use crate::certificates::Authority;
use crate::pod::{Setup, run, token};
use crate::tls;
use crate::wire::{bearer, request};

const PASSWORD: &str = "hush-6f1d0b7c-in-a-variable";
const PASSWORD_IN_FILE: &str = "hush-20c4e9aa-in-a-file";

/// No server listens at this address.
const NO_SERVER: &str = "127.0.0.1:1";

/// This many characters of a secret are as bad as all of it.
const PART: usize = 16;

/// The secrets, each with its name.
#[derive(Default)]
struct Secrets(Vec<(&'static str, Vec<Vec<u8>>)>);

impl Secrets {
    /// The forms in which a careless program may print it: plain, as base64, or as a list of numbers.
    fn plant(&mut self, name: &'static str, secret: &str) {
        let parts = secret.as_bytes().chunks_exact(PART).map(|part| {
            let numbers: Vec<String> = part.iter().map(u8::to_string).collect();
            [part.to_vec(), numbers.join(", ").into_bytes()]
        });
        let mut forms: Vec<Vec<u8>> = parts.flatten().collect();
        forms.push(STANDARD.encode(secret).into_bytes());
        self.0.push((name, forms));
    }

    /// Each line of a PEM file except its frame.
    fn plant_key(&mut self, file: &Path) {
        let text = fs::read_to_string(file).expect("a key");
        for line in text.lines().filter(|line| !line.starts_with('-')) {
            self.plant("a private key", line);
        }
    }

    fn found_in(&self, said: &[u8]) -> Vec<&'static str> {
        let is_in =
            |form: &Vec<u8>| said.windows(form.len()).any(|window| window == form.as_slice());
        self.0.iter().filter(|(_, forms)| forms.iter().any(is_in)).map(|(name, _)| *name).collect()
    }
}

/// Outputs with the secrets that were found in them.
struct Search {
    secrets: Secrets,
    leaks: BTreeSet<String>,
    searched: usize,
}

impl Search {
    fn look(&mut self, place: &str, said: &[u8]) {
        self.searched += said.len();
        for name in self.secrets.found_in(said) {
            self.leaks.insert(format!("{name} in {place}"));
        }
    }

    fn look_at(&mut self, place: &str, output: &Output) {
        self.look(place, &output.stdout);
        self.look(place, &output.stderr);
    }

    fn found_nothing(self) {
        assert!(self.searched > 500, "only {} bytes were searched", self.searched);
        assert!(self.leaks.is_empty(), "{:#?}", self.leaks);
    }
}

fn search(secrets: Secrets) -> Search {
    Search { secrets, leaks: BTreeSet::new(), searched: 0 }
}

#[test]
fn the_search_finds_what_is_planted() {
    let mut secrets = Secrets::default();
    secrets.plant("a token", "orderfree_0123456789abcdef0123456789abcdef");
    for said in [
        "Bearer orderfree_0123456789abcdef0123456789abcdef",
        "only 6789abcdef012345 of it",
        "[111, 114, 100, 101, 114, 102, 114, 101, 101, 95, 48, 49, 50, 51, 52, 53, 54]",
        "b3JkZXJmcmVlXzAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzg5YWJjZGVm",
    ] {
        assert_eq!(secrets.found_in(said.as_bytes()), ["a token"], "{said}");
    }
    assert!(secrets.found_in(b"orderfree_ and 64 hexadecimal digits").is_empty());
}

/// Sends every kind of request to a pod with secrets, from clients with and without a token.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_pod_prints_no_secret() {
    let (good, lines) = token("good", &[("", &["read", "write", "admin"])], "");
    let (reader, more) = token("reader", &[("r", &["read"])], "rate = 1");
    let stranger = NewToken::draw().token;
    let setup = Setup::new().policy(&(lines + &more)).env("RUST_LOG", "trace");
    let authority = Authority::new(&setup.path("ca"));
    let own = authority.sign("own", "DNS:localhost");
    let setup = setup.arg("--tls-cert", own.certificate.display());
    let mut pod = setup.arg("--tls-key", own.key.display()).start().await;
    let mut secrets = Secrets::default();
    secrets.plant("a token", &good);
    secrets.plant("a reader's token", &reader);
    secrets.plant("an unknown token", &stranger);
    secrets.plant_key(&own.key);
    let mut search = search(secrets);

    let headers = [
        bearer(&good),
        bearer(&reader),
        bearer(&stranger),
        format!("Bearer  {good}"),
        format!("Bearer {good}, Bearer {stranger}"),
        format!("Basic {}", STANDARD.encode(format!("user:{good}"))),
        good.clone(),
    ];
    let update = r#"{"op":"add"}"#;
    let batch = r#"{"updates":[{"kind":"counter","group":"g","name":"n","op":{"op":"add"}}]}"#;
    for header in &headers {
        for (method, path, body) in [
            ("POST", "/v1/counter/g/n", update),
            ("POST", "/v1/counter/g/n", "no op"),
            ("GET", "/v1/counter/g/n", ""),
            ("GET", "/v1/counter/g/absent", ""),
            ("GET", "/v1/counter/g/n?consistency=nonsense", ""),
            ("GET", "/v1/counter/g", ""),
            ("POST", "/v1/batch", batch),
            ("GET", "/v1/counter/g/n/shards", ""),
            ("POST", "/v1/counter/g/n/fold", ""),
            ("GET", "/v1/counter", ""),
            ("DELETE", "/v1/counter/g/n", ""),
            ("GET", "/metrics", ""),
            ("GET", "/openapi.json", ""),
            ("GET", "/version", ""),
            ("GET", "/readyz?verbose", ""),
            ("GET", "/docs", ""),
            ("GET", "/problems", ""),
            ("GET", "/nowhere", ""),
            // Where other services accept a token.
            ("GET", &format!("/v1/counter/g/n/shards?access_token={good}"), ""),
            ("GET", &format!("/v1/counter/g/n?access_token={good}"), ""),
        ] {
            let headers =
                [("authorization", header.as_str()), ("content-type", "application/json")];
            let connection = tls::connect(pod.port(), &authority.certificate, "localhost").await;
            let answer = connection.expect("TLS").ask(&request(method, path, &headers, body)).await;
            search.look(
                &format!("the answer to {method} {path}"),
                &answer.expect("an answer").bytes(),
            );
        }
    }
    pod.signal(Signal::HUP);
    pod.logs("reloaded", Duration::from_secs(5)).await;
    fs::write(pod.setup.path("policy.toml"), format!("[[token]]\nname = {good:?}"))
        .expect("written");
    pod.signal(Signal::HUP);
    pod.logs("stays in use", Duration::from_secs(5)).await;
    search.look("the log", pod.log().as_bytes());
    assert!(pod.log().contains("\"TRACE\""), "the log has everything");
    search.found_nothing();
}

/// Every place where an operator may put a token by mistake.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_misplaced_token_does_not_print_it() {
    let NewToken { token, sha256 } = NewToken::draw();
    let mut secrets = Secrets::default();
    secrets.plant("a token", &token);
    let mut search = search(secrets);
    let known = format!("[[token]]\nname = \"a\"\nsha256 = {sha256:?}\n");
    for (place, lines) in [
        ("the whole file", token.clone()),
        ("sha256", format!("[[token]]\nname = \"a\"\nsha256 = {token:?}\n")),
        ("sha256 with a scheme", format!("[[token]]\nname = \"a\"\nsha256 = \"Bearer {token}\"\n")),
        ("sha256 without quotes", format!("[[token]]\nname = \"a\"\nsha256 = {token}\n")),
        ("sha256 with half its quotes", format!("[[token]]\nname = \"a\"\nsha256 = \"{token}\n")),
        ("the name", format!("[[token]]\nname = {token:?}\nsha256 = {sha256:?}\n")),
        ("the name's place", format!("[[token]]\n{token} = {sha256:?}\n")),
        ("a field of its own", format!("{known}token = {token:?}\n")),
        ("a table", format!("[{token}]\n")),
        ("the rate", format!("{known}rate = {token:?}\n")),
        ("the expiry", format!("{known}expires = {token:?}\n")),
        ("a verb", format!("{known}[[token.grant]]\ngroup_prefix = \"\"\nverbs = [{token:?}]\n")),
        ("no list", format!("token = {token:?}\n")),
        ("a kind", format!("[[precision]]\nkind = {token:?}\n")),
        ("a precision", format!("[[precision]]\nkind = \"distinct\"\nlg_k = {token:?}\n")),
        ("a quota", format!("[[quota]]\ngroup_prefix = \"\"\nlive_mutators = {token:?}\n")),
    ] {
        let mut pod = Setup::new().policy(&lines).env("RUST_LOG", "trace").spawn();
        let (code, _) = pod.ended(Duration::from_secs(10)).await;
        assert_eq!(code, Some(1), "{place}: {}", pod.log());
        assert!(pod.log().contains("policy.toml"), "which file: {}", pod.log());
        search.look(
            &format!("what is said of a token in {place} of the policy"),
            pod.log().as_bytes(),
        );
        let setup = Setup::new();
        let file = setup.write("policy.toml", &lines).display().to_string();
        let append = ["token", "new", "--name", "b", "--grant", "=read", "--append", &file];
        search.look_at(&format!("`token new` with one in {place}"), &run(&append, &[]).await);
    }
    search.found_nothing();
}

/// Keys that lost their line breaks, and files that were mixed up.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_a_damaged_key_does_not_print_it() {
    let setup = Setup::new().env("RUST_LOG", "trace");
    let authority = Authority::new(&setup.path("ca"));
    let own = authority.sign("own", "DNS:localhost");
    let other = authority.sign("other", "DNS:localhost");
    let mut secrets = Secrets::default();
    secrets.plant_key(&own.key);
    secrets.plant_key(&other.key);
    let mut search = search(secrets);
    let key = fs::read_to_string(&own.key).expect("a key");
    let lines: Vec<&str> = key.lines().collect();
    let body = lines[1..lines.len() - 1].join("\n");
    for (place, text) in [
        ("one line", key.replace('\n', " ")),
        ("escaped line breaks", key.replace('\n', "\\n")),
        ("no first line break", key.replacen('\n', "", 1)),
        ("no last line", lines[..lines.len() - 1].join("\n")),
        ("no first line", lines[1..].join("\n")),
        ("no frame", body.clone()),
        ("another frame", format!("-----BEGIN KEY-----\n{body}\n-----END KEY-----\n")),
        ("a frame of dashes", format!("-----BEGIN {body}\n")),
        ("a foreign character", key.replacen("M", "!M", 1)),
        ("a byte too few", key.replacen(lines[1], &lines[1][1..], 1)),
        ("quotes", format!("\"{key}\"")),
        ("another's", fs::read_to_string(&other.key).expect("a key")),
    ] {
        let bad = setup.write("bad.key", &text).display().to_string();
        let certificate = own.certificate.display().to_string();
        for (what, arguments) in [
            ("a key", ["--tls-cert", &certificate, "--tls-key", &bad]),
            ("a certificate", ["--tls-cert", &bad, "--tls-key", &bad]),
        ] {
            let start = [("--listen", "127.0.0.1:0"), ("--data", "/nowhere/rows.redb")];
            let start = start.into_iter().flat_map(|(name, value)| [name, value]);
            let line: Vec<&str> = ["serve"].into_iter().chain(arguments).chain(start).collect();
            let output = run(&line, &[("RUST_LOG", "trace")]).await;
            assert_eq!(output.status.code(), Some(1), "{place}: {output:?}");
            search.look_at(&format!("what is said of {what} with {place}"), &output);
        }
        // As a value of the wrong argument.
        for name in ["--policy", "--cassandra-ca", "--cassandra-password-file"] {
            let line = ["serve", "--cassandra", NO_SERVER, "--store-wait", "0s", name, &bad];
            let line = [&line[..], &["--cassandra-user", "u"]].concat();
            search.look_at(&format!("what is said of it as {name}"), &run(&line, &[]).await);
        }
        let line = ["get", "counter/g/n", "--url", "https://localhost:1", "--ca", &bad];
        search.look_at(
            &format!("a client that has it as --ca, with {place}"),
            &run(&line, &[]).await,
        );
        let line = ["get", "counter/g/n", "--url", "http://127.0.0.1:1", "--token-file", &bad];
        search.look_at(
            &format!("a client that has it as a token, with {place}"),
            &run(&line, &[]).await,
        );
    }
    search.found_nothing();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_prints_a_password_or_a_token() {
    let NewToken { token, .. } = NewToken::draw();
    let setup = Setup::new();
    let pod = setup.start().await;
    let (url, away) = (format!("http://127.0.0.1:{}", pod.port()), format!("http://{NO_SERVER}"));
    let file = setup.write("password", format!("{PASSWORD_IN_FILE}\n")).display().to_string();
    let token_file = setup.write("token", format!("{token}\n")).display().to_string();
    let mut secrets = Secrets::default();
    secrets.plant("a token", &token);
    secrets.plant("the password", PASSWORD);
    secrets.plant("the password of the file", PASSWORD_IN_FILE);
    let mut search = search(secrets);
    let environment = [
        ("RUST_LOG", "trace"),
        ("ORDERFREE_CASSANDRA", NO_SERVER),
        ("ORDERFREE_CASSANDRA_USER", "user"),
        ("ORDERFREE_STORE_WAIT", "0s"),
    ];
    let by_text = ("ORDERFREE_CASSANDRA_PASSWORD", PASSWORD);
    let by_file = ("ORDERFREE_CASSANDRA_PASSWORD_FILE", file.as_str());
    let by_token = ("ORDERFREE_TOKEN", token.as_str());
    for commands in [
        "serve --listen 127.0.0.1:0",
        "doctor",
        "schema apply",
        "schema print",
        "fold",
        "fold --once",
        "export",
        "import",
        "serve --help",
        "doctor --help",
        "add --help",
        "load --help",
        "--help",
        "openapi",
        "serve --no-such-argument",
        "serve --lifetime 1s",
        "serve --listen 0.0.0.0:0",
    ] {
        let line: Vec<&str> = commands.split(' ').collect();
        for password in [by_text, by_file] {
            let all = [&environment[..], &[password, by_token]].concat();
            search.look_at(&format!("`{commands}`"), &run(&line, &all).await);
        }
        let both = [&environment[..], &[by_text, by_file]].concat();
        search.look_at(&format!("`{commands}` with two passwords"), &run(&line, &both).await);
    }
    for line in [
        &["serve", "--cassandra-password", PASSWORD, "--cassandra-password-file", &file][..],
        &["serve", "--cassandra", NO_SERVER, "--cassandra-password", PASSWORD],
        &["get", "counter/g/n", "--url", &url, "--token", &token],
        &["get", "counter/g/n", "--url", &url, "--token", &token, "--token-file", &token_file],
        &["get", "counter/g/n", "--url", &url, "--token-file", &token_file, "-o", "json"],
        &["get", "counter/g/n", "--url", &away, "--token", &token],
        &["get", "counter/g/n", "--url", "https://localhost:1", "--token", &token],
        &["get", "counter/g/n", "--url", &url, "--token", &format!("{token}\u{7f}")],
        &["get", "counter/g/n", "--url", &url, "--token", &format!("{token}ä\n")],
        &["add", "counter/g/n", "--url", &url, "--token", &token],
        &["add", "counter/g/n", "--no-retry", "--url", &away, "--token-file", &token_file],
        &["health", "--url", &url, "--token", &token],
        &["health", "--url", &away, "--token", &token],
    ] {
        search.look_at(
            &format!("`{} {}`", line[0], line[1]),
            &run(line, &[("RUST_LOG", "trace")]).await,
        );
    }
    search.look("the log of a pod without tokens", pod.log().as_bytes());
    search.found_nothing();
}

/// `token new` prints a token once, and the file has only its hash.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_printed_once_and_stored_nowhere() {
    let setup = Setup::new();
    let file = setup.path("policy.toml").display().to_string();
    let line = ["token", "new", "--name", "a", "--grant", "=read,write,admin", "--append", &file];
    let output = run(&line, &[("RUST_LOG", "trace")]).await;
    let token = String::from_utf8(output.stdout).expect("text").trim().to_owned();
    let mut secrets = Secrets::default();
    secrets.plant("the new token", &token);
    let mut search = search(secrets);
    search.look("standard error", &output.stderr);
    search.look("the policy file", &fs::read(&file).expect("made"));
    let pod = Setup::new().arg("--policy", &file).env("RUST_LOG", "trace").start().await;
    let header = bearer(&token);
    let answer = pod.ask("POST", "/v1/counter/g/n", &[("authorization", &header)], "").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    search.look("the log", pod.log().as_bytes());
    search.found_nothing();
}
