//! The policy: who may do what with which groups, how much of it, and how precisely. It comes from one
//! TOML file, and a running pod takes a changed one over.
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
//! ```
//!
//! * `token`: somebody who may call. `orderfree token new` makes these lines, which hold the hash of the
//!   token alone. What no grant names is denied.
//! * `quota`: bounds for each pod on the keys of groups that begin so. The longest prefix that fits decides.
//! * `precision`: how precise keys are, by kind and the beginning of their group.

mod precision;
mod quotas;
mod tokens;

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, ensure};
use arc_swap::ArcSwap;
use orderfree_core::protocol::{Key, Name, Timestamp};
use serde::Deserialize;

use precision::Precisions;
use quotas::Quotas;
pub use quotas::{Arrival, OverQuota, Seat, SeatsOf, Tenant};
use tokens::Tokens;
pub use tokens::{
    Caller, Denied, NewToken, TOKEN_PREFIX, TooFast, TooManyStreams, Verb, without_tokens,
};

/// What a file says.
#[derive(Debug, Default)]
pub struct Policy {
    tokens: Tokens,
    quotas: Quotas,
    precisions: Precisions,
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
}

impl Policy {
    /// Reads a file.
    ///
    /// # Errors
    /// One sentence that names the file and the rule that it breaks.
    pub fn read(path: &Path) -> anyhow::Result<Policy> {
        let what = || format!("the policy file {}", path.display());
        let text = fs::read_to_string(path).with_context(what)?;
        text.parse().with_context(what)
    }

    /// Whether it knows anybody.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// The precision of a new state of this key; none if the kind's default decides.
    #[must_use]
    pub fn precision(&self, key: &Key) -> Option<u16> {
        self.precisions.of(key)
    }
}

impl FromStr for Policy {
    type Err = anyhow::Error;

    /// Reads the text of a file. An error is one sentence, and holds no secret: the file has none but
    /// what was put there by mistake, so that its lines are not repeated.
    fn from_str(text: &str) -> anyhow::Result<Policy> {
        // The parser's errors, and those below, repeat what they are about.
        if let Some(at) = tokens::position(text) {
            let line = 1 + text[..at].matches('\n').count();
            anyhow::bail!(
                "line {line}: a token stands in the file itself; revoke it, and put its hash there (`orderfree \
                 token new` prints both)"
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
        })
    }
}

/// The policy of a running pod, which can be replaced. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    file: Option<Arc<PathBuf>>,
    current: Arc<ArcSwap<Policy>>,
    /// Fixed for the life of the pod: an emptied file shuts everybody out, and opens nothing.
    authenticates: bool,
}

impl Policies {
    /// Reads the file, if there is one. Whoever is not known is denied if the file has tokens.
    ///
    /// # Errors
    /// Those of [`Policy::read`].
    pub fn open(file: Option<&Path>) -> anyhow::Result<Policies> {
        let policy = file.map(Policy::read).transpose()?.unwrap_or_default();
        Ok(Policies { file: file.map(|file| Arc::new(file.to_owned())), ..policy.into() })
    }

    /// Whether requests need a token.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        self.authenticates
    }

    /// Whether there is a file to read anew.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the file anew. Rates and quotas go on from where they are.
    ///
    /// # Errors
    /// Those of [`Policy::read`]: the policy stays as it was.
    pub fn reload(&self) -> anyhow::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut policy = Policy::read(file)?;
        ensure!(
            self.authenticates || !policy.has_tokens(),
            "the policy file {} has tokens now, and had none when this pod started: restart it, so that \
             it asks for them",
            file.display()
        );
        let before = self.current.load();
        policy.tokens.go_on_from(&before.tokens);
        policy.quotas.go_on_from(&before.quotas);
        self.current.store(Arc::new(policy));
        Ok(())
    }

    /// Who sends this `Authorization` header.
    ///
    /// # Errors
    /// [`Denied`] if a token is needed, and this is none that is good at the moment.
    pub fn authenticate(
        &self,
        authorization: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Caller, Denied> {
        if !self.authenticates {
            return Ok(Caller::anybody());
        }
        self.current.load().tokens.find(authorization, now)
    }

    /// The same caller by the policy of now, for requests that last.
    ///
    /// # Errors
    /// [`Denied::Unknown`] if the token was revoked meanwhile, or has expired.
    pub fn renew(&self, caller: &Caller, now: Timestamp) -> Result<Caller, Denied> {
        self.current.load().tokens.renew(caller, now)
    }

    /// The precision of a new state of this key; none if the kind's default decides.
    #[must_use]
    pub fn precision(&self, key: &Key) -> Option<u16> {
        self.current.load().precision(key)
    }

    /// Room for one more mutator of a group.
    ///
    /// # Errors
    /// [`OverQuota`] if the group's quota has none.
    pub fn seat(&self, group: &Name, arrival: Arrival) -> Result<Seat, OverQuota> {
        self.current.load().quotas.seat(group, arrival)
    }

    /// The same without a bound, for ops that were answered already.
    #[must_use]
    pub fn uncounted_seat(&self, group: &Name) -> Seat {
        self.current.load().quotas.uncounted_seat(group)
    }
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Policies {
        let authenticates = policy.has_tokens();
        Policies { file: None, current: Arc::new(ArcSwap::from_pointee(policy)), authenticates }
    }
}

#[cfg(test)]
mod tests;
