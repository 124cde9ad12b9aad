//! Configuration from flags and environment variables, checked before a socket opens. Except for `telemetry`,
//! no other module reads the environment.

pub mod faults;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use orderfree_core::protocol::consistency::{Level, Levels};
use orderfree_core::protocol::{Constants, ConstantsError, Overrides};
use thiserror::Error;

use crate::limits::{BATCH_GROUPS_MAX, BATCH_ROWS_MAX, GROUP_ROWS_MAX};
use crate::net::tls::{ClientTls, ServerTls, TlsError};
use crate::store::RequestLimits;
use crate::store::cassandra::{CassandraConfig, Login};

/// Heading of the settings that few installations change.
const EXPERT: &str = "Expert";

/// Cassandra's default for `max_hint_window`.
const HINT_WINDOW_DEFAULT: Duration = Duration::from_secs(3 * 3600);

/// A pod with fewer mutators would reject updates that any pod can take.
const MUTATORS_MAX_LEAST: usize = 1_000;

/// Where rows are stored, and the protocol's constants. All pods of an installation need the same keyspace
/// and the same constants.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// File of the embedded store. Used when --cassandra is not set.
    #[arg(long, env = "ORDERFREE_DATA", default_value = "orderfree.redb", value_name = "FILE")]
    pub data: PathBuf,

    /// Cassandra contact points, separated by commas. Without this option the embedded store is used.
    #[arg(long, env = "ORDERFREE_CASSANDRA", value_delimiter = ',', value_name = "HOST:PORT")]
    pub cassandra: Vec<String>,

    /// Cassandra keyspace that holds the table.
    #[arg(long, env = "ORDERFREE_KEYSPACE", default_value = "orderfree")]
    pub keyspace: String,

    /// User name for Cassandra.
    #[arg(long, env = "ORDERFREE_CASSANDRA_USER", value_name = "NAME")]
    pub cassandra_user: Option<String>,

    /// File with the user name for Cassandra, such as a mounted secret. The pod follows its changes.
    #[arg(
        long,
        env = "ORDERFREE_CASSANDRA_USER_FILE", help_heading = EXPERT,
        value_name = "FILE",
        conflicts_with = "cassandra_user"
    )]
    pub cassandra_user_file: Option<PathBuf>,

    /// Password for Cassandra.
    #[arg(
        long,
        env = "ORDERFREE_CASSANDRA_PASSWORD", help_heading = EXPERT,
        hide_env_values = true,
        value_name = "PASSWORD"
    )]
    pub cassandra_password: Option<Secret>,

    /// File with the password for Cassandra, such as a mounted secret. The pod follows its changes.
    #[arg(
        long,
        env = "ORDERFREE_CASSANDRA_PASSWORD_FILE",
        value_name = "FILE",
        conflicts_with = "cassandra_password"
    )]
    pub cassandra_password_file: Option<PathBuf>,

    /// PEM file with the CA that signed the Cassandra nodes' certificates. Turns on TLS to Cassandra. Each
    /// node's certificate must cover the address that the driver uses for it.
    #[arg(long, env = "ORDERFREE_CASSANDRA_CA", value_name = "FILE")]
    pub cassandra_ca: Option<PathBuf>,

    /// PEM file with this pod's client certificate, for Cassandra nodes that require one.
    #[arg(long, env = "ORDERFREE_CASSANDRA_CERT", value_name = "FILE", requires_all = ["cassandra_ca", "cassandra_key"])]
    pub cassandra_cert: Option<PathBuf>,

    /// PEM file with the private key of --cassandra-cert.
    #[arg(long, env = "ORDERFREE_CASSANDRA_KEY", value_name = "FILE", requires = "cassandra_cert")]
    pub cassandra_key: Option<PathBuf>,

    /// This pod's data centre. Required if the keyspace has replicas in more than one.
    #[arg(long, env = "ORDERFREE_LOCAL_DC", value_name = "NAME")]
    pub local_dc: Option<String>,

    /// Consistency level for updates: one, local_one, local_quorum, quorum, each_quorum or all.
    #[arg(
        long,
        env = "ORDERFREE_WRITE_CONSISTENCY",
        default_value = "local_quorum",
        value_name = "LEVEL"
    )]
    pub write_consistency: Level,

    /// Consistency level for reads that do not set one: one, local_one, local_quorum, quorum, each_quorum or
    /// all.
    #[arg(
        long,
        env = "ORDERFREE_READ_CONSISTENCY",
        default_value = "local_quorum",
        value_name = "LEVEL"
    )]
    pub read_consistency: Level,

    /// Consistency level for the reads of folds and resets, and of `export`, `import` and `doctor`: `all`, or a level whose
    /// replicas always overlap with those of every write, such as `each_quorum`.
    #[arg(long, env = "ORDERFREE_FOLD_CONSISTENCY", help_heading = EXPERT, default_value = "all", value_name = "LEVEL")]
    pub fold_consistency: Level,

    /// Time from a mutator's birth to its expiry, up to about 8 days [default: 24h].
    #[arg(long, env = "ORDERFREE_LIFETIME", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub lifetime: Option<Duration>,

    /// How long before its expiry a mutator stops taking updates [default: 1h].
    #[arg(long, env = "ORDERFREE_DRAIN_MARGIN", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub drain_margin: Option<Duration>,

    /// How long after its expiry a shard can be folded [default: 3min].
    #[arg(long, env = "ORDERFREE_CUTOFF", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub cutoff: Option<Duration>,

    /// Longest time for one update's write, including retries [default: 1/5 of the drain margin, up to 10s].
    #[arg(long, env = "ORDERFREE_REQUEST_BUDGET", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub request_budget: Option<Duration>,

    /// Largest measured clock offset at which this pod still takes updates [default: 2/5 of the drain margin,
    /// up to 5s].
    #[arg(long, env = "ORDERFREE_CLOCK_OFFSET_MAX", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub clock_offset_max: Option<Duration>,

    /// Time from one sweep over all keys to the next. Sweeps find keys to fold that are not read [default:
    /// half of the lifetime, up to 1h].
    #[arg(long, env = "ORDERFREE_SWEEP_EVERY", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub sweep_every: Option<Duration>,

    /// Largest number of keys that one write to several groups sends to Cassandra, from 1. A fold sends half
    /// of that, as it also deletes rows. Raise Cassandra's `batch_size_fail_threshold` before you raise this.
    #[arg(long, env = "ORDERFREE_BATCH_ROWS", help_heading = EXPERT, default_value_t = BATCH_ROWS_MAX, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub batch_rows: u16,

    /// Largest number of groups in one write to Cassandra, from 1. Cassandra logs a warning for batches over
    /// more than ten partitions.
    #[arg(long, env = "ORDERFREE_BATCH_GROUPS", help_heading = EXPERT, default_value_t = BATCH_GROUPS_MAX, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub batch_groups: u16,

    /// The cluster's `max_hint_window`. Used only if updates are written below a quorum [default: 3h].
    #[arg(long, env = "ORDERFREE_HINT_WINDOW", help_heading = EXPERT, value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub hint_window: Option<Duration>,
}

