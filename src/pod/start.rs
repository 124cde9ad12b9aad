//! How a pod starts: it opens its store, binds its addresses and wires its parts.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use humantime::format_duration;
use orderfree_core::protocol::Constants;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::engine::write::Bounds;
use crate::http;
use crate::limits;
use crate::net::listen::Listener;
use crate::net::tls::ServerTls;
use crate::pod::config::{OnOff, ServeArgs, StoreConfig, Switch};
use crate::pod::node::{Node, Parts};
use crate::pod::rotation::Reader;
use crate::policy::Policies;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::Random;
use crate::runtime::tasks::Tasks;
use crate::store::Store;
use crate::store::cassandra::{self, CassandraStore, ConnectError};
use crate::store::embedded::{EmbeddedStore, Progress};

/// Opens the configured store.
///
/// # Errors
/// One sentence that says what is wrong and what to do.
pub async fn open_store(
    config: StoreConfig,
    constants: Constants,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Arc<dyn Store>> {
    open_store_telling(config, constants, clock, Arc::default()).await
}

/// Opens the configured store, and reports in `progress` how far the verification of a file is.
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
    let rows = store.contents().map_or(0, |contents| contents.broken_rows);
    if rows > 0 {
        tracing::error!("{rows} rows in {file} are damaged: `orderfree export` names their keys");
    }
    Ok(Arc::new(store))
}

/// The parts of a pod that is ready to serve.
pub(crate) struct Started {
    pub(crate) node: Node,
    pub(crate) users: Listener,
    pub(crate) admins: Option<Listener>,
    /// These read files again that have changed.
    pub(crate) readers: Vec<Reader>,
}

/// Opens the store and the listeners, and starts the background work.
pub(crate) async fn start(args: &ServeArgs, policies: Policies) -> anyhow::Result<Started> {
    let ((store_config, access), constants) =
        (args.store.resolve_with_access()?, args.store.constants()?);
    let tls = args.tls()?.map(Arc::new);
    let shown = describe(args, &store_config, &constants, &policies);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut ports = Ports::default();
    let store = match &store_config {
        StoreConfig::Cassandra(_) => wait_for_store(args, &store_config, constants, &clock).await?,
        // A large file takes minutes to verify. No other process can open the file or serve from it during
        // that time, so the pod answers probes from the start.
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
    if store.has_resets() && store.own_resets().is_none() {
        constants.check_resets()?;
    }
    ports.bind(args)?;
    let contents = store.contents().map_or_else(String::new, |contents| format!("; {contents}"));
    let placement =
        store.placement().map_or_else(String::new, |placement| format!("; {placement}"));
    let random = Random::system();
    let (mutators_max, resting_bytes) = (args.mutators_max, args.resting_bytes);
    let bounds = Bounds { mutators_max, resting_bytes, ..Bounds::default() };
    let node = {
        let (fold, requests_max) = (args.fold, args.requests_max);
        let parts = Parts {
            random,
            bounds,
            policies,
            fold,
            requests_max,
            has_resets: args.resets == OnOff::On,
            has_page: args.page == OnOff::On,
            needs_quorum: args.ready_needs_quorum,
            ..Parts::new(store, constants, clock)
        };
        Node::new(parts)
    };
    node.start();
    let metrics = node.metrics();
    metrics.connections_max.set(i64::try_from(args.connections_max).unwrap_or(i64::MAX));
    let Ports { users: Some(users), admins } = ports else {
        unreachable!("invariant: the addresses are bound")
    };
    let listener = |port| Listener {
        port,
        tls: tls.clone(),
        connections_max: args.connections_max,
        open: metrics.connections.clone(),
        tasks: Tasks::counting(metrics.panics.clone()),
    };
    let (address, scheme) = (users.local_addr()?, if tls.is_some() { "https" } else { "http" });
    tracing::info!("listening on {scheme}://{address}; {shown}{placement}{contents}");
    if node.policies.authenticates() && tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            "tokens arrive in clear text; put a TLS proxy in front of this pod, or set --tls-cert"
        );
    }
    if let StoreConfig::Cassandra(config) = &store_config
        && config.login.is_some()
        && config.tls.is_none()
    {
        tracing::warn!(
            "the password and all values go to Cassandra in clear text; set --cassandra-ca, unless the network \
             keeps strangers out"
        );
    }
    if let Some(warning) = constants.warning() {
        tracing::warn!("{warning}");
    }
    let page = (args.page == OnOff::On).then(|| args.admin_listen.unwrap_or(address));
    banner(scheme, address, page);
    let (users, admins) = (listener(users), admins.map(listener));
    let mut readers = vec![Reader::Policy(node.policies.clone())];
    readers.push(Reader::Cassandra(Box::new(args.store.clone()), access));
    readers.extend(tls.map(Reader::Certificate));
    Ok(Started { node, users, admins, readers })
}

/// The addresses on which a pod listens.
#[derive(Default)]
struct Ports {
    users: Option<Arc<TcpListener>>,
    admins: Option<Arc<TcpListener>>,
}

impl Ports {
    /// Binds the addresses, unless they are bound already.
    fn bind(&mut self, args: &ServeArgs) -> anyhow::Result<()> {
        if self.users.is_none() {
            self.users = Some(Arc::new(bind(args.listen)?));
            self.admins = args.admin_listen.map(bind).transpose()?.map(Arc::new);
        }
        Ok(())
    }

    /// Answers probes until the store is open.
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
            biased;
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
        // A restarted pod must not wait for connections of the process before it.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(limits::LISTEN_BACKLOG)
    };
    listen().map_err(|error| {
        anyhow!("can't listen on {address} ({error}); end what uses it, or choose another address")
    })
}

/// Opens the store. Retries for up to `--store-wait` if the error can pass without an operator.
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
                let with_resets = args.resets == OnOff::On;
                cassandra::schema::apply(config, None, with_resets).await?;
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
            Switch::Manual => "on request",
            Switch::Off => "off",
        },
        if policies.authenticates() { "required" } else { "not required" },
        args.admin_listen.map_or("at the same address".to_owned(), |own| format!("at {own}"))
    )
}

/// Prints three example commands and the address of the live page if an operator starts the server in a terminal.
fn banner(scheme: &str, address: SocketAddr, page: Option<SocketAddr>) {
    use std::io::{IsTerminal, Write, stdout};
    if stdout().is_terminal() {
        // If the terminal is gone, the pod goes on.
        let _ = writeln!(
            stdout(),
            "\n  Orderfree {} counts at {scheme}://{address}\n\n  \
             curl -X POST {scheme}://{address}/v1/counter/site/home\n  \
             curl -X POST {scheme}://{address}/v1/counter/site/home -H 'Content-Type: text/plain' -d 5\n  \
             curl {scheme}://{address}/v1/counter/site/home\n",
            env!("CARGO_PKG_VERSION")
        );
        if let Some(page) = page {
            let _ = writeln!(stdout(), "  See it live: {scheme}://{page}/\n");
        }
    }
}
