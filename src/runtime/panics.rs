//! How panics are handled. A panic that is a bug is logged with its place. An expected panic, of a library
//! that meets damaged data, becomes an error.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::thread;

thread_local! {
    static IS_EXPECTED: Cell<bool> = const { Cell::new(false) };
    /// The place of this thread's last panic.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Installs a panic hook: a panic that is a bug becomes one line in the log, with a backtrace only if
/// `RUST_BACKTRACE` requests it.
pub fn log_them() {
    panic::set_hook(Box::new(|info| {
        let at = info.location().map_or_else(String::new, ToString::to_string);
        PLACE.with_borrow_mut(|place| place.clone_from(&at));
        if IS_EXPECTED.get() {
            return;
        }
        let what = text(info.payload());
        if !tracing::dispatcher::has_been_set() {
            // A tool without a log writes to standard error.
            let _ = writeln!(io::stderr(), "orderfree: a bug at {at}: {what}");
            return;
        }
        let thread = thread::current();
        tracing::error!(thread = thread.name(), at, "a bug: {what}");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            tracing::error!("{trace}");
        }
    }));
}

/// Runs code whose panic is not a bug. The panic is not logged.
///
/// # Errors
/// The panic's text, and its place in the code if known.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    let before = IS_EXPECTED.replace(true);
    // Callers drop what a panic left half done, or do not use it again.
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    IS_EXPECTED.set(before);
    result.map_err(|panic| {
        let place = PLACE.take();
        let at = if place.is_empty() { place } else { format!(" at {place}") };
        format!("{}{at}", text(&*panic))
    })
}

/// The text of a panic.
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
