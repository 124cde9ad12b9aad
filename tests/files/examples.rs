//! Runs the examples of the documents: every command of their `console` blocks runs against a server, which is new for
//! each page, and must print what the page says.
//!
//! A line that begins with `$ ` is a command, and a `\` at its end continues it. The lines below it are its output, in
//! which `…` stands for any text. All commands of a page run in one shell, so they can use variables. Only two things
//! differ from what a reader runs: the address of the server and the folder.

#[path = "../pods/operations/pod.rs"]
mod pod;
#[path = "../pods/operations/wire.rs"]
mod wire;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use pod::Setup;
use tokio::process::Command;
use tokio::time::timeout;

/// Pages with examples.
const PAGES: &[&str] = &[
    "README.md",
    "docs/start.md",
    "docs/kinds.md",
    "docs/count.md",
    "docs/exactly-once.md",
    "docs/running-totals.md",
    "docs/reset.md",
];

/// The address of the server in the examples.
const ADDRESS: &str = "http://127.0.0.1:8080";

/// Programs that build, test or start containers. Pages show them in `sh` blocks, which are not run.
const NOT_RUN: &[&str] = &["cargo", "make", "docker", "kubectl"];

/// Far longer than all commands of a page take.
const PAGE_WITHIN: Duration = Duration::from_secs(60);

/// A command, and its output according to the page.
#[derive(Debug, PartialEq, Eq)]
struct Example {
    line: usize,
    command: String,
    output: String,
}

/// A block of code: its language, the number of its first line, and its lines.
struct Block<'a> {
    language: &'a str,
    line: usize,
    lines: Vec<&'a str>,
}

fn text_of(page: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// All blocks of code of a page. No line outside `console` blocks may look like a command.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for (at, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language, line: at + 2, lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) if block.language == "console" => block.lines.push(line),
            (None, _) if line.trim_start().starts_with("$ ") => {
                panic!("line {}: a command outside of a console block: {line}", at + 1)
            }
            (None, Some(block)) => block.lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of code has no end");
    blocks
}

/// The examples of a page, in their order.
fn examples(text: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for block in blocks(text).iter().filter(|block| block.language == "console") {
        let mut lines = (block.line..).zip(&block.lines).peekable();
        let begins = lines.peek().is_some_and(|(_, line)| line.starts_with("$ "));
        assert!(begins, "line {}: a console block begins with a command", block.line);
        while let Some((line, text)) = lines.next() {
            let Some(start) = text.strip_prefix("$ ") else {
                let example = examples.last_mut().expect("a command came before");
                writeln!(example.output, "{text}").expect("written");
                continue;
            };
            let mut command = start.to_owned();
            while command.ends_with('\\') {
                let (_, more) = lines.next().expect("a continued line is not the last");
                write!(command, "\n{more}").expect("written");
            }
            examples.push(Example { line, command, output: String::new() });
        }
    }
    examples
}

