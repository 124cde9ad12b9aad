//! What the protocol takes for granted about Cassandra, seen on three real nodes. The table in
//! ARCHITECTURE.md says which rule rests on which fact.
//!
//! These tests speak CQL themselves: what they look at lies below the store. The one exception is
//! what the store makes of rows that came back, which is why it is there at all.

#[path = "../../cassandra/mod.rs"]
mod cassandra;
#[path = "../../stores/contract/mod.rs"]
mod contract;

mod apart;
mod batches;
mod rows;
mod table;
