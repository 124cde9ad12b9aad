//! Panics in a schedule. The runtime ends the task that panicked and continues, so a failed assertion of the product
//! could go unnoticed. Here the first panic is kept and counts as a violation.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    static FIRST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `act`. Finds the first panic on this thread, even if something caught it.
///
/// # Errors
/// The panic.
pub(crate) fn watched<T>(act: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |panic| if IS_WATCHED.get() { keep(panic) } else { usual(panic) }));
    });
    IS_WATCHED.set(true);
    let result: Result<T, Box<dyn Any + Send>> = catch_unwind(AssertUnwindSafe(act));
    IS_WATCHED.set(false);
    match FIRST.take() {
        Some(panic) => Err(panic),
        None => Ok(result.expect("a panic is heard of")),
    }
}

fn keep(panic: &PanicHookInfo<'_>) {
    FIRST.with_borrow_mut(|first| {
        first.get_or_insert_with(|| panic.to_string());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_task_is_noticed() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let with_task = |panics: bool| {
            watched(|| {
                runtime.block_on(async { tokio::spawn(async move { assert!(!panics) }).await })
            })
        };
        assert!(with_task(false).is_ok());
        assert!(with_task(true).is_err_and(|panic| panic.contains("!panics")));
        assert!(watched(|| panic!("here")).is_err_and(|panic: String| panic.contains("here")));
        assert!(with_task(false).is_ok());
    }
}
