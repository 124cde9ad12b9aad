//! The sweep's rule: which of the keys that a scan of primary keys passes are nominated for a fold. A
//! nomination does not promise a fold: the fold reads the key again at its own level.

use super::{Constants, Key, Name, Phase, Timestamp, op_id};
use crate::crdt::Kind;

/// Counts the final rows of each key and the keys of each group, as a scan passes them.
#[derive(Debug)]
pub struct Nominator {
    now: Timestamp,
    constants: Constants,
    current: Option<(Key, Tallied)>,
    group: Option<GroupSize>,
    largest: Option<GroupSize>,
}

/// The size of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSize {
    /// Kind of its keys.
    pub kind: Kind,
    /// The group.
    pub group: Name,
    /// Number of its keys.
    pub names: usize,
}

/// A key that is worth a fold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nomination {
    /// The key.
    pub key: Key,
    /// Its approximate number of rows. The fold reads them again.
    pub rows: usize,
}

#[derive(Debug, Default)]
struct Tallied {
    has_tally: bool,
    final_rows: usize,
    holds_ids: bool,
    rows: usize,
}

impl Nominator {
    /// Starts one pass over a token range.
    #[must_use]
    pub fn new(now: Timestamp, constants: Constants) -> Nominator {
        Nominator { now, constants, current: None, group: None, largest: None }
    }

    /// Passes one row. The rows of a key must follow each other. Returns the previous key, if this row begins
    /// another one and the previous one is nominated.
    pub fn pass(&mut self, key: Key, expires_at: Timestamp) -> Option<Nomination> {
        let done = match &self.current {
            Some((current, _)) if *current == key => None,
            _ => {
                self.count(&key);
                self.current.replace((key, Tallied::default())).and_then(nominated)
            }
        };
        if let Some((key, seen)) = &mut self.current {
            seen.rows += 1;
            if expires_at == Timestamp::NEVER {
                seen.has_tally = true;
            } else if Phase::of(expires_at, self.now, &self.constants) == Phase::Final {
                seen.final_rows += 1;
                seen.holds_ids |=
                    seen.final_rows == 1 && op_id::is_expiry_of_ids(expires_at, &key.group);
            }
        }
        done
    }

    /// Counts a key that begins. Keys of a group follow each other.
    fn count(&mut self, key: &Key) {
        match &mut self.group {
            Some(size) if (size.kind, &size.group) == (key.kind, &key.group) => size.names += 1,
            _ => {
                let begun = GroupSize { kind: key.kind, group: key.group.clone(), names: 1 };
                let done = self.group.replace(begun);
                self.largest = larger(self.largest.take(), done);
            }
        }
    }

    /// Ends the pass. Returns the last key, if it is nominated, and the largest group.
    #[must_use]
    pub fn finish(self) -> (Option<Nomination>, Option<GroupSize>) {
        (self.current.and_then(nominated), larger(self.largest, self.group))
    }
}

fn larger(one: Option<GroupSize>, other: Option<GroupSize>) -> Option<GroupSize> {
    one.into_iter().chain(other).max_by_key(|size| size.names)
}

/// Two final rows, one and a tally, or one that holds ids: a fold would make the key smaller.
fn nominated((key, seen): (Key, Tallied)) -> Option<Nomination> {
    let is_worth_it = seen.final_rows + usize::from(seen.has_tally) >= 2 || seen.holds_ids;
    is_worth_it.then_some(Nomination { key, rows: seen.rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Overrides;
    use crate::protocol::op_id::Window;
    use std::time::Duration;

    #[test]
    fn keys_that_a_fold_makes_smaller_are_nominated() {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let old = now.minus(constants.cutoff());
        let mut nominator = Nominator::new(now, constants);
        let key = |name: &str| Key {
            kind: Kind::Counter,
            group: Name::new("g").expect("name"),
            name: Name::new(name).expect("name"),
        };
        let mut nominated = Vec::new();
        let minutes = |ago: u64| now.minus(Duration::from_secs(60 * ago));
        let of_ids = |time| Window::Minute.expires_at(time, &key("n").group);
        for (name, expires_at) in [
            ("lone", old),
            ("lone ids", of_ids(minutes(80))),
            ("lone young ids", of_ids(minutes(0))),
            ("pair", old),
            ("pair", old.shifted(-1)),
            ("young", now),
            ("young", old.next()),
            ("tally", Timestamp::NEVER),
            ("tally and a young one", Timestamp::NEVER),
            ("tally and a young one", now),
            ("tally and one", Timestamp::NEVER),
            ("tally and one", now),
            ("tally and one", old),
        ] {
            nominated.extend(nominator.pass(key(name), expires_at));
        }
        let (last, largest) = nominator.finish();
        nominated.extend(last);
        let names = |size: GroupSize| (size.group.to_string(), size.names);
        assert_eq!(largest.map(names), Some(("g".to_owned(), 8)));
        let nomination = |name, rows| Nomination { key: key(name), rows };
        let expected =
            [nomination("lone ids", 1), nomination("pair", 2), nomination("tally and one", 3)];
        assert_eq!(nominated, expected);
    }
}
