//! Every schedule of a small world, checked against the rules of the protocol.
//!
//! Two mutators, folders, three replicas, late and repeated messages, a purged deletion: the world is small enough for
//! [`stateright`] to try every order of events. All decisions are those of [`orderfree_core::protocol`]. Only the
//! replicas, the messages and the clocks are modelled here. `docs/exhaustive.md` says what this proves and what it
//! can't.
//!
//! * [`scope`]: the size of the world, and when things can happen;
//! * [`tables`]: the shipped mutators and the messages that they send, each with a small number;
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

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// Different worlds.
    pub unique: usize,
    /// Worlds visited, including repeated ones.
    pub generated: usize,
    /// The longest of the shortest paths to a world, in steps.
    pub depth: usize,
    pub took: Duration,
    /// The rules that were broken, with the path to the world.
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// Expected observations that were not made.
    pub unseen: Vec<&'static str>,
}

/// Visits every world of the scope, up to a broken rule.
///
/// # Panics
/// If a worker panics.
#[must_use]
pub fn explore(scope: Scope, sabotage: Option<Sabotage>, threads: usize) -> Run {
    run(Small::new(scope, sabotage).checker().threads(threads))
}

/// Searches for a shortest path to a world in which the broken rule shows.
#[must_use]
pub fn hunt(sabotage: Sabotage) -> Run {
    let within = |depth| {
        let checker = Small::new(sabotage.scope(), Some(sabotage)).checker();
        run(checker.target_max_depth(depth))
    };
    // The checker visits blocks of worlds, and reports the last finding in a block.
    let mut best = explore(sabotage.scope(), Some(sabotage), 1);
    while let Some((_, way)) = best.broken.first() {
        // Worlds at this depth are not visited any more. The first world has depth 1.
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
