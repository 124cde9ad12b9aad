//! The pages of `docs/reference` that are generated from the code: the command line, the configuration, the problems
//! and the metrics, and the tables of query parameters on the page of HTTP. `make reference` (`REFERENCE=write cargo test --test reference`) writes them; otherwise the test
//! checks that the pages in the tree are up to date.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use orderfree::cli::Cli;
use orderfree::engine::metrics::{Metrics, RequestLabel};
use orderfree::http::{self, ProblemType};

/// Arguments under this heading are for experts. See `config.rs`.
const EXPERT: &str = "Expert";

fn page(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
    if std::env::var("REFERENCE").is_ok_and(|value| value == "write") {
        std::fs::write(&path, text).expect("the page is written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == text, "docs/reference/{name} is out of date: run `make reference`");
}

/// The help of an argument on one line, as a table cell.
fn help_of(argument: &Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let words = help.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    words.replace('|', "\\|").replace('<', "&lt;")
}

fn default_of(argument: &Arg) -> String {
    let values: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let is_switch = !argument.get_action().takes_values();
    if values.is_empty() || is_switch { String::new() } else { format!("`{}`", values.join(",")) }
}

#[test]
fn the_configuration_page_is_up_to_date() {
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").expect("a subcommand");
    let arguments = || serve.get_arguments().filter(|argument| !argument.is_hide_set());
    let is_expert = |argument: &&Arg| argument.get_help_heading() == Some(EXPERT);
    let mut text = "# Configuration\n\n\
        Each setting of `orderfree serve` is an environment variable and a flag. The flag wins if both are set. Durations \
        are written as `30s`, `5m` or `24h`.\n\nThis page is generated from the code.\n"
        .to_owned();
    let mut table = |title: &str, intro: &str, rows: Vec<&Arg>| {
        write!(
            text,
            "\n## {title}\n\n{intro}| variable | flag | default | |\n| --- | --- | --- | --- |\n"
        )
        .expect("written");
        for argument in rows {
            let variable =
                argument.get_env().expect("each setting is a variable").to_string_lossy();
            let flag = argument.get_long().expect("each setting is a flag");
            let (default, help) = (default_of(argument), help_of(argument));
            writeln!(text, "| `{variable}` | `--{flag}` | {default} | {help} |").expect("written");
        }
    };
    let usual: Vec<_> = arguments().filter(|argument| !is_expert(argument)).collect();
    assert!(
        usual.iter().filter(|argument| argument.get_env().is_some()).count() <= 20,
        "twenty are enough"
    );
    let usual = usual.into_iter().filter(|argument| argument.get_env().is_some()).collect();
    table("Settings", "", usual);
    table(
        "Expert settings",
        "Their defaults follow from other settings, or suit every installation that we know.\n\n",
        arguments().filter(is_expert).collect(),
    );
    text.push_str(
        "\n## Other variables\n\n| variable | |\n| --- | --- |\n\
         | `OTEL_EXPORTER_OTLP_ENDPOINT` | Spans of requests are sent there, by OTLP over HTTP. |\n\
         | `RUST_LOG` | What is logged, such as `info,scylla=off` (the default) or `orderfree=debug`. |\n",
    );
    page("configuration.md", &text);
}

#[test]
fn the_page_of_the_command_line_is_up_to_date() {
    let mut text = "# Command line\n\n\
        `orderfree` is one program: the server and its tools. Exit codes: 0 done; 1 refused, unreachable, a check that \
        failed, or an answer that could not be written; 2 bad arguments; 3 the key does not exist; 4 the outcome of an \
        update is unknown.\n\nThis page is generated from the code.\n"
        .to_owned();
    let mut commands: Vec<(String, Command)> = Vec::new();
    fn collect(name: &str, command: &Command, commands: &mut Vec<(String, Command)>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            let name = format!("{name} {}", below.get_name());
            commands.push((name.clone(), below.clone()));
            collect(&name, below, commands);
        }
    }
    collect("orderfree", &Cli::command(), &mut commands);
    assert!(commands.len() > 10, "{}", commands.len());
    for (name, command) in commands {
        write!(text, "\n## {name}\n\n").expect("written");
        if name == "orderfree serve" {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            writeln!(text, "{about}. Its settings are on [a page of their own](configuration.md).")
                .expect("written");
            continue;
        }
        let mut command = command
            .bin_name(&name)
            .term_width(100)
            .mut_args(|argument| argument.hide_env_values(true));
        let help = command.render_long_help().to_string();
        let lines: Vec<_> = help.lines().map(str::trim_end).collect();
        writeln!(text, "```text\n{}\n```", lines.join("\n").trim()).expect("written");
    }
    page("cli.md", &text);
}

#[test]
fn the_page_of_problems_is_up_to_date() {
    let mut text = "# Problems\n\n\
        Errors are `application/problem+json` (RFC 9457). The `type` of a problem ends in one of these names; a running \
        server explains each at `/problems/NAME`.\n\nThis page is generated from the code.\n"
        .to_owned();
    for kind in ProblemType::ALL {
        let entry = kind.entry();
        write!(
            text,
            "\n## {}\n\n**{}**: {}. {}\n\n{}\n",
            entry.slug,
            entry.status.as_u16(),
            entry.title,
            entry.meaning,
            entry.remedy
        )
        .expect("written");
        if let Some(seconds) = entry.retry_after_s {
            write!(text, "\n`Retry-After: {seconds}`\n").expect("written");
        }
    }
    page("problems.md", &text);
}

#[test]
fn the_page_of_metrics_is_up_to_date() {
    let metrics = Metrics::new();
    // The only metric that has labels before the first request.
    let label = RequestLabel { route: "/".to_owned(), method: "GET", status: 200 };
    metrics.requests.get_or_create(&label).inc();
    let exposed = metrics.encode();
    let mut text = "# Metrics\n\n\
        `GET /metrics` exposes these in OpenMetrics text. Counters end in `_total` there, histograms in `_bucket`, `_sum` \
        and `_count`.\n\nThis page is generated from the code.\n\n| metric | type | |\n| --- | --- | --- |\n"
        .to_owned();
    let mut help = "";
    for line in exposed.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            writeln!(text, "| `{name}` | {kind} | {} |", help.replace('|', "\\|"))
                .expect("written");
        }
    }
    page("metrics.md", &text);
}

