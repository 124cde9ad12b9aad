//! A Cassandra that requires TLS with client certificates and passwords. Roles with only the rights that they need
//! can do their work, and clients without access get a reason.

#[path = "../cassandra/mod.rs"]
mod cassandra;

use std::collections::BTreeMap;
use std::io::copy;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use cassandra::{eventually, script};
use orderfree::net::tls;
use reqwest::{Client, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;
use uuid::Uuid;

/// The only address that the node's certificate is valid for.
const NODE: &str = "127.0.0.12:9042";

/// Lifetimes so short that a key can be folded after 16 s, with 2 s for a write.
const SHORT_LIVES: [(&str, &str); 5] = [
    ("ORDERFREE_LIFETIME", "10s"),
    ("ORDERFREE_DRAIN_MARGIN", "5s"),
    ("ORDERFREE_CUTOFF", "5500ms"),
    ("ORDERFREE_REQUEST_BUDGET", "2s"),
    ("ORDERFREE_CLOCK_OFFSET_MAX", "1500ms"),
];

/// Longest time of a command. One that was refused ends sooner.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// How many tests use the node.
static HOLDERS: Mutex<usize> = Mutex::new(0);

/// The node runs as long as one of these exists.
struct Held {
    certificates: PathBuf,
}

impl Held {
    fn node() -> Held {
        let mut holders = HOLDERS.lock().expect("the node started");
        let certificates = script(&["start-secured"]).into();
        *holders += 1;
        Held { certificates }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().expect("the node started");
        *holders -= 1;
        if *holders == 0 {
            script(&["stop-secured"]);
        }
    }
}

/// A role and the file with its password.
struct Role {
    name: String,
    password: String,
    file: PathBuf,
}

/// The output of a run of the program.
struct Said {
    is_well: bool,
    out: String,
    err: String,
}

/// The names that one test uses on the node.
struct Place {
    admin: Session,
    mark: String,
    keyspace: String,
    files: TempDir,
    held: Held,
}

impl Place {
    async fn new() -> Place {
        let held = Held::node();
        let (mark, files) =
            (Uuid::new_v4().simple().to_string(), TempDir::new().expect("a folder"));
        let admin = session(&held.certificates, "cassandra", "cassandra").await;
        Place { admin, keyspace: format!("secured_{mark}"), mark, files, held }
    }

    async fn cql(&self, statement: &str) {
        let done = self.admin.query_unpaged(statement, ()).await;
        done.unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// A keyspace that an administrator created.
    async fn define_keyspace(&self, keyspace: &str) {
        self.cql(&format!(
            "CREATE KEYSPACE {keyspace} \
             WITH replication = {{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}}"
        ))
        .await;
    }

    /// The keyspace and its table, created by a role with that right everywhere.
    async fn apply_schema(&self) -> Role {
        let founder = self.role("founder", &["CREATE ON ALL KEYSPACES".to_owned()]).await;
        let said = self.run_well("schema apply", &founder).await;
        assert_eq!(
            said,
            format!("keyspace {} is ready, with replicas datacenter1:1\n", self.keyspace)
        );
        founder
    }

    /// A role with rights such as `SELECT ON KEYSPACE …`.
    async fn role(&self, name: &str, rights: &[String]) -> Role {
        let role = Role {
            name: format!("{name}_{}", self.mark),
            password: format!("hush-{}", Uuid::new_v4()),
            file: self.files.path().join(name),
        };
        let Role { name, password, file } = &role;
        self.cql(&format!("CREATE ROLE {name} WITH LOGIN = true AND PASSWORD = '{password}'"))
            .await;
        for right in rights {
            self.cql(&format!("GRANT {right} TO {name}")).await;
        }
        std::fs::write(file, format!("{password}\n")).expect("a file");
        role
    }

    /// The role of pods, as documented.
    async fn role_of_pods(&self) -> Role {
        let of_pods = ["SELECT", "MODIFY"];
        let of_pods = of_pods.map(|right| format!("{right} ON KEYSPACE {}", self.keyspace));
        self.role("pods", &of_pods).await
    }

    fn certificate(&self, name: &str) -> String {
        self.held.certificates.join(name).display().to_string()
    }

    /// The program's arguments for this role.
    fn settings(&self, role: &Role) -> BTreeMap<&'static str, String> {
        let own = [
            ("ORDERFREE_CASSANDRA", NODE.to_owned()),
            ("ORDERFREE_KEYSPACE", self.keyspace.clone()),
            ("ORDERFREE_CASSANDRA_USER", role.name.clone()),
            ("ORDERFREE_CASSANDRA_PASSWORD_FILE", role.file.display().to_string()),
            ("ORDERFREE_CASSANDRA_CA", self.certificate("ca.pem")),
            ("ORDERFREE_CASSANDRA_CERT", self.certificate("client.pem")),
            ("ORDERFREE_CASSANDRA_KEY", self.certificate("client.key")),
            ("ORDERFREE_LISTEN", "127.0.0.1:0".to_owned()),
            ("ORDERFREE_STORE_WAIT", "0s".to_owned()),
            ("ORDERFREE_FOLD", "manual".to_owned()),
        ];
        let lives = SHORT_LIVES.map(|(name, value)| (name, value.to_owned()));
        own.into_iter().chain(lives).collect()
    }

    /// Runs the program to its end. The output must not show the password.
    async fn run(&self, arguments: &str, settings: &BTreeMap<&str, String>, role: &Role) -> Said {
        let mut program = tokio::process::Command::from(program(arguments, settings));
        let output = timeout(ENDS_WITHIN, program.kill_on_drop(true).output()).await;
        let output = output.unwrap_or_else(|_| panic!("{arguments} did not end"));
        let output = output.expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(!out.contains(&role.password) && !err.contains(&role.password), "{arguments}");
        Said { is_well: output.status.success(), out, err }
    }

    /// Runs the program, which must succeed.
    async fn run_well(&self, arguments: &str, role: &Role) -> String {
        let said = self.run(arguments, &self.settings(role), role).await;
        assert!(said.is_well, "{arguments}: {}{}", said.out, said.err);
        said.out
    }
}

/// A session of the test.
async fn session(certificates: &Path, user: &str, password: &str) -> Session {
    let file = |name| certificates.join(name);
    let own = (&*file("client.pem"), &*file("client.key"));
    let tls = tls::client_config(&file("ca.pem"), Some(own)).expect("good certificates");
    let builder = SessionBuilder::new().known_node(NODE).user(user, password);
    builder.tls_context(Some(Arc::new(tls))).build().await.expect("a session")
}

fn program(arguments: &str, settings: &BTreeMap<&str, String>) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_orderfree"));
    program.args(arguments.split(' ')).env_clear().envs(settings).stdin(Stdio::null());
    program
}

