//! The state that the handlers share.

use std::ops::Deref;
use std::sync::Arc;

use crate::engine::health::Health;
use crate::engine::memory::MemoryBudget;
use crate::engine::resetter::Resetter;
use crate::engine::service::Service;
use crate::http::body::bodies::Bodies;
use crate::http::guard::answers::Answers;
use crate::http::guard::lists::Lists;
use crate::http::guard::turns::LargeRequests;
use crate::limits;
use crate::policy::Policies;

#[derive(Clone)]
pub struct AppState {
    /// The store's name.
    pub store: &'static str,
    pub service: Arc<Service>,
    pub resetter: Arc<Resetter>,
    pub health: Arc<Health>,
    pub policies: Policies,
    pub build: Build,
    /// Whether the live page is served.
    pub has_page: bool,
    /// Limit on concurrent requests, per listening address.
    pub requests_max: usize,
}

/// The state of the handlers. Each request clones it, so it has only one reference count: all threads
/// write to that count.
#[derive(Clone)]
pub(crate) struct Served(Arc<Shared>);

/// The public state, and the parts that only this module needs.
pub(crate) struct Shared {
    pub(crate) app: AppState,
    pub(crate) bodies: Bodies,
    pub(crate) answers: Answers,
    pub(crate) turns: LargeRequests,
    pub(crate) lists: Lists,
    /// Memory for the values that merges build from what they read.
    pub(crate) merged: MemoryBudget,
}

impl Served {
    pub(crate) fn new(app: AppState) -> Served {
        let bodies = Bodies::new(limits::BODIES_BYTES_MAX, limits::STREAMS_BYTES_MAX);
        let lists = Lists::new(app.service.metrics());
        Served(Arc::new(Shared {
            app,
            bodies,
            answers: Answers::default(),
            turns: LargeRequests::default(),
            lists,
            merged: MemoryBudget::new(limits::MERGED_BYTES_MAX),
        }))
    }
}

impl Deref for Served {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// The content of `/version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    pub version: &'static str,
    /// The commit that the program was built from, if known.
    pub commit: Option<&'static str>,
}

impl Build {
    /// The build of this program.
    pub const THIS: Build =
        Build { version: env!("CARGO_PKG_VERSION"), commit: option_env!("ORDERFREE_COMMIT") };
}
