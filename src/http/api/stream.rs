//! An NDJSON stream of updates: no limit on their number, but a limit on memory.
//!
//! Lines are read into a window, and the lines of a window are applied together. The next window is read only
//! after this one has its outcomes: that is the back-pressure. A bad op affects only its own line. The summary
//! names every line that was not acknowledged.
//!
//! A window is applied when it is full, when the stream ends, or when its first line has waited for a second.
//! Because of the last rule, a slow live stream counts as it arrives. If a stream breaks off, is silent for
//! 30 s or grows too long, the complete lines before that are applied and counted in the summary. The text
//! after the last newline is ignored, because it can be half a line. Only at a proper end can the last line
//! lack its newline. A chunk that exceeds the size limit is not read. Silence gets the same problem as a
//! broken stream, not a 408: HTTP allows clients to repeat a request automatically after a 408, and that
//! would count lines twice.
//!
//! Lines that meet a limit of this pod, such as its number of keys with open writes, wait until there is room,
//! for up to 30 s. Lines that they would overtake wait with them.
//!
//! A pod that shuts down ends its streams in the same way: at once if no line arrives, otherwise after the
//! window. If a window must not be applied, because of the caller's rate, an invalid token or a summary that is
//! nearly full, the stream ends before the window. So however a stream ends, its summary has the outcome of
//! every line up to one line, and no later line was applied.

use std::collections::HashMap;
use std::mem;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt;
use orderfree_core::protocol::{Durability, Timestamp};
use tokio::task::coop::consume_budget;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::engine::memory::MemoryPermit;
use crate::http::api::by_key::{ByKey, Placed};
use crate::http::body::bodies;
use crate::http::body::ids::{IdHeaders, Place};
use crate::http::body::json;
use crate::http::body::requests;
use crate::http::catalog::ProblemType;
use crate::http::guard::access;
use crate::http::observe;
use crate::http::problem::{Problem, Summary};
use crate::http::state::AppState;
use crate::limits;
use crate::policy::{Caller, Verb};

/// First and longest pause before lines that met a limit of this pod are tried again.
const ROOM_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Applies a whole stream. `room` is memory for the summary.
pub(crate) async fn apply(
    app: &AppState,
    caller: &Caller,
    ids: &IdHeaders,
    body: Body,
    durability: Durability,
    mut room: MemoryPermit,
) -> Result<Summary, Problem> {
    let draining = app.health.draining();
    let mut lines = Lines::new(body, draining.clone());
    let mut summary = Summary::default();
    let mut caller = caller.clone();
    // The last line that the summary is about.
    let mut done = 0;
    let why = loop {
        let (mut window, end) = Window::read(&caller, ids, &mut lines).await;
        if window.len() > 0 {
            match go_on(app, &caller, &window, &summary).await {
                Ok(renewed) => caller = renewed,
                Err(problem) => break problem,
            }
        }
        window.note_again(app);
        let mut results = window.apply(app, durability).await;
        results.sort_by_key(|(line, _)| *line);
        for (line, result) in results {
            if let Err(problem) = &result {
                observe::count_denied(app.service.metrics(), problem.kind());
            }
            summary.record(line, result, durability);
        }
        done = lines.number;
        match end {
            Err(problem) => break problem,
            Ok(End::Last) => return summary.answer(),
            Ok(End::More) if draining.is_cancelled() => break stopping(),
            Ok(End::More) if room.grow(summary.bytes()).is_none() => break crowded(),
            Ok(End::More) => {}
        }
    };
    let kind = why.kind();
    let problem = ended_early(why, done).with_summary(summary);
    if problem.kind() != kind {
        // The answer no longer tells it.
        observe::count_denied(app.service.metrics(), kind);
    }
    Err(problem)
}

/// Says which lines are done, so that the client can go on from there.
fn ended_early(why: Problem, done: usize) -> Problem {
    match done {
        0 => {
            why.within("The stream ended early, before its first line").and("No line was applied.")
        }
        done => why.within(&format!("The stream ended early, after line {done}")).and(&format!(
            "Lines 1 to {done} are done, and the summary names those that were not acknowledged. Send the \
             lines from line {} on in a new stream.",
            done + 1
        )),
    }
}

