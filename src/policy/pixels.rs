//! The groups in which pictures count: loading one adds to a counter, without a token.

use std::num::NonZeroU32;
use std::sync::Arc;

use anyhow::Context;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use orderfree_core::protocol::Key;
use serde::Deserialize;

use super::TooFast;
use super::rules::{Rule, Rules};

/// The rate of each prefix.
#[derive(Debug, Default)]
pub(super) struct Pixels(Rules<Rate>);

#[derive(Debug)]
struct Rate {
    per_second: NonZeroU32,
    limiter: Arc<DefaultDirectRateLimiter>,
}

/// A `[[pixel]]` table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    group_prefix: String,
    per_second: u32,
}

impl Pixels {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Pixels> {
        let rules = entries.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
        let twice =
            |rule: &Rule<_>| format!("two pixel tables for the prefix {:?}", rule.group_prefix);
        Ok(Pixels(Rules::new(rules, twice)?))
    }

    /// Takes over the current rates of the policy before.
    pub(super) fn go_on_from(&mut self, before: &Pixels) {
        for Rule { group_prefix, value, .. } in self.0.iter_mut() {
            let is_same = |old: &&Rule<Rate>| {
                old.group_prefix == *group_prefix && old.value.per_second == value.per_second
            };
            if let Some(old) = before.0.iter().find(is_same) {
                value.limiter = Arc::clone(&old.value.limiter);
            }
        }
    }

    /// Whether one more picture may count in the key. None if no picture may.
    pub(super) fn pass(&self, key: &Key) -> Option<Result<(), TooFast>> {
        let passed = self.0.of(key)?.limiter.check();
        Some(passed.map_err(|not_until| TooFast {
            again_in: not_until.wait_time_from(DefaultClock::default().now()),
        }))
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule<Rate>> {
        let Entry { group_prefix, per_second } = self;
        let per_second = NonZeroU32::new(per_second).with_context(|| {
            format!("per_second of the pixel table for {group_prefix:?} is 0; write 1 or more")
        })?;
        let limiter = Arc::new(RateLimiter::direct(Quota::per_second(per_second)));
        let value = Rate { per_second, limiter };
        Ok(Rule { kind: None, group_prefix, value })
    }
}