/// Options of `orderfree serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address to listen on, such as localhost:8080 or 0.0.0.0:8080.
    #[arg(
        long,
        env = "ORDERFREE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_parser = address,
        value_name = "IP:PORT"
    )]
    pub listen: SocketAddr,

    /// A second address only for operators: probes, metrics, every endpoint that needs the verb `admin`, and the live
    /// page with the endpoints that it calls. The first address then serves neither the page nor the endpoints for
    /// operators.
    #[arg(long, env = "ORDERFREE_ADMIN_LISTEN", value_parser = address, value_name = "IP:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// PEM file with the HTTPS certificate chain, the server's certificate first. Turns on HTTPS. The
    /// pod follows its changes.
    #[arg(long, env = "ORDERFREE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file with the private key of --tls-cert. The pod follows its changes.
    #[arg(long, env = "ORDERFREE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    #[command(flatten)]
    pub store: StoreArgs,

    /// How long to wait at start for a store that does not answer or has no schema yet.
    #[arg(long, env = "ORDERFREE_STORE_WAIT", help_heading = EXPERT, default_value = "5m", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub store_wait: Duration,

    /// Whether this pod folds. `on`: in the background and on request. `manual`: only on request. `off`:
    /// never. Set `off` on every pod while the keyspace's replication changes, and if folds read below `all` also while
    /// the cluster's topology changes.
    #[arg(long, env = "ORDERFREE_FOLD", default_value = "on", value_name = "ON|MANUAL|OFF")]
    pub fold: Switch,

    /// Whether keys can be reset and deleted over HTTP. Pods look at the log of resets wherever its table exists,
    /// whatever this says.
    #[arg(long, env = "ORDERFREE_RESETS", help_heading = EXPERT, default_value = "on", value_name = "ON|OFF")]
    pub resets: OnOff,

    /// Whether to serve the live page at `/`. With --admin-listen, only the second address serves it, with the endpoints
    /// for users.
    #[arg(long, env = "ORDERFREE_PAGE", help_heading = EXPERT, default_value = "on", value_name = "ON|OFF")]
    pub page: OnOff,

    /// Say in /readyz that the pod is not ready while no quorum of its data centre answers. For load balancers that can
    /// send requests to another data centre: without one, all pods drop out at once.
    #[arg(long, env = "ORDERFREE_READY_NEEDS_QUORUM", help_heading = EXPERT)]
    pub ready_needs_quorum: bool,

    /// Create the keyspace and the tables at start if they are missing. For development only.
    #[arg(long, env = "ORDERFREE_APPLY_SCHEMA", help_heading = EXPERT)]
    pub apply_schema: bool,

    /// Listen on a non-loopback address without tokens. Every client that reaches the address can then do
    /// everything.
    #[arg(long, env = "ORDERFREE_INSECURE")]
    pub insecure: bool,

    /// How long to keep serving after SIGTERM, while /readyz says not ready, so that load balancers notice.
    #[arg(long, env = "ORDERFREE_UNREADY_GRACE", help_heading = EXPERT, default_value = "5s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub unready_grace: Duration,

    /// TOML file with tokens, quotas, precisions, idle times and CORS; see docs/operate/security.md. The pod
    /// follows its changes.
    #[arg(long, env = "ORDERFREE_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Largest number of keys whose state is ready for updates in this pod, from 1000. Other recently updated
    /// keys rest.
    #[arg(long, env = "ORDERFREE_MUTATORS_MAX", default_value_t = crate::limits::MUTATORS_MAX, value_name = "COUNT")]
    pub mutators_max: usize,

    /// Memory for keys at rest, in bytes: about 150 for each counter. When it is full, this pod forgets the
    /// oldest ones. A forgotten key gets one more row when it is updated again.
    #[arg(long, env = "ORDERFREE_RESTING_BYTES", default_value_t = crate::limits::RESTING_BYTES, value_name = "BYTES")]
    pub resting_bytes: usize,

    /// Largest number of open connections for each address, from 1 to 1000000. More clients wait to be
    /// accepted.
    #[arg(long, env = "ORDERFREE_CONNECTIONS_MAX", help_heading = EXPERT, default_value_t = crate::limits::CONNECTIONS_MAX, value_parser = connections, value_name = "COUNT")]
    pub connections_max: usize,

    /// Largest number of requests in progress for each address, from 1 to 1000000. More requests get 503. Set
    /// it below --connections-max to shed load instead of queueing.
    #[arg(long, env = "ORDERFREE_REQUESTS_MAX", help_heading = EXPERT, default_value_t = crate::limits::REQUESTS_MAX, value_parser = connections, value_name = "COUNT")]
    pub requests_max: usize,

    #[command(flatten)]
    pub faults: faults::FaultArgs,
}

