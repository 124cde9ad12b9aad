//! A soak: a long load under a deck of all known faults. Its clients fail over to other pods, as the
//! clients of a load balancer do.
//!
//! - `args`: the flags;
//! - `state`: what clients, faults and the check share;
//! - `service`: how updates and reads find a pod;
//! - `audited`: single updates that are checked one by one;
//! - `checks`: metrics, audited keys, rows and tombstones;
//! - `faults`: which faults of nodes the script can cause;
//! - `figures`: what a soak counts in addition to the load;
//! - `report`: what it found, and whether it passes;
//! - `page`: the report as Markdown.

pub(crate) mod args;
pub(crate) mod audited;
pub(crate) mod checks;
pub(crate) mod faults;
pub(crate) mod figures;
pub(crate) mod page;
pub(crate) mod report;
pub(crate) mod service;
pub(crate) mod state;
