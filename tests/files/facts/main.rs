//! Facts that several files state: names, paths, ports, times. Each is compared with the place that decides it, so that
//! manifests and documents can't fall behind. `scale` checks computed figures, and `named_tests` the tests that
//! documents name.

mod ids;
mod named_tests;
mod scale;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};
use orderfree::cli::{self, Cli};
use orderfree::engine::metrics::{Metrics, RequestLabel};
use orderfree::store::cassandra::attempts::Patience;
use orderfree::{http, limits};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Timestamp;

/// Variables that begin like ours but are not: one of Kubernetes, which a comment explains, and one that the compiler
/// reads.
const FOREIGN_VARIABLES: [&str; 2] = ["ORDERFREE_PORT", "ORDERFREE_COMMIT"];

/// Files for people, whose commands and paths must work.
const DOCUMENTS: [&str; 24] = [
    "README.md",
    "docs/start.md",
    "docs/count.md",
    "docs/exactly-once.md",
    "docs/running-totals.md",
    "docs/kinds.md",
    "docs/reference/http.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/operate/alerts.md",
    "docs/operate/backup.md",
    "docs/operate/capacity.md",
    "docs/operate/cassandra.md",
    "docs/operate/moving-keys.md",
    "docs/operate/regions.md",
    "docs/operate/run.md",
    "docs/operate/security.md",
    "docs/evidence.md",
    "tests/README.md",
    "tests/pods/containers/README.md",
    "tests/pods/regions/README.md",
    "k8s/README.md",
    "tests/harness/fuzz/README.md",
];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every file below a folder, with its path from the top of the repository.
fn files(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join(folder)).expect("a readable folder") {
        let entry = entry.expect("a readable entry");
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() { found.extend(files(&name)) } else { found.push(name) }
    }
    found
}

/// The text after each `mark`, up to the first character that `ends` it.
fn after<'text>(text: &'text str, mark: &str, ends: impl Fn(char) -> bool) -> Vec<&'text str> {
    text.split(mark).skip(1).map(|rest| rest.split(&ends).next().unwrap_or_default()).collect()
}

/// The rest of each line after `mark`, which must occur.
fn values<'text>(name: &str, text: &'text str, mark: &str) -> Vec<&'text str> {
    let found: Vec<_> = after(text, mark, |end| end == '\n').into_iter().map(str::trim).collect();
    assert!(!found.is_empty(), "{name} has no `{mark}`");
    found
}

/// The parts of a text that are in backticks on one line.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// The command line with all its subcommands.
fn commands() -> Vec<Command> {
    let mut all = vec![Cli::command()];
    let mut next = 0;
    while next < all.len() {
        let below: Vec<Command> = all[next].get_subcommands().cloned().collect();
        all.extend(below);
        next += 1;
    }
    all
}

fn argument(command: &str, argument: &str) -> clap::Arg {
    let command = commands().into_iter().find(|known| known.get_name() == command);
    let command = command.expect("a subcommand");
    let found = command.get_arguments().find(|known| known.get_id() == argument).cloned();
    found.unwrap_or_else(|| panic!("no argument {argument}"))
}

fn default_of(argument: &clap::Arg) -> String {
    argument.get_default_values()[0].to_string_lossy().into_owned()
}

/// `45`, `45s`.
fn seconds(text: &str) -> Duration {
    Duration::from_secs(text.trim_end_matches('s').parse().expect("whole seconds"))
}

/// Whether the OpenAPI document has this path. Its parts in braces match anything.
fn is_served(path: &str) -> bool {
    let document = serde_json::to_value(http::openapi()).expect("JSON");
    let parts: Vec<&str> = path.split('?').next().unwrap_or_default().split('/').collect();
    let fits = |known: &String| {
        let known: Vec<&str> = known.split('/').collect();
        let same = |(known, part): (&&str, &&str)| known.starts_with('{') || known == part;
        known.len() == parts.len() && known.iter().zip(&parts).all(same)
    };
    document["paths"].as_object().expect("paths").keys().any(fits)
}

