//! What happened to pods and nodes, for the report.

use std::collections::BTreeMap;

use serde::Serialize;

/// The faults of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct FaultLog {
    /// Pods killed.
    pub kills: u64,
    /// Pods paused.
    pub pauses: u64,
    /// Fault commands that ran.
    pub faults: u64,
    /// Pods that ended unexpectedly.
    pub exits: u64,
    /// Cards played, by kind.
    pub cards: BTreeMap<String, u64>,
    /// All events, in their order.
    pub events: Vec<Event>,
    /// Problems that kept the run from testing what it should test.
    pub problems: Vec<String>,
}

/// One event.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Event {
    /// Seconds since the load began.
    pub at_s: f64,
    /// What happened.
    pub what: String,
}