/// Checks that a window can be applied. Waits until the caller's rate allows it, then checks the caller
/// against the current policy: reading and waiting take time, and a stream can outlast its token.
async fn go_on(
    app: &AppState,
    caller: &Caller,
    window: &Window,
    summary: &Summary,
) -> Result<Caller, Problem> {
    if !summary.has_room(window.len()) {
        return Err(too_many_errors());
    }
    // The wait has a limit, because the stream holds memory that others need.
    let slowed = timeout(limits::BODY_TIME_MAX, caller.pass_in_time(window.updates.len())).await;
    slowed.map_err(|_| too_fast(caller))?;
    let renewed = app.policies.renew(caller, app.service.now().wall);
    renewed.map_err(access::unauthenticated)
}

/// A line's number and its outcome.
type LineResult = (usize, Result<(), Problem>);

/// Whether there are lines after a window.
enum End {
    More,
    Last,
}

/// Lines that are applied together.
#[derive(Default)]
struct Window {
    updates: ByKey,
    bad: Vec<LineResult>,
    /// Until when a line with an id can be sent again.
    again: HashMap<usize, Timestamp>,
}

impl Window {
    /// Reads lines until the window is full or its first line has waited long enough. Lines that were read
    /// before an error are in the window.
    async fn read(
        caller: &Caller,
        ids: &IdHeaders,
        lines: &mut Lines,
    ) -> (Window, Result<End, Problem>) {
        let mut window = Window::default();
        let (mut count, mut bytes, mut until) = (0, 0, None);
        while count < limits::NDJSON_WINDOW_LINES && bytes < limits::NDJSON_WINDOW_BYTES {
            let next = match until {
                None => lines.next().await,
                Some(until) => match timeout_at(until, lines.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            let line = match next {
                Ok(Some(line)) => line,
                Ok(None) => return (window, Ok(End::Last)),
                Err(problem) => return (window, Err(problem)),
            };
            until.get_or_insert_with(|| Instant::now() + limits::NDJSON_WINDOW_TIME_MAX);
            count += 1;
            bytes += line.as_ref().map_or(0, Vec::len);
            // Without an id in the headers, the place of a line makes no difference.
            let read = |line: Vec<u8>| {
                let place = Place::default();
                requests::update(caller.to(Verb::Write), ids, place, json::text(&line)?)
            };
            match line.and_then(read) {
                Ok((key, update)) => window.updates.add(lines.number, key, update),
                Err(problem) => window.bad.push((lines.number, Err(problem))),
            }
        }
        (window, Ok(End::More))
    }

    fn len(&self) -> usize {
        self.updates.len() + self.bad.len()
    }

    fn note_again(&mut self, app: &AppState) {
        let named = self.updates.iter().filter_map(|(line, key, update)| {
            let name = update.name.as_ref()?;
            Some((line, app.service.retry_until(name, &key.group)))
        });
        self.again = named.collect();
    }

    /// Applies the updates. Those that meet a limit of this pod are tried again until there is room, and no
    /// further line is read meanwhile. Updates of a key keep their order.
    async fn apply(self, app: &AppState, durability: Durability) -> Vec<LineResult> {
        let (until, draining) = (Instant::now() + limits::BODY_TIME_MAX, app.health.draining());
        let Window { mut updates, bad: mut results, again } = self;
        let mut pause = ROOM_PAUSE.0;
        loop {
            let leaves = Instant::now() < until && !draining.is_cancelled();
            let (applied, left) = updates.apply_or_leave(&app.service, durability, leaves).await;
            pause = if applied.is_empty() { ROOM_PAUSE.1.min(2 * pause) } else { ROOM_PAUSE.0 };
            let outcome = |(line, result): Placed| {
                let problem = |error| Problem::from(error).of_named(again.get(&line).copied());
                (line, result.map(drop).map_err(problem))
            };
            results.extend(applied.into_iter().map(outcome));
            if left.len() == 0 {
                return results;
            }
            updates = left;
            let until = until.min(Instant::now() + pause);
            let _ = timeout_at(until, draining.cancelled()).await;
        }
    }
}

/// Splits a body into lines without holding more than one chunk and one line.
struct Lines {
    body: BodyDataStream,
    buffer: Vec<u8>,
    /// Where the next line begins in the buffer.
    at: usize,
    bytes: usize,
    /// The number of the last line.
    number: usize,
    /// Whether bytes of the next line were already dropped.
    is_too_long: bool,
    ended: bool,
    draining: CancellationToken,
}

impl Lines {
    fn new(body: Body, draining: CancellationToken) -> Lines {
        let body = body.into_data_stream();
        let (buffer, is_too_long, ended) = (Vec::new(), false, false);
        Lines { body, buffer, at: 0, bytes: 0, number: 0, is_too_long, ended, draining }
    }

    /// Returns the next line that is not blank, or why this line can't be used. Cancelling the wait loses
    /// nothing, because everything that was read is in `self`.
    ///
    /// # Errors
    /// The stream is too long or ended early.
    async fn next(&mut self) -> Result<Option<Result<Vec<u8>, Problem>>, Problem> {
        loop {
            let rest = &self.buffer[self.at..];
            // A part of a line that is too long is no beginning.
            if self.number == 0 && !self.is_too_long {
                json::check_plain(rest)?;
            }
            let end = rest.iter().position(|&byte| byte == b'\n');
            self.is_too_long |= end.unwrap_or(rest.len()) > limits::NDJSON_LINE_BYTES_MAX;
            match end {
                None if !self.ended => {
                    self.fill().await?;
                    continue;
                }
                None if rest.is_empty() && !self.is_too_long => return Ok(None),
                _ => {}
            }
            let is_too_long = mem::take(&mut self.is_too_long);
            let whole = &rest[..end.unwrap_or(rest.len())];
            let line = match self.number {
                0 => bodies::without_mark(whole),
                _ => whole,
            };
            let is_blank = line.iter().all(u8::is_ascii_whitespace) && !is_too_long;
            let line = line.to_vec();
            self.at += whole.len() + usize::from(end.is_some());
            self.number += 1;
            if is_too_long {
                let max = limits::NDJSON_LINE_BYTES_MAX;
                let detail = format!(
                    "The line has over {max} bytes. Write one update per line; curl's -d removes line \
                     breaks, --data-binary keeps them."
                );
                return Ok(Some(Err(json::bad_body(detail))));
            }
            if !is_blank {
                return Ok(Some(Ok(line)));
            }
            // A stream of only blank lines must not keep other tasks from running.
            consume_budget().await;
        }
    }

    /// Reads one more chunk. The bytes of a line that is too long are not kept.
    async fn fill(&mut self) -> Result<(), Problem> {
        consume_budget().await;
        let done = if self.is_too_long { self.buffer.len() } else { self.at };
        self.buffer.drain(..done);
        self.at = 0;
        let chunk = tokio::select! {
            biased;
            chunk = timeout(limits::BODY_TIME_MAX, self.body.next()) => chunk.map_err(|_| silent())?,
            () = self.draining.cancelled() => return Err(stopping()),
        };
        match chunk {
            None => self.ended = true,
            Some(chunk) => {
                let chunk = chunk.map_err(|_| bodies::cut_off())?;
                self.bytes += chunk.len();
                if self.bytes > limits::NDJSON_BYTES_MAX {
                    return Err(bodies::too_large(limits::NDJSON_BYTES_MAX));
                }
                self.buffer.extend_from_slice(&chunk);
            }
        }
        Ok(())
    }
}

fn too_fast(caller: &Caller) -> Problem {
    let (name, seconds) = (caller.name(), limits::BODY_TIME_MAX.as_secs());
    let detail = format!(
        "The token {name:?} exceeds its rate so far that the next lines would wait for more than \
         {seconds} s."
    );
    Problem::new(ProblemType::TooFast, detail)
}

fn too_many_errors() -> Problem {
    let max = limits::ERROR_RANGES_MAX;
    let detail = format!(
        "The lines that were not acknowledged fill nearly all of the {max} ranges that a summary can have."
    );
    Problem::new(ProblemType::AnswerFull, detail)
}

fn crowded() -> Problem {
    let detail = "The streams in progress here, with their lines that were not acknowledged, use all the memory for \
         streams.";
    Problem::new(ProblemType::Overloaded, detail)
}

fn stopping() -> Problem {
    Problem::new(ProblemType::Stopping, "This pod is shutting down; use another pod.")
}

fn silent() -> Problem {
    let seconds = limits::BODY_TIME_MAX.as_secs();
    Problem::new(ProblemType::BadBody, format!("No data arrived for {seconds} s."))
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    async fn split(chunks: Vec<&'static [u8]>) -> Vec<(usize, Result<String, String>)> {
        let chunks = stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>));
        let mut lines = Lines::new(Body::from_stream(chunks), CancellationToken::new());
        let mut found = Vec::new();
        while let Some(line) = lines.next().await.expect("stream") {
            let line = line.map(|line| String::from_utf8_lossy(&line).into_owned());
            found.push((lines.number, line.map_err(|problem| problem.detail().to_owned())));
        }
        found
    }