#[test]
fn every_variable_that_is_named_is_one_of_the_command_line() {
    let mut known = cli::variables();
    assert!(known.len() > 20, "{known:?}");
    // Tests read more variables.
    for test in files("tests").iter().filter(|name| name.ends_with(".rs")) {
        let text = read(test);
        known.extend(after(&text, "env::var(\"", |end| end == '"').into_iter().map(str::to_owned));
    }
    let mut places = ["k8s", "compose", "monitoring"].map(files).concat();
    places.extend(files("docs").into_iter().filter(|name| name.ends_with(".md")));
    let others = ["docker-compose.yml", "Dockerfile", "Makefile"];
    let readable = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
    places.extend(others.iter().chain(&readable).map(|name| (*name).to_owned()));
    for place in places {
        let text = read(&place);
        let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        for rest in after(&text, "ORDERFREE_", |c| !is_name(c)) {
            let name = format!("ORDERFREE_{rest}");
            let is_known = known.contains(&name) || FOREIGN_VARIABLES.contains(&name.as_str());
            assert!(is_known, "{place} names {name}, which nothing reads");
        }
    }
}

#[test]
fn every_command_that_is_shown_is_understood() {
    let mut shown: Vec<(&str, String)> = Vec::new();
    for place in DOCUMENTS {
        let text = read(place);
        // Only at the start of a line or of a quotation, because elsewhere the word may be a name.
        let lines = text.lines().filter_map(|line| line.strip_prefix("orderfree "));
        let quotations = quoted(&text).filter_map(|words| words.strip_prefix("orderfree "));
        shown.extend(lines.chain(quotations).map(|words| (place, words.to_owned())));
    }
    let recipes = read("Makefile").replace("\\\n", " ");
    for recipe in after(&recipes, "cargo run ", |end| end == '\n') {
        if let Some((_, words)) = recipe.split_once("-- ") {
            shown.push(("Makefile", words.to_owned()));
        }
    }
    for (place, mark) in [
        ("docker-compose.yml", "command: ["),
        ("k8s/base/deployment.yaml", "args: ["),
        ("k8s/overlays/cassandra/schema-job.yaml", "args: ["),
        ("k8s/components/fold-cronjob/cronjob.yaml", "args: ["),
        ("Dockerfile", "CMD [\"orderfree\", "),
    ] {
        for list in values(place, &read(place), mark) {
            shown.push((place, list.replace([']', ',', '"'], " ")));
        }
    }
    assert!(shown.len() > 10, "{shown:?}");
    for (place, line) in shown {
        let words = line.split(['#', '<', '>']).next().unwrap_or_default().split_whitespace();
        let parsed = Cli::command().try_get_matches_from(["orderfree"].into_iter().chain(words));
        // Prose names commands without their required arguments.
        let is_fine = parsed.as_ref().err().is_none_or(|error| {
            matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
            )
        });
        assert!(is_fine, "{place}: orderfree {line}: {}", parsed.expect_err("not fine"));
    }
}

#[test]
fn every_recipe_that_is_named_is_in_the_makefile() {
    let makefile = read("Makefile");
    let lines = makefile.lines().filter(|line| !line.starts_with(['\t', '.', '#']));
    let targets: BTreeSet<&str> = lines.filter_map(|line| Some(line.split_once(':')?.0)).collect();
    let mut named = 0;
    for place in DOCUMENTS.into_iter().chain(["deny.toml", ".ci/run"]) {
        let text = read(place);
        let lines = text.lines().chain(quoted(&text));
        for words in lines.filter_map(|line| line.strip_prefix("make ")) {
            let words = words.split('#').next().unwrap_or_default().split_whitespace();
            // Variables are not recipes.
            for target in words.filter(|word| !word.contains('=')) {
                assert!(targets.contains(target), "{place}: make {target}");
                named += 1;
            }
        }
    }
    assert!(named > 8, "{named}");
}

#[test]
fn every_file_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for place in DOCUMENTS {
        let text = read(place);
        for name in quoted(&text) {
            let name = name.split(' ').next().unwrap_or_default();
            let folders = ["src/", "core/", "tests/", "k8s/", "compose/", ".ci/"];
            if folders.iter().any(|folder| name.starts_with(folder)) {
                assert!(root.join(name).exists(), "{place} names {name}");
            }
        }
    }
}