/// When a pod folds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// In the background and on request.
    On,
    /// Only on request; another process folds in the background.
    Manual,
    /// Never: a fold would do harm now.
    Off,
}

/// Whether a pod offers something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOff {
    On,
    Off,
}

/// A text that is never printed, such as a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret(text.to_owned())
    }
}

/// The store to open, with its settings.
#[derive(Debug, Clone)]
pub enum StoreConfig {
    Embedded { path: PathBuf },
    Cassandra(Box<CassandraConfig>),
}

/// How a pod gets into Cassandra. Both can be replaced while it runs, for new connections.
#[derive(Clone, Default)]
pub struct Access {
    login: Option<Arc<Login>>,
    tls: Option<ClientTls>,
}

impl Access {
    /// Uses from now on what `new` has.
    pub(crate) fn replace_by(&self, new: &Access) {
        if let (Some(login), Some(new)) = (&self.login, &new.login) {
            login.replace_by(new);
        }
        if let (Some(tls), Some(new)) = (&self.tls, &new.tls) {
            tls.replace_by(new);
        }
    }
}

/// The names of all variables of the environment.
pub fn environment() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

impl StoreConfig {
    /// For tools that look at everything: their reads see what pods in every data centre acknowledged, and they need not
    /// know the pods' times.
    #[must_use]
    pub fn for_tools(self) -> StoreConfig {
        match self {
            StoreConfig::Cassandra(mut config) => {
                config.levels.read = config.levels.fold;
                config.constants = config.constants.assumed();
                StoreConfig::Cassandra(config)
            }
            config => config,
        }
    }

