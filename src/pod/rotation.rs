//! Files that change while a pod runs: the policy, the certificate, and those for Cassandra. Each of the three is
//! read again when its files have changed, and when an operator asks. If the new files can't be used, the old ones
//! stay in use.
//!
//! The contents are compared, because file systems report changes in different ways or not at all, and Kubernetes
//! replaces a link above the files.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::engine::metrics::{Metrics, ReloadLabel};
use crate::net::tls::ServerTls;
use crate::pod::config::{Access, ServeArgs, StoreArgs, StoreConfig};
use crate::policy::Policies;
use crate::store::cassandra::{self, ConnectError};

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long changed files must stay as they are. A certificate and its key can be written one after the other.
const SETTLE_TIME: Duration = Duration::from_secs(1);

/// How often Cassandra is asked again whether it lets the pod in with new files. Their secret can be there before
/// Cassandra knows it.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(30);

/// The files of a pod that can change, as they were when it started.
pub(crate) struct Rotation {
    policy: Files,
    certificate: Files,
    cassandra: Files,
}

/// What reads the files again.
pub(crate) enum Reader {
    Policy(Policies),
    Certificate(Arc<ServerTls>),
    Cassandra(Box<StoreArgs>, Access),
}

/// Files that are used together.
struct Files {
    paths: Vec<PathBuf>,
    /// Their contents when they were read last. `None` if they changed meanwhile.
    read: Option<Contents>,
    /// Their contents at the last look, if they have changed.
    changed: Option<Contents>,
    /// When Cassandra is asked again.
    again_at: Option<Instant>,
}

/// A hash of the contents.
type Contents = [u8; 32];

impl Rotation {
    /// Notes the contents, before anything reads them.
    pub(crate) fn begin(args: &ServeArgs) -> Rotation {
        // A pipe can be read only once, by the code that uses it.
        let files = |mut paths: Vec<PathBuf>| {
            paths.retain(|path| std::fs::metadata(path).is_ok_and(|found| found.is_file()));
            Files { read: Some(contents(&paths)), paths, changed: None, again_at: None }
        };
        let certificate = args.tls_cert.iter().chain(&args.tls_key);
        Rotation {
            policy: files(args.policy.iter().cloned().collect()),
            certificate: files(certificate.cloned().collect()),
            cassandra: files(args.store.access_files()),
        }
    }

    /// Follows the files. A message on `asked` reads all of them again.
    pub(crate) async fn follow(
        self,
        readers: Vec<Reader>,
        metrics: &Metrics,
        asked: watch::Receiver<()>,
    ) -> Infallible {
        let Rotation { policy, certificate, cassandra } = self;
        let (mut policy, mut certificate, mut cassandra) =
            (Some(policy), Some(certificate), Some(cassandra));
        let each = readers.into_iter().filter_map(|reader| {
            let files = match &reader {
                Reader::Policy(_) => policy.take(),
                Reader::Certificate(_) => certificate.take(),
                Reader::Cassandra(..) => cassandra.take(),
            };
            Some(files?.follow(reader, metrics, asked.clone()))
        });
        future::join_all(each.collect::<Vec<_>>()).await;
        future::pending().await
    }
}

impl Files {
    async fn follow(mut self, reader: Reader, metrics: &Metrics, mut asked: watch::Receiver<()>) {
        if self.paths.is_empty() {
            return;
        }
        loop {
            let wait = if self.changed.is_some() { SETTLE_TIME } else { LOOK_EVERY };
            let is_asked = tokio::select! {
                biased;
                Ok(()) = asked.changed() => true,
                () = sleep(wait) => false,
            };
            let Some(found) = self.look().await else { continue };
            let is_new = is_asked || self.read != Some(found);
            if is_new && !is_asked && self.changed != Some(found) {
                self.changed = Some(found);
                continue;
            }
            self.changed = None;
            if !is_new && self.again_at.is_none_or(|time| Instant::now() < time) {
                continue;
            }
            let result = reader.read().await;
            self.read = self.look().await.filter(|after| *after == found);
            let is_refused = result.as_ref().is_err_and(|error| error.is::<ConnectError>());
            self.again_at = is_refused.then(|| Instant::now() + ASK_AGAIN_EVERY);
            // Another refusal of the same files says nothing new.
            if is_new || result.is_ok() {
                tell(reader.what(), &result, metrics);
            }
        }
    }

    async fn look(&self) -> Option<Contents> {
        let paths = self.paths.clone();
        tokio::task::spawn_blocking(move || contents(&paths)).await.ok()
    }
}

impl Reader {
    fn what(&self) -> &'static str {
        match self {
            Reader::Policy(_) => "policy",
            Reader::Certificate(_) => "certificate",
            Reader::Cassandra(..) => "access to Cassandra",
        }
    }

    async fn read(&self) -> anyhow::Result<()> {
        match self {
            Reader::Policy(policies) => policies.reload(),
            Reader::Certificate(tls) => Ok(tls.reload()?),
            Reader::Cassandra(args, access) => {
                let (config, new) = args.resolve_with_access()?;
                if let StoreConfig::Cassandra(config) = config {
                    cassandra::check_access(&config).await?;
                }
                access.replace_by(&new);
                Ok(())
            }
        }
    }
}

/// Logs and counts the result.
fn tell(what: &'static str, result: &anyhow::Result<()>, metrics: &Metrics) {
    let result = match result {
        Ok(()) => {
            tracing::info!(what, "reloaded");
            "ok"
        }
        Err(error) => {
            tracing::error!(
                what,
                "the new {what} can't be used, so the old one stays in use: {error:#}"
            );
            "refused"
        }
    };
    metrics.policy_reloads.get_or_create(&ReloadLabel { result }).inc();
}

/// What the files hold. A file that can't be read counts as one with its error.
fn contents(paths: &[PathBuf]) -> Contents {
    let mut all = Sha256::new();
    for path in paths {
        let each = match std::fs::read(path) {
            Ok(bytes) => Sha256::new().chain_update([0]).chain_update(bytes),
            Err(error) => Sha256::new().chain_update([1]).chain_update(error.to_string()),
        };
        all.update(each.finalize());
    }
    all.finalize().into()
}
