//! How precise keys are, by kind and by the prefix of their group.
//!
//! The longest matching prefix applies, or the kind's default if none matches. Each stored state has its own
//! precision, so pods with different files and keys with changing precision stay correct: states merge to the
//! coarser precision.

use anyhow::{bail, ensure};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Key;
use serde::Deserialize;

/// All rules, the longest prefix first.
#[derive(Debug, Default)]
pub(super) struct Precisions(Vec<Rule>);

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    group_prefix: String,
    precision: u16,
}

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
        let mut rules: Vec<Rule> =
            entries.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.group_prefix.len()));
        for (index, rule) in rules.iter().enumerate() {
            let is_same =
                |other: &Rule| (other.kind, &other.group_prefix) == (rule.kind, &rule.group_prefix);
            ensure!(
                !rules[..index].iter().any(is_same),
                "{} has two precisions for the prefix {:?}; keep one",
                rule.kind,
                rule.group_prefix
            );
        }
        Ok(Precisions(rules))
    }

    pub(super) fn of(&self, key: &Key) -> Option<u16> {
        let fits = |rule: &&Rule| {
            rule.kind == key.kind && key.group.as_str().starts_with(&rule.group_prefix)
        };
        self.0.iter().find(fits).map(|rule| rule.precision)
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule> {
        let Entry { kind, group_prefix, scale, lg_k, k } = self;
        let Some(kind) = Kind::from_name(&kind) else {
            bail!("there is no kind {kind:?}; GET /v1/kinds lists them");
        };
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
                Ok(Rule { kind, group_prefix, precision })
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
