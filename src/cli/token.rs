//! `token new`: creates a token, and the lines of the policy file that admit it.

use std::fs;
use std::io::Write;
use std::num::NonZeroU32;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{self, ExitCode};

use anyhow::{Context, ensure};
use chrono::DateTime;
use clap::builder::TypedValueParser as _;
use clap::{Args, Subcommand};
use orderfree_core::protocol::Timestamp;

use super::output::show;
use crate::policy::{NewToken, Policy, Verb};
use crate::runtime::clock::{Clock, SystemClock};

/// Arguments of `token`.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Create a token, and print it with its lines for the policy file. These lines hold only the token's
    /// hash.
    New(NewArgs),
}

#[derive(Debug, Args)]
struct NewArgs {
    /// Name of the caller, which logs show.
    #[arg(long)]
    name: String,
    /// What the token can do with all groups that begin with a prefix, such as `shop:=read,write`. An empty
    /// prefix, as in `=admin`, means all groups. Verbs are read, write, reset and admin. Can be repeated.
    #[arg(long = "grant", value_name = "GROUP_PREFIX=VERBS", required_unless_present = "groups", value_parser = grant)]
    prefixes: Vec<(String, Vec<String>)>,
    /// What the token can do with one group, such as `site=read,write`. Can be repeated.
    #[arg(long = "grant-group", id = "groups", value_name = "GROUP=VERBS", value_parser = grant)]
    groups: Vec<(String, Vec<String>)>,
    /// Largest number of requests and updates per second, for each pod [default: no limit].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..).try_map(NonZeroU32::try_from))]
    rate: Option<NonZeroU32>,
    /// When the token expires, such as `2027-01-31T00:00:00Z` [default: never].
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Add the lines to this policy file, and print only the token.
    #[arg(long, value_name = "FILE")]
    append: Option<PathBuf>,
}

