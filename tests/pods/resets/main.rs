//! Deleted keys on three real nodes: what is left of them in the rows that a read meets, and in the nodes' files.

#[path = "../../cassandra/mod.rs"]
mod cassandra;
#[path = "../../stores/contract/mod.rs"]
mod contract;
mod deletes;
mod erasure;
mod lost;
mod pod;
mod purge;
mod table;
