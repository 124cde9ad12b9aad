//! The command line and the configuration: any input gives a configuration that keeps the rules, or an error of one
//! sentence.

use clap::Parser;
use orderfree::cli::Cli;
use orderfree::pod::config::ServeArgs;
use orderfree::policy::Policy;
use orderfree_core::crdt::{Kind, State};
use orderfree_core::protocol::consistency::Level;
use orderfree_core::protocol::{Constants, Key, Name, Overrides};
use std::time::Duration;

#[derive(Parser)]
struct Server {
    #[command(flatten)]
    serve: ServeArgs,
}

/// A policy file gives an error of one sentence, or for every key a precision that its kind knows.
pub(super) fn policy(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let policy: Policy = match text.parse() {
        Ok(policy) => policy,
        Err(error) => return assert!(!format!("{error:#}").is_empty()),
    };
    let name = |text| Name::new(text).expect("a name");
    for &kind in Kind::ALL {
        for group in ["site", "latency:eu"] {
            let key = Key { kind, group: name(group), name: name("n") };
            let Some(precision) = policy.precision(&key) else { continue };
            let range = kind.precision().expect("a precision that can be set");
            assert!((range.min..=range.max).contains(&precision), "{kind}: {precision}");
            assert_eq!(State::new(kind, Some(precision)).kind(), kind);
        }
    }
}

/// Each line is one argument.
pub(super) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines {
        if let Ok(level) = line.parse::<Level>() {
            assert_eq!(level.name(), line.to_ascii_lowercase());
        }
    }
    constants(&lines);
    let args = || ["orderfree"].into_iter().chain(lines.iter().copied());
    if let Err(error) = Cli::try_parse_from(args()) {
        assert!(!error.to_string().is_empty());
    }
    let Ok(Server { serve }) = Server::try_parse_from(args()) else { return };
    if let Err(error) = serve.check(false) {
        assert!(!error.to_string().is_empty());
    }
    let store = &serve.store;
    if [&store.cassandra_password_file, &store.cassandra_ca].into_iter().any(Option::is_some) {
        return; // a file with this name would be read
    }
    match (serve.store.constants(), serve.store.resolve()) {
        (Ok(constants), _) => keeps_the_rules(&constants),
        (Err(error), resolved) => {
            assert!(!error.to_string().is_empty());
            assert!(resolved.is_err(), "a store with constants that break a rule");
        }
    }
}

/// The lines as durations, in the order of the constants. A dash means that one is not given.
fn constants(lines: &[&str]) {
    let given: Vec<Option<Duration>> = lines
        .iter()
        .filter_map(|line| match *line {
            "-" => Some(None),
            line => humantime::parse_duration(line).ok().map(Some),
        })
        .collect();
    let nth = |index: usize| given.get(index).copied().flatten();
    let resolved = Constants::resolve(Overrides {
        lifetime: nth(0),
        drain_margin: nth(1),
        cutoff: nth(2),
        request_budget: nth(3),
        clock_offset_max: nth(4),
        fence_quantum: nth(5),
        hint_window: nth(6),
        sweep_every: nth(7),
        reset_memory: None,
    });
    match resolved {
        Ok(constants) => keeps_the_rules(&constants),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn keeps_the_rules(constants: &Constants) {
    let slack = constants.request_budget() + 2 * constants.clock_offset_max();
    assert!(constants.lifetime() > constants.drain_margin(), "{constants:?}");
    assert!(constants.drain_margin() >= slack, "{constants:?}");
    assert!(constants.cutoff() > slack, "{constants:?}");
    assert!(!constants.fence_quantum().is_zero() && !constants.attempt_budget().is_zero());
    let _ = constants.warning();
}
