//! Configuration from flags and environment, which nothing else names, checked before a socket opens.

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
use crate::store::Flights;
use crate::store::cassandra::CassandraConfig;
use crate::tls::{self, ServerTls, TlsError};

/// Cassandra's own default of `max_hint_window`.
const HINT_WINDOW_DEFAULT: Duration = Duration::from_secs(3 * 3600);

/// Fewer mutators than this would refuse updates that any pod can take.
const MUTATORS_MAX_LEAST: usize = 1_000;

/// Where rows lie, and the protocol's constants. Every pod of an installation needs the
/// same keyspace and the same constants.
#[derive(Debug, Clone, Args)]
pub struct StoreArgs {
    /// File of the embedded store; used if no Cassandra is given.
    #[arg(long, env = "ORDERFREE_DATA", default_value = "orderfree.redb", value_name = "FILE")]
    pub data: PathBuf,

    /// Cassandra's contact points, separated by commas. Without it the embedded store is used.
    #[arg(long, env = "ORDERFREE_CASSANDRA", value_delimiter = ',', value_name = "HOST:PORT")]
    pub cassandra: Vec<String>,

    /// Keyspace of the table.
    #[arg(long, env = "ORDERFREE_KEYSPACE", default_value = "orderfree")]
    pub keyspace: String,

    /// User name for Cassandra.
    #[arg(long, env = "ORDERFREE_CASSANDRA_USER", value_name = "NAME")]
    pub cassandra_user: Option<String>,

    /// Password for Cassandra.
    #[arg(
        long,
        env = "ORDERFREE_CASSANDRA_PASSWORD",
        hide_env_values = true,
        value_name = "PASSWORD"
    )]
    pub cassandra_password: Option<Secret>,

    /// File that holds the password for Cassandra, such as a mounted secret.
    #[arg(
        long,
        env = "ORDERFREE_CASSANDRA_PASSWORD_FILE",
        value_name = "FILE",
        conflicts_with = "cassandra_password"
    )]
    pub cassandra_password_file: Option<PathBuf>,

    /// PEM file of the authority that signed the nodes' certificates: speaks TLS with Cassandra. A node's
    /// certificate must be for the address by which the driver reaches it.
    #[arg(long, env = "ORDERFREE_CASSANDRA_CA", value_name = "FILE")]
    pub cassandra_ca: Option<PathBuf>,

    /// PEM file of this pod's certificate, for nodes that ask for one.
    #[arg(long, env = "ORDERFREE_CASSANDRA_CERT", value_name = "FILE", requires_all = ["cassandra_ca", "cassandra_key"])]
    pub cassandra_cert: Option<PathBuf>,

    /// PEM file of the key to it.
    #[arg(long, env = "ORDERFREE_CASSANDRA_KEY", value_name = "FILE", requires = "cassandra_cert")]
    pub cassandra_key: Option<PathBuf>,

    /// This pod's data centre; by default that of the first contact point that answers.
    #[arg(long, env = "ORDERFREE_LOCAL_DC", value_name = "NAME")]
    pub local_dc: Option<String>,

    /// Consistency level of updates.
    #[arg(
        long,
        env = "ORDERFREE_WRITE_CONSISTENCY",
        default_value = "local_quorum",
        value_name = "LEVEL"
    )]
    pub write_consistency: Level,

    /// Consistency level of reads that name none.
    #[arg(
        long,
        env = "ORDERFREE_READ_CONSISTENCY",
        default_value = "local_quorum",
        value_name = "LEVEL"
    )]
    pub read_consistency: Level,

    /// Consistency level of the fold's read: `all`, or one that must meet every write.
    #[arg(long, env = "ORDERFREE_FOLD_CONSISTENCY", default_value = "all", value_name = "LEVEL")]
    pub fold_consistency: Level,

    /// From a mutator's birth to its expiry [default: 24h]; about 8 days at most.
    #[arg(long, env = "ORDERFREE_LIFETIME", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub lifetime: Option<Duration>,

    /// How long before its expiry a mutator takes no more updates [default: 1h].
    #[arg(long, env = "ORDERFREE_DRAIN_MARGIN", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub drain_margin: Option<Duration>,

    /// How long after its expiry a shard may be folded [default: 1h].
    #[arg(long, env = "ORDERFREE_CUTOFF", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub cutoff: Option<Duration>,

    /// Longest time of one update's write, retries included [default: a fifth of the drain margin,
    /// at most 10s].
    #[arg(long, env = "ORDERFREE_REQUEST_BUDGET", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub request_budget: Option<Duration>,

    /// Largest measured clock offset with which updates are taken [default: two fifths of the drain
    /// margin, at most 30s].
    #[arg(long, env = "ORDERFREE_CLOCK_OFFSET_MAX", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub clock_offset_max: Option<Duration>,

    /// Fences are rounded down to it [default: a thirtieth of the cutoff, at most 60s].
    #[arg(long, env = "ORDERFREE_FENCE_QUANTUM", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub fence_quantum: Option<Duration>,

    /// Most keys that one request over several groups writes to Cassandra; a fold, which also deletes, takes half as many.
    /// More need a larger `batch_size_fail_threshold` than Cassandra's default.
    #[arg(long, env = "ORDERFREE_BATCH_ROWS", default_value_t = BATCH_ROWS_MAX, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub batch_rows: u16,

    /// Most groups in one request to Cassandra, which warns of batches over more than ten partitions.
    #[arg(long, env = "ORDERFREE_BATCH_GROUPS", default_value_t = BATCH_GROUPS_MAX, value_parser = clap::value_parser!(u16).range(1..), value_name = "COUNT")]
    pub batch_groups: u16,

    /// The cluster's `max_hint_window`; matters only if updates are written below a quorum
    /// [default: 3h].
    #[arg(long, env = "ORDERFREE_HINT_WINDOW", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub hint_window: Option<Duration>,
}

