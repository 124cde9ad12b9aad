//! The embedded store alone: its file, its clock guard, its group commit, and what a crash leaves. The contract suite
//! tests what it shares with Cassandra.

mod crash_disk;
mod crashes;
mod files;
mod resets;
mod rotation;
mod store;
mod world;