/// A running pod.
struct Pod {
    child: Child,
    log: PathBuf,
    url: String,
    client: Client,
}

impl Pod {
    async fn start(place: &Place, role: &Role) -> Pod {
        Pod::start_with(place, &place.settings(role)).await
    }

    async fn start_with(place: &Place, settings: &BTreeMap<&str, String>) -> Pod {
        let log = place.files.path().join(format!("{}.log", Uuid::new_v4()));
        let file = std::fs::File::create(&log).expect("a file");
        let mut program = program("serve", settings);
        let child = program.stdout(Stdio::null()).stderr(file).spawn().expect("the program runs");
        let client = Client::builder().timeout(Duration::from_secs(20)).build();
        let mut pod = Pod { child, log, url: String::new(), client: client.expect("a client") };
        let listens = async || {
            let log = pod.log();
            let (_, behind) = log.split_once("listening on ").ok_or_else(|| log.clone())?;
            let (url, _) = behind.split_once(';').ok_or_else(|| log.clone())?;
            Ok::<_, String>(url.to_owned())
        };
        pod.url = eventually("the pod listens", listens).await;
        pod
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).expect("a log")
    }

    async fn add(&self, by: i64) -> (StatusCode, Value) {
        let url = format!("{}/v1/counter/site/home", self.url);
        let body = json!({"op": "add", "by": by});
        let answer = self.client.post(url).json(&body).send().await.expect("an answer");
        (answer.status(), answer.json().await.expect("JSON"))
    }

    async fn add_well(&self, by: i64) {
        let (status, answer) = self.add(by).await;
        assert_eq!(answer["outcome"], "acked", "{status} {answer}");
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        let answer = self.client.get(format!("{}{path}", self.url)).send().await;
        let answer = answer.expect("an answer");
        (answer.status(), answer.json().await.expect("JSON"))
    }

    async fn read(&self) -> (StatusCode, Value) {
        self.get("/v1/counter/site/home").await
    }

    /// Stops it in order, and checks its log.
    fn stop(mut self, role: &Role) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
        let end = self.child.wait().expect("it ends");
        let log = self.log();
        assert!(end.success(), "{log}");
        assert!(!log.contains(&role.password), "a password in the log");
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        // Needed only if a test fails. Otherwise the pod has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_has_the_rights_for_its_work_and_no_more() {
    let place = Place::new().await;
    let other = format!("other_{}", place.mark);
    let founder = place.apply_schema().await;
    place.run_well("schema apply", &founder).await;
    // An administrator who creates the keyspaces need not give the program that right.
    place.define_keyspace(&other).await;
    let builder = place.role("builder", &[format!("CREATE ON KEYSPACE {other}")]).await;
    let mut there = place.settings(&builder);
    there.insert("ORDERFREE_KEYSPACE", other.clone());
    let said = place.run("schema apply", &there, &builder).await;
    assert!(said.is_well, "{}", said.err);

    let pods = place.role_of_pods().await;
    let born = Instant::now();
    for by in [2, 3] {
        let pod = Pod::start(&place, &pods).await;
        pod.add_well(by).await;
        pod.stop(&pods);
    }
    let last = Pod::start(&place, &pods).await;
    assert_eq!(last.get("/readyz?verbose").await.0, StatusCode::OK);
    assert_eq!(last.read().await.1["value"], 5);
    assert_eq!(last.get("/v1/counter/site").await.1["keys"][0]["value"], 5);
    let doctor = place.run_well("doctor", &pods).await;
    // Short lifetimes give many shards, which `doctor` warns about. From Cassandra 5.0 on it advises against scrub.
    let expected = ["ok ", "warn  configuration: ", "note  scrub: "];
    let is_well = |line: &str| expected.iter().any(|beginning| line.starts_with(beginning));
    assert!(doctor.lines().count() >= 4 && doctor.lines().all(is_well), "{doctor}");
    // Applying a schema that exists needs no right to create it.
    place.run_well("schema apply", &pods).await;
    nothing_else_is_allowed(&place, &pods, &other).await;

    // Until the second pod's shard is final too.
    let once = async || {
        let said = place.run("fold --once", &place.settings(&pods), &pods).await;
        let (_, read) = last.read().await;
        if read["shards"] == 0 { Ok(read) } else { Err(format!("{read} {}{}", said.out, said.err)) }
    };
    let folded = eventually("all is folded", once).await;
    assert!(born.elapsed() > Duration::from_secs(15), "{:?}", born.elapsed());
    assert_eq!(folded["value"], 5, "{folded}");
    last.add_well(7).await;
    assert_eq!(last.read().await.1["value"], 12);
    last.stop(&pods);
}

