//! The handlers:
//!
//! * `update`, `read`, `reset`, `batch`, `stream`, `merge`, `ids`: for clients; `by_key` groups a batch's updates by key;
//! * `inspect`, `repair`, `operations`: for operators; `page`, `picture`: for people;
//! * `starting`: the answers of a pod that cannot serve yet.

pub(crate) mod batch;
mod by_key;
pub(crate) mod ids;
pub(crate) mod inspect;
pub(crate) mod merge;
pub(crate) mod operations;
pub(crate) mod page;
pub(crate) mod picture;
pub(crate) mod read;
pub(crate) mod repair;
pub(crate) mod reset;
pub(crate) mod starting;
mod stream;
pub(crate) mod update;
pub(crate) mod watch;
