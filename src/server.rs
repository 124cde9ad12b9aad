//! One pod from start to end: opens the store, wires the parts, serves, and shuts down in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::serve::ListenerExt;
use orderfree_core::protocol::Constants;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, SystemClock};
use crate::config::{ServeArgs, StoreConfig, Switch};
use crate::gate::Gate;
use crate::gc::Folder;
use crate::health::Health;
use crate::http::{self, AppState, Build};
use crate::limits;
use crate::metrics::Metrics;
use crate::mutators::Mutators;
use crate::service::Service;
use crate::store::Store;
use crate::store::cassandra::{self, CassandraStore};
use crate::store::embedded::EmbeddedStore;
use crate::tasks::Tasks;

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
        mutators_max: usize,
    ) -> Node {
        let metrics = Arc::new(Metrics::new());
        let gate = Arc::new(Gate::new(clock, Arc::clone(&store), constants, Arc::clone(&metrics)));
        let mutators = Mutators::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            mutators_max,
        );
        let folder =
            Folder::new(Arc::clone(&store), Arc::clone(&gate), constants, Arc::clone(&metrics));
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

    /// Starts the background work, folding only if asked.
    pub fn start(&self, fold: Switch) {
        let tidy = Arc::clone(&self.mutators).tidy(self.tasks.clone());
        self.tasks.spawn("tidy mutators", tidy);
        if fold == Switch::On {
            self.folder.start(&self.tasks);
        }
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
        let (service, health) = (Arc::clone(&self.service), Arc::clone(&self.health));
        http::router(AppState { service, health, build: Build::THIS })
    }

    /// Writes every mutator, stops folding between keys and closes the store. Returns how many
    /// mutators could not be written in time.
    pub async fn stop(self, deadline: Duration) -> usize {
        let unwritten = self.mutators.close(deadline).await;
        self.tasks.join(deadline).await;
        self.store.close().await;
        unwritten
    }
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence that says what to do, if the pod can't start, or if writes were left when it ended.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    args.check()?;
    let (store_config, constants) = (args.store.resolve()?, args.store.constants()?);
    let shown = describe(&args, &store_config, &constants);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    if args.apply_schema
        && let StoreConfig::Cassandra(config) = &store_config
    {
        cassandra::schema::apply(config, None).await?;
    }
    let store = open_store(store_config, constants, Arc::clone(&clock)).await?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("can't listen on {}; is another process using it?", args.listen)
    })?;
    let address = listener.local_addr()?;
    let node = Node::new(store, constants, clock, args.mutators_max);
    node.start(args.fold);
    tracing::info!("{shown}");
    if let Some(warning) = constants.warning() {
        tracing::warn!("{warning}");
    }
    banner(address);
    let unready = Arc::clone(&node.health);
    let closing = CancellationToken::new();
    let stop_accepting = closing.clone().cancelled_owned();
    let listener = listener.tap_io(|stream| {
        // An answer is one small packet: waiting for more to send only delays it.
        let _ = stream.set_nodelay(true);
    });
    let server = axum::serve(listener, node.router()).with_graceful_shutdown(stop_accepting);
    let ending = async {
        if shutdown_signal().await? == Signal::Terminate {
            unready.set_draining();
            tracing::info!(grace = ?args.unready_grace, "unready; serving on for a while");
            tokio::time::sleep(args.unready_grace).await;
        }
        unready.set_draining();
        closing.cancel();
        tracing::info!("no more requests are taken; writing what there is");
        tokio::time::sleep(limits::DRAIN_MAX).await;
        anyhow::Ok(())
    };
    tokio::select! {
        served = server => served.context("serving ended")?,
        // Connections that won't end by themselves are dropped after DRAIN_MAX.
        ended = ending => ended?,
    }
    let unwritten = tokio::select! {
        unwritten = node.stop(limits::DRAIN_MAX) => unwritten,
        _ = shutdown_signal() => anyhow::bail!("a second signal: ended without writing everything"),
    };
    anyhow::ensure!(unwritten == 0, "{unwritten} keys' last updates could not be written in time");
    tracing::info!("everything is written; goodbye");
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Terminate,
    Interrupt,
}

async fn shutdown_signal() -> anyhow::Result<Signal> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(tokio::select! {
        biased;
        _ = terminate.recv() => Signal::Terminate,
        _ = interrupt.recv() => Signal::Interrupt,
    })
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
        "{place}; lifetime {:?}, drain margin {:?}, cutoff {:?}, request budget {:?}, clock offset \
         at most {:?}, fence quantum {:?}, folding {:?}",
        constants.lifetime(),
        constants.drain_margin(),
        constants.cutoff(),
        constants.request_budget(),
        constants.clock_offset_max(),
        constants.fence_quantum(),
        args.fold
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
