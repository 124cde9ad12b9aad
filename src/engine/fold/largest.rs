//! Reports groups that have outgrown one partition, as a metric and in the log.

use orderfree_core::protocol::sweep::GroupSize;
use prometheus_client::metrics::gauge::Gauge;

use crate::limits;

/// Logs a warning if a group has outgrown one partition.
pub(super) fn look_at(size: &GroupSize) {
    let GroupSize { kind, group, names } = size;
    if *names > limits::GROUP_NAMES_ALERT {
        tracing::warn!(
            %kind,
            %group,
            names,
            "a group has more names than one partition should; spread them over more groups"
        );
    }
}

/// The largest group in one pass over the key space.
#[derive(Debug, Default)]
pub(super) struct Largest {
    names: usize,
    /// The scan of a part failed. That part can hold the largest group; a large group makes a failure likely.
    is_in_doubt: bool,
}

impl Largest {
    /// Adds the result of one part. Raises the metric at once for a larger group.
    pub(super) fn of_part(&mut self, is_whole: bool, names: usize, told: &Gauge) {
        self.names = self.names.max(names);
        self.is_in_doubt |= !is_whole;
        told.set(told.get().max(self.told()));
    }

    /// Lowers the metric only at the end of a pass that scanned every part.
    pub(super) fn tell(&self, told: &Gauge) {
        if !self.is_in_doubt {
            told.set(self.told());
        }
    }

    fn told(&self) -> i64 {
        i64::try_from(self.names).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_stays_large_until_a_whole_pass_met_none() {
        let told = Gauge::default();
        let pass = |parts: &[(bool, usize)]| {
            let mut largest = Largest::default();
            parts.iter().for_each(|(is_whole, names)| largest.of_part(*is_whole, *names, &told));
            let meanwhile = told.get();
            largest.tell(&told);
            (meanwhile, told.get())
        };
        assert_eq!(pass(&[(true, 5), (true, 9), (true, 2)]), (9, 9));
        assert_eq!(
            pass(&[(true, 5), (false, 0), (true, 2)]),
            (9, 9),
            "it may be in the part that failed"
        );
        assert_eq!(
            pass(&[(true, 12), (false, 0), (true, 2)]),
            (12, 12),
            "it is larger in any case"
        );
        assert_eq!(pass(&[(false, 0); 3]), (12, 12));
        assert_eq!(pass(&[(true, 5), (true, 3)]), (12, 5));
    }
}