/// The anchors of a page's headings, as forges and mdBook form them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        is_code ^= line.trim_start().starts_with("```");
        !is_code && line.starts_with('#')
    });
    let name = |line: &str| -> String {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    lines.map(name).collect()
}

#[test]
fn every_link_between_documents_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<_> = ["docs", "k8s"].map(files).concat();
    pages.retain(|name| name.ends_with(".md"));
    pages.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "BENCHMARKS.md"].map(str::to_owned),
    );
    let mut followed = 0;
    for page in pages {
        let text = read(&page);
        let folder = root.join(&page).parent().expect("a folder").to_owned();
        for link in after(&text, "](", |end| end == ')') {
            if link.contains("://") || link.is_empty() {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root.join(&page) } else { folder.join(file) };
            assert!(target.exists(), "{page}: {link}");
            if !heading.is_empty() {
                let there = fs::read_to_string(&target).expect("UTF-8");
                assert!(headings(&there).contains(heading), "{page}: no heading {link}");
            }
            followed += 1;
        }
    }
    assert!(followed > 100, "{followed}");
}

#[test]
fn every_path_that_is_asked_for_is_served() {
    let mut asked: Vec<(&str, String)> = Vec::new();
    for (place, mark, least) in [
        ("k8s/base/deployment.yaml", "path: ", 3),
        ("k8s/components/monitoring/service-monitor.yaml", "path: ", 1),
        ("compose/haproxy.cfg", "option httpchk GET ", 1),
    ] {
        let text = read(place);
        let found = values(place, &text, mark);
        assert!(found.len() >= least, "{place}: {found:?}");
        asked.extend(found.into_iter().map(|path| (place, path.to_owned())));
    }
    // The health command of the image, and the other commands that send requests to a server.
    let client = read("src/cli/client.rs");
    let joined = after(&client, "url.join(\"", |end| end == '"');
    assert!(joined.contains(&"readyz?verbose"), "{joined:?}");
    asked.extend(joined.into_iter().map(|path| ("src/cli/client.rs", format!("/{path}"))));
    let reference = "docs/reference/http.md";
    for place in ["README.md", "docs/start.md", "docs/count.md", "docs/kinds.md", reference] {
        let text = read(place);
        for words in quoted(&text) {
            let path = words.trim_start_matches("GET ").trim_start_matches("POST ");
            let path = path.replace('…', "/v1/counter/{group}");
            if path.starts_with('/') && words != path {
                asked.push((place, path));
            }
        }
    }
    let documented = asked.iter().filter(|(place, _)| *place == reference).count();
    assert!(documented > 10, "{asked:?}");
    for (place, path) in asked {
        assert!(is_served(&path), "{place}: {path}");
    }
}

#[test]
fn ports_agree() {
    let deployment = read("k8s/base/deployment.yaml");
    let service = read("k8s/base/service.yaml");
    let port_of = |name: &str| {
        values(
            "the Deployment",
            &deployment,
            &format!("- name: {name}\n              containerPort: "),
        )[0]
    };
    let (users, operators) = (port_of("http"), port_of("admin"));
    let target = values("the Service", &service, "targetPort: ");
    assert_eq!(target, ["http", "admin"], "the container's ports by their names");
    for probe in values("the Deployment", &deployment, "              port: ") {
        assert_eq!(probe, "admin", "the container's port by its name");
    }
    for (port, place, mark) in [
        (users, "Dockerfile", "EXPOSE "),
        (users, "Dockerfile", "ENV ORDERFREE_LISTEN=0.0.0.0:"),
        (
            users,
            "k8s/base/deployment.yaml",
            "- name: ORDERFREE_LISTEN\n              value: 0.0.0.0:",
        ),
        (
            operators,
            "k8s/base/deployment.yaml",
            "- name: ORDERFREE_ADMIN_LISTEN\n              value: 0.0.0.0:",
        ),
        (operators, "k8s/base/service.yaml", "- name: admin\n      port: "),
        (users, "docker-compose.yml", "ORDERFREE_LISTEN: 0.0.0.0:"),
        (operators, "docker-compose.yml", "ORDERFREE_ADMIN_LISTEN: 0.0.0.0:"),
        (users, "compose/haproxy.cfg", "server pod-1 orderfree-1:"),
        (operators, "compose/haproxy.cfg", "check port "),
        (operators, "monitoring/prometheus.yml", "- orderfree-1:"),
    ] {
        for value in values(place, &read(place), mark) {
            let value = value.split(' ').next().unwrap_or_default();
            assert_eq!(value, port, "{place}: {mark}");
        }
    }
    let port = users;
    for (command, id) in [("health", "url"), ("serve", "listen")] {
        let default = default_of(&argument(command, id));
        assert!(default.ends_with(&format!(":{port}")), "orderfree {command}: {default}");
    }
}

