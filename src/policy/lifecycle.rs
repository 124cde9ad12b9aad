//! When idle keys are forgotten.
//!
//! Pods with different files stay correct: a key is then forgotten as early as the shortest of their times says.

use std::time::Duration;

use anyhow::{Context, bail};
use orderfree_core::protocol::{Constants, Key};
use serde::Deserialize;

use super::rules::{self, Rule, Rules};

/// The time without updates after which keys are forgotten.
#[derive(Debug, Default)]
pub(super) struct Lifecycles(Rules<Duration>);

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
        let rules = entries.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
        let twice = |rule: &Rule<Duration>| {
            let kinds = rule.kind.map_or("all kinds".to_owned(), |kind| format!("the kind {kind}"));
            format!("two lifecycles for the prefix {:?} and {kinds}", rule.group_prefix)
        };
        Ok(Lifecycles(Rules::new(rules, twice)?))
    }

    /// Checks that these times allow keys to be forgotten so early.
    pub(super) fn check(&self, constants: &Constants) -> anyhow::Result<()> {
        self.0.iter().try_for_each(|rule| {
            let of = || format!("the lifecycle of the prefix {:?}", rule.group_prefix);
            constants.check_idle_ttl(rule.value).with_context(of)
        })
    }

    pub(super) fn idle_ttl(&self, key: &Key) -> Option<Duration> {
        self.0.of(key).copied()
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule<Duration>> {
        let Entry { kind, group_prefix, idle_ttl } = self;
        let kind = kind.as_deref().map(rules::kind).transpose()?;
        let Ok(value) = humantime::parse_duration(&idle_ttl) else {
            bail!("idle_ttl {idle_ttl:?} is not a time such as \"30d\" or \"36h\"");
        };
        Ok(Rule { kind, group_prefix, value })
    }
}
