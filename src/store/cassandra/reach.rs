//! How far a write reaches, which decides what a failure means.
//!
//! Public because the simulator uses it too.

use orderfree_core::protocol::ShardWrite;

/// How many partitions a write changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// One partition: each replica applies all of the write or nothing.
    OnePartition,
    /// Several partitions: each is refused or applied separately, whatever the answer says.
    Several,
}

impl Reach {
    /// The reach of shard rows in one request.
    #[must_use]
    pub fn of(writes: &[ShardWrite]) -> Reach {
        let mut partitions = writes.iter().map(|write| write.key().partition());
        let first = partitions.next();
        match partitions.all(|partition| Some(partition) == first) {
            true => Reach::OnePartition,
            false => Reach::Several,
        }
    }
}
