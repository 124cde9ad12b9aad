//! Faults on purpose: pods are killed and paused, and commands cause other faults.
//!
//! A plan is made from the seed before the load starts, as a list of steps. In a soak a step may be
//! to draw a card from the deck of faults. During the load, the executor owns the fleet, carries out
//! the steps, and restarts pods that end. At the end it undoes everything: no pod stays paused or
//! down, and no fault stays unhealed.
//!
//! - `plan`: which step happens when;
//! - `executor`: carries out the steps, and undoes them;
//! - `deck`: the order of the faults of a soak;
//! - `cards`: what each card of the deck does;
//! - `log`: what happened, for the report.

pub(crate) mod cards;
pub(crate) mod deck;
pub(crate) mod executor;
pub(crate) mod log;
pub(crate) mod plan;