pub(super) fn run(args: TokenArgs) -> anyhow::Result<ExitCode> {
    let Action::New(args) = args.action;
    args.check_expires(SystemClock.now().wall)?;
    let NewToken { token, sha256 } = NewToken::draw();
    let lines = args.lines(&sha256);
    match &args.append {
        Some(file) => {
            append(file, &lines)?;
            show(token).context("the policy file already has the token's lines; remove them")?;
        }
        None => {
            lines.parse::<Policy>()?;
            show(format_args!("# The token. It is not stored, so keep it now:\n{token}\n"))?;
            show(format_args!("# For the policy file:\n{lines}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Splits at the last `=`, as groups can contain one.
fn grant(text: &str) -> Result<(String, Vec<String>), String> {
    let (groups, verbs) =
        text.rsplit_once('=').ok_or("write groups=verbs, such as shop:=read,write")?;
    let verb = |text: &str| {
        let known = Verb::ALL.iter().any(|verb| verb.name() == text);
        let unknown = || {
            format!(
                "`{text}` is not a verb; write read, write, reset or admin, separated by commas"
            )
        };
        known.then(|| text.to_owned()).ok_or_else(unknown)
    };
    Ok((groups.to_owned(), verbs.split(',').map(str::trim).map(verb).collect::<Result<_, _>>()?))
}

impl NewArgs {
    /// Rejects a time in the past. The policy rejects a text that is not a time.
    fn check_expires(&self, now: Timestamp) -> anyhow::Result<()> {
        let expires = self.expires.as_deref().map(DateTime::parse_from_rfc3339);
        if let Some(Ok(expires)) = expires {
            let is_over = expires.timestamp_micros() <= now.as_micros();
            ensure!(
                !is_over,
                "{expires} is in the past, so the token would be useless; give a later time"
            );
        }
        Ok(())
    }

    fn lines(&self, sha256: &str) -> String {
        let text = |text: &str| toml::Value::String(text.to_owned()).to_string();
        let mut lines =
            format!("[[token]]\nname = {}\nsha256 = {}\n", text(&self.name), text(sha256));
        if let Some(rate) = self.rate {
            lines += &format!("rate = {rate}\n");
        }
        if let Some(expires) = &self.expires {
            lines += &format!("expires = {}\n", text(expires));
        }
        let groups = self.groups.iter().map(|grant| ("group", grant));
        let prefixes = self.prefixes.iter().map(|grant| ("group_prefix", grant));
        for (field, (groups, verbs)) in groups.chain(prefixes) {
            let verbs: Vec<String> = verbs.iter().map(|verb| text(verb)).collect();
            let (groups, verbs) = (text(groups), verbs.join(", "));
            lines += &format!("\n[[token.grant]]\n{field} = {groups}\nverbs = [{verbs}]\n");
        }
        lines
    }
}

/// Adds lines to a file, if the result is a valid policy.
fn append(file: &Path, lines: &str) -> anyhow::Result<()> {
    let what = || format!("the policy file {}", file.display());
    let old = match fs::read_to_string(file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        read => read.with_context(what)?,
    };
    let gap = if old.is_empty() || old.ends_with("\n\n") { "" } else { "\n" };
    let new = format!("{old}{gap}{lines}");
    new.parse::<Policy>().with_context(what)?;
    // Follows a link to the file itself. The file keeps its permissions; a new one is only for its owner.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let rights = fs::metadata(&file).map(|metadata| metadata.permissions());
    let rights = rights.unwrap_or_else(|_| fs::Permissions::from_mode(0o600));
    // In one step: a truncated policy would admit fewer callers, or none.
    let mut aside = file.as_os_str().to_owned();
    aside.push(format!(".new-{}", process::id()));
    let mut options = fs::OpenOptions::new();
    let mut written =
        options.write(true).create_new(true).mode(0o600).open(&aside).with_context(what)?;
    written
        .write_all(new.as_bytes())
        .and_then(|()| written.set_permissions(rights))
        .with_context(what)?;
    fs::rename(&aside, &file).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::time::Duration;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        new: NewArgs,
    }

    fn args(line: &[&str]) -> NewArgs {
        Line::try_parse_from([&["new"], line].concat()).expect("arguments").new
    }

    #[test]
    fn lines_are_a_policy_whatever_the_names_hold() {
        let NewToken { sha256, .. } = NewToken::draw();
        let args = args(&[
            "--name",
            "a",
            "--grant",
            "x=\"y\n=read,write",
            "--grant",
            "=admin",
            "--grant-group",
            "site=read",
            "--rate",
            "7",
            "--expires",
            "2027-01-31T00:00:00Z",
        ]);
        let lines = args.lines(&sha256);
        assert!(lines.parse::<Policy>().expect("a policy").has_tokens(), "{lines}");
        assert!(lines.contains("group = \"site\"\nverbs = [\"read\"]"), "{lines}");
        for (bad, says) in [
            ("all", "groups=verbs"),
            ("a=reed", "`reed` is not a verb"),
            ("a=", "`` is not a verb"),
        ] {
            let refused = Line::try_parse_from(["new", "--name", "a", "--grant", bad]);
            let refused = refused.map(|line| line.new.name).expect_err(bad).to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let line = ["new", "--name", "a", "--grant", "a=read", "--rate", "0"];
        let refused = Line::try_parse_from(line).map(|line| line.new.name).expect_err("no rate");
        assert!(refused.to_string().contains("'--rate <COUNT>'"), "{refused}");
        let expires = DateTime::parse_from_rfc3339("2027-01-31T00:00:00Z").expect("a time");
        let expires = Timestamp::from_micros(expires.timestamp_micros());
        let late = args.check_expires(expires).expect_err("it is over").to_string();
        assert!(late.starts_with("2027-01-31") && late.contains("in the past"), "{late}");
        args.check_expires(expires.minus(Duration::from_micros(1))).expect("it lasts");
    }

    #[test]
    fn a_file_grows_only_into_a_policy() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("policy.toml");
        let of = |name: &str| {
            args(&["--name", name, "--grant", "=read"]).lines(&NewToken::draw().sha256)
        };
        append(&file, &of("a")).expect("made");
        append(&file, &of("b")).expect("grown");
        let before = fs::read_to_string(&file).expect("there");
        assert!(append(&file, &of("b")).is_err(), "a name twice");
        assert_eq!(fs::read_to_string(&file).expect("there"), before);
        let mode = |file: &Path| fs::metadata(file).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        append(&link, &of("c")).expect("grown");
        assert!(fs::read_to_string(&file).expect("there").contains("\"c\""), "through the link");
        assert_eq!(mode(&file), 0o640);
        assert_eq!(
            fs::read_dir(folder.path()).expect("there").count(),
            2,
            "nothing is left behind"
        );
    }
}