/// How to serve.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Address to listen on, such as 127.0.0.1:8080 or 0.0.0.0:8080.
    #[arg(
        long,
        env = "ORDERFREE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "IP:PORT"
    )]
    pub listen: SocketAddr,

    /// A second address, for operators alone: probes, metrics, and whatever needs the verb admin, which the
    /// first address has no longer.
    #[arg(long, env = "ORDERFREE_ADMIN_LISTEN", value_name = "IP:PORT")]
    pub admin_listen: Option<SocketAddr>,

    /// PEM file of the certificate to speak HTTPS with, and those that lead to its authority. SIGHUP has it
    /// read anew.
    #[arg(long, env = "ORDERFREE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// PEM file of the key to it.
    #[arg(long, env = "ORDERFREE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// Where rows lie.
    #[command(flatten)]
    pub store: StoreArgs,

    /// How long to wait at start for a store that does not answer, or has no schema yet.
    #[arg(long, env = "ORDERFREE_STORE_WAIT", default_value = "5m", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub store_wait: Duration,

    /// Whether this pod folds: `on` in the background and when asked for a key, `manual` only when asked,
    /// `off` not even then. Switch it off everywhere while the cluster's topology changes, if folds read
    /// below `all`.
    #[arg(long, env = "ORDERFREE_FOLD", default_value = "on", value_name = "ON|MANUAL|OFF")]
    pub fold: Switch,

    /// Create the keyspace and the table first where they are missing: for development.
    #[arg(long, env = "ORDERFREE_APPLY_SCHEMA")]
    pub apply_schema: bool,

    /// Listen beyond loopback although the policy file has no tokens, so that nobody is asked for one.
    #[arg(long, env = "ORDERFREE_INSECURE")]
    pub insecure: bool,

    /// How long to go on serving after SIGTERM, so that load balancers notice.
    #[arg(long, env = "ORDERFREE_UNREADY_GRACE", default_value = "5s", value_parser = humantime::parse_duration, value_name = "DURATION")]
    pub unready_grace: Duration,

    /// File of tokens, quotas, and how precise keys are; see docs/operate/security.md. SIGHUP has it read anew.
    #[arg(long, env = "ORDERFREE_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,

    /// Most keys whose state is ready for updates. Further ones that were updated lately rest.
    #[arg(long, env = "ORDERFREE_MUTATORS_MAX", default_value_t = crate::limits::MUTATORS_MAX, value_name = "COUNT")]
    pub mutators_max: usize,

    /// Most bytes of memory of keys at rest, some 140 for a counter. A key that is forgotten for want of
    /// room has a row more once it is updated again.
    #[arg(long, env = "ORDERFREE_RESTING_BYTES", default_value_t = crate::limits::RESTING_BYTES, value_name = "BYTES")]
    pub resting_bytes: usize,

    /// Most connections of each address.
    #[arg(long, env = "ORDERFREE_CONNECTIONS_MAX", default_value_t = crate::limits::CONNECTIONS_MAX, value_parser = connections, value_name = "COUNT")]
    pub connections_max: usize,

    /// Most requests in progress of each address; fewer than connections have some told to come back.
    #[arg(long, env = "ORDERFREE_REQUESTS_MAX", default_value_t = crate::limits::REQUESTS_MAX, value_parser = connections, value_name = "COUNT")]
    pub requests_max: usize,

    /// For tests only.
    #[command(flatten)]
    pub faults: faults::FaultArgs,
}

/// Who may have a pod fold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// The pod itself, in the background, and whoever asks.
    On,
    /// Whoever asks: something else folds in the background.
    Manual,
    /// Nobody: a fold would do harm now.
    Off,
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for whoever needs it.
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

/// Which store, with everything it needs.
#[derive(Debug, Clone)]
pub enum StoreConfig {
    /// A file of this machine.
    Embedded {
        /// The file.
        path: PathBuf,
    },
    /// A cluster.
    Cassandra(Box<CassandraConfig>),
}

/// The names of all variables of the environment.
pub fn environment() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

