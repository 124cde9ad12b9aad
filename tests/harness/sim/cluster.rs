//! The replicas of the simulator. A name is its index.

pub(crate) use orderfree_replicas::{Cell, merge, repair};

pub(crate) type Address = orderfree_replicas::Address<u8>;
pub(crate) type Mutation = orderfree_replicas::Mutation<u8>;
pub(crate) type Piece = orderfree_replicas::Piece<u8>;
pub(crate) type Range = orderfree_replicas::Range<u8>;
pub(crate) type Replica = orderfree_replicas::Replica<u8>;
pub(crate) type Tombstone = orderfree_replicas::Tombstone<u8>;