/// Attacks with the password and the certificate of a pod.
async fn nothing_else_is_allowed(place: &Place, pods: &Role, other: &str) {
    let (keyspace, me) = (&place.keyspace, &pods.name);
    let session = session(&place.held.certificates, me, &pods.password).await;
    let one = format!("SELECT name FROM {keyspace}.shards LIMIT 1");
    session.query_unpaged(one, ()).await.expect("its own rows");
    for statement in [
        format!("CREATE TABLE {keyspace}.more (id int PRIMARY KEY)"),
        format!("CREATE INDEX ON {keyspace}.shards (state)"),
        format!("ALTER TABLE {keyspace}.shards WITH default_time_to_live = 1"),
        format!("DROP TABLE {keyspace}.shards"),
        format!("ALTER KEYSPACE {keyspace} WITH durable_writes = false"),
        format!("DROP KEYSPACE {keyspace}"),
        format!(
            "CREATE KEYSPACE more_{} \
             WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}",
            place.mark
        ),
        format!("SELECT name FROM {other}.shards LIMIT 1"),
        format!("TRUNCATE {other}.shards"),
        "SELECT role, salted_hash FROM system_auth.roles".to_owned(),
        format!("CREATE ROLE more_{} WITH LOGIN = true", place.mark),
        format!("ALTER ROLE {me} WITH SUPERUSER = true"),
        format!("GRANT ALTER ON KEYSPACE {keyspace} TO {me}"),
    ] {
        let error = session.query_unpaged(statement.as_str(), ()).await.expect_err(&statement);
        let is_refused = matches!(
            &error,
            ExecutionError::LastAttemptError(RequestAttemptError::DbError(
                DbError::Unauthorized,
                _
            ))
        );
        assert!(is_refused, "{statement}: {error}");
    }
}

