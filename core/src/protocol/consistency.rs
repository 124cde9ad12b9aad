//! Consistency levels, and whether a read at one level sees a write at another. Invariant I9 and the
//! completeness of folds depend on this, so it is decided from the keyspace's replication at start.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How many replicas must answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// One replica of the cluster.
    One,
    /// One replica of the local data centre.
    LocalOne,
    /// A majority of the local data centre's replicas.
    LocalQuorum,
    /// A majority of all replicas.
    Quorum,
    /// A majority of the replicas of every data centre.
    EachQuorum,
    /// Every replica.
    All,
}

/// A text that is not the name of a level.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a consistency level; use one, local_one, local_quorum, quorum, each_quorum or all"
)]
pub struct UnknownLevel(String);

impl Level {
    /// Every level.
    pub const ALL: [Level; 6] = [
        Level::One,
        Level::LocalOne,
        Level::LocalQuorum,
        Level::Quorum,
        Level::EachQuorum,
        Level::All,
    ];

    /// Its name in configuration, queries and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Level::One => "one",
            Level::LocalOne => "local_one",
            Level::LocalQuorum => "local_quorum",
            Level::Quorum => "quorum",
            Level::EachQuorum => "each_quorum",
            Level::All => "all",
        }
    }

    /// Whether fewer than a majority of replicas are enough.
    #[must_use]
    pub fn is_below_quorum(self) -> bool {
        matches!(self, Level::One | Level::LocalOne)
    }

    /// Whether its answers can come from any data centre.
    fn is_of_all(self) -> bool {
        matches!(self, Level::One | Level::Quorum | Level::All)
    }

    /// Number of answers that it needs from the `replicas` within its reach: those of all data centres, of the local one
    /// or of each one.
    fn quota(self, replicas: usize) -> usize {
        match self {
            Level::One | Level::LocalOne => 1,
            Level::LocalQuorum | Level::Quorum | Level::EachQuorum => replicas / 2 + 1,
            Level::All => replicas,
        }
    }

    /// Number of answers that it needs from a data centre with `replicas` of them.
    fn quota_here(self, replicas: usize, is_local: bool) -> usize {
        match self {
            Level::One | Level::Quorum | Level::All => 0,
            Level::LocalOne | Level::LocalQuorum if !is_local => 0,
            Level::LocalOne | Level::LocalQuorum | Level::EachQuorum => self.quota(replicas),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Level, UnknownLevel> {
        let found = Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownLevel(text.to_owned()))
    }
}

/// Replicas of a keyspace by data centre.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replication(BTreeMap<String, usize>);