/// Whether an output matches the page.
fn fits(said: &str, output: &str) -> bool {
    let mut pieces = said.split('…');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = output.strip_prefix(first) else { return false };
    let Some(last) = pieces.next_back() else { return rest.is_empty() };
    for piece in pieces {
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// Runs all examples of a page on a new server, and returns their number.
async fn run(page: &str) -> usize {
    let examples = examples(&text_of(page));
    let pod = Setup::new().start().await;
    let url = format!("http://127.0.0.1:{}", pod.port());
    let folder = tempfile::tempdir().expect("a folder");
    // curl prints errors, but no progress meter.
    std::fs::write(folder.path().join(".curlrc"), "silent\nshow-error\n").expect("written");
    // After each command, print its exit status and a zero byte, which no output contains.
    let mut script = String::new();
    for example in &examples {
        let command = example.command.replace(ADDRESS, &url);
        writeln!(script, "{command}\nprintf '\\n%d\\0' $?").expect("written");
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_orderfree")).parent().expect("a folder");
    let others = std::env::var_os("PATH").expect("a PATH");
    let path = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&others));
    let shell = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        // Without the proxies and the `.curlrc` of the user that runs the tests.
        .env_clear()
        .env("PATH", std::env::join_paths(path).expect("a PATH"))
        .env("HOME", folder.path())
        .env("ORDERFREE_URL", &url)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ended = timeout(PAGE_WITHIN, shell).await;
    let ended = ended.unwrap_or_else(|_| panic!("{page}: not ended")).expect("bash runs");
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    let outputs: Vec<_> = stdout.split_terminator('\0').collect();
    assert_eq!(outputs.len(), examples.len(), "{page}: not all ran: {stdout}{stderr}");
    let mut wrong = String::new();
    for (Example { line, command, output: said }, printed) in examples.iter().zip(outputs) {
        let (printed, status) = printed.rsplit_once('\n').expect("a status");
        // Readers have their server at the default address.
        let printed = printed.replace(&format!(" --url {url}"), "");
        let (said, printed) = (said.trim_end(), printed.trim_end());
        if status != "0" || !fits(said, printed) {
            write!(wrong, "\n{page}:{line}: $ {command}\nsaid:    {said}\nprinted: {printed}\n")
                .expect("written");
            writeln!(wrong, "status:  {status}").expect("written");
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nall errors of the page:\n{stderr}");
    examples.len()
}

#[tokio::test]
async fn the_readme_prints_what_it_says() {
    let curls = examples(&text_of("README.md"))
        .iter()
        .filter(|example| example.command.starts_with("curl "))
        .count();
    assert!(curls >= 3, "the README has only {curls} commands with curl");
    assert!(run("README.md").await >= curls);
}

#[tokio::test]
async fn the_first_page_prints_what_it_says() {
    let ran = run("docs/start.md").await;
    assert!(ran >= 15, "only {ran} commands");
}

#[tokio::test]
async fn the_page_of_kinds_prints_what_it_says() {
    let ran = run("docs/kinds.md").await;
    assert!(ran >= 3, "only {ran} commands");
}

/// The HTTP reference shows bodies, not commands. Commands added later are run.
#[tokio::test]
async fn the_page_of_counting_prints_what_it_says() {
    run("docs/count.md").await;
    let blocks = blocks(&text_of("docs/count.md")).len();
    assert!(blocks >= 5, "only {blocks} blocks of code");
}

/// Its Requests are those that the checks of the interface use.
#[tokio::test]
async fn the_python_program_takes_a_total() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let venv = Command::new(root.join("tests/venv"))
        .arg(root.join("tests/files/openapi/requirements.txt"))
        .output();
    let venv = venv.await.expect("the script runs");
    assert!(venv.status.success(), "{}", String::from_utf8_lossy(&venv.stderr));
    let venv = String::from_utf8(venv.stdout).expect("UTF-8");
    let pod = Setup::new().start().await;
    let url = format!("http://127.0.0.1:{}", pod.port());
    let path = "/v1/counter/bills/initech";
    assert_eq!(pod.ask("POST", path, &[("content-type", "text/plain")], "7").await.status, 200);
    let page = text_of("docs/count.md");
    let mut programs = blocks(&page).into_iter().filter(|block| block.language == "python");
    let program = programs.next().expect("a program").lines.join("\n").replace(ADDRESS, &url);
    assert!(program.contains(path) && programs.next().is_none());
    let python = Path::new(venv.trim()).join("bin/python");
    let mut python = Command::new(python);
    python.args(["-c", &program]).env_clear().kill_on_drop(true);
    let ended = timeout(PAGE_WITHIN, python.output()).await;
    let ended = ended.expect("it ends").expect("python runs");
    let (printed, errors) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(printed.contains(" -7\n") && printed.ends_with("\nacked\n"), "{printed}{errors}");
    assert_eq!(pod.count(path).await, 0);
}

#[tokio::test]
async fn the_page_exactly_once_prints_what_it_says() {
    let ran = run("docs/exactly-once.md").await;
    assert!(ran >= 4, "only {ran} commands");
}

#[tokio::test]
async fn the_page_of_running_totals_prints_what_it_says() {
    let ran = run("docs/running-totals.md").await;
    assert!(ran >= 9, "only {ran} commands");
}

#[tokio::test]
async fn the_page_of_resets_prints_what_it_says() {
    let ran = run("docs/reset.md").await;
    assert!(ran >= 4, "only {ran} commands");
}

#[test]
fn commands_that_build_or_start_containers_are_not_run() {
    let is_left_out = |command: &str| {
        command.split_whitespace().next().is_some_and(|program| NOT_RUN.contains(&program))
    };
    let mut left_out = 0;
    for page in PAGES {
        let text = text_of(page);
        for Example { line, command, .. } in examples(&text) {
            assert!(!is_left_out(&command), "{page}:{line}: {command}: for an `sh` block");
        }
        for block in blocks(&text).iter().filter(|block| block.language == "sh") {
            let line = block.line;
            // Nothing else may avoid these tests by standing in such a block.
            for command in block.lines.join("\n").replace("\\\n", "").lines() {
                assert!(is_left_out(command), "{page}:{line}: {command}: for a `console` block");
                left_out += 1;
            }
        }
    }
    assert!(left_out >= 5, "only {left_out} commands of `sh` blocks");
}

#[test]
fn the_examples_of_a_page_are_found() {
    let page =
        "Text\n```sh\nmake\n```\n```console\n$ a \\\n  b\none\n\ntwo\n$ c\n```\n```text\nd\n```\n";
    let example = |line, command: &str, output: &str| Example {
        line,
        command: command.to_owned(),
        output: output.to_owned(),
    };
    assert_eq!(examples(page), [example(6, "a \\\n  b", "one\n\ntwo\n"), example(11, "c", "")]);
    for bad in [
        "$ a\n",
        "```sh\n$ a\n```\n",
        "  ```console\n  $ a\n",
        "```console\n$ a\n",
        "```console\na\n```\n",
    ] {
        let read = std::panic::catch_unwind(|| examples(bad));
        assert!(read.is_err(), "{bad}");
    }
}

#[test]
fn an_ellipsis_stands_for_any_text() {
    for (said, output) in [
        ("", ""),
        ("6", "6"),
        ("…", ""),
        ("…", "a\nb"),
        ("{\"a\":1,…}", "{\"a\":1,\"b\":2}"),
        ("{…,\"a\":\"x…\",…}", "{\"k\":0,\"a\":\"xyz\",\"b\":2}"),
        ("3.0…", "3.0"),
    ] {
        assert!(fits(said, output), "{said} {output}");
    }
    for (said, output) in [
        ("", "6"),
        ("6", "66"),
        ("6", ""),
        ("{\"a\":1,…}", "{\"a\":2,\"b\":2}"),
        ("{\"a\":1,…}", "{\"a\":1,\"b\":2"),
        ("ab…ba", "aba"),
        ("a…b…c", "a c b"),
    ] {
        assert!(!fits(said, output), "{said} {output}");
    }
}
