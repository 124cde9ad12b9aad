//! Faults that tests wish upon a pod.

use std::path::PathBuf;

use clap::Args;

use crate::tasks::Task;

/// For tests only: hidden from the help.
#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// A file with the number of ms by which this pod's wall clock is off. It may change while the pod
    /// runs.
    #[arg(long, env = "ORDERFREE_CLOCK_SHIFT_FILE", hide = true, value_name = "FILE")]
    pub clock_shift_file: Option<PathBuf>,

    /// A task of this pod that panics once.
    #[arg(long, env = "ORDERFREE_PANIC_IN", hide = true, value_name = "TASK")]
    pub panic_in: Option<Task>,
}
