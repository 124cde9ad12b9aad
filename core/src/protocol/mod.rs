//! The protocol: how keys are counted without coordination, and why the numbers are right.
//!
//! A *mutator* is one writer's life for one [`Key`]: an id, a birth, a fixed expiry, a state. It overwrites
//! its own row, the *shard*. The *tally* is the row that never expires. Its *fence* says up to which expiry
//! shards are included in it. ARCHITECTURE.md holds the argument; each module states the invariant that it
//! keeps. In reading order:
//!
//! * [`Timestamp`], [`Now`], [`Key`], [`Row`], [`Slice`]: the basic vocabulary;
//! * [`Constants`]: lifetime, margins and the rules between them;
//! * [`Lease`]: a mutator can write, or its shard is final, never both;
//! * [`op_id`]: which rows can hold an op that its client named;
//! * [`Mutator`]: the state machine from an accepted op to its [`Outcome`];
//! * [`read`]: rows become a value;
//! * [`group`]: many keys in chunks, none torn;
//! * [`fold`]: expired rows become a tally; [`sweep`] finds the keys that need it;
//! * [`reset`]: a key begins again, and what it had is returned; [`generation`] is what rows remember of it, and
//!   [`latest_reset`] shows that the log of resets was lost;
//! * [`prefix`]: keys with too many rows for one answer, oldest rows first;
//! * [`clock`]: whether this pod's clock can be trusted; [`repair`] corrects what a wrong clock has written;
//! * [`consistency`]: whether two consistency levels share a replica.

pub mod clock;
pub mod consistency;
mod constants;
pub mod fold;
mod full_read;
mod gathered;
pub mod generation;
pub mod group;
pub mod high_water;
pub mod hybrid;
mod key;
pub mod latest_reset;
mod lease;
mod mutator;
pub mod op_id;
mod outcome;
pub mod prefix;
pub mod read;
pub mod repair;
pub mod reset;
mod row;
pub mod row_reader;
pub mod sweep;
mod time;
pub mod transfer;
mod united;

pub(crate) use constants::SPAN_MAX;
pub use constants::{Constants, ConstantsError, OP_AGE_MAX, Overrides};
pub use full_read::FullRead;
pub use key::{Key, Name, NameError};
pub use lease::{Lease, Phase};
pub use mutator::{
    Accepted, Begin, Change, Estate, Finished, KEY_STATES_BYTES_MAX, Mutator, PACK_BYTES_CHEAP,
    Predecessors, QUEUE_MAX, Refusal, Rejected, RestFlaw, ShardWrite, Ticket,
};
pub use outcome::{Durability, Outcome, WriteError, WriteOutcome};
pub use row::{BadSlice, MutatorId, Row, Slice, WholeSlice};
pub use time::{Now, Timestamp};