/// The rest of the page is written by hand. The section of an endpoint begins with its method and path.
#[test]
fn the_parameters_on_the_page_of_http_are_up_to_date() {
    const HEAD: &str = "| parameter | meaning |\n| --- | --- |\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/http.md");
    let mut text = std::fs::read_to_string(path).expect("the page");
    let (document, mut tables) = (http::openapi(), 0);
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let mut rows = String::new();
            for parameter in parameters.filter(|parameter| parameter["in"] == "query") {
                let [name, description] = ["name", "description"]
                    .map(|field| parameter[field].as_str().expect("a text").replace('|', "\\|"));
                let required = if parameter["required"] == true { " (required)" } else { "" };
                writeln!(rows, "| `{name}` | {description}{required} |").expect("written");
            }
            if rows.is_empty() {
                continue;
            }
            let endpoint = format!("{} {path}", method.to_uppercase());
            let section = text.find(&format!("\n\n`{endpoint}`"));
            let section = section.unwrap_or_else(|| panic!("no section about {endpoint}"));
            let end = text[section..].find("\n## ").map_or(text.len(), |end| section + end);
            let table = text[section..end].find(HEAD);
            let table = table.unwrap_or_else(|| panic!("{endpoint} has no table of parameters"));
            let start = section + table + HEAD.len();
            let lines =
                text[start..].split_inclusive('\n').take_while(|line| line.starts_with('|'));
            let old: usize = lines.map(str::len).sum();
            text.replace_range(start..start + old, &rows);
            tables += 1;
        }
    }
    assert_eq!(text.matches(HEAD).count(), tables, "each table is one of an endpoint");
    page("http.md", &text);
}
