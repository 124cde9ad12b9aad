//! The small scopes have no counterexample, and every broken rule is found.

use orderfree_exhaustive::sabotage::Sabotage;
use orderfree_exhaustive::scope::Scope;
use orderfree_exhaustive::{explore, hunt};

/// Each scope with the least number of worlds: with fewer, something no longer happens in it.
fn scopes() -> [(Scope, usize); 3] {
    [(Scope::quick(), 900_000), (Scope::writer(), 1_200_000), (Scope::id(), 550_000)]
}

#[test]
fn every_schedule_of_the_small_scopes_keeps_every_rule() {
    for (scope, worlds_min) in scopes() {
        let (name, too_small_for) = (scope.name, scope.unseen.clone());
        let run = explore(scope, None, 2);
        assert_eq!(run.broken, [], "{name}: a rule is broken");
        assert_eq!(run.unseen, too_small_for, "{name}: hazards that were never met");
        assert!(run.unique >= worlds_min, "{name}: only {} worlds", run.unique);
    }
}

#[test]
fn every_broken_rule_is_found() {
    for sabotage in Sabotage::ALL {
        let run = hunt(sabotage);
        assert!(!run.broken.is_empty(), "{sabotage:?} not found in {} worlds", run.unique);
    }
}
