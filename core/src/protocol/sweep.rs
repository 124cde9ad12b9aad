//! The sweep's rule: which keys, of those that a scan of primary keys passes, to nominate for a
//! fold. A nomination promises nothing: the fold reads the key anew at its own level.

use super::{Constants, Key, Phase, Timestamp};

/// Counts the final rows of one key after the other.
#[derive(Debug)]
pub struct Nominator {
    now: Timestamp,
    constants: Constants,
    current: Option<(Key, Tallied)>,
}

/// A key that is worth a fold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nomination {
    /// The key.
    pub key: Key,
    /// About how many rows it has: the fold reads them anew.
    pub rows: usize,
}

#[derive(Debug, Default)]
struct Tallied {
    has_tally: bool,
    final_rows: usize,
    rows: usize,
}

impl Nominator {
    /// For one pass over a token range.
    #[must_use]
    pub fn new(now: Timestamp, constants: Constants) -> Nominator {
        Nominator { now, constants, current: None }
    }

    /// Passes one row. The rows of a key must follow each other. Returns the key before, if it is
    /// finished and nominated.
    pub fn pass(&mut self, key: Key, expires_at: Timestamp) -> Option<Nomination> {
        let done = match &self.current {
            Some((current, _)) if *current == key => None,
            _ => self.current.replace((key, Tallied::default())).and_then(nominated),
        };
        if let Some((_, seen)) = &mut self.current {
            seen.rows += 1;
            if expires_at == Timestamp::NEVER {
                seen.has_tally = true;
            } else if Phase::of(expires_at, self.now, &self.constants) == Phase::Final {
                seen.final_rows += 1;
            }
        }
        done
    }

    /// Ends the pass. Returns the last key, if it is nominated.
    pub fn finish(self) -> Option<Nomination> {
        self.current.and_then(nominated)
    }
}

/// Two final rows, or one beside a tally: a fold would make the key smaller.
fn nominated((key, seen): (Key, Tallied)) -> Option<Nomination> {
    let is_worth_it = seen.final_rows + usize::from(seen.has_tally) >= 2;
    is_worth_it.then_some(Nomination { key, rows: seen.rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crdt::Kind;
    use crate::protocol::{Name, Overrides};

    #[test]
    fn keys_with_two_final_rows_or_one_beside_a_tally_are_nominated() {
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
        for (name, expires_at) in [
            ("lone", old),
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
        nominated.extend(nominator.finish());
        let nomination = |name, rows| Nomination { key: key(name), rows };
        assert_eq!(nominated, [nomination("pair", 2), nomination("tally and one", 3)]);
    }
}
