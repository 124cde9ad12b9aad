//! The bodies of all fuzz targets: each takes bytes and panics if a promise is broken. `libfuzzer`
//! runs them under libFuzzer, and `main.rs` runs the same functions on the stable toolchain.

mod config;
pub(crate) mod decoders;
mod listing;
mod pod;
mod requests;
mod stream;
mod surface;

/// Defines the targets by name and function.
macro_rules! targets {
    ($($name:ident = $body:path),+ $(,)?) => {
        /// Every target's name.
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),+];

        /// Runs the target of this name over one input.
        ///
        /// # Panics
        /// If a promise is broken, or there is no such target.
        pub(crate) fn run(name: &str, input: &[u8]) {
            match name {
                $(stringify!($name) => $body(input),)+
                other => panic!("there is no target {other}; the targets are {NAMES:?}"),
            }
        }
    };
}

targets! {
    address = surface::address,
    config = config::run,
    envelope = decoders::envelope,
    group = listing::run,
    http = surface::run,
    name = decoders::name,
    ndjson = stream::run,
    op = decoders::op,
    payload = decoders::payload,
    policy = config::policy,
}
