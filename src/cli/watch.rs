//! `watch`: prints values as they change.

use std::collections::{HashMap, VecDeque};
use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use orderfree_core::protocol::Key;
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{interval, timeout, timeout_at};

use super::client::{ServerArgs, is_passing, plain};
use super::output::{note, show_more};
use super::{connect, key};

/// Without a sign of life for so long, the connection is dead. The server gives one every five seconds.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The pause before the next connection.
const PAUSE: Duration = Duration::from_secs(1);

/// The time after which a live line is drawn again, because its rate falls without events.
const REDRAW_EVERY: Duration = Duration::from_secs(1);

/// The time over which a rate is measured.
const RATE_OVER: Duration = Duration::from_secs(10);

/// Number of bars of a sparkline. Each is a second.
const BARS: usize = 24;

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The keys, as `KIND/GROUP/NAME`. The names can contain slashes; write a slash in a group as `%2F`.
    #[arg(required = true, value_parser = key::key)]
    keys: Vec<Key>,
}

/// The data of an event.
#[derive(Deserialize)]
struct Data {
    kind: String,
    group: String,
    name: String,
    value: Option<Box<RawValue>>,
    problem: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
}

pub(super) async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let client = args.server.client()?;
    let mut screen = Screen {
        is_live: args.keys.len() == 1 && !args.server.wants_json() && stdout().is_terminal(),
        wants_json: args.server.wants_json(),
        has_several: args.keys.len() > 1,
        curves: HashMap::new(),
        live: None,
    };
    let (mut last_id, mut is_lost) = (None, false);
    loop {
        match connect(&args, &client, last_id.as_deref()).await? {
            Connected::Refused(sentence) => {
                note(format_args!("orderfree: {sentence}"));
                return Ok(ExitCode::FAILURE);
            }
            Connected::Later(why) => {
                if !std::mem::replace(&mut is_lost, true) {
                    note(format_args!("orderfree: {why}; trying again until it works"));
                }
            }
            Connected::Stream(mut response) => {
                is_lost = false;
                let (mut events, mut redraw) = (Events::default(), interval(REDRAW_EVERY));
                let mut until = tokio::time::Instant::now() + SILENCE_MAX;
                loop {
                    let bytes = tokio::select! {
                        biased;
                        piece = timeout_at(until, response.chunk()) => match piece {
                            Ok(Ok(Some(bytes))) => bytes,
                            _ => break,
                        },
                        _ = redraw.tick(), if screen.is_live => match screen.redraw()? {
                            true => continue,
                            false => return Ok(ExitCode::SUCCESS),
                        },
                    };
                    until = tokio::time::Instant::now() + SILENCE_MAX;
                    for event in events.take(&bytes) {
                        if event.id.is_some() {
                            last_id.clone_from(&event.id);
                        }
                        if event.is_value() && !screen.show(&event.data)? {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The beginning of a stream.
enum Connected {
    Stream(Response),
    /// Another attempt can be answered.
    Later(String),
    /// What to do about it.
    Refused(String),
}

async fn connect(
    args: &WatchArgs,
    client: &Client,
    last_id: Option<&str>,
) -> anyhow::Result<Connected> {
    let url = args.server.address(&["v1", "watch"])?;
    let keys = args.keys.iter().map(|Key { kind, group, name }| {
        json!({"kind": kind.name(), "group": group.as_str(), "name": name.as_str()})
    });
    let body = json!({"keys": keys.collect::<Vec<_>>()}).to_string();
    let mut request =
        client.post(url.clone()).header("content-type", "application/json").body(body);
    if let Some(id) = last_id {
        request = request.header("last-event-id", id);
    }
    let response = match timeout(SILENCE_MAX, request.send()).await {
        Err(_) => return Ok(Connected::Later("the server does not answer".to_owned())),
        Ok(Err(error)) => {
            let no_answer = connect::explain(&url, error).await;
            return match no_answer.may_pass {
                true => Ok(Connected::Later(no_answer.error.to_string())),
                false => Err(no_answer.error),
            };
        }
        Ok(Ok(response)) => response,
    };
    if response.status() == StatusCode::OK {
        return Ok(Connected::Stream(response));
    }
    let status = response.status();
    let Ok(text) = response.text().await else {
        return Ok(Connected::Later("the connection ended".to_owned()));
    };
    let problem: Option<Problem> = serde_json::from_str(&text).ok();
    let said = problem.map_or_else(|| format!("the answer is {status}"), |problem| problem.detail);
    Ok(if is_passing(status) { Connected::Later(said) } else { Connected::Refused(said) })
}

/// Reads Server-Sent Events, as the HTML standard defines them.
#[derive(Default)]
struct Events {
    rest: Vec<u8>,
    event: Event,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    kind: String,
    data: String,
}

impl Event {
    fn is_value(&self) -> bool {
        self.kind.is_empty() && !self.data.is_empty()
    }
}

impl Events {
    /// The events that these bytes complete.
    fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" if line.is_empty() => events.push(std::mem::take(&mut self.event)),
                "id" => self.event.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.event.kind),
                "data" => self.event.data.push_str(value),
                _ => {}
            }
        }
        events.retain(|event| *event != Event::default());
        events
    }
}

struct Screen {
    /// One line is written again and again.
    is_live: bool,
    wants_json: bool,
    has_several: bool,
    curves: HashMap<String, Curve>,
    /// The key and the value of the live line, if it has a rate.
    live: Option<(String, String)>,
}

impl Screen {
    /// Returns false if the reader of the output is gone.
    fn show(&mut self, data: &str) -> anyhow::Result<bool> {
        let text = self.text(data, Instant::now())?;
        write(&text)
    }

    /// Draws the live line as it is now.
    fn redraw(&self) -> anyhow::Result<bool> {
        self.live_text(Instant::now()).map_or(Ok(true), |text| write(&text))
    }

    fn text(&mut self, data: &str, now: Instant) -> anyhow::Result<String> {
        if self.wants_json {
            return Ok(format!("{data}\n"));
        }
        let data: Data = serde_json::from_str(data)?;
        let key = format!("{}/{}/{}", data.kind, data.group, data.name);
        let value = match (&data.value, &data.problem) {
            (Some(value), _) => plain(value),
            (None, Some(problem)) => problem.detail.clone(),
            (None, None) => "absent".to_owned(),
        };
        // A key that is absent counts from 0; one that can't be read has no number for now.
        let is_absent = data.value.is_none() && data.problem.is_none();
        let number = value.parse().ok();
        let curve = self.curves.entry(key.clone()).or_default();
        if let Some(number) = number.or(is_absent.then_some(0.0)) {
            curve.add(now, number);
        }
        let line = self.line(&key, &value, number.is_some(), now);
        if !self.is_live {
            return Ok(format!("{}\n", line.trim_end()));
        }
        self.live = number.map(|_| (key, value));
        Ok(over(&line))
    }

    /// The live line at this time, if it has a rate.
    fn live_text(&self, now: Instant) -> Option<String> {
        let (key, value) = self.live.as_ref()?;
        Some(over(&self.line(key, value, true, now)))
    }

    fn line(&self, key: &str, value: &str, has_rate: bool, now: Instant) -> String {
        let rate = match self.curves.get(key) {
            Some(curve) if has_rate => format!("  {:+.1}/s  {}", curve.rate(now), curve.bars(now)),
            _ => String::new(),
        };
        match self.has_several {
            true => format!("{key} {value}{rate}"),
            false => format!("{value}{rate}"),
        }
    }
}

/// A line that replaces the one on the terminal.
fn over(line: &str) -> String {
    format!("\r\x1b[K{line}")
}

/// Returns false if the reader of the output is gone.
fn write(text: &str) -> anyhow::Result<bool> {
    let is_read = show_more(text)?;
    // A line that replaces another has no line break, which would flush it.
    let _ = stdout().flush();
    Ok(is_read)
}

/// The last values of a key, with their times.
#[derive(Default)]
struct Curve(VecDeque<(Instant, f64)>);

impl Curve {
    fn add(&mut self, now: Instant, value: f64) {
        self.0.push_back((now, value));
        let oldest = Duration::from_secs(BARS as u64 + 1);
        while self.0.len() > 2 && now.duration_since(self.0[1].0) > oldest {
            self.0.pop_front();
        }
    }

    /// The value at a time: that of the last event before it.
    fn at(&self, ago: Duration, now: Instant) -> Option<f64> {
        let before = self.0.iter().rev().find(|(time, _)| now.duration_since(*time) >= ago);
        before.or(self.0.front()).map(|(_, value)| *value)
    }

    /// The growth in a second, over the last ten seconds or since the first event.
    fn rate(&self, now: Instant) -> f64 {
        let (Some((first, _)), Some((_, last))) = (self.0.front(), self.0.back()) else {
            return 0.0;
        };
        let span = now.duration_since(*first).min(RATE_OVER);
        match self.at(span, now) {
            Some(before) if !span.is_zero() => (last - before) / span.as_secs_f64(),
            _ => 0.0,
        }
    }

    /// The growth of each of the last seconds, as bars.
    fn bars(&self, now: Instant) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let Some((first, _)) = self.0.front() else { return String::new() };
        let seconds = usize::try_from(now.duration_since(*first).as_secs()).unwrap_or(BARS);
        let second = |at: usize| self.at(Duration::from_secs(at as u64), now).unwrap_or_default();
        let growth: Vec<f64> =
            (0..seconds.min(BARS)).rev().map(|at| (second(at) - second(at + 1)).abs()).collect();
        let most = growth.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let level = |growth: &f64| {
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is from 0 to 7"
            )]
            let at = (growth / most * 7.0).round() as usize;
            LEVELS[at.min(7)]
        };
        growth.iter().map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text = ": hello\nretry: 1000\n\nid: a\ndata: {\"x\":1}\n\nevent: end\r\ndata:bye\r\n\r\n: \n\n";
        let event = |id: Option<&str>, kind: &str, data: &str| Event {
            id: id.map(str::to_owned),
            kind: kind.to_owned(),
            data: data.to_owned(),
        };
        let expected = [event(Some("a"), "", "{\"x\":1}"), event(None, "end", "bye")];
        for size in 1..text.len() {
            let mut events = Events::default();
            let parts = text.as_bytes().chunks(size);
            let all: Vec<Event> = parts.flat_map(|part| events.take(part)).collect();
            assert_eq!(all, expected, "{size}");
        }
    }

    #[test]
    fn the_rate_of_the_live_line_falls_when_nothing_comes() {
        let mut screen = Screen {
            is_live: true,
            wants_json: false,
            has_several: false,
            curves: HashMap::new(),
            live: None,
        };
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let data = |value| json!({"kind": "counter", "group": "g", "name": "n", "value": value});
        screen.text(&data(0).to_string(), at(0)).expect("a value");
        let last = screen.text(&data(50).to_string(), at(1)).expect("a value");
        assert_eq!(last, "\r\x1b[K50  +50.0/s  █");
        let live = |seconds| screen.live_text(at(seconds)).expect("a line");
        assert_eq!(live(5), "\r\x1b[K50  +10.0/s  █▁▁▁▁");
        assert_eq!(live(30), format!("\r\x1b[K50  +0.0/s  {}", "▁".repeat(BARS)));
        let absent = r#"{"kind": "counter", "group": "g", "name": "n"}"#;
        screen.text(absent, at(31)).expect("no value");
        assert_eq!(screen.live_text(at(32)), None, "it has no number");
    }

    #[test]
    fn a_curve_knows_its_rate_and_its_bars() {
        let (begun, mut curve) = (Instant::now(), Curve::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        for second in 0..=20 {
            #[allow(clippy::cast_precision_loss, reason = "small")]
            curve.add(at(second), 5.0 * second as f64);
        }
        assert!((curve.rate(at(20)) - 5.0).abs() < 1e-9, "{}", curve.rate(at(20)));
        assert_eq!(curve.bars(at(20)), "█".repeat(20));
        curve.add(at(21), 100.0);
        curve.add(at(22), 110.0);
        assert!(curve.bars(at(22)).ends_with("▅▁█"), "{}", curve.bars(at(22)));
        assert!(Curve::default().bars(begun).is_empty());
    }
}
