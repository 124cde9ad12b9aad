//! The only place that draws random numbers for the protocol's work: mutator ids, jitter, where a
//! sweep begins. A seeded source makes a whole pod repeatable.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use orderfree_core::protocol::MutatorId;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng, TryRngCore};
use uuid::{Builder, Uuid};

/// A source of randomness; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Chance {
    /// None is the thread's own generator, seeded by the operating system.
    seeded: Option<Arc<Mutex<StdRng>>>,
}

impl Chance {
    /// Unpredictable.
    #[must_use]
    pub fn system() -> Chance {
        Chance::default()
    }

    /// The same numbers for the same seed and the same order of draws. For tests alone: two pods
    /// with one seed would draw one mutator id twice, against invariant I1.
    #[must_use]
    pub fn seeded(seed: u64) -> Chance {
        Chance { seeded: Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))) }
    }

    /// A fresh mutator's id, a version 4 UUID.
    #[must_use]
    pub fn mutator_id(&self) -> MutatorId {
        MutatorId::new(match &self.seeded {
            // From the operating system: a pod that is cloned while it runs draws other ids.
            None => Uuid::new_v4(),
            Some(_) => {
                let bytes = self.draw(|source| source.random());
                Builder::from_random_bytes(bytes).into_uuid()
            }
        })
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is zero.
    #[must_use]
    pub fn below(&self, end: u32) -> u32 {
        self.draw(|source| source.random_range(0..end))
    }

    /// A factor within `range`.
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

/// A version 4 UUID by the thread's own generator: that of a request need not be unpredictable.
#[must_use]
pub fn request_id() -> Uuid {
    Builder::from_random_bytes(rand::random()).into_uuid()
}

/// 256 bits by the operating system's generator, for a secret.
///
/// # Panics
/// If the operating system has none, which it always has.
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
    use super::*;

    #[test]
    fn ids_are_random_version_4_and_repeat_only_with_their_seed() {
        let (one, other) = (Chance::seeded(7), Chance::seeded(7));
        let id = one.mutator_id();
        assert_eq!(id.as_uuid().get_version_num(), 4);
        assert_eq!(id, other.mutator_id());
        assert_ne!(id, one.mutator_id());
        assert_ne!(Chance::system().mutator_id(), Chance::system().mutator_id());
    }
}
