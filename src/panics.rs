//! What becomes of a panic: one line in the log, where it is a bug; an error, where it is expected of
//! a library that meets damage.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// From now on a panic is one line in the log; with a backtrace only if `RUST_BACKTRACE` asks for it.
pub fn log_them() {
    panic::set_hook(Box::new(|info| {
        if IS_EXPECTED.get() {
            return;
        }
        let thread = thread::current();
        let (thread, at) = (thread.name().unwrap_or("unnamed"), info.location());
        let at = at.map_or_else(String::new, ToString::to_string);
        tracing::error!(thread, at, "a bug: {}", text(info.payload()));
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            tracing::error!("{trace}");
        }
    }));
}

/// Runs something that may panic where that is no bug, and says nothing of it in the log.
///
/// # Errors
/// The panic's text.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = IS_EXPECTED.replace(true);
    // What it leaves behind is dropped, or not used again: see the callers.
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    IS_EXPECTED.set(before);
    result.map_err(|panic| text(&*panic).to_owned())
}

/// What a panic says.
#[must_use]
pub fn text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_was_expected_is_an_error() {
        assert_eq!(caught(|| 5), Ok(5));
        assert_eq!(caught(|| panic!("page {}", 7)), Err::<(), _>("page 7".to_owned()));
        assert_eq!(caught(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        assert!(!IS_EXPECTED.get());
    }
}
