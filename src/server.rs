//! One pod from start to end: opens the store, wires the parts, serves, and shuts down in order.

mod start;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use orderfree_core::protocol::Constants;
use thiserror::Error;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chance::Chance;
use crate::clock::Clock;
use crate::config::{ServeArgs, Switch};
use crate::gate::Gate;
use crate::gc::{Folder, Folding};
use crate::health::Health;
use crate::http::{self, AppState, Build};
use crate::limits;
use crate::metrics::{Metrics, ReloadLabel};
use crate::mutators::{Bounds, Mutators};
use crate::policy::Policies;
use crate::service::Service;
use crate::store::Store;
use crate::tasks::{self, Task, Tasks};
use crate::tls::ServerTls;
use start::{Started, start};

pub use start::open_store;

/// How often to look whether the store can't go on.
const FAILURE_LOOK_EVERY: Duration = Duration::from_millis(500);

/// Somebody wants the end at once.
#[derive(Debug, Error)]
#[error("a second signal: ended without writing everything")]
pub struct SecondSignal;

/// The parts of a pod that must be stopped in order.
pub struct Node {
    store: Arc<dyn Store>,
    mutators: Arc<Mutators>,
    service: Arc<Service>,
    folder: Arc<Folder>,
    health: Arc<Health>,
    policies: Policies,
    /// Of each address.
    requests_max: usize,
    tasks: Tasks,
}

