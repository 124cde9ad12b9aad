//! The embedded store on its own: its file, its clock guard, its group commit, and what a crash
//! leaves. What it shares with Cassandra is tested by the contract suite.

mod crash_disk;
mod crashes;
mod files;
mod rotation;
mod store;
mod world;
