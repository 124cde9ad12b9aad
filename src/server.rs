//! One pod from start to end: opens the store, wires the parts, serves, and shuts down in order.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use humantime::format_duration;
use orderfree_core::protocol::Constants;
use prometheus_client::metrics::gauge::Gauge;
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::signal::unix::{self, SignalKind};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::chance::Chance;
use crate::clock::{Clock, ShiftedClock, SystemClock};
use crate::config::{ServeArgs, StoreConfig, Switch};
use crate::gate::Gate;
use crate::gc::{Folder, Folding};
use crate::health::Health;
use crate::http::{self, AppState, Build};
use crate::limits;
use crate::listen::Listener;
use crate::metrics::{Metrics, ReloadLabel};
use crate::mutators::Mutators;
use crate::policy::Policies;
use crate::service::Service;
use crate::store::Store;
use crate::store::cassandra::{self, CassandraStore, ConnectError};
use crate::store::embedded::{EmbeddedStore, Progress};
use crate::tasks::{self, Task, Tasks};
use crate::tls::ServerTls;

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

/// Opens the configured store.
///
/// # Errors
/// One sentence that says what to do.
pub async fn open_store(
    config: StoreConfig,
    constants: Constants,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Store>> {
    open_store_telling(config, constants, clock, Arc::default()).await
}

/// The same, and tells others how far the verification of a file is.
async fn open_store_telling(
    config: StoreConfig,
    constants: Constants,
    clock: Arc<dyn Clock>,
    progress: Arc<Progress>,
) -> anyhow::Result<Arc<dyn Store>> {
    let path = match config {
        StoreConfig::Cassandra(config) => {
            return Ok(Arc::new(CassandraStore::connect(*config, clock).await?));
        }
        StoreConfig::Embedded { path } => path,
    };
    let file = path.display().to_string();
    let open = move || EmbeddedStore::open_telling(&path, constants, clock, &progress);
    let store = tokio::task::spawn_blocking(open).await??;
    let found = store.contents();
    match found.is_new {
        true => tracing::info!("{file} is new: the store begins empty"),
        false => tracing::info!("{file} is verified: it holds {} keys", found.keys),
    }
    if found.broken_rows > 0 {
        tracing::error!(
            "{} rows in {file} are damaged: `orderfree export` names their keys",
            found.broken_rows
        );
    }
    Ok(Arc::new(store))
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
        policies: Policies,
        fold: Switch,
    ) -> Node {
        let metrics = Arc::new(Metrics::new());
        metrics.mutators_max.set(i64::try_from(mutators_max).unwrap_or(i64::MAX));
        let gate = Arc::new(Gate::new(clock, Arc::clone(&store), constants, Arc::clone(&metrics)));
        let mutators = Mutators::new(
            Arc::clone(&store),
            Arc::clone(&gate),
            constants,
            Arc::clone(&metrics),
            chance.clone(),
            mutators_max,
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
        Node::new(Arc::clone(store), constants, clock, chance, 1, policies, fold)
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
    if let Some(task) = args.panic_in {
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

/// What a pod has once it can serve.
struct Started {
    node: Node,
    users: Listener,
    admins: Option<Listener>,
    tls: Option<Arc<ServerTls>>,
}

/// Opens the store and the listeners, and starts the background work.
async fn start(args: &ServeArgs, policies: Policies) -> anyhow::Result<Started> {
    let (store_config, constants) = (args.store.resolve()?, args.store.constants()?);
    let tls = args.tls()?.map(Arc::new);
    let shown = describe(args, &store_config, &constants, &policies);
    let clock: Arc<dyn Clock> = match &args.clock_shift_file {
        None => Arc::new(SystemClock),
        Some(file) => {
            tracing::warn!("the clock is off by what {} says: this is a test", file.display());
            Arc::new(ShiftedClock::new(file.clone()))
        }
    };
    let mut ports = Ports::default();
    let store = match &store_config {
        StoreConfig::Cassandra(_) => wait_for_store(args, &store_config, constants, &clock).await?,
        // A large file takes minutes to verify: nobody else may have it, and no other pod can serve
        // meanwhile, so that probes are answered from the beginning.
        StoreConfig::Embedded { .. } => {
            ports.bind(args)?;
            let progress = Arc::default();
            let opening = open_store_telling(
                store_config.clone(),
                constants,
                clock.clone(),
                Arc::clone(&progress),
            );
            let opened = CancellationToken::new();
            let opening = async {
                let store = opening.await;
                opened.cancel();
                store
            };
            let (store, ()) =
                futures::join!(opening, ports.answer(&progress, args, tls.as_ref(), &opened));
            store?
        }
    };
    ports.bind(args)?;
    let chance = Chance::system();
    let mut node =
        Node::new(store, constants, clock, chance, args.mutators_max, policies, args.fold);
    node.requests_max = args.requests_max;
    node.start();
    let metrics = node.metrics();
    metrics.connections_max.set(i64::try_from(args.connections_max).unwrap_or(i64::MAX));
    let Ports { users: Some(users), admins } = ports else {
        unreachable!("invariant: they are bound")
    };
    let listener = |port| Listener {
        port,
        tls: tls.clone(),
        connections_max: args.connections_max,
        open: metrics.connections.clone(),
        tasks: Tasks::counting(metrics.panics.clone()),
    };
    let (address, scheme) = (users.local_addr()?, if tls.is_some() { "https" } else { "http" });
    tracing::info!("listening on {scheme}://{address}; {shown}");
    if node.policies.authenticates() && tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            "tokens arrive in clear text: have something in front that speaks TLS, or give --tls-cert"
        );
    }
    if let StoreConfig::Cassandra(config) = &store_config
        && config.password.is_some()
        && config.tls.is_none()
    {
        tracing::warn!(
            "the password goes to Cassandra in clear text, and so do all values; give --cassandra-ca, unless \
             the network keeps strangers out"
        );
    }
    if let Some(warning) = constants.warning() {
        tracing::warn!("{warning}");
    }
    banner(scheme, address);
    let (users, admins) = (listener(users), admins.map(listener));
    Ok(Started { node, users, admins, tls })
}

/// The addresses at which a pod listens.
#[derive(Default)]
struct Ports {
    users: Option<Arc<TcpListener>>,
    admins: Option<Arc<TcpListener>>,
}

impl Ports {
    /// Binds what is not bound yet.
    fn bind(&mut self, args: &ServeArgs) -> anyhow::Result<()> {
        if self.users.is_none() {
            self.users = Some(Arc::new(bind(args.listen)?));
            self.admins = args.admin_listen.map(bind).transpose()?.map(Arc::new);
        }
        Ok(())
    }

    /// Answers the probes of a pod until its store is opened.
    async fn answer(
        &self,
        progress: &Arc<Progress>,
        args: &ServeArgs,
        tls: Option<&Arc<ServerTls>>,
        opened: &CancellationToken,
    ) {
        let serve = |port: &Arc<TcpListener>| {
            let listener = Listener {
                port: Arc::clone(port),
                tls: tls.cloned(),
                connections_max: args.connections_max,
                open: Gauge::default(),
                tasks: Tasks::new(),
            };
            listener.serve(http::starting(Arc::clone(progress)), opened.clone())
        };
        let served = futures::future::join_all(self.users.iter().chain(&self.admins).map(serve));
        // A slow client must not keep the pod from serving others.
        let is_over = async {
            opened.cancelled().await;
            tokio::time::sleep(limits::STARTING_DRAIN_MAX).await;
        };
        tokio::select! {
            _ = served => {}
            () = is_over => {}
        }
    }
}

fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A pod that is started again must not wait for the connections of the one before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(limits::LISTEN_BACKLOG)
    };
    listen().with_context(|| format!("can't listen on {address}; is another process using it?"))
}