/// An administrator revokes a right by mistake. What was acknowledged stays counted, nothing is counted twice, and
/// the pod recovers by itself when the right is granted again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_taken_from_a_pod_and_given_back_cost_no_count() {
    let place = Place::new().await;
    place.apply_schema().await;
    let pods = place.role_of_pods().await;
    let change = async |verb: &str, right: &str, preposition: &str| {
        let (keyspace, name) = (&place.keyspace, &pods.name);
        place.cql(&format!("{verb} {right} ON KEYSPACE {keyspace} {preposition} {name}")).await;
    };
    let pod = Pod::start(&place, &pods).await;
    pod.add_well(1).await;

    change("REVOKE", "MODIFY", "FROM").await;
    let (status, answer) = pod.add(10).await;
    assert_eq!(answer["outcome"], "refused", "{status} {answer}");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let (status, _) = pod.read().await;
    assert_eq!(status, StatusCode::OK, "reads still work");
    change("GRANT", "MODIFY", "TO").await;
    pod.add_well(100).await;
    assert_eq!(pod.read().await.1["value"], 101);

    change("REVOKE", "SELECT", "FROM").await;
    let (status, answer) = pod.read().await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    pod.add_well(1_000).await;
    let said = place.run("fold --once", &place.settings(&pods), &pods).await;
    assert!(!said.is_well && said.err.contains("no SELECT permission"), "{}", said.err);
    change("GRANT", "SELECT", "TO").await;
    let (_, answer) = pod.read().await;
    assert_eq!(answer["value"], 1_101, "{answer}");
    pod.stop(&pods);
}

