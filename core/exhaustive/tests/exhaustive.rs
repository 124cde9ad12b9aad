//! The quick scope without a counterexample, and every broken rule found.

use orderfree_exhaustive::sabotage::Sabotage;
use orderfree_exhaustive::scope::Scope;
use orderfree_exhaustive::{explore, hunt};

/// Fewer worlds than this, and something no longer happens in them.
const WORLDS_MIN: usize = 900_000;

#[test]
fn every_schedule_of_the_quick_scope_keeps_every_rule() {
    let run = explore(Scope::quick(), None, 2);
    assert_eq!(run.broken, [], "a rule is broken");
    assert_eq!(run.unseen, [""; 0], "a hazard was never met");
    assert!(run.unique >= WORLDS_MIN, "only {} worlds", run.unique);
}

#[test]
fn every_broken_rule_is_found() {
    for sabotage in Sabotage::ALL {
        let run = hunt(sabotage);
        assert!(!run.broken.is_empty(), "{sabotage:?} not found in {} worlds", run.unique);
    }
}
