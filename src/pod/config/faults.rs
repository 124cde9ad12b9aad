//! Faults that tests inject into a pod.

use std::path::PathBuf;

use clap::Args;

use crate::runtime::tasks::Task;

/// Hidden options that only tests use.
#[derive(Debug, Clone, Args)]
pub struct FaultArgs {
    /// A file with the offset of this pod's wall clock in ms. The file can change while the pod runs.
    #[arg(long, env = "ORDERFREE_CLOCK_SHIFT_FILE", hide = true, value_name = "FILE")]
    pub clock_shift_file: Option<PathBuf>,

    /// The task of this pod that panics once.
    #[arg(long, env = "ORDERFREE_PANIC_IN", hide = true, value_name = "TASK")]
    pub panic_in: Option<Task>,
}
