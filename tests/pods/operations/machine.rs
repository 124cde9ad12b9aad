//! Resources that the tests of this target share: the machine's time and file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Locked by tests that need the machine alone.
pub(crate) async fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Waits until all other tests are done, except those that also wait.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Sets the limit of open files and sockets for this process and the processes that it starts from now on.
pub(crate) fn allow_files(count: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    assert!(
        maximum.is_none_or(|maximum| maximum >= count),
        "this test needs {count} file descriptors, and the hard limit is {maximum:?}: raise it, such as by \
         `ulimit -Hn {count}` as root"
    );
    if current.is_some_and(|current| current < count) {
        let raised = Rlimit { current: Some(count), maximum };
        setrlimit(Resource::Nofile, raised).expect("a soft limit below the hard one can be set");
    }
}
