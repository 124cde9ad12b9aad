//! The sweep's rule: which of the keys that a scan of primary keys passes are nominated for a fold. A
//! nomination does not promise a fold: the fold reads the key again at its own level.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::generation::Remembered;
use super::{Constants, Key, Name, Phase, Timestamp, op_id};
use crate::crdt::{Kind, envelope};

/// Which keys are forgotten after a time without updates.
pub trait IdleRules: Debug + Send + Sync {
    /// After how long; none if the key is never forgotten.
    fn idle_ttl(&self, key: &Key) -> Option<Duration>;
}

/// Counts the final rows of each key and the keys of each group, as a scan passes them.
#[derive(Debug)]
pub struct Nominator {
    now: Timestamp,
    constants: Constants,
    idle: Option<Arc<dyn IdleRules>>,
    has_lone_rows: bool,
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
    /// It has only a tally. Only a read of it can tell whether it is idle.
    pub is_tally_alone: bool,
}

#[derive(Debug, Default)]
struct Tallied {
    has_tally: bool,
    final_rows: usize,
    holds_ids: bool,
    rows: usize,
    /// Its tally is the grave of a deletion, and all rows that it cleared expired long ago.
    has_old_grave: bool,
    /// Expiry of its newest row that is no tally.
    newest: Option<Timestamp>,
}

impl Nominator {
    /// Starts one pass over a token range.
    #[must_use]
    pub fn new(now: Timestamp, constants: Constants) -> Nominator {
        Nominator {
            now,
            constants,
            idle: None,
            has_lone_rows: false,
            current: None,
            group: None,
            largest: None,
        }
    }

    /// Also nominates keys that these rules may forget.
    #[must_use]
    pub fn forgetting(self, rules: Arc<dyn IdleRules>) -> Nominator {
        Nominator { idle: Some(rules), ..self }
    }

    /// Also nominates keys whose only row is final, if true.
    #[must_use]
    pub fn with_lone_rows(self, has_lone_rows: bool) -> Nominator {
        Nominator { has_lone_rows, ..self }
    }

    /// Passes one row. The rows of a key must follow each other. Returns the previous key, if this row begins
    /// another one and the previous one is nominated.
    pub fn pass(&mut self, key: Key, expires_at: Timestamp) -> Option<Nomination> {
        let done = match &self.current {
            Some((current, _)) if *current == key => None,
            _ => {
                self.count(&key);
                let done = self.current.replace((key, Tallied::default()));
                done.and_then(|done| self.nominated(done))
            }
        };
        if let Some((key, seen)) = &mut self.current {
            seen.rows += 1;
            if expires_at == Timestamp::NEVER {
                seen.has_tally = true;
                return done;
            }
            seen.newest = seen.newest.max(Some(expires_at));
            if Phase::of(expires_at, self.now, &self.constants) == Phase::Final {
                seen.final_rows += 1;
                seen.holds_ids |=
                    seen.final_rows == 1 && op_id::is_expiry_of_ids(expires_at, &key.group);
            }
        }
        done
    }

