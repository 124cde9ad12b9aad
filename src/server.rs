//! One pod from start to end: opens the store, wires the parts, serves, and shuts down in order.

use std::future::IntoFuture;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use humantime::format_duration;
use orderfree_core::protocol::Constants;
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chance::Chance;
use crate::clock::{Clock, ShiftedClock, SystemClock};
use crate::config::{ServeArgs, StoreConfig, Switch};
use crate::gate::Gate;
use crate::gc::Folder;
use crate::health::Health;
use crate::http::{self, AppState, Build};
use crate::limits;
use crate::metrics::Metrics;
use crate::mutators::Mutators;
use crate::policy::Policy;
use crate::service::Service;
use crate::store::Store;
use crate::store::cassandra::{self, CassandraStore};
use crate::store::embedded::EmbeddedStore;
use crate::tasks::Tasks;

/// How often to look whether the store can't go on.
const FAILURE_LOOK_EVERY: Duration = Duration::from_millis(500);

/// The parts of a pod that must be stopped in order.
pub struct Node {
    store: Arc<dyn Store>,
    mutators: Arc<Mutators>,
    service: Arc<Service>,
    folder: Arc<Folder>,
    health: Arc<Health>,
    tasks: Tasks,
}

/// Opens the configured store.
///
/// # Errors
/// One sentence that says what to do.
pub async fn open_store(
    config: StoreConfig,
    constants: Constants,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Store>> {
    Ok(match config {
        StoreConfig::Embedded { path } => Arc::new(EmbeddedStore::open(&path, constants, clock)?),
        StoreConfig::Cassandra(config) => Arc::new(CassandraStore::connect(*config, clock).await?),
    })
}

impl Node {
    /// Wires a pod over a store; nothing runs in the background yet.
    #[must_use]
    pub fn new(
        store: Arc<dyn Store>,
        constants: Constants,
        clock: Arc<dyn Clock>,
        chance: Chance,
        mutators_max: usize,
        policy: Policy,
        fold: Switch,
    ) -> Node {
        let metrics = Arc::new(Metrics::new());
        let gate = Arc::new(Gate::new(clock, Arc::clone(&store), constants, Arc::clone(&metrics)));
        let mutators = Mutators::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            chance.clone(),
            mutators_max,
            policy,
        );
        let folder = Folder::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            chance,
            fold == Switch::On,
        );
        let service = Arc::new(Service::new(
            Arc::clone(&store),
            gate,
            Arc::clone(&mutators),
            Arc::clone(&folder),
            constants,
            metrics,
        ));
        let health = Arc::default();
        Node { store, mutators, service, folder, health, tasks: Tasks::new() }
    }

    /// Starts the background work.
    pub fn start(&self) {
        let tidy = Arc::clone(&self.mutators).tidy(self.tasks.clone());
        self.tasks.spawn("tidy mutators", tidy);
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
        let (service, health) = (Arc::clone(&self.service), Arc::clone(&self.health));
        http::router_with(AppState { service, health, build: Build::THIS }, others)
    }

    /// Ready once the store can't go on without a restart, with the reason.
    async fn failed(&self) -> String {
        loop {
            if let Some(reason) = self.store.failure() {
                return reason;
            }
            tokio::time::sleep(FAILURE_LOOK_EVERY).await;
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
    args.check()?;
    // First of all: whoever stops a pod that is still waiting for its store is heard as well.
    let mut signals = Signals::listen()?;
    let (node, listener) = tokio::select! {
        biased;
        _ = signals.next() => return Ok(()),
        started = start(&args) => started?,
    };
    let closing = CancellationToken::new();
    let stop_accepting = closing.clone().cancelled_owned();
    let listener = listener.tap_io(|stream| {
        // An answer is one small packet: waiting for more to send only delays it.
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, node.router()).with_graceful_shutdown(stop_accepting);
    let mut server = pin!(server.into_future());
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        reason = node.failed() => anyhow::bail!("the store can't go on: {reason}"),
        served = &mut server => return served.context("serving ended"),
    };
    let ending = async {
        node.health.set_draining();
        if signal == Signal::Terminate {
            tracing::info!(grace = ?args.unready_grace, "unready; serving on for a while");
            let _ = tokio::time::timeout(args.unready_grace, &mut server).await;
        }
        closing.cancel();
        tracing::info!("no more requests are taken; writing what there is");
        let deadline = Instant::now() + limits::DRAIN_MAX;
        let _ = tokio::time::timeout(limits::REQUESTS_DRAIN_MAX, &mut server).await;
        node.stop(deadline.saturating_duration_since(Instant::now())).await
    };
    let unwritten = tokio::select! {
        biased;
        _ = signals.next() => anyhow::bail!("a second signal: ended without writing everything"),
        unwritten = ending => unwritten,
    };
    anyhow::ensure!(unwritten == 0, "{unwritten} keys' last updates could not be written in time");
    tracing::info!("everything is written; goodbye");
    Ok(())
}

/// Opens the store and the listener, and starts the background work.
async fn start(args: &ServeArgs) -> anyhow::Result<(Node, TcpListener)> {
    let (store_config, constants) = (args.store.resolve()?, args.store.constants()?);
    let shown = describe(args, &store_config, &constants);
    let clock: Arc<dyn Clock> = match &args.clock_shift_file {
        None => Arc::new(SystemClock),
        Some(file) => {
            tracing::warn!("the clock is off by what {} says: this is a test", file.display());
            Arc::new(ShiftedClock::new(file.clone()))
        }
    };
    let policy = args.policy.as_deref().map(Policy::read).transpose()?.unwrap_or_default();
    if args.apply_schema
        && let StoreConfig::Cassandra(config) = &store_config
    {
        cassandra::schema::apply(config, None).await?;
    }
    let store = open_store(store_config, constants, Arc::clone(&clock)).await?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("can't listen on {}; is another process using it?", args.listen)
    })?;
    let chance = Chance::system();
    let node = Node::new(store, constants, clock, chance, args.mutators_max, policy, args.fold);
    node.start();
    let address = listener.local_addr()?;
    tracing::info!("listening on http://{address}; {shown}");
    if let Some(warning) = constants.warning() {
        tracing::warn!("{warning}");
    }
    banner(address);
    Ok((node, listener))
}

