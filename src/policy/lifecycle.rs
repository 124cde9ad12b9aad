//! When idle keys are forgotten, by the prefix of their group and perhaps their kind.
//!
//! The longest matching prefix applies; of two rules with one prefix, the one with a kind. Pods with different
//! files stay correct: a key is then forgotten as early as the shortest of their times says.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Constants, Key};
use serde::Deserialize;

/// All rules, the one that applies first.
#[derive(Debug, Default)]
pub(super) struct Lifecycles(Vec<Rule>);

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    kind: Option<Kind>,
    group_prefix: String,
    idle_ttl: Duration,
}

/// A `[[lifecycle]]` table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    kind: Option<String>,
    group_prefix: String,
    idle_ttl: String,
}

impl Lifecycles {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Lifecycles> {
        let mut rules: Vec<Rule> =
            entries.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
        rules.sort_by_key(|rule| (std::cmp::Reverse(rule.group_prefix.len()), rule.kind.is_none()));
        for (index, rule) in rules.iter().enumerate() {
            let is_same =
                |other: &Rule| (other.kind, &other.group_prefix) == (rule.kind, &rule.group_prefix);
            ensure!(
                !rules[..index].iter().any(is_same),
                "two lifecycles for the prefix {:?} and {}; keep one",
                rule.group_prefix,
                rule.kind.map_or("all kinds".to_owned(), |kind| format!("the kind {kind}"))
            );
        }
        Ok(Lifecycles(rules))
    }

    /// Checks that these times allow keys to be forgotten so early.
    pub(super) fn check(&self, constants: &Constants) -> anyhow::Result<()> {
        self.0.iter().try_for_each(|rule| {
            let of = || format!("the lifecycle of the prefix {:?}", rule.group_prefix);
            constants.check_idle_ttl(rule.idle_ttl).with_context(of)
        })
    }

    pub(super) fn idle_ttl(&self, key: &Key) -> Option<Duration> {
        let fits = |rule: &&Rule| {
            rule.kind.is_none_or(|kind| kind == key.kind)
                && key.group.as_str().starts_with(&rule.group_prefix)
        };
        self.0.iter().find(fits).map(|rule| rule.idle_ttl)
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule> {
        let Entry { kind, group_prefix, idle_ttl } = self;
        let kind = match kind {
            None => None,
            Some(name) => match Kind::from_name(&name) {
                None => bail!("there is no kind {name:?}; GET /v1/kinds lists them"),
                kind => kind,
            },
        };
        let Ok(idle_ttl) = humantime::parse_duration(&idle_ttl) else {
            bail!("idle_ttl {idle_ttl:?} is not a time such as \"30d\" or \"36h\"");
        };
        Ok(Rule { kind, group_prefix, idle_ttl })
    }
}
