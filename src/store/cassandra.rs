//! Cassandra.
