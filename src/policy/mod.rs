//! The policy: what each caller can do with which groups, how many keys groups can have, how precise they are,
//! and when they are forgotten. The policy is one TOML file, which a running pod can reload.
//!
//! ```toml
//! [[token]]
//! name = "checkout"
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! rate = 5000
//!
//! [[token.grant]]
//! group_prefix = "shop:"
//! verbs = ["read", "write"]
//!
//! [[quota]]
//! group_prefix = "shop:"
//! new_keys_per_minute = 10000
//! live_mutators = 50000
//!
//! [[precision]]
//! kind = "distinct"
//! group_prefix = "campaign:"
//! lg_k = 13
//!
//! [[lifecycle]]
//! group_prefix = "session:"
//! idle_ttl = "30d"
//!
//! [[pixel]]
//! group_prefix = "hits:"
//! per_second = 50
//!
//! [[cors]]
//! group_prefix = "site:"
//! origins = ["https://example.org"]
//! ```
//!
//! * `token`: a caller. `orderfree token new` writes these lines. They hold only the hash of the token.
//!   Anything not granted is denied.
//! * `quota`: limits, per pod, on the keys of groups with this prefix. The longest matching prefix applies.
//! * `precision`: how precise keys are, by kind and by the prefix of their group.
//! * `lifecycle`: after how long without updates keys of groups with this prefix, and of this kind if one is
//!   named, are forgotten.
//! * `pixel`: groups with this prefix have counters that pictures count in, without a token, this often on each
//!   pod.
//! * `cors`: the origins whose pages may read answers about groups with this prefix. All matching prefixes
//!   count.

mod cors;
mod lifecycle;
mod pixels;
mod precision;
mod quotas;
mod rules;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use arc_swap::ArcSwap;
use orderfree_core::protocol::sweep::IdleRules;
use orderfree_core::protocol::{Constants, Key, Name, Timestamp};
use serde::Deserialize;

use cors::Origins;
use lifecycle::Lifecycles;
use pixels::Pixels;
use precision::Precisions;
use quotas::Quotas;
pub use quotas::{Arrival, OverQuota, QuotaPermit, QuotaPermits, Tenant};
use tokens::Tokens;
pub(crate) use tokens::UNAUTHENTICATED;
pub use tokens::{
    Caller, Denied, NewToken, TOKEN_PREFIX, TooFast, TooManyStreams, Verb, WatchRoom,
    without_tokens,
};

/// A parsed policy file.
#[derive(Debug, Default)]
pub struct Policy {
    tokens: Tokens,
    quotas: Quotas,
    precisions: Precisions,
    lifecycles: Lifecycles,
    pixels: Pixels,
    origins: Origins,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    token: Vec<tokens::Entry>,
    #[serde(default)]
    quota: Vec<quotas::Entry>,
    #[serde(default)]
    precision: Vec<precision::Entry>,
    #[serde(default)]
    lifecycle: Vec<lifecycle::Entry>,
    #[serde(default)]
    pixel: Vec<pixels::Entry>,
    #[serde(default)]
    cors: Vec<cors::Entry>,
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// One sentence that names the file and what is wrong with it.
    pub fn read(path: &Path) -> anyhow::Result<Policy> {
        let what = || format!("the policy file {}", path.display());
        let text = fs::read_to_string(path).with_context(what)?;
        text.parse().with_context(what)
    }

    /// Whether the policy has tokens.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The precision of a new state of this key. `None`: the kind's default applies.
    #[must_use]
    pub fn precision(&self, key: &Key) -> Option<u16> {
        self.precisions.of(key)
    }
}

impl FromStr for Policy {
    type Err = anyhow::Error;

    /// Reads the text of a file. An error is one sentence without secrets. A file can hold a secret only by
    /// mistake, and errors do not repeat its lines for that reason.
    fn from_str(text: &str) -> anyhow::Result<Policy> {
        // The parser's errors and those below repeat parts of the text, so look for tokens first.
        if let Some(at) = tokens::position(text) {
            let line = 1 + text[..at].matches('\n').count();
            anyhow::bail!(
                "line {line}: the file contains a token; revoke it, and write its hash instead (`orderfree token \
                 new` prints both)"
            );
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            anyhow::anyhow!("line {line}: {}", error.message())
        })?;
        Ok(Policy {
            tokens: Tokens::new(file.token)?,
            quotas: Quotas::new(file.quota)?,
            precisions: Precisions::new(file.precision)?,
            lifecycles: Lifecycles::new(file.lifecycle)?,
            pixels: Pixels::new(file.pixel)?,
            origins: Origins::new(file.cors)?,
        })
    }
}

