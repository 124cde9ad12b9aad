//! The names of watched groups. All streams of a group share its list, so a thousand streams cost no more reads than one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Name;
use tokio::time::Instant;

use crate::engine::memory::{MemoryBudget, MemoryPermit};
use crate::engine::metrics::Metrics;
use crate::engine::read::shared_reads::SharedReads;
use crate::http::problem::Problem;
use crate::limits;
use crate::runtime::tasks::Tasks;

/// The lists of a pod.
pub(crate) struct Lists {
    of: Mutex<HashMap<Group, Weak<List>>>,
    pub(crate) memory: MemoryBudget,
    /// Reads of names. A stream stops while its client takes nothing, and must not stop a read that others wait for.
    pub(crate) tasks: Tasks,
}

/// A watched group, or a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub(crate) kind: Kind,
    pub(crate) group: Name,
    pub(crate) prefix: Option<Name>,
}

/// The list of a group. A pod keeps it as long as a stream watches the group.
#[derive(Default)]
pub(crate) struct List(pub(crate) SharedReads<Arc<Names>, Problem>);

/// Names of a group.
pub(crate) struct Names {
    pub(crate) names: Vec<Name>,
    /// When to read them again.
    pub(crate) until: Instant,
    pub(crate) _memory: MemoryPermit,
}

impl Lists {
    pub(crate) fn new(metrics: &Metrics) -> Lists {
        Lists {
            of: Mutex::default(),
            memory: MemoryBudget::new(limits::WATCHED_NAMES_BYTES_MAX),
            tasks: Tasks::counting(metrics.panics.clone()),
        }
    }

    /// The list of this group, which all its streams share.
    pub(crate) fn of(&self, group: &Group) -> Arc<List> {
        let mut lists = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(group).and_then(Weak::upgrade) {
            return list;
        }
        lists.retain(|_, list| list.strong_count() > 0);
        let list = Arc::<List>::default();
        lists.insert(group.clone(), Arc::downgrade(&list));
        list
    }
}
