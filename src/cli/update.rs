//! Sends an update until it is acknowledged. It has an id, so it counts once, however often it is sent. Updates of
//! kinds that take the same op twice as once need no id.

use std::time::{Duration, Instant};

use clap::Args;
use clap::error::ErrorKind;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Outcome;
use orderfree_core::protocol::op_id::{ClientId, Window};
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, Url};

use super::client::{Answer, ServerArgs, is_passing};
use super::output::{note, quoted};
use super::wrong_usage;
use crate::http;
use crate::runtime::clock::{Clock, SystemClock};
use crate::runtime::random::{Random, update_id};

/// How long an update is sent again.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);

/// The pauses between tries: the first, and the longest. Each is twice the one before.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Problems of the time of an id. Nothing was written under it.
const PROBLEMS_OF_TIME: &[&str] = &["id-ahead", "id-expired"];

/// Options of commands that update.
#[derive(Debug, Default, Args)]
pub(super) struct UpdateArgs {
    /// Id of the update, 1 to 255 bytes. An update counts once, however often you send it with the same id. Use a
    /// UUID of version 7, or set --time [default: a new id; none for `extrema`, `distinct`, `audience` and `gset`,
    /// which take the same update twice as once].
    #[arg(long, value_parser = id)]
    id: Option<String>,
    /// Time of the id, the same each time you send it: such as 2026-11-27T08:00:00Z, or a Unix time.
    #[arg(long, requires = "id", value_parser = time)]
    time: Option<String>,
    /// Send the update only once. Without this option it is sent again, with the same id if it has one, for up to a
    /// minute, while its outcome is unknown or can change.
    #[arg(long)]
    no_retry: bool,
}

fn id(text: &str) -> Result<String, String> {
    ClientId::parse(text).map_err(|bad| format!("the id {bad}"))?;
    Ok(text.to_owned())
}

fn time(text: &str) -> Result<String, String> {
    http::id_time(text)?;
    Ok(text.to_owned())
}

impl UpdateArgs {
    /// Refuses options that can't be meant. `is_one`: they are for one update.
    pub(super) fn check(&self, is_one: bool) -> anyhow::Result<()> {
        let Some(id) = &self.id else { return Ok(()) };
        if !is_one {
            return Err(wrong_usage(
                ErrorKind::ArgumentConflict,
                "--id is for one update, and each batch of lines has an id of its own; leave it out",
            ));
        }
        let has_time = ClientId::parse(id).is_ok_and(|id| id.time().is_some());
        if !has_time && self.time.is_none() {
            return Err(wrong_usage(
                ErrorKind::MissingRequiredArgument,
                "the id has no time inside it; set --time, the same each time you send it, or use a UUID of version 7",
            ));
        }
        Ok(())
    }

    fn given(&self) -> Option<Id> {
        let text = self.id.clone()?;
        Some(Id { time: self.time.clone(), ..Id::with_time(text) })
    }
}

/// An id, its time if that is not inside it, and its window if that is not the default.
#[derive(Debug, Clone)]
pub(super) struct Id {
    text: String,
    time: Option<String>,
    window: Option<Window>,
}

impl Id {
    /// An id whose time is inside it.
    pub(super) fn with_time(text: String) -> Id {
        Id { text, time: None, window: None }
    }

    pub(super) fn within(self, window: Window) -> Id {
        Id { window: Some(window), ..self }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A new id.
    pub(super) fn drawn() -> Id {
        Id::with_time(update_id(SystemClock.now().wall).to_string())
    }

    /// Adds the id to a request.
    pub(super) fn name(&self, request: RequestBuilder) -> RequestBuilder {
        let escaped = self.text.replace('\\', "\\\\").replace('"', "\\\"");
        let value = HeaderValue::from_bytes(format!("\"{escaped}\"").as_bytes());
        let value = value.expect("invariant: an id has no control characters");
        let mut request = request.header("idempotency-key", value);
        if let Some(time) = &self.time {
            request = request.header("idempotency-time", time.trim());
        }
        if let Some(window) = self.window {
            request = request.header("idempotency-window", window.name());
        }
        request
    }
}

/// Where updates go.
pub(super) struct Target<'a> {
    pub(super) url: Url,
    pub(super) client: Client,
    pub(super) kind: Kind,
    pub(super) server: &'a ServerArgs,
    pub(super) args: &'a UpdateArgs,
}