/// As configured: `dc1:3,dc2:3`.
impl fmt::Display for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, factor)) in self.0.iter().enumerate() {
            write!(f, "{}{name}:{factor}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl Replication {
    /// From replication factors; data centres without replicas are left out.
    #[must_use]
    pub fn new(factors: impl IntoIterator<Item = (String, usize)>) -> Replication {
        Replication(factors.into_iter().filter(|(_, factor)| *factor > 0).collect())
    }

    /// Data centres with replicas.
    pub fn datacenters(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Number of replicas in all data centres.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.values().sum()
    }

    /// Number of replicas in one data centre.
    #[must_use]
    pub fn factor(&self, datacenter: &str) -> usize {
        self.0.get(datacenter).copied().unwrap_or(0)
    }

    /// Whether a read at `read` from `read_from` sees everything acknowledged at `write` from `write_from`:
    /// every possible set of replicas for the write shares a replica with every possible set for the read.
    #[must_use]
    pub fn meets(&self, write: Level, write_from: &str, read: Level, read_from: &str) -> bool {
        self.still_meets(self, write, write_from, read, read_from)
    }

    /// As [`meets`](Self::meets) if the write was acknowledged with the replication `before`, and no repair has copied it
    /// since: removed replicas may be among those that acknowledged it, and new ones have nothing.
    fn still_meets(
        &self,
        before: &Replication,
        write: Level,
        write_from: &str,
        read: Level,
        read_from: &str,
    ) -> bool {
        let removed = |(name, old): (&String, &usize)| old.saturating_sub(self.factor(name));
        let written = |name: &String| {
            let old = before.0.get_key_value(name);
            old.map_or(0, |old| {
                write.quota_here(*old.1, name == write_from).saturating_sub(removed(old))
            })
        };
        let seen = |name: &String, replicas| read.quota_here(replicas, name == read_from);
        let (all, places) = (self.total(), || self.0.iter().map(|(name, factor)| (name, *factor)));
        // The two sets surely share a replica if they are too large to avoid each other.
        match (write.is_of_all(), read.is_of_all()) {
            (false, false) => {
                places().any(|(name, factor)| written(name) + seen(name, factor) > factor)
            }
            (false, true) => {
                places().map(|(name, _)| written(name)).sum::<usize>() + read.quota(all) > all
            }
            (true, reads_all) => {
                let written = write.quota(before.total());
                let stayed = written.saturating_sub(before.0.iter().map(removed).sum());
                let unseen = |(name, factor): (&String, usize)| {
                    (factor - seen(name, factor)).min(before.factor(name))
                };
                let room = match reads_all {
                    true => all - read.quota(all),
                    false => places().map(unseen).sum(),
                };
                stayed > room
            }
        }
    }

    /// Whether folds surely see what was acknowledged before this replication became `after`, without a repair. What pods of a
    /// data centre without replicas acknowledged is not expected: it was given up.
    #[must_use]
    pub fn folds_see_past(&self, after: &Replication, levels: Levels, datacenter: &str) -> bool {
        let mut writers = self.datacenters().filter(|writer| after.factor(writer) > 0);
        writers.all(|writer| after.still_meets(self, levels.write, writer, levels.fold, datacenter))
    }

    /// Checks a pod's three levels: its reads must see its writes, and its folds must see the writes of the
    /// pods in every data centre.
    ///
    /// # Errors
    /// [`NoOverlap`] names the pair of levels.
    pub fn check(&self, levels: Levels, local_datacenter: &str) -> Result<(), NoOverlap> {
        let broken = |reader, read| NoOverlap { write: levels.write, reader, read };
        if !self.meets(levels.write, local_datacenter, levels.read, local_datacenter) {
            return Err(broken("read", levels.read));
        }
        for writer in self.datacenters() {
            if !self.meets(levels.write, writer, levels.fold, local_datacenter) {
                return Err(broken("fold", levels.fold));
            }
        }
        Ok(())
    }
}

/// The consistency levels of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Levels {
    /// For updates.
    pub write: Level,
    /// For reads, unless a request names another level.
    pub read: Level,
    /// For the fold's read.
    pub fold: Level,
}

impl Levels {
    /// Whether some reads need a quorum of every data centre. ScyllaDB has only writes at that level.
    #[must_use]
    pub fn reads_each_quorum(self) -> bool {
        [self.read, self.fold].contains(&Level::EachQuorum)
    }

    /// The level at which folds and resets are written. A read that sees the updates of a data centre also sees what is
    /// written at this level. So a fold brings what was counted to every data centre, and no data centre misses a reset.
    #[must_use]
    pub fn fold_write(self) -> Level {
        match self.write {
            Level::All => Level::All,
            _ => Level::EachQuorum,
        }
    }
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { write: Level::LocalQuorum, read: Level::LocalQuorum, fold: Level::All }
    }
}

/// Two levels do not always share a replica, so a read could miss acknowledged updates.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "write consistency {write} and {reader} consistency {read} do not always share a replica, so \
     acknowledged updates could be missed; raise one of them"
)]
pub struct NoOverlap {
    /// Level of the updates.
    pub write: Level,
    /// The other level: `read` or `fold`.
    pub reader: &'static str,
    /// The level of that read.
    pub read: Level,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use Level::{All, EachQuorum, LocalOne, LocalQuorum, One, Quorum};

    #[test]
    fn one_replica_is_below_a_quorum() {
        let below: Vec<Level> =
            Level::ALL.into_iter().filter(|level| level.is_below_quorum()).collect();
        assert_eq!(below, [One, LocalOne]);
    }

