//! From a port to requests: listening, TLS, and closing connections without losing answers.

pub(crate) mod linger;
pub mod listen;
pub mod tls;