/// What became of a request.
pub(super) struct Sent {
    pub(super) outcome: Outcome,
    /// One sentence, unless it was acked.
    pub(super) why: String,
    pub(super) answer: Option<Answer>,
    /// How the update can be sent again later, if that can change what is known.
    pub(super) hint: Option<String>,
    /// If the same request can have another outcome: how long it has to wait at least.
    again: Option<Duration>,
}

impl Target<'_> {
    /// Sends an update until it is acked, or refused for good, or the time for it is over.
    pub(super) async fn update(&self, body: Option<&str>) -> Sent {
        self.update_as(self.args.given(), body).await
    }

    /// As [`Target::update`], with this id if there is one.
    pub(super) async fn update_as(&self, mut id: Option<Id>, body: Option<&str>) -> Sent {
        let mut pauses = Pauses::begin();
        let is_given = id.is_some();
        // The order of sets is that of the times of their ids, so these come from one of the servers' clocks.
        let mut is_from_server = self.kind.is_timed() || self.kind == Kind::OrSet;
        // The last try that may be counted. It decides what is known at the end.
        let mut unknown: Option<Sent> = None;
        loop {
            let tried = match &id {
                Some(_) => self.post(id.as_ref(), body).await,
                // For about a minute after a reset of the key, pods refuse ids of these kinds.
                None if self.kind.about().is_idempotent => self.post(None, body).await,
                None if !is_from_server => {
                    id = Some(Id::drawn());
                    continue;
                }
                None => match self.new_id().await {
                    Ok(new) => {
                        id = Some(new);
                        continue;
                    }
                    Err(sent) => sent,
                },
            };
            if tried.outcome == Outcome::Acked {
                return tried;
            }
            let is_of_time = id.is_some() && tried.is_problem(PROBLEMS_OF_TIME);
            if is_of_time
                && unknown.is_none()
                && !is_from_server
                && !is_given
                && !self.args.no_retry
            {
                // This machine's clock is wrong. Another id can't count twice, as nothing was written under this one.
                (id, is_from_server) = (None, true);
                continue;
            }
            let pause = match tried.again {
                Some(least) if !self.args.no_retry => pauses.next(least),
                _ => None,
            };
            let Some(pause) = pause else {
                let known = match unknown {
                    Some(before) if tried.outcome == Outcome::Refused => before,
                    _ => tried,
                };
                return known.with_hint(id.as_ref());
            };
            if pauses.count == 1 {
                let with_id = if id.is_some() { " with the same id" } else { "" };
                let limit = RETRY_TIME_MAX.as_secs();
                note(format_args!("orderfree: {}", tried.why));
                note(format_args!("orderfree: trying again{with_id} for up to {limit} s"));
            }
            if tried.outcome == Outcome::Unknown {
                unknown = Some(tried);
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn post(&self, id: Option<&Id>, body: Option<&str>) -> Sent {
        let request = self.client.post(self.url.clone());
        let request = match id {
            Some(id) => id.name(request),
            None => request,
        };
        let request = match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_owned()),
            None => request,
        };
        let sent = self.send(request, |answer| match answer.field("outcome") {
            Some("acked") => Outcome::Acked,
            Some("refused") => Outcome::Refused,
            // Also with a 4xx: an earlier request with an expired id may be counted.
            Some("unknown") => Outcome::Unknown,
            _ if answer.status.is_client_error() => Outcome::Refused,
            _ => Outcome::Unknown,
        });
        let sent = sent.await;
        match (sent.outcome, &sent.answer) {
            (Outcome::Unknown, None) => {
                Sent { why: format!("{}; the update may or may not be counted", sent.why), ..sent }
            }
            _ => sent,
        }
    }

    /// Gets an id from the server.
    pub(super) async fn new_id(&self) -> Result<Id, Sent> {
        let refused =
            |why| Sent { outcome: Outcome::Refused, why, answer: None, hint: None, again: None };
        let url =
            self.server.address(&["v1", "ids"]).map_err(|error| refused(error.to_string()))?;
        // Without an id, nothing is updated.
        let sent = self.send(self.client.post(url), |_| Outcome::Refused).await;
        match sent.answer.as_ref().and_then(Answer::first_id) {
            Some(text) => Ok(Id::with_time(text.to_owned())),
            None => Err(Sent { outcome: Outcome::Refused, ..sent }),
        }
    }

    async fn send(&self, request: RequestBuilder, outcome: impl Fn(&Answer) -> Outcome) -> Sent {
        match self.server.send(request).await {
            Ok(answer) => {
                let can_change = is_passing(answer.status) || answer.is_problem(&["id-ahead"]);
                Sent {
                    outcome: outcome(&answer),
                    why: answer.sentence(),
                    again: can_change.then(|| answer.retry_after.unwrap_or_default()),
                    answer: Some(answer),
                    hint: None,
                }
            }
            Err(no_answer) => Sent {
                outcome: match no_answer.may_have_arrived {
                    true => Outcome::Unknown,
                    false => Outcome::Refused,
                },
                why: format!("{:#}", no_answer.error),
                answer: None,
                hint: None,
                again: no_answer.may_pass.then_some(Duration::ZERO),
            },
        }
    }
}