#[test]
fn pods_get_the_time_that_their_shutdown_needs() {
    let needed = limits::UNREADY_GRACE + limits::DRAIN_MAX + limits::LAST_SPANS_TIME_MAX;
    for (place, mark) in [
        ("k8s/base/deployment.yaml", "terminationGracePeriodSeconds: "),
        ("docker-compose.yml", "stop_grace_period: "),
    ] {
        for value in values(place, &read(place), mark) {
            assert!(seconds(value) > needed, "{place}: {mark}{value}, but {needed:?} are needed");
        }
    }
    let default = default_of(&argument("serve", "unready_grace"));
    assert_eq!(seconds(&default), limits::UNREADY_GRACE);
}

#[test]
fn proxies_wait_longer_than_the_longest_read_of_a_key() {
    let haproxy = read("compose/haproxy.cfg");
    for mark in ["timeout client ", "timeout server "] {
        for value in values("compose/haproxy.cfg", &haproxy, mark) {
            assert!(seconds(value) > limits::LARGE_KEY_READ_TIME_MAX, "{mark}{value}");
        }
    }
}

#[test]
fn the_page_says_how_long_a_read_takes() {
    let page = read("docs/reference/http.md");
    let Patience { attempts_max, attempt, total } = Patience::OF_READS_AND_FOLDS;
    let [attempt, total, slow, turn, memory, parts, large] = [
        attempt,
        total,
        limits::STORE_SLOW_ATTEMPT_TIME_MAX,
        limits::LONG_KEY_TURN_WAIT_MAX,
        limits::READ_MEMORY_WAIT_MAX,
        limits::LONG_KEY_READ_TIME_MAX,
        limits::LARGE_KEY_READ_TIME_MAX,
    ]
    .map(|time| time.as_secs());
    for row in [
        format!(
            "{attempt} s per attempt, {attempts_max} attempts, {total} s in all; for a part of a long key one attempt of {slow} s"
        ),
        format!("a key | {total} s for one request"),
        format!(
            "up to {} s more: {turn} s for its turn, {memory} s for memory, {parts} s for its parts",
            turn + memory + parts
        ),
        format!("with all its waits | {large} s |"),
        format!(
            "with its retries; [a read](#how-long-a-read-takes) can make several | {total} s |"
        ),
    ] {
        assert!(page.contains(&row), "docs/reference/http.md does not say {row:?}");
    }
}

/// A pod that waits for its store must give up by itself before Kubernetes restarts it.
#[test]
fn pods_get_the_time_that_their_store_needs() {
    let deployment = read("k8s/base/deployment.yaml");
    let startup = after(&deployment, "startupProbe:", |_| false)[0];
    let number =
        |mark: &str| -> u32 { values("the probe", startup, mark)[0].parse().expect("a number") };
    let time = Duration::from_secs(1) * number("periodSeconds: ") * number("failureThreshold: ");
    assert!(time > limits::STORE_WAIT_MAX, "{time:?}");
    assert_eq!(default_of(&argument("serve", "store_wait")), "5m");
    assert_eq!(limits::STORE_WAIT_MAX, Duration::from_secs(300));
}

