//! Rules about keys, by the prefix of their group and perhaps their kind.
//!
//! The longest matching prefix applies; of two rules with one prefix, the one with a kind.

use std::cmp::Reverse;

use anyhow::bail;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Key;

/// All rules of one sort, the one that applies first.
#[derive(Debug)]
pub(super) struct Rules<T>(Vec<Rule<T>>);

/// What applies to the keys of one kind, or of all kinds, in the groups with a prefix.
#[derive(Debug)]
pub(super) struct Rule<T> {
    pub(super) kind: Option<Kind>,
    pub(super) group_prefix: String,
    pub(super) value: T,
}

impl<T> Default for Rules<T> {
    fn default() -> Rules<T> {
        Rules(Vec::new())
    }
}

impl<T> Rules<T> {
    /// # Errors
    /// If two rules are about the same keys: what `twice` says of the second one.
    pub(super) fn new(
        mut rules: Vec<Rule<T>>,
        twice: impl Fn(&Rule<T>) -> String,
    ) -> anyhow::Result<Rules<T>> {
        rules.sort_by_key(|rule| (Reverse(rule.group_prefix.len()), rule.kind.is_none()));
        for (index, rule) in rules.iter().enumerate() {
            let is_same = |other: &Rule<T>| {
                (other.kind, &other.group_prefix) == (rule.kind, &rule.group_prefix)
            };
            if rules[..index].iter().any(is_same) {
                bail!("{}; keep one", twice(rule));
            }
        }
        Ok(Rules(rules))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Rule<T>> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Rule<T>> {
        self.0.iter_mut()
    }

    /// What applies to this key.
    pub(super) fn of(&self, key: &Key) -> Option<&T> {
        let fits = |rule: &&Rule<T>| {
            rule.kind.is_none_or(|kind| kind == key.kind)
                && key.group.as_str().starts_with(&rule.group_prefix)
        };
        self.0.iter().find(fits).map(|rule| &rule.value)
    }
}

/// The kind with this name.
pub(super) fn kind(name: &str) -> anyhow::Result<Kind> {
    match Kind::from_name(name) {
        Some(kind) => Ok(kind),
        None => bail!("there is no kind {name:?}; GET /v1/kinds lists them"),
    }
}