impl Sent {
    pub(super) fn is_problem(&self, slugs: &[&str]) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.is_problem(slugs))
    }

    /// Whether sending the update again can change what is known.
    pub(super) fn can_change(&self) -> bool {
        self.outcome == Outcome::Unknown && self.again.is_some()
    }

    fn with_hint(self, id: Option<&Id>) -> Sent {
        if !self.can_change() {
            return self;
        }
        let Some(id) = id else {
            let hint = "send it again: for this kind, twice counts as once".to_owned();
            return Sent { hint: Some(hint), ..self };
        };
        let until = self.answer.as_ref().and_then(|answer| answer.field("retry_until"));
        let until = until.map(|until| format!(" until {until}")).unwrap_or_default();
        let time =
            id.time.as_ref().map(|time| format!(" --time {}", quoted(time))).unwrap_or_default();
        let text = quoted(&id.text);
        let hint = format!("add --id {text}{time} to send it again{until}; it counts once");
        Sent { hint: Some(hint), ..self }
    }
}

/// The pauses between the tries of one update.
struct Pauses {
    until: Instant,
    count: u32,
    random: Random,
}

impl Pauses {
    fn begin() -> Pauses {
        Pauses { until: Instant::now() + RETRY_TIME_MAX, count: 0, random: Random::system() }
    }

    /// The next pause: at least this long, and longer each time. `None`: it would end too late.
    fn next(&mut self, least: Duration) -> Option<Duration> {
        let longest = PAUSE_MIN.saturating_mul(2u32.saturating_pow(self.count)).min(PAUSE_MAX);
        self.count += 1;
        // Clients that failed together come back apart.
        let pause = least + longest.mul_f64(self.random.factor(0.5..1.0));
        (Instant::now() + pause < self.until).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let mut pauses = Pauses::begin();
        let all: Vec<_> = (0..20).filter_map(|_| pauses.next(Duration::ZERO)).collect();
        assert!(all[0] >= PAUSE_MIN / 2 && all[0] <= PAUSE_MIN, "{all:?}");
        assert!(all[19] >= PAUSE_MAX / 2 && all[19] <= PAUSE_MAX, "{all:?}");
        let least = Duration::from_secs(2);
        assert!(pauses.next(least).is_some_and(|pause| pause > least));
        assert_eq!(
            pauses.next(RETRY_TIME_MAX),
            None,
            "the server asks for more time than there is"
        );
    }

    #[test]
    fn a_hint_can_be_pasted_into_a_shell() {
        let sent = Sent {
            outcome: Outcome::Unknown,
            why: String::new(),
            answer: None,
            hint: None,
            again: Some(Duration::ZERO),
        };
        let id = Id { time: Some("1795752000".to_owned()), ..Id::with_time("it's $1".to_owned()) };
        let hint = sent.with_hint(Some(&id)).hint.expect("a hint");
        assert!(hint.starts_with(r"add --id 'it'\''s $1' --time '1795752000' to send"), "{hint}");
    }

    #[test]
    fn an_id_is_a_quoted_string_in_its_header() {
        let client = Client::new();
        for (text, time, says) in
            [("a", None, "\"a\""), ("say \"é\\\" ", Some(" 1795752000"), "\"say \\\"é\\\\\\\" \"")]
        {
            let id = Id { time: time.map(str::to_owned), ..Id::with_time(text.to_owned()) };
            let request = id.name(client.post("http://localhost/")).build().expect("a request");
            let headers = request.headers();
            assert_eq!(headers["idempotency-key"].as_bytes(), says.as_bytes());
            let sent = headers.get("idempotency-time").map(|value| value.as_bytes());
            assert_eq!(sent, time.map(|time| time.trim().as_bytes()));
        }
    }
}