    /// For tools that create no file: a missing or empty file is most likely a wrong name.
    ///
    /// # Errors
    /// [`ConfigError::NoFile`].
    pub fn existing(self) -> Result<StoreConfig, ConfigError> {
        let is_empty = |path: &Path| path.metadata().map_or(true, |file| file.len() == 0);
        match self {
            StoreConfig::Embedded { path } if is_empty(&path) => Err(ConfigError::NoFile(path)),
            config => Ok(config),
        }
    }
}

/// Why a configuration can't be used. Nothing was opened yet.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error(transparent)]
    Constants(#[from] ConstantsError),
    #[error(
        "a data centre is set (ORDERFREE_LOCAL_DC), but no Cassandra; set --cassandra (ORDERFREE_CASSANDRA), or remove the data centre"
    )]
    NoCassandra,
    #[error("`{0}` is not a contact point; write host:port, such as 10.0.0.1:9042")]
    ContactPoint(String),
    #[error(
        "a contact point must not contain credentials; write {0}, and set the user and the password separately"
    )]
    CredentialsInContactPoint(String),
    #[error("set both a user and a password for Cassandra, or neither")]
    Credentials,
    #[error("the {what} file {path} can't be read: {error}")]
    SecretFile { what: &'static str, path: PathBuf, error: std::io::Error },
    #[error("{0} mutators are too few; allow at least {MUTATORS_MAX_LEAST}")]
    MutatorsMax(usize),
    #[error(
        "the file {0:?} is missing or empty; name the store with --data (ORDERFREE_DATA) or --cassandra (ORDERFREE_CASSANDRA)"
    )]
    NoFile(PathBuf),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Any client can reach the address.
    #[error(
        "{0} is not a loopback address, and the policy has no tokens, so any client could use it; make a token with \
         `orderfree token new` and name its file with --policy (ORDERFREE_POLICY), listen on 127.0.0.1, or set \
         --insecure (ORDERFREE_INSECURE=true) if the network keeps strangers out"
    )]
    Insecure(SocketAddr),
}

impl StoreArgs {
    /// Resolves and checks the time constants.
    ///
    /// # Errors
    /// [`ConfigError::Constants`] names the rule that the values break.
    pub fn constants(&self) -> Result<Constants, ConfigError> {
        let is_weak = !self.cassandra.is_empty() && self.write_consistency.is_below_quorum();
        Ok(Constants::resolve(Overrides {
            lifetime: self.lifetime,
            drain_margin: self.drain_margin,
            cutoff: self.cutoff,
            request_budget: self.request_budget,
            clock_offset_max: self.clock_offset_max,
            // It follows from the cutoff.
            fence_quantum: None,
            sweep_every: self.sweep_every,
            reset_memory: None,
            hint_window: is_weak.then(|| self.hint_window.unwrap_or(HINT_WINDOW_DEFAULT)),
        })?)
    }

    /// Resolves and checks the settings of the store.
    ///
    /// # Errors
    /// [`ConfigError`] says which settings contradict each other.
    pub fn resolve(&self) -> Result<StoreConfig, ConfigError> {
        Ok(self.resolve_with_access()?.0)
    }