    /// Looks at the tally that passed last, in a store where no row can come back. There the grave of a deletion has no
    /// use once it is old, and no rule about idle keys need find it.
    pub fn look_at(&mut self, tally: &[u8]) {
        let Some((_, seen)) = &mut self.current else { return };
        let reset = envelope::reset(tally).filter(|_| envelope::is_grave(tally));
        let is_old =
            |reset: Remembered| reset.until().plus(self.constants.grave_repeats_for()) <= self.now;
        seen.has_old_grave = reset.is_some_and(is_old);
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
    pub fn finish(mut self) -> (Option<Nomination>, Option<GroupSize>) {
        let last = self.current.take().and_then(|last| self.nominated(last));
        (last, larger(self.largest, self.group))
    }

    /// A key is nominated if a fold would make it smaller: it has two final rows, one and a tally, or one that holds ids.
    /// Or if its lone row has to be brought to every data centre. Or if it may be idle: its lone row is old enough, or it
    /// has only a tally, whose fence is not part of the primary key. Or if it has only a grave that can go.
    fn nominated(&self, (key, seen): (Key, Tallied)) -> Option<Nomination> {
        let is_smaller = seen.final_rows + usize::from(seen.has_tally) >= 2 || seen.holds_ids;
        let is_lone = self.has_lone_rows && seen.final_rows == 1;
        let idle_ttl = || self.idle.as_ref().and_then(|rules| rules.idle_ttl(&key));
        let may_be_idle = || match seen.newest {
            None => idle_ttl().is_some(),
            Some(newest) if !seen.has_tally => {
                idle_ttl().is_some_and(|ttl| newest <= self.now.minus(ttl))
            }
            Some(_) => false,
        };
        let is_old_grave = seen.has_old_grave && seen.newest.is_none();
        let is_worth_it = is_smaller || is_lone || is_old_grave || may_be_idle();
        let is_tally_alone = seen.newest.is_none() && !is_old_grave;
        is_worth_it.then_some(Nomination { key, rows: seen.rows, is_tally_alone })
    }
}

fn larger(one: Option<GroupSize>, other: Option<GroupSize>) -> Option<GroupSize> {
    one.into_iter().chain(other).max_by_key(|size| size.names)
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
        let nomination = |name, rows| Nomination { key: key(name), rows, is_tally_alone: false };
        let expected =
            [nomination("lone ids", 1), nomination("pair", 2), nomination("tally and one", 3)];
        assert_eq!(nominated, expected);
    }

    #[test]
    fn lone_final_rows_are_nominated_where_they_are_asked_for() {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let name = |text| Name::new(text).expect("name");
        let key = |text| Key { kind: Kind::Counter, group: name("g"), name: name(text) };
        let swept = |has_lone_rows| {
            let mut nominator = Nominator::new(now, constants).with_lone_rows(has_lone_rows);
            let old = now.minus(constants.cutoff());
            let rows = [("lone", old), ("tally", Timestamp::NEVER), ("young", now)];
            let passed = rows.map(|(text, expires_at)| nominator.pass(key(text), expires_at));
            let nominated = passed.into_iter().chain([nominator.finish().0]).flatten();
            nominated.map(|nomination| nomination.key.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(swept(false), Vec::<String>::new());
        assert_eq!(swept(true), ["lone"]);
    }

    /// After a day, in one group.
    #[derive(Debug)]
    struct OfGroup(Name);

    impl IdleRules for OfGroup {
        fn idle_ttl(&self, key: &Key) -> Option<Duration> {
            (key.group == self.0).then_some(Duration::from_secs(86_400))
        }
    }

    #[test]
    fn keys_that_may_be_idle_are_nominated_where_a_rule_says_so() {
        let constants = Constants::resolve(Overrides::default()).expect("defaults");
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let day_ago = now.minus(Duration::from_secs(86_400));
        let name = |text| Name::new(text).expect("name");
        let key = |group, text| Key { kind: Kind::Counter, group: name(group), name: name(text) };
        let swept = |nominator: Nominator| {
            let (mut nominator, mut nominated) = (nominator, Vec::new());
            for (group, text, expires_at) in [
                ("g", "tally", Timestamp::NEVER),
                ("g", "lone", day_ago),
                ("g", "lone young", day_ago.next()),
                ("g", "tally and an expired one", Timestamp::NEVER),
                ("g", "tally and an expired one", now.shifted(-1)),
                ("h", "tally", Timestamp::NEVER),
                ("h", "lone", day_ago),
            ] {
                nominated.extend(nominator.pass(key(group, text), expires_at));
            }
            nominated.extend(nominator.finish().0);
            nominated
        };
        let nomination = |text, is_tally_alone| {
            let key = key("g", text);
            Nomination { key, rows: 1, is_tally_alone }
        };
        assert_eq!(swept(Nominator::new(now, constants)), []);
        let rules = Arc::new(OfGroup(name("g")));
        let found = swept(Nominator::new(now, constants).forgetting(rules));
        assert_eq!(found, [nomination("tally", true), nomination("lone", false)]);
    }
}