impl Node {
    /// Wires a pod over a store; nothing runs in the background yet.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        chance: Chance,
        bounds: Bounds,
        policies: Policies,
        fold: Switch,
    ) -> Node {
        let metrics = Arc::new(Metrics::new());
        for (gauge, most) in [
            (&metrics.mutators_max, bounds.mutators_max),
            (&metrics.resting_bytes_max, bounds.resting_bytes),
        ] {
            gauge.set(i64::try_from(most).unwrap_or(i64::MAX));
        }
        let gate = Arc::new(Gate::new(clock, Arc::clone(&store), constants, Arc::clone(&metrics)));
        let mutators = Mutators::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            chance.clone(),
            bounds,
            policies.clone(),
        );
        let folding = match fold {
            Switch::On => Folding::InBackground,
            Switch::Manual => Folding::WhenAsked,
            Switch::Off => Folding::Off,
        };
        let folder = Folder::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            chance,
            folding,
        );
        let service = Arc::new(Service::new(
            Arc::clone(&store),
            gate,
            Arc::clone(&mutators),
            Arc::clone(&folder),
            constants,
            metrics,
        ));
        let tasks = Tasks::counting(service.metrics().panics.clone());
        let (health, requests_max) = (Arc::default(), limits::REQUESTS_MAX);
        Node { store, mutators, service, folder, health, policies, requests_max, tasks }
    }

    /// Wires a pod for a tool, which has no clients and no background work.
    #[must_use]
    pub fn for_tool(
        store: &Arc<dyn Store>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        fold: Switch,
    ) -> Node {
        let (chance, policies) = (Chance::system(), Policies::default());
        let bounds = Bounds { resting_bytes: 0, ..Bounds::awake(1) };
        Node::new(Arc::clone(store), constants, clock, chance, bounds, policies, fold)
    }

    /// Starts the background work.
    pub fn start(&self) {
        let tidy = Arc::clone(&self.mutators).tidy(self.tasks.clone());
        self.tasks.spawn(Task::Tidy, tidy);
        self.folder.start(&self.tasks);
        self.health.set_started();
    }

    /// Folds keys.
    #[must_use]
    pub fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    /// The use cases.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// The HTTP interface.
    pub fn router(&self) -> Router {
        self.router_with(Router::new())
    }

    /// The same, and `others` with the same ids, log lines and metrics: for comparisons.
    pub fn router_with(&self, others: Router) -> Router {
        http::router_with(self.app(), others)
    }

    /// What it counts about itself.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.service.metrics()
    }

    fn app(&self) -> AppState {
        AppState {
            service: Arc::clone(&self.service),
            health: Arc::clone(&self.health),
            policies: self.policies.clone(),
            build: Build::THIS,
            requests_max: self.requests_max,
        }
    }

    /// Reads anew what may change while the pod runs.
    fn reload(&self, tls: Option<&ServerTls>) {
        let policy = self.policies.has_file().then(|| ("policy", self.policies.reload()));
        let certificate = tls.map(|tls| ("certificate", tls.reload().map_err(anyhow::Error::from)));
        for (what, reloaded) in policy.into_iter().chain(certificate) {
            let result = match &reloaded {
                Ok(()) => {
                    tracing::info!(what, "read anew");
                    "ok"
                }
                Err(error) => {
                    tracing::error!(what, "it can't be used, and stays as it was: {error:#}");
                    "refused"
                }
            };
            let metrics = self.service.metrics();
            metrics.policy_reloads.get_or_create(&ReloadLabel { result }).inc();
        }
    }

    /// Ready once the pod can't go on without a restart, with one sentence that says why.
    async fn failed(&self) -> String {
        let store = async {
            loop {
                if let Some(reason) = self.store.failure() {
                    return reason;
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

    /// Writes every mutator, stops folding between keys and closes the store. Returns how many
    /// mutators could not be written in time.
    pub async fn stop(&self, within: Duration) -> usize {
        let deadline = Instant::now() + within;
        let unwritten = self.mutators.close(within).await;
        self.tasks.join(deadline.saturating_duration_since(Instant::now())).await;
        self.service.close(deadline.saturating_duration_since(Instant::now())).await;
        let _ = tokio::time::timeout_at(deadline, self.store.close()).await;
        unwritten
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence that says what to do, if the pod can't start or go on, or if writes were left when
/// it ended.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let policies = Policies::open(args.policy.as_deref())?;
    args.check(policies.authenticates())?;
    if let Some(task) = args.faults.panic_in {
        tracing::warn!("the task {:?} will panic: this is a test", task.name());
        tasks::panic_in(task);
    }
    // First of all: whoever stops a pod that is still waiting for its store is heard as well.
    let mut signals = Signals::listen()?;
    let started = tokio::select! {
        biased;
        _ = signals.end() => return Ok(()),
        started = start(&args, policies) => started?,
    };
    let Started { node, users, admins, tls } = started;
    if signals.hung_up {
        node.reload(tls.as_deref());
    }
    let closing = CancellationToken::new();
    let mut serving = pin!(async {
        match admins {
            None => users.serve(node.router(), closing.clone()).await,
            Some(admins) => {
                let (for_users, for_admins) = http::routers_apart(node.app());
                let users = users.serve(for_users, closing.clone());
                futures::join!(users, admins.serve(for_admins, closing.clone()));
            }
        }
    });
    let signal = loop {
        let signal = tokio::select! {
            biased;
            signal = signals.next() => signal,
            reason = node.failed() => anyhow::bail!(reason),
            () = &mut serving => anyhow::bail!("serving ended by itself"),
        };
        if signal != Signal::Hangup {
            break signal;
        }
        node.reload(tls.as_deref());
    };
    let ending = async {
        node.health.set_draining();
        if signal == Signal::Terminate {
            tracing::info!(grace = ?args.unready_grace, "unready; serving on for a while");
            let _ = tokio::time::timeout(args.unready_grace, &mut serving).await;
        }
        closing.cancel();
        tracing::info!("no more requests are taken; writing what there is");
        let deadline = Instant::now() + limits::DRAIN_MAX;
        let _ = tokio::time::timeout(limits::REQUESTS_DRAIN_MAX, &mut serving).await;
        node.stop(deadline.saturating_duration_since(Instant::now())).await
    };
    let unwritten = tokio::select! {
        biased;
        () = signals.end() => return Err(SecondSignal.into()),
        unwritten = ending => unwritten,
    };
    anyhow::ensure!(unwritten == 0, "{unwritten} keys' last updates could not be written in time");
    tracing::info!("everything is written; goodbye");
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Terminate,
    Interrupt,
    Hangup,
}

/// The signals that a pod hears. From its making on, none kills the process by itself.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    /// One came while nobody could act on it.
    hung_up: bool,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
            hung_up: false,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.hangup.recv() => Signal::Hangup,
        }
    }

    /// The next one that ends a pod.
    async fn end(&mut self) {
        while self.next().await == Signal::Hangup {
            self.hung_up = true;
        }
    }
}
