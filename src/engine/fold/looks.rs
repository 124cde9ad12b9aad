//! Which keys with only a tally are worth a read, to see whether they are idle.
//!
//! A scan of primary keys shows no fence, so each such key has to be read once. After that its fence is known, and
//! the key can't be idle before the fence and the rule's time. This is remembered in a table of fixed size. A key
//! whose place another key took is read again at the next sweep, which costs a read and nothing else.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orderfree_core::protocol::{Key, Timestamp};

use crate::limits::IDLE_LOOKS_MAX;

const MINUTE_US: i64 = 60 * 1_000_000;

/// For each place, 32 bits that tell keys apart, and the minute since when the key can be idle.
#[derive(Debug, Default)]
pub(super) struct Looks(OnceLock<Box<[AtomicU64]>>);

impl Looks {
    /// Notes that nothing of a key is older than this.
    pub(super) fn note(&self, key: &Key, since: Timestamp) {
        let places =
            self.0.get_or_init(|| (0..IDLE_LOOKS_MAX).map(|_| AtomicU64::new(0)).collect());
        let (place, mark) = place(key);
        places[place].store(mark << 32 | u64::from(minute(since)), Ordering::Relaxed);
    }

    /// Whether a key can be idle now, by what is known of it.
    pub(super) fn is_due(&self, key: &Key, idle_ttl: Duration, now: Timestamp) -> bool {
        let Some(places) = self.0.get() else { return true };
        let (place, mark) = place(key);
        let found = places[place].load(Ordering::Relaxed);
        let is_known = found >> 32 == mark;
        !is_known || found & u64::from(u32::MAX) <= u64::from(minute(now.minus(idle_ttl)))
    }
}

/// The place of a key, and its mark, which is never 0.
fn place(key: &Key) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    let hash = hasher.finish();
    #[allow(clippy::cast_possible_truncation, reason = "the place needs no more bits")]
    let place = hash as usize % IDLE_LOOKS_MAX;
    (place, (hash >> 32).max(1))
}

fn minute(time: Timestamp) -> u32 {
    u32::try_from(time.as_micros().div_euclid(MINUTE_US)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use orderfree_core::crdt::Kind;
    use orderfree_core::protocol::Name;

    use super::*;

    #[test]
    fn a_key_is_looked_at_once_and_again_when_it_can_be_idle() {
        let name = |text: &str| Name::new(text).expect("a name");
        let key = |text| Key { kind: Kind::Counter, group: name("g"), name: name(text) };
        let (looks, day) = (Looks::default(), Duration::from_secs(86_400));
        let now = Timestamp::from_micros(1_800_000_000_000_000);
        let is_due = |text, now| looks.is_due(&key(text), day, now);
        assert!(is_due("a", now), "nothing is known");
        looks.note(&key("a"), now);
        assert!(!is_due("a", now) && is_due("b", now));
        assert!(!is_due("a", now.plus(day).minus(Duration::from_secs(60))));
        assert!(is_due("a", now.plus(day)));
        assert!(looks.is_due(&key("a"), Duration::ZERO, now), "by another rule");
        looks.note(&key("a"), now.plus(day));
        assert!(!is_due("a", now.plus(day)));
    }
}
