//! Every schedule of a small world, checked against the rules of the protocol.
//!
//! Two mutators, folders, three replicas, late and repeated messages, a purged deletion: small
//! enough to try every order of events, by [`stateright`]. All decisions are those of
//! [`orderfree_core::protocol`]; only the replicas, the messages and the clocks are modelled here.
//! `docs/exhaustive.md` says what that proves and what it can't.
//!
//! * [`scope`]: how small, and when things may happen;
//! * [`tables`]: the shipped mutators and what they send, each under a small number;
//! * [`replica`]: Cassandra's rules for one replica;
//! * [`world`], [`model`]: the state and the transitions;
//! * [`judge`]: what must always hold;
//! * [`sabotage`]: rules broken on purpose.

pub mod judge;
pub mod model;
pub mod replica;
pub mod sabotage;
pub mod scope;
pub mod tables;
pub mod world;

use std::time::{Duration, Instant};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use model::{Action, Small};
use sabotage::Sabotage;
use scope::Scope;

/// What a run found.
#[derive(Debug)]
pub struct Run {
    /// Different worlds met.
    pub unique: usize,
    /// Worlds met, those met before included.
    pub generated: usize,
    /// Longest of the shortest ways to a world, in steps.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The rules found broken, with the way there.
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// What should have been met, and was not.
    pub unseen: Vec<&'static str>,
}

/// Visits every world of the scope; stops where a rule is found broken.
///
/// # Panics
/// If a worker panics.
#[must_use]
pub fn explore(scope: Scope, sabotage: Option<Sabotage>, threads: usize) -> Run {
    run(Small::new(scope, sabotage).checker().threads(threads))
}

/// Looks for a shortest way to where the broken rule shows.
#[must_use]
pub fn hunt(sabotage: Sabotage) -> Run {
    let within = |depth| {
        let checker = Small::new(sabotage.scope(), Some(sabotage)).checker();
        run(checker.target_max_depth(depth))
    };
    // The checker looks at blocks of worlds, and tells of the last that it found in one.
    let mut best = explore(sabotage.scope(), Some(sabotage), 1);
    while let Some((_, way)) = best.broken.first() {
        // Worlds at this depth are no longer looked at, and the first one has depth 1.
        let shorter = within(way.len() + 1);
        if shorter.broken.is_empty() {
            break;
        }
        best = shorter;
    }
    best
}

fn run(checker: CheckerBuilder<Small>) -> Run {
    let started = Instant::now();
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let (mut broken, mut unseen) = (Vec::new(), Vec::new());
    for property in checker.model().properties() {
        let is_failure = property.expectation.discovery_is_failure();
        match discoveries.get(property.name) {
            Some(path) if is_failure => broken.push((property.name, path.clone().into_actions())),
            None if !is_failure => unseen.push(property.name),
            _ => {}
        }
    }
    broken.sort_by_key(|(_, actions)| actions.len());
    Run {
        unique: checker.unique_state_count(),
        generated: checker.state_count(),
        depth: checker.max_depth(),
        took: started.elapsed(),
        broken,
        unseen,
    }
}
