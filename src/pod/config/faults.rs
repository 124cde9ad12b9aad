//! Faults that tests inject into a pod.

use clap::Args;

#[cfg(debug_assertions)]
use crate::runtime::tasks::Task;

/// Hidden options that only tests use.
#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// The task of this pod that panics once. Release builds do not have this option.
    #[cfg(debug_assertions)]
    #[arg(long, env = "ORDERFREE_PANIC_IN", hide = true, value_name = "TASK")]
    pub panic_in: Option<Task>,
}