/// The policy of a running pod, which can be replaced. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    file: Option<Arc<PathBuf>>,
    current: Arc<ArcSwap<Policy>>,
    /// Fixed for the life of the pod: an emptied file locks all callers out, instead of letting all in.
    authenticates: bool,
    /// A reload checks the times of the file against these.
    constants: Option<Constants>,
}

impl Policies {
    /// Reads the file, if there is one. If it has tokens, unknown callers are denied.
    ///
    /// # Errors
    /// As for [`Policy::read`]; also if the constants do not allow a lifecycle.
    pub fn open(file: Option<&Path>, constants: Constants) -> anyhow::Result<Policies> {
        let policy = file.map(|file| read_checked(file, &constants)).transpose()?;
        let file = file.map(|file| Arc::new(file.to_owned()));
        let constants = Some(constants);
        Ok(Policies { file, constants, ..policy.unwrap_or_default().into() })
    }

    /// Whether requests need a token.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        self.authenticates
    }

    /// Reloads the file. Rates and quotas keep their current counts.
    ///
    /// # Errors
    /// As for [`Policy::read`]; also if the file has new tokens but this pod does not require them. The old
    /// policy stays in use.
    pub fn reload(&self) -> anyhow::Result<()> {
        let (Some(file), Some(constants)) = (&self.file, &self.constants) else { return Ok(()) };
        let mut policy = read_checked(file, constants)?;
        ensure!(
            self.authenticates || !policy.has_tokens(),
            "the policy file {} has tokens now, but had none when this pod started; restart it, so that it \
             requires tokens",
            file.display()
        );
        let before = self.current.load();
        policy.tokens.go_on_from(&before.tokens);
        policy.quotas.go_on_from(&before.quotas);
        policy.pixels.go_on_from(&before.pixels);
        self.current.store(Arc::new(policy));
        Ok(())
    }

    /// Finds the caller by the `Authorization` header of the request.
    ///
    /// # Errors
    /// [`Denied`] if the pod requires tokens and this header has no valid one.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Caller, Denied> {
        if !self.authenticates {
            return Ok(Caller::anonymous());
        }
        self.current.load().tokens.find(authorization, now)
    }

    /// Looks the same caller up in the current policy, for long requests.
    ///
    /// # Errors
    /// [`Denied::Unknown`] if the token has been revoked or has expired.
    pub fn renew(&self, caller: &Caller, now: Timestamp) -> Result<Caller, Denied> {
        self.current.load().tokens.renew(caller, now)
    }

    /// The precision of a new state of this key. `None`: the kind's default applies.
    #[must_use]
    pub fn precision(&self, key: &Key) -> Option<u16> {
        self.current.load().precision(key)
    }

    /// Whether pages of any other origin may read answers.
    #[must_use]
    pub fn has_origins(&self) -> bool {
        !self.current.load().origins.is_empty()
    }

    /// The origin that an answer about this group allows: this one, `*` for all, or none. Without a group,
    /// the answer can be about any groups.
    #[must_use]
    pub fn allowed_origin<'a>(&self, origin: &'a str, group: Option<&str>) -> Option<&'a str> {
        self.current.load().origins.allowed(origin, group)
    }

    /// Whether one more picture may count in the key. None if no picture may.
    #[must_use]
    pub fn pass_pixel(&self, key: &Key) -> Option<Result<(), TooFast>> {
        self.current.load().pixels.pass(key)
    }

    /// Takes a permit for one more mutator of a group.
    ///
    /// # Errors
    /// [`OverQuota`] if the group's quota is used up.
    pub fn permit(&self, group: &Name, arrival: Arrival) -> Result<QuotaPermit, OverQuota> {
        self.current.load().quotas.permit(group, arrival)
    }

    /// A permit that no quota limits or counts, for ops that were acknowledged already.
    #[must_use]
    pub fn uncounted_permit(&self, group: &Name) -> QuotaPermit {
        self.current.load().quotas.uncounted_permit(group)
    }
}

impl IdleRules for Policies {
    fn idle_ttl(&self, key: &Key) -> Option<Duration> {
        self.current.load().lifecycles.idle_ttl(key)
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Policies {
        let authenticates = policy.has_tokens();
        let current = Arc::new(ArcSwap::from_pointee(policy));
        Policies { file: None, current, authenticates, constants: None }
    }
}

fn read_checked(file: &Path, constants: &Constants) -> anyhow::Result<Policy> {
    let policy = Policy::read(file)?;
    let what = || format!("the policy file {}", file.display());
    policy.lifecycles.check(constants).with_context(what)?;
    Ok(policy)
}

#[cfg(test)]
mod tests;
