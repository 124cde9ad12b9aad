//! The origins whose pages may read answers, by the prefix of the group (CORS).
//!
//! Browsers ask for this, to protect their users. It does not protect the server, which handles a request
//! whatever its origin is: tokens decide what a client can do.

use anyhow::{bail, ensure};
use reqwest::Url;
use serde::Deserialize;

/// Stands for every origin.
const ANY: &str = "*";

/// All rules.
#[derive(Debug, Default)]
pub(super) struct Origins(Vec<Entry>);

/// A `[[cors]]` table of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    group_prefix: String,
    origins: Vec<String>,
}

impl Origins {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Origins> {
        for (index, Entry { group_prefix, origins }) in entries.iter().enumerate() {
            let is_same = |other: &Entry| other.group_prefix == *group_prefix;
            ensure!(
                !entries[..index].iter().any(is_same),
                "two cors tables for the prefix {group_prefix:?}; keep one"
            );
            ensure!(
                !origins.is_empty(),
                "the cors table of the prefix {group_prefix:?} has no origins; write some, or remove the table"
            );
            origins.iter().try_for_each(|origin| check(origin))?;
        }
        Ok(Origins(entries))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The origin that an answer about this group allows: this one, or all. `None` as the group stands for any
    /// groups, so only the empty prefix fits.
    pub(super) fn allowed<'a>(&self, origin: &'a str, group: Option<&str>) -> Option<&'a str> {
        let fits = |entry: &&Entry| group.unwrap_or_default().starts_with(&entry.group_prefix);
        let mut origins = self.0.iter().filter(fits).flat_map(|entry| &entry.origins);
        if origins.clone().any(|allowed| allowed == ANY) {
            return Some(ANY);
        }
        origins.any(|allowed| allowed == origin).then_some(origin)
    }
}

/// Checks that an origin is written as browsers send it, because other spellings would never match.
fn check(origin: &str) -> anyhow::Result<()> {
    if origin == ANY {
        return Ok(());
    }
    let url = Url::parse(origin).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && !origin.contains('*'));
    let Some(url) = url else {
        bail!(
            "{origin:?} is not an origin; write scheme, host and, unless it is the usual one, port, such as \
             https://example.org:8443, or \"*\" for all origins"
        )
    };
    let sent = url.origin().ascii_serialization();
    ensure!(sent == origin, "browsers do not send the origin {origin:?}; write {sent:?}");
    Ok(())
}