/// The configured limits fit into the memory that the pods get.
#[test]
fn pods_get_the_memory_that_their_limits_need() {
    const MIB: usize = 1024 * 1024;
    let needed = |place: &str, before: &str, behind: &str| {
        let config = read(place);
        let number = |name: &str| -> usize {
            let value = values(place, &config, &format!("{before}{name}{behind}"))[0];
            value.trim_end_matches('"').parse().expect("a number")
        };
        50 * MIB
            + number("ORDERFREE_MUTATORS_MAX") * (1_500 + limits::LARGE_STATES_BYTES_EACH)
            + number("ORDERFREE_RESTING_BYTES")
            + number("ORDERFREE_CONNECTIONS_MAX") * 30_000
            + limits::BODIES_BYTES_MAX
            + limits::STREAMS_BYTES_MAX
            + limits::ANSWERS_BYTES_MAX
            + limits::VALUES_BYTES_MAX
            + limits::MERGED_BYTES_MAX
            + limits::RECENT_BYTES_MAX
            + limits::WAITING_ROWS_BYTES_MAX
    };
    let kubernetes = needed("k8s/base/config.env", "\n", "=");
    let compose = needed("docker-compose.yml", "\n  ", ": \"");
    for (place, part, mark, needed) in [
        ("k8s/base/deployment.yaml", "\nspec:", "memory: ", kubernetes),
        (
            "k8s/overlays/standalone/stateful-set.yaml",
            "\nspec:",
            "memory: ",
            kubernetes + limits::EMBEDDED_CACHE_BYTES,
        ),
        ("docker-compose.yml", "\nx-pod: &pod", "mem_limit: ", compose),
    ] {
        let text = read(place);
        let part = after(&text, part, |_| false)[0].split("\nservices:").next().expect("a part");
        let memory = values(place, part, mark).pop().expect("a limit").replace("1Gi", "1024Mi");
        let memory: usize = memory.trim_end_matches(['M', 'i', 'm']).parse().expect("MiB");
        assert!(needed < memory * MIB, "{place}: {} MiB are needed", needed / MIB);
    }
}

/// The image is built from the files that `.dockerignore` allows, and cargo needs every member of the workspace.
#[test]
fn the_image_is_built_from_every_member_of_the_workspace() {
    let (manifest, allowed) = (read("Cargo.toml"), read(".dockerignore"));
    let members = after(&manifest, "members = [", |end| end == ']')[0];
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        let folder = member.split('/').next().unwrap_or_default();
        assert!(
            allowed.lines().any(|line| line == format!("!{folder}")),
            ".dockerignore lacks !{folder}"
        );
    }
}

/// Metrics that alerts and documents use exist, the dashboard shows all metrics, and every alert has an entry in the
/// runbook.
#[test]
fn alerts_and_dashboards_use_existing_metrics() {
    let metrics = Metrics::new();
    // The only metric whose labels no pod knows in advance.
    let label = RequestLabel { route: "/".to_owned(), method: "GET", status: 200 };
    metrics.requests.get_or_create(&label).inc();
    let exposed = metrics.encode();
    let known: BTreeSet<&str> =
        after(&exposed, "# TYPE ", char::is_whitespace).into_iter().collect();
    assert!(known.len() > 25, "{known:?}");
    let dashboard = "k8s/components/monitoring/dashboard.json";
    let (mut named, mut shown) = (BTreeSet::new(), BTreeSet::new());
    let pages = ["alerts", "capacity", "run"].map(|page| format!("docs/operate/{page}.md"));
    let pages = pages.iter().map(String::as_str);
    for place in ["monitoring/alerts.yaml", dashboard].into_iter().chain(pages) {
        let text = read(place);
        for rest in after(&text, "orderfree_", |c| !(c.is_ascii_lowercase() || c == '_')) {
            let name = format!("orderfree_{}", rest.trim_end_matches('_'));
            let ends = ["", "_total", "_bucket", "_sum", "_count"];
            let metric = ends.iter().find_map(|end| known.get(name.strip_suffix(end)?).copied());
            let metric = metric.unwrap_or_else(|| panic!("{place}: {name}"));
            if place == dashboard {
                shown.insert(metric);
            }
            named.insert(name);
        }
    }
    assert_eq!(shown, known, "what {dashboard} shows, and what there is");
    assert!(named.len() > 20, "{named:?}");
    let (alerts, runbook) = (read("monitoring/alerts.yaml"), read("docs/operate/alerts.md"));
    let job = "orderfree-fold";
    assert!(alerts.contains(&format!("{{cronjob=\"{job}\"}}")), "no alert watches {job}");
    let manifest = read("k8s/components/fold-cronjob/cronjob.yaml");
    assert!(manifest.contains(&format!("\n  name: {job}\n")), "no CronJob is called {job}");
    let names = values("the alerts", &alerts, "- alert: ");
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(
            runbook.contains(&format!("\n### {name}\n")),
            "docs/operate/alerts.md has no entry {name}"
        );
        let page = format!("docs/operate/alerts.md#{}", name.to_lowercase());
        assert!(alerts.contains(&page), "no alert leads to {page}");
        assert!(read("tests/files/monitoring/alerts.yaml").contains(name), "{name} is not tested");
    }
}