#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Terminate,
    Interrupt,
}

/// Both signals that end a pod. From its making on, neither kills the process by itself.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
        }
    }
}

/// The effective configuration in one line, without secrets.
fn describe(args: &ServeArgs, store: &StoreConfig, constants: &Constants) -> String {
    let place = match store {
        StoreConfig::Embedded { path } => format!("embedded store in {}", path.display()),
        StoreConfig::Cassandra(config) => format!(
            "Cassandra at {}, keyspace {}, write {}, read {}, fold {}",
            config.contact_points.join(", "),
            config.keyspace,
            config.levels.write,
            config.levels.read,
            config.levels.fold
        ),
    };
    format!(
        "{place}; lifetime {}, drain margin {}, cutoff {}, request budget {}, clock offset at most {}, \
         fence quantum {}, folding {}",
        format_duration(constants.lifetime()),
        format_duration(constants.drain_margin()),
        format_duration(constants.cutoff()),
        format_duration(constants.request_budget()),
        format_duration(constants.clock_offset_max()),
        format_duration(constants.fence_quantum()),
        if args.fold == Switch::On { "on" } else { "off" }
    )
}

/// Three lines to paste, for whoever starts the server by hand.
fn banner(address: SocketAddr) {
    use std::io::IsTerminal;
    if std::io::stdout().is_terminal() {
        println!(
            "\n  Orderfree {} counts at http://{address}\n\n  \
             curl -X POST http://{address}/v1/counter/site/home\n  \
             curl -X POST http://{address}/v1/counter/site/home -H 'Content-Type: text/plain' -d 5\n  \
             curl http://{address}/v1/counter/site/home\n",
            env!("CARGO_PKG_VERSION")
        );
    }
}
