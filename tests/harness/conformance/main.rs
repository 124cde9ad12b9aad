//! What the protocol assumes about Cassandra, tested on three real nodes. The table in ARCHITECTURE.md says which rule
//! relies on which fact.
//!
//! These tests send CQL themselves, because they look below the store. One test also uses the store, to see how it
//! treats rows that came back.

#[path = "../../cassandra/mod.rs"]
mod cassandra;
#[path = "../../stores/contract/mod.rs"]
mod contract;

mod apart;
mod batches;
mod rows;
mod scrub;
mod table;
