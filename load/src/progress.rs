//! What standard error shows during the load: a bar on a terminal, otherwise a line from time to time.

use std::fmt::Display;
use std::io::{IsTerminal, Write as _, stderr};
use std::time::Duration;

use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::report::millis;
use crate::run::Run;

/// Time between two updates of the bar.
const BAR_EVERY: Duration = Duration::from_secs(1);
/// Time between two lines, without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Writes a line to standard error. Errors are ignored: the reader of a pipe may have ended.
pub(crate) fn note(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// Shows the current rate and latency on standard error until the load stops.
pub(crate) async fn show(run: &Run, length: Duration) {
    let on_terminal = stderr().is_terminal();
    let bar = if on_terminal { bar(length) } else { ProgressBar::hidden() };
    let every = if on_terminal { BAR_EVERY } else { LINE_EVERY };
    let start = Instant::now();
    let mut ticks = interval_at(start + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = (start, 0);
    loop {
        let now = tokio::select! {
            biased;
            () = run.stop.cancelled() => break,
            now = ticks.tick() => now,
        };
        let line = line(run, now, &mut last);
        bar.set_position(whole_seconds(now - start));
        bar.set_message(line.clone());
        if !on_terminal {
            note(format_args!("{:>6} s  {line}", whole_seconds(now - start)));
        }
    }
    bar.finish_and_clear();
}

fn bar(length: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} {wide_msg}");
    let bar = ProgressBar::new(whole_seconds(length));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// A line with the figures since the last line.
fn line(run: &Run, now: Instant, last: &mut (Instant, u64)) -> String {
    let mut figures = run.figures();
    let (since, before) = *last;
    *last = (now, figures.acked);
    let rate = (figures.acked - before) as f64 / (now - since).as_secs_f64().max(0.001);
    let line = format!(
        "{rate:>8.0} acked/s  p50 {:>8}  p99 {:>8}  refused {}  unknown {}",
        millis(figures.recent.value_at_quantile(0.5)),
        millis(figures.recent.value_at_quantile(0.99)),
        HumanCount(figures.refused),
        HumanCount(figures.unknown),
    );
    figures.recent.reset();
    line
}

fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs()
}
