//! One pod: its parts, wired over a store.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use orderfree_core::protocol::Constants;
use orderfree_core::protocol::reset::ResetFlaw;
use tokio::time::Instant;

use crate::engine::Context;
use crate::engine::fold::{Folder, Folding};
use crate::engine::health::Health;
use crate::engine::metrics::Metrics;
use crate::engine::resetter::Resetter;
use crate::engine::service::Service;
use crate::engine::write::{Bounds, Mutators};
use crate::http::{self, AppState, Build};
use crate::limits;
use crate::pod::config::Switch;
use crate::policy::Policies;
use crate::runtime::clock::Clock;
use crate::runtime::random::Random;
use crate::runtime::tasks::{Task, Tasks};
use crate::store::Store;

/// How often the pod checks whether its store has failed.
const FAILURE_LOOK_EVERY: Duration = Duration::from_millis(500);

/// The parts of a pod that must be stopped in order.
pub struct Node {
    store: Arc<dyn Store>,
    mutators: Arc<Mutators>,
    service: Arc<Service>,
    folder: Arc<Folder>,
    resetter: Arc<Resetter>,
    pub(crate) health: Arc<Health>,
    pub(crate) policies: Policies,
    /// For each address.
    requests_max: usize,
    has_page: bool,
    tasks: Tasks,
}

/// The parts that [`Node::new`] wires into a pod.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub constants: Constants,
    pub clock: Arc<dyn Clock>,
    pub random: Random,
    pub bounds: Bounds,
    pub policies: Policies,
    pub fold: Switch,
    /// Requests in progress at once, for each address.
    pub requests_max: usize,
    /// Whether this pod resets keys for clients.
    pub has_resets: bool,
    /// Whether the live page is served.
    pub has_page: bool,
    /// Whether the pod is ready only while a quorum of its data centre answers.
    pub needs_quorum: bool,
    /// A rule that a simulation breaks.
    #[doc(hidden)]
    pub reset_flaw: Option<ResetFlaw>,
}

impl Parts {
    /// The parts of a pod without a policy, with the default bounds.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, constants: Constants, clock: Arc<dyn Clock>) -> Parts {
        Parts {
            store,
            constants,
            clock,
            random: Random::system(),
            bounds: Bounds::default(),
            policies: Policies::default(),
            fold: Switch::On,
            requests_max: limits::REQUESTS_MAX,
            has_resets: true,
            has_page: true,
            needs_quorum: false,
            reset_flaw: None,
        }
    }
}

impl Node {
    /// Wires a pod over a store; nothing runs in the background yet.
    #[must_use]
    pub fn new(parts: Parts) -> Node {
        let (requests_max, has_resets, has_page, reset_flaw) =
            (parts.requests_max, parts.has_resets, parts.has_page, parts.reset_flaw);
        let Parts { store, constants, clock, random, bounds, policies, fold, .. } = parts;
        let context = Context::new(store.clone(), constants, clock, random);
        let metrics = &context.metrics;
        for (gauge, most) in [
            (&metrics.mutators_max, bounds.mutators_max),
            (&metrics.resting_bytes_max, bounds.resting_bytes),
        ] {
            gauge.set(i64::try_from(most).unwrap_or(i64::MAX));
        }
        let tasks = Tasks::counting(metrics.panics.clone());
        let mutators = Mutators::new(store.clone(), context.clone(), bounds, policies.clone());
        let folding = match fold {
            Switch::On => Folding::InBackground,
            Switch::Manual => Folding::WhenAsked,
            Switch::Off => Folding::Off,
        };
        let resetter = Resetter::new(
            store.clone(),
            store.clone(),
            Some(mutators.clone()),
            &context,
            match (has_resets, folding) {
                (false, _) => Some("they are switched off (ORDERFREE_RESETS=off)"),
                (true, Folding::Off) => Some("folds are switched off (ORDERFREE_FOLD=off)"),
                (true, _) => None,
            },
            reset_flaw,
        );
        let folder =
            Folder::new(store.clone(), store.clone(), context.clone(), folding, policies.clone());
        let service =
            Service::new(store.clone(), store.clone(), context, mutators.clone(), folder.clone());
        let (service, health) = (Arc::new(service), Arc::new(Health::new(parts.needs_quorum)));
        Node {
            store,
            mutators,
            service,
            folder,
            resetter,
            health,
            policies,
            requests_max,
            has_page,
            tasks,
        }
    }

    /// Wires a pod for a tool, which has no clients and no background work.
    #[must_use]
    pub fn for_tool(
        store: &Arc<dyn Store>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        fold: Switch,
    ) -> Node {
        Node::for_folds(store, constants, clock, fold, Policies::default())
    }

    /// Like [`Node::for_tool`], for a tool that folds: the policy says which keys it forgets.
    #[must_use]
    pub fn for_folds(
        store: &Arc<dyn Store>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        fold: Switch,
        policies: Policies,
    ) -> Node {
        let bounds = Bounds { resting_bytes: 0, ..Bounds::awake(1) };
        Node::new(Parts {
            bounds,
            fold,
            policies,
            ..Parts::new(Arc::clone(store), constants, clock)
        })
    }

    /// Starts the background work.
    pub fn start(&self) {
        self.start_without_looks();
        self.tasks.spawn(Task::ResetPoll, Arc::clone(&self.resetter).poll(self.tasks.clone()));
    }

    /// Starts the background work, but for the looks at the log of resets. A simulation makes them itself.
    pub fn start_without_looks(&self) {
        let tidy = Arc::clone(&self.mutators).tidy(self.tasks.clone());
        self.tasks.spawn(Task::Tidy, tidy);
        self.folder.start(&self.tasks);
        self.health.set_started();
    }

    #[must_use]
    pub fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    #[must_use]
    pub fn resetter(&self) -> &Arc<Resetter> {
        &self.resetter
    }

    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The HTTP interface.
    pub fn router(&self) -> Router {
        self.router_with(Router::new())
    }

    /// The HTTP interface and the routes of `others`, which get the same ids, log lines and metrics.
    /// Benchmarks use it for comparisons.
    pub fn router_with(&self, others: Router) -> Router {
        http::router_with(self.app(), others)
    }

    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.service.metrics()
    }

    pub(crate) fn app(&self) -> AppState {
        AppState {
            store: self.store.name(),
            service: Arc::clone(&self.service),
            resetter: Arc::clone(&self.resetter),
            health: Arc::clone(&self.health),
            policies: self.policies.clone(),
            build: Build::THIS,
            has_page: self.has_page,
            requests_max: self.requests_max,
        }
    }

    /// Waits until the pod can't go on without a restart. Returns one sentence that says why.
    pub(crate) async fn failed(&self) -> String {
        let store = async {
            loop {
                if let Some(reason) = self.store.failure() {
                    return reason.to_owned();
                }
                tokio::time::sleep(FAILURE_LOOK_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            reason = store => format!("the store can't go on: {reason}"),
            reason = self.tasks.failed() => format!("the pod can't go on: {reason}"),
            reason = self.mutators.failed() => format!("the pod can't go on: {reason}"),
        }
    }

    /// Writes every mutator, stops folding after the current keys and closes the store. Returns the number of
    /// mutators that could not be written in time.
    pub async fn stop(&self, within: Duration) -> usize {
        let deadline = Instant::now() + within;
        let unwritten = self.mutators.close(within).await;
        self.tasks.join(deadline.saturating_duration_since(Instant::now())).await;
        self.service.close(deadline.saturating_duration_since(Instant::now())).await;
        let _ = tokio::time::timeout_at(deadline, self.store.close()).await;
        unwritten
    }
}
