//! The bodies of the fuzz targets, which `../main.rs` also runs on the stable toolchain.

#[path = "../../targets/mod.rs"]
mod targets;

/// Runs the target of this name over one input.
///
/// # Panics
/// If a promise is broken.
pub fn run(name: &str, input: &[u8]) {
    debug_assert!(targets::NAMES.contains(&name));
    targets::run(name, input);
}
