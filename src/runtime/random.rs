//! The only module that draws random numbers for the protocol: mutator ids, jitter, the start of a sweep. A
//! seeded source makes a whole pod repeatable.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use orderfree_core::protocol::{MutatorId, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng, TryRngCore};
use uuid::{Builder, Uuid};

/// A source of randomness; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Random {
    /// `None`: the thread's own generator, which the operating system seeds.
    seeded: Option<Arc<Mutex<StdRng>>>,
}

impl Random {
    /// An unpredictable source.
    #[must_use]
    pub fn system() -> Random {
        Random::default()
    }

    /// A source that gives the same numbers for the same seed and order of draws. Only for tests: two pods
    /// with one seed would draw the same mutator id, which breaks invariant I1.
    #[must_use]
    pub fn seeded(seed: u64) -> Random {
        Random { seeded: Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))) }
    }

    /// The id of a new mutator, a version 4 UUID.
    #[must_use]
    pub fn mutator_id(&self) -> MutatorId {
        MutatorId::new(match &self.seeded {
            // From the operating system, so that a pod that is cloned while it runs draws different ids.
            None => Uuid::new_v4(),
            Some(_) => {
                let bytes = self.draw(|source| source.random());
                Builder::from_random_bytes(bytes).into_uuid()
            }
        })
    }

    /// A random number below `end`.
    ///
    /// # Panics
    /// If `end` is zero.
    #[must_use]
    pub fn below(&self, end: u32) -> u32 {
        self.draw(|source| source.random_range(0..end))
    }

    /// A random factor within `range`.
    #[must_use]
    pub fn factor(&self, range: Range<f64>) -> f64 {
        self.draw(|source| source.random_range(range))
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut dyn RngCore) -> T) -> T {
        match &self.seeded {
            None => draw(&mut rand::rng()),
            Some(seeded) => draw(&mut *seeded.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// A version 4 UUID from the thread's own generator: the id of a request need not be unpredictable.
#[must_use]
pub fn request_id() -> Uuid {
    Builder::from_random_bytes(rand::random()).into_uuid()
}

/// A version 7 UUID with this time, for an update. The bits after the version are the fraction of the
/// millisecond (RFC 9562, section 6.2, method 3).
#[must_use]
pub fn update_id(time: Timestamp) -> Uuid {
    let micros = u64::try_from(time.as_micros()).unwrap_or(0);
    let fraction = (micros % 1_000 * 4096).div_ceil(1_000);
    let fraction = u16::try_from(fraction).expect("invariant: 12 bits");
    let bytes = Uuid::new_v4().into_bytes();
    let mut rest = [0; 10];
    rest[..2].copy_from_slice(&fraction.to_be_bytes());
    // The last bytes: the first ones hold the version and the variant.
    rest[2..9].copy_from_slice(&bytes[9..]);
    rest[9] = bytes[0];
    Builder::from_unix_timestamp_millis(micros / 1_000, &rest).into_uuid()
}

/// 256 bits from the operating system's generator, for a secret.
///
/// # Panics
/// If the operating system has no random numbers, which does not happen.
#[must_use]
pub fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    rand::rngs::OsRng
        .try_fill_bytes(&mut bytes)
        .expect("invariant: the operating system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use orderfree_core::protocol::op_id::{ClientId, NamedOp, Window};

    use super::*;

    #[test]
    fn ids_are_random_version_4_and_repeat_only_with_their_seed() {
        let (one, other) = (Random::seeded(7), Random::seeded(7));
        let id = one.mutator_id();
        assert_eq!(id.as_uuid().get_version_num(), 4);
        assert_eq!(id, other.mutator_id());
        assert_ne!(id, one.mutator_id());
        assert_ne!(Random::system().mutator_id(), Random::system().mutator_id());
    }

    #[test]
    fn ids_of_updates_keep_the_time_to_the_microsecond() {
        for micros in [0, 1, 499, 500, 998, 999, 1_000] {
            let time = Timestamp::from_micros(1_795_752_000_000_000 + micros);
            let id = ClientId::parse(&update_id(time).to_string()).expect("an id");
            let inner = id.time().expect("a time");
            assert_eq!(NamedOp::new(id, 0, inner, Window::Short).op_time(), time, "{micros}");
        }
        let time = Timestamp::from_micros(1_795_752_000_000_000);
        assert_ne!(update_id(time), update_id(time));
    }
}
