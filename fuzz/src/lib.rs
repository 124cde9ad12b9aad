//! The fuzz targets' bodies, which `tests/harness/fuzz` runs on the stable toolchain as well.

#[path = "../../tests/harness/fuzz/targets/mod.rs"]
mod targets;

/// Runs the target of this name over one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(name: &str, input: &[u8]) {
    debug_assert!(targets::NAMES.contains(&name));
    targets::run(name, input);
}