/// Opens the store, and tries again for a while if what is wrong may be over by itself.
async fn wait_for_store(
    args: &ServeArgs,
    config: &StoreConfig,
    constants: Constants,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Store>> {
    let until = Instant::now() + args.store_wait;
    let (mut pause, longest) = limits::STORE_WAIT_PAUSE;
    loop {
        let attempt = async {
            if args.apply_schema
                && let StoreConfig::Cassandra(config) = config
            {
                cassandra::schema::apply(config, None).await?;
            }
            open_store(config.clone(), constants, Arc::clone(clock)).await
        };
        let error = match attempt.await {
            Ok(store) => return Ok(store),
            Err(error) => error,
        };
        let may_pass = error.downcast_ref::<ConnectError>().is_some_and(ConnectError::may_pass);
        if !may_pass || Instant::now() + pause > until {
            return Err(error);
        }
        tracing::warn!(again_in = ?pause, "waiting for the store: {error:#}");
        tokio::time::sleep(pause).await;
        pause = (2 * pause).min(longest);
    }
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

/// The effective configuration in one line, without secrets.
fn describe(
    args: &ServeArgs,
    store: &StoreConfig,
    constants: &Constants,
    policies: &Policies,
) -> String {
    let place = match store {
        StoreConfig::Embedded { path } => format!("embedded store in {}", path.display()),
        StoreConfig::Cassandra(config) => format!(
            "Cassandra at {}{}, keyspace {}, write {}, read {}, fold {}",
            config.contact_points.join(", "),
            if config.tls.is_some() { " by TLS" } else { "" },
            config.keyspace,
            config.levels.write,
            config.levels.read,
            config.levels.fold
        ),
    };
    format!(
        "{place}; lifetime {}, drain margin {}, cutoff {}, request budget {}, clock offset at most {}, \
         fence quantum {}, folding {}, tokens {}, operators {}",
        format_duration(constants.lifetime()),
        format_duration(constants.drain_margin()),
        format_duration(constants.cutoff()),
        format_duration(constants.request_budget()),
        format_duration(constants.clock_offset_max()),
        format_duration(constants.fence_quantum()),
        match args.fold {
            Switch::On => "on",
            Switch::Manual => "when asked",
            Switch::Off => "off",
        },
        if policies.authenticates() { "needed" } else { "not needed" },
        args.admin_listen.map_or("at the same address".to_owned(), |own| format!("at {own}"))
    )
}

/// Three lines to paste, for whoever starts the server by hand.
fn banner(scheme: &str, address: SocketAddr) {
    use std::io::{IsTerminal, Write, stdout};
    if stdout().is_terminal() {
        // A terminal that was closed meanwhile is no reason to end.
        let _ = writeln!(
            stdout(),
            "\n  Orderfree {} counts at {scheme}://{address}\n\n  \
             curl -X POST {scheme}://{address}/v1/counter/site/home\n  \
             curl -X POST {scheme}://{address}/v1/counter/site/home -H 'Content-Type: text/plain' -d 5\n  \
             curl {scheme}://{address}/v1/counter/site/home\n",
            env!("CARGO_PKG_VERSION")
        );
    }
}