/// The example policy is valid except for the hash, which operators must insert.
#[test]
fn the_example_policy_is_refused_until_it_has_a_token() {
    let example = read("k8s/base/policy.example.yaml");
    let policy = after(&example, "policy.toml: |", |_| false)[0];
    let policy: String = policy.lines().map(|line| format!("{}\n", line.trim())).collect();
    assert!(policy.parse::<orderfree::policy::Policy>().is_err());
    let placeholders = values("the example", &policy, "sha256 = ");
    let mut filled = policy.clone();
    for (index, placeholder) in placeholders.iter().enumerate() {
        filled = filled.replacen(placeholder, &format!("\"{index:064x}\""), 1);
    }
    assert!(filled.parse::<orderfree::policy::Policy>().expect("a policy").has_tokens());
}

#[test]
fn the_table_is_what_the_architecture_says() {
    let (schema, architecture) = (read("schema.cql"), read("ARCHITECTURE.md"));
    let both = "read_repair = 'NONE'";
    assert!(schema.contains(both) && architecture.contains(both), "{both}");
    for property in [
        "PRIMARY KEY ((kind, grp), name, expires_at, mutator_id)",
        "CLUSTERING ORDER BY (name ASC, expires_at DESC, mutator_id ASC)",
        "default_time_to_live = 0",
    ] {
        assert!(schema.contains(property), "{property}");
    }
    let tally = format!("the tally's is {}", Timestamp::NEVER.as_micros());
    assert!(schema.contains(&tally), "{tally}");
}

#[test]
fn the_oldest_rust_is_the_same_everywhere() {
    let manifest = read("Cargo.toml");
    let oldest = after(&manifest, "rust-version = \"", |end| end == '"')[0];
    for place in ["README.md", "CONTRIBUTING.md"] {
        assert!(read(place).contains(&format!("Rust {oldest}")), "{place}: Rust {oldest}");
    }
}

/// Sentences that list some kinds, or count all of them.
#[test]
fn sentences_name_the_kinds_that_they_mean() {
    let listed = |is_meant: &dyn Fn(&Kind) -> bool| {
        let kinds = Kind::ALL.iter().filter(|kind| is_meant(kind));
        let names: Vec<String> = kinds.map(|kind| format!("`{}`", kind.name())).collect();
        let (last, others) = names.split_last().expect("some kinds");
        format!("{} and {last}", others.join(", "))
    };
    let small = format!("all kinds except {}", listed(&|kind| kind.about().is_small()));
    let with_totals = format!("It works for {}", listed(&|kind| kind.about().has_totals));
    assert_eq!(Kind::ALL.len(), 12, "change `twelve` in the documents, and here");
    for (document, sentence) in [
        ("docs/reset.md", small.as_str()),
        ("docs/operate/security.md", &small),
        ("docs/running-totals.md", &with_totals),
        ("docs/kinds.md", "The twelve kinds"),
        ("docs/start.md", "twelve kinds"),
    ] {
        assert!(read(document).contains(sentence), "{document} does not say {sentence:?}");
    }
}

#[test]
fn every_kind_stands_in_the_tables_of_kinds() {
    for (document, heading) in [
        ("README.md", "| kind | you send |"),
        ("docs/kinds.md", "| kind | an op |"),
        ("docs/kinds.md", "| kind | bytes at 1 op |"),
    ] {
        let text = read(document);
        let (_, table) =
            text.split_once(heading).unwrap_or_else(|| panic!("{document}: {heading}"));
        let rows = table.lines().skip(2).map_while(|line| line.strip_prefix("| `"));
        let kinds: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        let all: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(kinds, all, "the table {heading} of {document}");
    }
}
