//! Ids of updates in requests: from headers, and from the items of a batch.

use std::borrow::Cow;

use axum::http::{HeaderMap, HeaderValue};
use chrono::DateTime;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::Timestamp;
use orderfree_core::protocol::op_id::{BadId, ClientId, NamedOp, Window};
use utoipa::IntoParams;
use utoipa::openapi::ObjectBuilder;
use uuid::Uuid;

use crate::http::body::schemas;
use crate::http::catalog::ProblemType;
use crate::http::problem::Problem;

/// An id that a client sent, and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id {
    id: ClientId,
    time: Timestamp,
}

/// Headers that give an update an id.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "described, and read by `IdHeaders`")]
pub(crate) struct IdParams {
    /// The id under which the update counts once, however often and to whichever pod it is sent: a quoted
    /// string, or bare text of 1 to 255 bytes.
    #[param(rename = "Idempotency-Key", schema_with = schemas::id)]
    key: Option<String>,
    /// The time of the id, the same at each retry: RFC 3339, or a Unix time of 10, 13 or 16 digits. UUIDs of
    /// versions 1, 6 and 7 and ULIDs have one inside.
    #[param(rename = "Idempotency-Time")]
    time: Option<String>,
    /// How long retries are taken: `minute`, `short` (15 minutes, the default) or `long` (24 hours).
    #[param(rename = "Idempotency-Window", schema_with = windows)]
    window: Option<String>,
}

fn windows() -> ObjectBuilder {
    schemas::one_of(Window::ALL.map(Window::name).to_vec())
}

/// What the headers of a request say about ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct IdHeaders {
    id: Option<Id>,
    window: Option<Window>,
}

/// The place of an update in its request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) index: usize,
    /// The number of ops in the updates before it.
    pub(crate) ops_before: usize,
}

/// What an item of a batch says about its id.
#[derive(Debug, Default)]
pub(crate) struct ItemId<'a> {
    pub(crate) id: Option<Cow<'a, str>>,
    pub(crate) time: Option<Cow<'a, str>>,
    pub(crate) sequence: Option<u64>,
}

/// Whether a header says something about ids.
pub(crate) fn is_about_ids(name: &str) -> bool {
    matches!(
        name,
        "idempotency-key"
            | "idempotency-time"
            | "idempotency-window"
            | "ce-id"
            | "ce-source"
            | "ce-time"
    )
}

impl IdHeaders {
    /// Reads the headers.
    ///
    /// # Errors
    /// A problem if they do not make one id with one time.
    pub(crate) fn of(headers: &HeaderMap) -> Result<IdHeaders, Problem> {
        let one = |name: &'static str| one_of(headers, name);
        let window = one("idempotency-window")?.map(window).transpose()?;
        let time = one("idempotency-time")?;
        let key = one("idempotency-key")?;
        let event = (one("ce-source")?, one("ce-id")?, one("ce-time")?);
        let is_event = event.0.or(event.1).or(event.2).is_some();
        let id = match (key, event) {
            (Some(_), _) if is_event => {
                let detail = "The request has an Idempotency-Key and an event's headers (ce-id, ce-source, \
                              ce-time); send one of them.";
                return Err(bad_id(detail));
            }
            (Some(key), _) => {
                let key = unquoted(key)?;
                let id = ClientId::parse(&key).map_err(|bad| wrong("Idempotency-Key", bad))?;
                Some(with_time(id, "Idempotency-Time", time)?)
            }
            (None, (Some(source), Some(event), of_event)) => {
                if time.is_some() {
                    let detail = "The time of an event is its ce-time; leave out Idempotency-Time.";
                    return Err(bad_id(detail));
                }
                ClientId::parse(source).map_err(|bad| wrong("ce-source", bad))?;
                let id = ClientId::of_event(source, event).map_err(|bad| wrong("ce-id", bad))?;
                Some(with_time(id, "ce-time", of_event)?)
            }
            (None, _) if is_event => {
                let detail =
                    "The request has only a part of an event's headers; send ce-id and ce-source.";
                return Err(bad_id(detail));
            }
            (None, _) if time.is_some() => {
                let detail =
                    "The request has an Idempotency-Time, but no Idempotency-Key; send both.";
                return Err(bad_id(detail));
            }
            (None, _) => None,
        };
        Ok(IdHeaders { id, window })
    }

    /// Refuses an id for a whole stream: lines that failed and are sent again would have other places.
    pub(crate) fn refuse_for_lines(&self) -> Result<(), Problem> {
        match self.id {
            None => Ok(()),
            Some(_) => Err(bad_id(
                "An id for a whole stream is not possible; give each line its own `id`.",
            )),
        }
    }

    /// Refuses a window without an id. Only items of a batch and lines of a stream can have ids of their own.
    pub(crate) fn refuse_lone_window(&self) -> Result<(), Problem> {
        match self {
            IdHeaders { id: None, window: Some(_) } => Err(bad_id(
                "The request has an Idempotency-Window, but no Idempotency-Key; send both.",
            )),
            _ => Ok(()),
        }
    }

    /// Names the update at a place of the request.
    ///
    /// # Errors
    /// A problem if it has a sequence number and no id, or if its kind has no running totals.
    pub(crate) fn name(
        &self,
        kind: Kind,
        place: Place,
        sequence: Option<u64>,
    ) -> Result<Option<NamedOp>, Problem> {
        let number = |count| u32::try_from(count).expect("invariant: bodies are bounded");
        let named = self.id.map(|Id { id, time }| {
            NamedOp::new(id, number(place.index), time, self.window())
                .after_ops(number(place.ops_before))
        });
        in_sequence(kind, named, sequence)
    }

