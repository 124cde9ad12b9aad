//! How precise keys are.
//!
//! The kind's default applies if no rule does. Each stored state has its own precision, so pods with different files and
//! keys with changing precision stay correct: states merge to the coarser precision.

use anyhow::bail;
use orderfree_core::protocol::Key;
use serde::Deserialize;

use super::rules::{self, Rule, Rules};

/// The precision of new states.
#[derive(Debug, Default)]
pub(super) struct Precisions(Rules<u16>);

/// A `[[precision]]` table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    kind: String,
    #[serde(default)]
    group_prefix: String,
    scale: Option<u16>,
    lg_k: Option<u16>,
    k: Option<u16>,
}

impl Precisions {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Precisions> {
        let rules = entries.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
        let twice = |rule: &Rule<u16>| {
            let kind = rule.kind.expect("invariant: each precision is that of a kind");
            format!("{kind} has two precisions for the prefix {:?}", rule.group_prefix)
        };
        Ok(Precisions(Rules::new(rules, twice)?))
    }

    pub(super) fn of(&self, key: &Key) -> Option<u16> {
        self.0.of(key).copied()
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule<u16>> {
        let Entry { kind, group_prefix, scale, lg_k, k } = self;
        let kind = rules::kind(&kind)?;
        let Some(range) = kind.precision() else {
            bail!("{kind} has no precision to configure; remove this table");
        };
        let given: Vec<(&str, u16)> = [("scale", scale), ("lg_k", lg_k), ("k", k)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
        match given[..] {
            [(name, precision)]
                if name == range.name && (range.min..=range.max).contains(&precision) =>
            {
                Ok(Rule { kind: Some(kind), group_prefix, value: precision })
            }
            _ => bail!(
                "{kind} needs exactly `{}` as a whole number from {} to {}",
                range.name,
                range.min,
                range.max
            ),
        }
    }
}