impl StoreConfig {
    /// For tools that make nothing: a file that is not there, or has nothing in it, is most likely a wrong name.
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

/// Why a configuration can't be used. Nothing was opened.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Time constants contradict each other.
    #[error(transparent)]
    Constants(#[from] ConstantsError),
    /// A contact point is not `host:port`.
    #[error("`{0}` is no contact point; write host:port, such as 10.0.0.1:9042")]
    ContactPoint(String),
    /// A contact point with a user.
    #[error(
        "a contact point is no place for credentials: write {0}, and give the user and the password apart"
    )]
    CredentialsInContactPoint(String),
    /// A user without a password, or the reverse.
    #[error("give both a user and a password for Cassandra, or neither")]
    Credentials,
    /// The password file can't be read.
    #[error("the password file {path} can't be read: {error}")]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Too few mutators to serve with.
    #[error("{0} mutators are too few; allow at least {MUTATORS_MAX_LEAST}")]
    MutatorsMax(usize),
    /// There is no embedded store.
    #[error(
        "there is no file {0:?}, or nothing in it; name the store by --data (ORDERFREE_DATA) or --cassandra (ORDERFREE_CASSANDRA)"
    )]
    NoFile(PathBuf),
    /// Files for TLS can't be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Anybody could call.
    #[error(
        "{0} is not a loopback address, and the policy has no tokens, so that anybody could call; make one by \
         `orderfree token new` and name its file with --policy (ORDERFREE_POLICY), listen on 127.0.0.1, or say \
         --insecure (ORDERFREE_INSECURE=true) if the network keeps strangers out"
    )]
    Insecure(SocketAddr),
}

impl StoreArgs {
    /// The time constants.
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
            fence_quantum: self.fence_quantum,
            hint_window: is_weak.then(|| self.hint_window.unwrap_or(HINT_WINDOW_DEFAULT)),
        })?)
    }

    /// The store.
    ///
    /// # Errors
    /// [`ConfigError`] says what contradicts what.
    pub fn resolve(&self) -> Result<StoreConfig, ConfigError> {
        let constants = self.constants()?;
        if self.cassandra.is_empty() {
            return Ok(StoreConfig::Embedded { path: self.data.clone() });
        }
        // Not repeated: what is before it may be a password, of which a comma makes two points.
        if let Some((_, point)) = self.cassandra.iter().find_map(|point| point.rsplit_once('@')) {
            return Err(ConfigError::CredentialsInContactPoint(point.to_owned()));
        }
        for point in &self.cassandra {
            let port = point.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
                return Err(ConfigError::ContactPoint(point.clone()));
            }
        }
        let password = match (&self.cassandra_password, &self.cassandra_password_file) {
            (Some(password), _) => Some(password.clone()),
            (None, Some(path)) => Some(read_password(path)?),
            (None, None) => None,
        };
        if self.cassandra_user.is_some() != password.is_some() {
            return Err(ConfigError::Credentials);
        }
        let own = self.cassandra_cert.as_deref().zip(self.cassandra_key.as_deref());
        let tls = self.cassandra_ca.as_deref().map(|ca| tls::client_config(ca, own)).transpose()?;
        Ok(StoreConfig::Cassandra(Box::new(CassandraConfig {
            contact_points: self.cassandra.clone(),
            keyspace: self.keyspace.clone(),
            user: self.cassandra_user.clone(),
            password: password.map(|password| password.0),
            tls: tls.map(Arc::new),
            local_datacenter: self.local_dc.clone(),
            levels: Levels {
                write: self.write_consistency,
                read: self.read_consistency,
                fold: self.fold_consistency,
            },
            constants,
            flights: Flights {
                rows_max: self.batch_rows.into(),
                group_rows_max: self.batch_rows.max(GROUP_ROWS_MAX).into(),
                partitions_max: self.batch_groups.into(),
                ..Flights::default()
            },
        })))
    }
}

impl ServeArgs {
    /// Checks what concerns the listeners; whether callers are asked for tokens says the policy.
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

    /// The certificate to show, if there is one.
    ///
    /// # Errors
    /// [`ConfigError::Tls`].
    pub fn tls(&self) -> Result<Option<ServerTls>, ConfigError> {
        let files = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        Ok(files.map(|(certificate, key)| ServerTls::read(certificate, key)).transpose()?)
    }
}

/// Where a collector of traces can be named.
const TRACE_COLLECTORS: [&str; 2] =
    ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Whether the environment names a collector of traces.
#[must_use]
pub fn has_trace_collector() -> bool {
    TRACE_COLLECTORS.into_iter().any(is_set)
}

/// Whether it is called without TLS.
#[must_use]
pub fn is_trace_collector_plain() -> bool {
    let named = TRACE_COLLECTORS.into_iter().find_map(|name| std::env::var(name).ok());
    named.is_some_and(|address| address.starts_with("http://"))
}

/// Whether the environment names this service.
#[must_use]
pub fn has_service_name() -> bool {
    is_set("OTEL_SERVICE_NAME")
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Reads a number of connections.
fn connections(text: &str) -> Result<usize, String> {
    let bounds = 1..=1_000_000;
    let count = text.parse().ok().filter(|count| bounds.contains(count));
    count.ok_or_else(|| "give a whole number from 1 to 1000000".to_owned())
}

fn read_password(path: &PathBuf) -> Result<Secret, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::PasswordFile { path: path.clone(), error })?;
    // Editors and `echo` end files with a line break that is no part of the secret.
    Ok(Secret(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
mod tests;