    /// Names an item by its own id, or as [`IdHeaders::name`] does.
    ///
    /// # Errors
    /// A problem if the item's id is not one id with one time.
    pub(crate) fn name_item(
        &self,
        kind: Kind,
        place: Place,
        item: ItemId<'_>,
    ) -> Result<Option<NamedOp>, Problem> {
        let ItemId { id, time, sequence } = item;
        let Some(text) = id else {
            if time.is_some() {
                return Err(bad_id("The item has a `time`, but no `id`; send both."));
            }
            return self.name(kind, place, sequence);
        };
        let id = ClientId::parse(&text).map_err(|bad| wrong("`id`", bad))?;
        let Id { id, time } = with_time(id, "`time`", time.as_deref())?;
        if self.id.is_some_and(|of_request| of_request.id == id) {
            return Err(bad_id(
                "The item has the id of the whole request; leave it out, or give it its own.",
            ));
        }
        in_sequence(kind, Some(NamedOp::new(id, 0, time, self.window())), sequence)
    }

    fn window(&self) -> Window {
        self.window.unwrap_or_default()
    }

    /// The id of a reset and its time.
    pub(crate) fn of_reset(&self) -> Option<(Uuid, Timestamp)> {
        let Id { id, time } = self.id?;
        let named = NamedOp::new(id, 0, time, self.window());
        Some((Uuid::from_bytes(named.id().id), time))
    }

    /// Whether the whole request has an id.
    pub(crate) fn has_id(&self) -> bool {
        self.id.is_some()
    }
}

fn in_sequence(
    kind: Kind,
    named: Option<NamedOp>,
    sequence: Option<u64>,
) -> Result<Option<NamedOp>, Problem> {
    match (named, sequence) {
        (named, None) => Ok(named),
        (Some(_), Some(_)) if !kind.about().has_totals => Err(bad_id(&format!(
            "Kind {kind} has no running totals; leave out `sequence`, and give each update an id of its own."
        ))),
        (Some(_), Some(0)) => Err(bad_id("`sequence` is 0; number the totals from 1.")),
        (Some(named), Some(sequence)) => Ok(Some(named.with_sequence(sequence))),
        (None, Some(_)) => {
            Err(bad_id("A `sequence` belongs to an id; send the id of the running total with it."))
        }
    }
}

/// A header's value; none if it is missing.
fn one_of<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Problem> {
    let mut values = headers.get_all(name).iter();
    let (first, more) = (values.next(), values.next());
    if more.is_some() {
        return Err(bad_id(&format!("The header {name} came twice; send it once.")));
    }
    let text = |value: &'a HeaderValue| {
        let text = str::from_utf8(value.as_bytes());
        text.map_err(|_| bad_id(&format!("The header {name} is not UTF-8.")))
    };
    first.map(text).transpose()
}

/// A string of structured fields (RFC 9651, 3.3.3), or the text itself if it has no quotes.
fn unquoted(text: &str) -> Result<Cow<'_, str>, Problem> {
    let text = text.trim_matches([' ', '\t']);
    let Some(rest) = text.strip_prefix('"') else { return Ok(text.into()) };
    let unclosed = || bad_id("The Idempotency-Key begins with a quote but has no closing quote.");
    let bare =
        r#"The Idempotency-Key has a quote or a backslash within its quotes; write \" or \\."#;
    let malformed = || bad_id(bare);
    let rest = rest.strip_suffix('"').ok_or_else(unclosed)?;
    let (mut id, mut letters) = (String::new(), rest.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => id.push(
                letters.next().filter(|next| matches!(next, '"' | '\\')).ok_or_else(malformed)?,
            ),
            '"' => return Err(malformed()),
            letter => id.push(letter),
        }
    }
    Ok(id.into())
}

/// The id with the time that was sent, or with the time inside it.
fn with_time(id: ClientId, field: &str, sent: Option<&str>) -> Result<Id, Problem> {
    let time = match sent {
        Some(text) => {
            let time = id_time(text);
            Some(time.map_err(|how| bad_id(&format!("{field} is {:?}; {how}.", text.trim())))?)
        }
        None => id.time(),
    };
    let time = time.ok_or_else(|| {
        let detail = format!(
            "The id has no time inside it; send its time in {field}, the same at each retry, or use UUIDs of \
             version 7."
        );
        Problem::new(ProblemType::IdWithoutTime, detail)
    })?;
    Ok(Id { id, time })
}

/// Reads a time: RFC 3339, or a Unix time in seconds, milliseconds or microseconds, by its number of digits.
///
/// # Errors
/// A sentence that says how to write one.
pub fn id_time(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse::<i64>().ok());
    let micros = match (text.len(), number) {
        (10, Some(seconds)) => Some(seconds * 1_000_000),
        (13, Some(millis)) => Some(millis * 1_000),
        (16, Some(micros)) => Some(micros),
        _ => DateTime::parse_from_rfc3339(text).ok().map(|time| time.timestamp_micros()),
    };
    micros.map(Timestamp::from_micros).ok_or_else(|| {
        "send a time such as 2026-11-27T08:00:00.123Z, or a Unix time of 10, 13 or 16 digits"
            .to_owned()
    })
}

fn window(text: &str) -> Result<Window, Problem> {
    Window::from_name(text.trim()).ok_or_else(|| {
        let names = Window::ALL.map(Window::name).join(", ");
        bad_id(&format!("Idempotency-Window is {text:?}; the windows are: {names}."))
    })
}

fn wrong(field: &str, bad: BadId) -> Problem {
    bad_id(&format!("{field} {bad}."))
}

fn bad_id(detail: &str) -> Problem {
    Problem::new(ProblemType::BadId, detail)
}