    /// Resolves the settings of the store, and returns the handle that replaces how the pod gets into Cassandra.
    ///
    /// # Errors
    /// As for [`StoreArgs::resolve`].
    pub fn resolve_with_access(&self) -> Result<(StoreConfig, Access), ConfigError> {
        let constants = self.constants()?;
        // Templates write an empty variable for what is not set.
        let local_datacenter = self.local_dc.clone().filter(|name| !name.is_empty());
        if self.cassandra.is_empty() {
            // Pods that were meant to share a cluster would each count alone.
            if local_datacenter.is_some() {
                return Err(ConfigError::NoCassandra);
            }
            return Ok((StoreConfig::Embedded { path: self.data.clone() }, Access::default()));
        }
        // The error does not repeat the text before `@`: it can be a password, and a comma in a password
        // splits it over two points.
        if let Some((_, point)) = self.cassandra.iter().find_map(|point| point.rsplit_once('@')) {
            return Err(ConfigError::CredentialsInContactPoint(point.to_owned()));
        }
        for point in &self.cassandra {
            let port = point.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(ConfigError::ContactPoint(point.clone()));
            }
        }
        let user = match (&self.cassandra_user, &self.cassandra_user_file) {
            (Some(user), _) => Some(user.clone()),
            (None, Some(path)) => Some(read_secret("user", path)?.0),
            (None, None) => None,
        };
        let password = match (&self.cassandra_password, &self.cassandra_password_file) {
            (Some(password), _) => Some(password.clone()),
            (None, Some(path)) => Some(read_secret("password", path)?),
            (None, None) => None,
        };
        let login = match (user, password) {
            (Some(user), Some(password)) => Some(Arc::new(Login::new(user, password.0))),
            (None, None) => None,
            _ => return Err(ConfigError::Credentials),
        };
        let own = self.cassandra_cert.as_deref().zip(self.cassandra_key.as_deref());
        let tls = self.cassandra_ca.as_deref().map(|ca| ClientTls::read(ca, own)).transpose()?;
        let config = StoreConfig::Cassandra(Box::new(CassandraConfig {
            contact_points: self.cassandra.clone(),
            keyspace: self.keyspace.clone(),
            login: login.clone(),
            tls: tls.as_ref().map(ClientTls::config),
            local_datacenter,
            levels: Levels {
                write: self.write_consistency,
                read: self.read_consistency,
                fold: self.fold_consistency,
            },
            constants,
            request_limits: RequestLimits {
                rows_max: self.batch_rows.into(),
                group_rows_max: self.batch_rows.max(GROUP_ROWS_MAX).into(),
                partitions_max: self.batch_groups.into(),
                ..RequestLimits::default()
            },
        }));
        Ok((config, Access { login, tls }))
    }

    /// The files with which the pod gets into Cassandra.
    pub(crate) fn access_files(&self) -> Vec<PathBuf> {
        let files = [
            &self.cassandra_user_file,
            &self.cassandra_password_file,
            &self.cassandra_ca,
            &self.cassandra_cert,
            &self.cassandra_key,
        ];
        let files = if self.cassandra.is_empty() { &[][..] } else { &files };
        files.iter().filter_map(|file| (*file).clone()).collect()
    }
}

impl ServeArgs {
    /// Checks the number of mutators and the listeners. `authenticates` says whether the policy requires
    /// tokens.
    ///
    /// # Errors
    /// [`ConfigError::Insecure`], [`ConfigError::MutatorsMax`].
    pub fn check(&self, authenticates: bool) -> Result<(), ConfigError> {
        if self.mutators_max < MUTATORS_MAX_LEAST {
            return Err(ConfigError::MutatorsMax(self.mutators_max));
        }
        let mut addresses = [Some(self.listen), self.admin_listen].into_iter().flatten();
        match addresses.find(|address| !address.ip().is_loopback()) {
            Some(address) if !authenticates && !self.insecure => {
                Err(ConfigError::Insecure(address))
            }
            _ => Ok(()),
        }
    }

    /// The server's certificate, if there is one.
    ///
    /// # Errors
    /// [`ConfigError::Tls`].
    pub fn tls(&self) -> Result<Option<ServerTls>, ConfigError> {
        let files = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        Ok(files.map(|(certificate, key)| ServerTls::read(certificate, key)).transpose()?)
    }
}

/// Reads an address to listen on.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().map_err(|_| {
        "write an IP address and a port, such as 0.0.0.0:8080 for all addresses of this machine, or \
         localhost:8080 for this machine alone"
            .to_owned()
    })
}

/// Reads a number of connections.
fn connections(text: &str) -> Result<usize, String> {
    let bounds = 1..=1_000_000;
    let count = text.parse().ok().filter(|count| bounds.contains(count));
    count.ok_or_else(|| "give a whole number from 1 to 1000000".to_owned())
}

fn read_secret(what: &'static str, path: &Path) -> Result<Secret, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|error| ConfigError::SecretFile {
        what,
        path: path.to_owned(),
        error,
    })?;
    // Editors and `echo` end files with a line break that is not part of the secret.
    Ok(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests;