/// The new password is in the file before Cassandra knows it. The old one stays until then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_follows_the_user_and_the_password_in_its_files() {
    let place = Place::new().await;
    place.apply_schema().await;
    let mut pods = place.role_of_pods().await;
    let user = place.files.path().join("user");
    std::fs::write(&user, format!("{}\n", pods.name)).expect("a file");
    let mut settings = place.settings(&pods);
    settings.remove("ORDERFREE_CASSANDRA_USER");
    settings.insert("ORDERFREE_CASSANDRA_USER_FILE", user.display().to_string());
    let pod = Pod::start_with(&place, &settings).await;
    pod.add_well(1).await;
    let says = async |text: &str| {
        let log = pod.log();
        if log.contains(text) { Ok(log) } else { Err(log) }
    };
    let old = std::mem::replace(&mut pods.password, format!("hush-{}", Uuid::new_v4()));
    std::fs::write(&pods.file, &pods.password).expect("written");
    let refused =
        "access to Cassandra can't be used, so the old one stays in use: Cassandra refused";
    eventually("the new password is refused", async || says(refused).await).await;
    pod.add_well(10).await;
    let Role { name, password, .. } = &pods;
    place.cql(&format!("ALTER ROLE {name} WITH PASSWORD = '{password}'")).await;
    let log = eventually("the new password is taken", async || says("reloaded").await).await;
    assert_eq!(log.matches(refused).count(), 1, "{log}");
    assert!(!log.contains(&old), "a password in the log");
    pod.add_well(100).await;
    // Another user with the same password and rights.
    let next = format!("{name}_next");
    place.cql(&format!("CREATE ROLE {next} WITH PASSWORD = '{password}' AND LOGIN = true")).await;
    place.cql(&format!("GRANT {name} TO {next}")).await;
    std::fs::write(&user, format!("{next}\n")).expect("written");
    let reloads = async || {
        let log = pod.log();
        if log.matches("reloaded").count() == 2 { Ok(log) } else { Err(log) }
    };
    eventually("the new user is taken", reloads).await;
    pod.add_well(1_000).await;
    assert_eq!(pod.read().await.1["value"], 1_111);
    pod.stop(&pods);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_access_are_told_why_in_one_sentence() {
    let place = Place::new().await;
    place.apply_schema().await;
    let pods = place.role_of_pods().await;
    let right = place.settings(&pods);
    place.run_well("doctor", &pods).await;
    let between = Relay::start();
    let missing = None::<String>;
    let certificate = |name| Some(place.certificate(name));
    let (ca, cert, key) =
        ("ORDERFREE_CASSANDRA_CA", "ORDERFREE_CASSANDRA_CERT", "ORDERFREE_CASSANDRA_KEY");
    let (user, password) = ("ORDERFREE_CASSANDRA_USER", "ORDERFREE_CASSANDRA_PASSWORD_FILE");
    let wrong = place.files.path().join("wrong");
    std::fs::write(&wrong, "hush-wrong").expect("a file");
    let wrong = Some(wrong.display().to_string());
    let refusals = [
        (
            "no TLS",
            vec![(ca, missing.clone()), (cert, missing.clone()), (key, missing.clone())],
            "if it requires TLS, name its certificate authority with --cassandra-ca",
        ),
        ("another authority", vec![(ca, certificate("stranger-ca.pem"))], "UnknownIssuer"),
        (
            "a relay without a certificate for that address",
            vec![("ORDERFREE_CASSANDRA", Some(between.address.clone()))],
            "not valid for name",
        ),
        (
            "no certificate",
            vec![(cert, missing.clone()), (key, missing.clone())],
            "if it requires a client certificate, set --cassandra-cert",
        ),
        (
            "a certificate of another authority",
            vec![(cert, certificate("stranger.pem")), (key, certificate("stranger.key"))],
            "check that it trusts the authority that signed the client certificate",
        ),
        ("the key of another certificate", vec![(key, certificate("stranger.key"))], "KeyMismatch"),
        ("another password", vec![(password, wrong)], "check user and password"),
        ("an unknown user", vec![(user, Some("stranger".into()))], "check user and password"),
        ("no user", vec![(user, missing.clone()), (password, missing)], "check user and password"),
    ];
    for (what, changes, why) in refusals {
        let mut settings = right.clone();
        for (name, value) in changes {
            match value {
                Some(value) => settings.insert(name, value),
                None => settings.remove(name),
            };
        }
        println!("{what}");
        let said = place.run("serve", &settings, &pods).await;
        assert!(!said.is_well && said.out.is_empty(), "{what}: {}", said.out);
        let is_sentence = said.err.starts_with("orderfree: ") && said.err.lines().count() == 1;
        let is_clear = is_sentence && said.err.contains(why);
        assert!(is_clear && !said.err.contains("hush"), "{what}: {}", said.err);
        let said = place.run("doctor", &settings, &pods).await;
        assert!(!said.is_well && said.out.contains("WRONG") && said.out.contains(why), "{what}");
    }
    assert!(between.connections.load(Ordering::Relaxed) > 0, "the relay was called");

    let reads = format!("SELECT ON KEYSPACE {}", place.keyspace);
    for (name, rights, lacks) in [("reader", vec![reads], "MODIFY"), ("stranger", vec![], "SELECT")]
    {
        let role = place.role(name, &rights).await;
        for command in ["serve", "doctor"] {
            let said = place.run(command, &place.settings(&role), &role).await;
            let said = (said.is_well, said.out + &said.err);
            assert!(!said.0 && said.1.contains(&format!("no {lacks} permission")), "{}", said.1);
        }
    }
    let mut settings = right.clone();
    settings.insert("ORDERFREE_KEYSPACE", format!("more_{}", place.mark));
    let said = place.run("schema apply", &settings, &pods).await;
    assert!(!said.is_well && said.err.contains("no CREATE permission"), "{}", said.err);
    assert!(said.err.starts_with("orderfree: the role lacks a right"), "{}", said.err);
    // The driver's messages are in full, and must not contain the password.
    settings.insert("RUST_LOG", "trace".to_owned());
    let said = place.run("schema apply", &settings, &pods).await;
    assert!(said.err.contains(r#""level":"TRACE""#), "{}", said.err);
}

/// Relays every connection to the node.
struct Relay {
    address: String,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    fn start() -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (client, node) = (client.expect("a caller"), TcpStream::connect(NODE));
                let node = node.expect("the node");
                counted.fetch_add(1, Ordering::Relaxed);
                for (from, to) in [(&client, &node), (&node, &client)] {
                    let (mut from, mut to) =
                        (from.try_clone().expect("one more"), to.try_clone().expect("one more"));
                    thread::spawn(move || copy(&mut from, &mut to));
                }
            }
        });
        Relay { address, connections }
    }
}