    fn replication(factors: &[(&str, usize)]) -> Replication {
        Replication::new(factors.iter().map(|(name, factor)| ((*name).to_owned(), *factor)))
    }

    /// By brute force: every set of replicas that can acknowledge shares one with every set that can answer. `old` is the
    /// replication of the write, `new` that of the read. The replicas of a data centre are numbered: an old one that was
    /// removed has a lower number than those that stayed, and a new one has a higher number.
    fn meets_by_search(
        (old, write, from): (&Replication, Level, &str),
        (new, read, to): (&Replication, Level, &str),
    ) -> bool {
        let names: BTreeSet<&str> = old.datacenters().chain(new.datacenters()).collect();
        // Each replica with its data centre, and whether it is an old and a new one.
        let replicas: Vec<(&str, bool, bool)> = names
            .into_iter()
            .flat_map(|name| {
                let (before, after) = (old.factor(name), new.factor(name));
                let removed = before.saturating_sub(after);
                (0..before.max(after)).map(move |i| (name, i < before, i >= removed))
            })
            .collect();
        let answers = |level: Level, home: &str, is_new: bool| -> Vec<u32> {
            let replicas_in = |reach: &dyn Fn(&str) -> bool| -> u32 {
                let is_one = |&(name, was, is): &(&str, bool, bool)| {
                    reach(name) && if is_new { is } else { was }
                };
                (0..replicas.len()).filter(|&i| is_one(&replicas[i])).map(|i| 1 << i).sum()
            };
            let with_replicas = if is_new { new } else { old };
            // The sets of replicas. The level needs a majority, or another number of answers, from each.
            let parts: Vec<u32> = match level {
                One | Quorum | All => vec![replicas_in(&|_| true)],
                LocalOne | LocalQuorum => vec![replicas_in(&|name| name == home)],
                EachQuorum => with_replicas
                    .datacenters()
                    .map(|own| replicas_in(&|name| name == own))
                    .collect(),
            };
            let is_enough = |set: u32, part: u32| {
                let (answered, all) = ((set & part).count_ones(), part.count_ones());
                match level {
                    One | LocalOne => answered >= 1,
                    LocalQuorum | Quorum | EachQuorum => answered > all / 2,
                    All => answered == all,
                }
            };
            let reach = parts.iter().fold(0, |all, part| all | part);
            let fits =
                |set: &u32| set & !reach == 0 && parts.iter().all(|part| is_enough(*set, *part));
            (0..1u32 << replicas.len()).filter(fits).collect()
        };
        let seen = answers(read, to, true);
        answers(write, from, false).iter().all(|acked| seen.iter().all(|set| set & acked != 0))
    }

