//! The policy file: how precise keys are, by kind and by the beginning of their group.
//!
//! ```toml
//! [[precision]]
//! kind = "distinct"
//! lg_k = 12
//!
//! [[precision]]
//! kind = "histogram"
//! group_prefix = "latency:"
//! scale = 4
//! ```
//!
//! The longest prefix that fits decides; without one, the kind's default does. The precision goes
//! with each state into the store, so pods with different files, and keys whose precision changes,
//! stay right: what they wrote is merged to the coarser.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Key;
use serde::Deserialize;

/// What the file says; cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    /// The longest prefix first.
    rules: Arc<[Rule]>,
}

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    kind: Kind,
    group_prefix: String,
    precision: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    precision: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kind: String,
    #[serde(default)]
    group_prefix: String,
    scale: Option<u16>,
    lg_k: Option<u16>,
    k: Option<u16>,
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

    /// The precision of a new state of this key; none if the kind's default decides.
    #[must_use]
    pub fn precision(&self, key: &Key) -> Option<u16> {
        let fits = |rule: &&Rule| {
            rule.kind == key.kind && key.group.as_str().starts_with(&rule.group_prefix)
        };
        self.rules.iter().find(fits).map(|rule| rule.precision)
    }
}

impl FromStr for Policy {
    type Err = anyhow::Error;

    /// Reads the text of a file. An error is one sentence.
    fn from_str(text: &str) -> anyhow::Result<Policy> {
        let file: File = toml::from_str(text)?;
        let mut rules: Vec<Rule> =
            file.precision.into_iter().map(Entry::rule).collect::<Result<_, _>>()?;
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
        Ok(Policy { rules: rules.into() })
    }
}

impl Entry {
    fn rule(self) -> anyhow::Result<Rule> {
        let Entry { kind, group_prefix, scale, lg_k, k } = self;
        let Some(kind) = Kind::from_name(&kind) else {
            bail!("there is no kind {kind:?}; GET /v1/kinds lists them");
        };
        let Some(range) = kind.precision() else {
            bail!("{kind} has no precision to configure; leave it out");
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

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::protocol::Name;

    fn key(kind: Kind, group: &str) -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind, group: name(group), name: name("n") }
    }

    #[test]
    fn the_longest_prefix_decides() {
        let policy = Policy::from_str(
            r#"
            [[precision]]
            kind = "topk"
            k = 10

            [[precision]]
            kind = "topk"
            group_prefix = "site:big"
            k = 1000

            [[precision]]
            kind = "topk"
            group_prefix = "site:"
            k = 100
            "#,
        )
        .expect("a policy");
        let k = |group| policy.precision(&key(Kind::TopK, group));
        assert_eq!(k("other"), Some(10));
        assert_eq!(k("site:small"), Some(100));
        assert_eq!(k("site:bigger"), Some(1000));
        assert_eq!(policy.precision(&key(Kind::Counter, "site:")), None);
        assert_eq!(Policy::from_str("").expect("nothing is a policy"), Policy::default());
    }

    #[test]
    fn wrong_files_are_refused_with_the_rule() {
        for (text, says) in [
            ("[[precision]]\nkind = \"topk\"", "topk needs exactly `k`"),
            ("[[precision]]\nkind = \"topk\"\nk = 0", "from 1 to 4096"),
            ("[[precision]]\nkind = \"topk\"\nk = 5000", "from 1 to 4096"),
            ("[[precision]]\nkind = \"topk\"\nlg_k = 5", "topk needs exactly `k`"),
            ("[[precision]]\nkind = \"topk\"\nk = 5\nscale = 5", "topk needs exactly `k`"),
            ("[[precision]]\nkind = \"topk\"\nk = \"5\"", "invalid type"),
            ("[[precision]]\nkind = \"counter\"\nk = 5", "counter has no precision"),
            ("[[precision]]\nkind = \"top\"\nk = 5", "no kind \"top\""),
            ("[[precisions]]", "unknown field `precisions`"),
            ("[[precision]]\nkind = \"topk\"\nprefix = \"a\"\nk = 5", "unknown field `prefix`"),
            (
                "[[precision]]\nkind = \"topk\"\nk = 5\n[[precision]]\nkind = \"topk\"\nk = 6",
                "two precisions",
            ),
        ] {
            let error = format!("{:#}", Policy::from_str(text).expect_err(text));
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Policy::read(Path::new("/nowhere/policy.toml")).expect_err("no file");
        assert!(format!("{error:#}").starts_with("the policy file /nowhere/policy.toml: "));
    }
}