    #[tokio::test]
    async fn lines_are_split_wherever_chunks_end() {
        let text = |line: usize, text: &str| (line, Ok(text.to_owned()));
        let found = split(vec![b"{\"a\"", b":1}\n\n  \r\n{}", b"\n[]"]).await;
        assert_eq!(found, [text(1, "{\"a\":1}"), text(4, "{}"), text(5, "[]")]);
        assert_eq!(split(vec![]).await, []);
        assert_eq!(split(vec![b"\n", b""]).await, []);
        let marked = split(vec![b"\xef", b"\xbb\xbf", b"{}\n\xef\xbb\xbf[]"]).await;
        assert_eq!(marked, [text(1, "{}"), text(2, "\u{feff}[]")]);
        assert_eq!(split(vec![b"\xef\xbb\xbf"]).await, []);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_spoils_only_itself() {
        const CHUNK: &[u8] = &[b'x'; limits::NDJSON_LINE_BYTES_MAX / 2 + 1];
        let found = split(vec![b"1\n", CHUNK, CHUNK, CHUNK, b"tail\n2\n", CHUNK, CHUNK]).await;
        assert_eq!(found.len(), 4);
        assert_eq!((&found[0], &found[2]), (&(1, Ok("1".into())), &(3, Ok("2".into()))));
        assert!(found[1].1.as_ref().is_err_and(|says| says.contains("bytes")));
        assert!(found[3].1.is_err(), "the last line has no end");
    }

    /// Waits the given milliseconds before each chunk, and does not end after the last.
    fn live(chunks: Vec<(u64, &'static [u8])>) -> Lines {
        let chunks = stream::iter(chunks).then(|(ms, chunk)| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok::<_, std::io::Error>(chunk)
        });
        let body = Body::from_stream(Box::pin(chunks.chain(stream::pending())));
        Lines::new(body, CancellationToken::new())
    }

    /// The line numbers of a window without valid updates.
    async fn window(lines: &mut Lines) -> (Vec<usize>, Result<End, Problem>) {
        let (window, end) = Window::read(&Caller::anonymous(), &IdHeaders::default(), lines).await;
        (window.bad.into_iter().map(|(line, _)| line).collect(), end)
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_waits_a_second_for_others_and_silence_ends_the_stream() {
        let mut lines = live(vec![(5_000, b"1\n2"), (600, b"\n3\n4"), (600, b"\n"), (0, b"half")]);
        let began = Instant::now();
        let (numbers, end) = window(&mut lines).await;
        assert!(matches!(end, Ok(End::More)));
        assert_eq!((numbers, began.elapsed().as_millis()), (vec![1, 2, 3], 6_000));
        let (numbers, end) = window(&mut lines).await;
        assert!(matches!(end, Ok(End::More)));
        assert_eq!((numbers, began.elapsed().as_millis()), (vec![4], 7_200));
        let (numbers, end) = window(&mut lines).await;
        assert_eq!((numbers, began.elapsed().as_millis()), (vec![], 37_200));
        assert!(end.is_err_and(|problem| problem.detail().contains("No data arrived for 30 s")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_is_too_long_stays_one_line_across_windows() {
        const CHUNK: &[u8] = &[b'x'; limits::NDJSON_LINE_BYTES_MAX / 2 + 1];
        let chunks = vec![(0, &b"1\n"[..]), (0, CHUNK), (0, CHUNK), (5_000, b"tail\n3\n")];
        let mut lines = live(chunks);
        assert_eq!(window(&mut lines).await.0, [1]);
        assert_eq!(window(&mut lines).await.0, [2, 3]);
    }
}