    #[test]
    fn overlap_agrees_with_a_search_of_all_replica_sets() {
        for factors in [
            &[("a", 1)][..],
            &[("a", 3)],
            &[("a", 2)],
            &[("a", 3), ("b", 3)],
            &[("a", 2), ("b", 1)],
            &[("a", 3), ("b", 1), ("c", 2)],
        ] {
            let replication = replication(factors);
            let names: Vec<&str> = replication.datacenters().collect();
            for write in Level::ALL {
                for read in Level::ALL {
                    for from in &names {
                        for to in &names {
                            assert_eq!(
                                replication.meets(write, from, read, to),
                                meets_by_search(
                                    (&replication, write, from),
                                    (&replication, read, to)
                                ),
                                "{factors:?} {write} from {from}, {read} from {to}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn overlap_after_a_change_agrees_with_a_search() {
        let factors = |a, b| replication(&[("a", a), ("b", b)]);
        let pairs = || (0..=4).flat_map(|a| (0..=2).map(move |b| (a, b)));
        let changes = pairs().flat_map(|before| pairs().map(move |after| (before, after)));
        for (before, after) in changes.filter(|(old, new)| *old != (0, 0) && *new != (0, 0)) {
            let (old, new) = (factors(before.0, before.1), factors(after.0, after.1));
            let readers: Vec<&str> = new.datacenters().collect();
            for (write, fold) in Level::ALL.iter().flat_map(|w| Level::ALL.map(|r| (*w, r))) {
                for &home in &readers {
                    let writers = || old.datacenters().filter(|name| new.factor(name) > 0);
                    for from in writers() {
                        assert_eq!(
                            new.still_meets(&old, write, from, fold, home),
                            meets_by_search((&old, write, from), (&new, fold, home)),
                            "{before:?} {after:?} {write} from {from}, {fold} from {home}"
                        );
                    }
                    let levels = Levels { write, read: All, fold };
                    let sees = |from| meets_by_search((&old, write, from), (&new, fold, home));
                    assert_eq!(old.folds_see_past(&new, levels, home), writers().all(sees));
                }
            }
        }
    }

    #[test]
    fn folds_see_past_some_changes() {
        let three = &[("a", 3)][..];
        let both = &[("a", 3), ("b", 3)][..];
        let each = Levels { fold: EachQuorum, ..Levels::default() };
        let far = Levels { write: Quorum, read: Quorum, fold: EachQuorum };
        for (before, after, levels, sees) in [
            (three, both, each, true),
            (both, three, each, true),
            // All but one of the acknowledging replicas can be in `b`.
            (both, three, far, false),
            (three, &[("a", 4)], each, true),
            (three, &[("a", 5)], each, false),
            (three, &[("a", 5)], Levels::default(), true),
            (three, &[("a", 1)], Levels::default(), false),
        ] {
            let (old, new) = (replication(before), replication(after));
            assert_eq!(old.folds_see_past(&new, levels, "a"), sees, "{before:?} {after:?}");
        }
    }

    #[test]
    fn reads_that_see_updates_see_folds() {
        for factors in
            [&[("a", 1)][..], &[("a", 3)], &[("a", 2), ("b", 3)], &[("a", 1), ("b", 1), ("c", 3)]]
        {
            let replication = replication(factors);
            let names: Vec<&str> = replication.datacenters().collect();
            for (write, read) in Level::ALL.iter().flat_map(|w| Level::ALL.map(|r| (*w, r))) {
                let fold = Levels { write, read, fold: All }.fold_write();
                for (from, to) in
                    names.iter().flat_map(|from| names.iter().map(move |to| (from, to)))
                {
                    let sees = |level| replication.meets(level, from, read, to);
                    assert!(!sees(write) || sees(fold), "{factors:?} {write} {read}");
                }
            }
        }
    }

    /// The ancestor's defect 8: reads at ONE made counts go backwards.
    #[test]
    fn regression_8_the_defaults_are_sound_and_weak_pairs_are_named() {
        let three = replication(&[("a", 3)]);
        assert_eq!(three.check(Levels::default(), "a"), Ok(()));
        let quorum_fold = Levels { fold: Quorum, ..Levels::default() };
        assert_eq!(three.check(quorum_fold, "a"), Ok(()));
        let weak = Levels { write: One, read: One, fold: All };
        let error = three.check(weak, "a").expect_err("no overlap").to_string();
        assert!(error.contains("write consistency one and read consistency one"), "{error}");
        let fold = Levels { write: LocalOne, read: All, fold: LocalQuorum };
        assert_eq!(three.check(fold, "a").expect_err("no overlap").reader, "fold");
    }

    #[test]
    fn a_quorum_fold_can_miss_local_quorum_writes_elsewhere() {
        let two = replication(&[("a", 3), ("b", 3)]);
        let levels = Levels { write: LocalQuorum, read: LocalQuorum, fold: Quorum };
        assert_eq!(two.check(levels, "a").expect_err("2 + 4 of 6").reader, "fold");
        for fold in [All, EachQuorum] {
            assert_eq!(two.check(Levels { fold, ..levels }, "a"), Ok(()));
        }
    }

    #[test]
    fn levels_are_read_by_name() {
        assert_eq!("LOCAL_QUORUM".parse(), Ok(LocalQuorum));
        assert!(
            "majority".parse::<Level>().expect_err("unknown").to_string().contains("local_quorum")
        );
    }
}
