//! Errors on the wire: every error is `application/problem+json` (RFC 9457), including panics and the
//! framework's own errors.
//!
//! A handler returns a [`Problem`]. Only `render` turns it into bytes, because only there are the request id
//! and the outcome of an update known.

use std::borrow::Cow;

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use orderfree_core::crdt::OpError;
use orderfree_core::protocol::fold::FoldError;
use orderfree_core::protocol::reset::ResetError;
use orderfree_core::protocol::row_reader::RowError;
use orderfree_core::protocol::{Durability, Outcome, Timestamp};
use serde::{Serialize, Serializer};
use utoipa::openapi::schema::{Schema, Type};
use utoipa::openapi::{ObjectBuilder, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::engine::fold::FoldFailure;
use crate::engine::resetter::ResetFailure;
use crate::engine::service::ReadError;
use crate::engine::write::{Refused, UpdateError};
use crate::http::catalog::{Entry, ProblemType};
use crate::http::time::rfc3339;
use crate::limits;
use crate::store::StoreError;

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// The outcomes of a stream's updates.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, ToSchema)]
pub(crate) struct Summary {
    /// Updates that were read: lines that are not blank.
    lines: usize,
    /// Updates that are stored at the write consistency level.
    acked: usize,
    /// Updates that are in memory, because of `?ack=memory`.
    accepted: usize,
    /// Updates that are certainly not counted.
    refused: usize,
    /// Updates that may be counted.
    unknown: usize,
    /// All lines that were not acknowledged, in order. Lines that follow each other and have the same outcome
    /// and type of problem are one range.
    #[schema(value_type = Vec<LineRangeBody>, max_items = 10_000)]
    errors: Vec<LineRange>,
    /// Whether the last line that was recorded is in the last range.
    #[serde(skip)]
    is_in_range: bool,
    #[serde(skip)]
    details_bytes: usize,
}

/// Lines that were not acknowledged. There are only these and blank lines between the first and the last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LineRange {
    first: usize,
    last: usize,
    outcome: Outcome,
    kind: ProblemType,
    detail: Option<Box<str>>,
    /// The earliest time of its lines; none if they have no ids, or need none.
    retry_until: Option<Timestamp>,
}

/// Lines that follow each other and were not acknowledged for the same reason. All of them can be sent again with
/// their ids, or none.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LineRange)]
struct LineRangeBody<'a> {
    /// The number of the first line, from 1. Blank lines count.
    first: usize,
    /// The number of the last line. A blank line between the two means nothing.
    last: usize,
    #[schema(value_type = NotAckedText)]
    outcome: Outcome,
    /// The page that explains this type of problem, on this server.
    #[schema(example = "/problems/bad-op")]
    r#type: String,
    /// Short name of the problem type.
    title: &'static str,
    /// What is wrong with the first of these lines, and what to do. Left out in the last ranges of a long list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    detail: Option<&'a str>,
    /// Only for lines with ids: send these lines again with the same ids, up to this time. Each counts once. Some
    /// of the lines can be sent for longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    retry_until: Option<String>,
}

impl Serialize for LineRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &LineRange { first, last, outcome, kind, ref detail, retry_until } = self;
        let (r#type, title, detail) = (kind.address(), kind.entry().title, detail.as_deref());
        let retry_until = retry_until.map(rfc3339);
        let body = LineRangeBody { first, last, outcome, r#type, title, detail, retry_until };
        body.serialize(serializer)
    }
}

/// The name of an [`Outcome`].
pub(crate) struct OutcomeText;

impl PartialSchema for OutcomeText {
    fn schema() -> RefOr<Schema> {
        outcomes("The outcome of an update.", &Outcome::ALL)
    }
}

impl ToSchema for OutcomeText {
    fn name() -> Cow<'static, str> {
        "Outcome".into()
    }
}

/// The name of an [`Outcome`] that goes with a problem.
pub(crate) struct NotAckedText;

impl PartialSchema for NotAckedText {
    fn schema() -> RefOr<Schema> {
        let not_acked = [Outcome::Refused, Outcome::Unknown];
        outcomes("The outcome of an update that was not acknowledged.", &not_acked)
    }
}

impl ToSchema for NotAckedText {
    fn name() -> Cow<'static, str> {
        "NotAcked".into()
    }
}

fn outcomes(description: &str, outcomes: &[Outcome]) -> RefOr<Schema> {
    let names = outcomes.iter().map(|outcome| outcome.name());
    let text = ObjectBuilder::new().schema_type(Type::String).description(Some(description));
    text.enum_values(Some(names)).into()
}

impl Summary {
    /// Whether it is certain that nothing was applied.
    pub(crate) fn is_untouched(&self) -> bool {
        self.acked + self.accepted + self.unknown == 0
    }

    pub(crate) fn record(
        &mut self,
        line: usize,
        result: Result<(), Problem>,
        durability: Durability,
    ) {
        self.lines += 1;
        let outcome = match result {
            Ok(()) => Outcome::of(durability),
            Err(problem) => {
                let (outcome, problem) = problem.of_update();
                self.add_error(line, outcome, problem);
                outcome
            }
        };
        self.is_in_range = matches!(outcome, Outcome::Refused | Outcome::Unknown);
        *match outcome {
            Outcome::Acked => &mut self.acked,
            Outcome::Accepted => &mut self.accepted,
            Outcome::Refused => &mut self.refused,
            Outcome::Unknown => &mut self.unknown,
        } += 1;
    }

    fn add_error(&mut self, line: usize, outcome: Outcome, problem: Problem) {
        let Problem { kind, detail, retry_until, .. } = problem;
        let is_same = |range: &&mut LineRange| {
            let has_until = range.retry_until.is_some() == retry_until.is_some();
            (range.outcome, range.kind) == (outcome, kind) && has_until
        };
        match self.errors.last_mut().filter(|_| self.is_in_range).filter(is_same) {
            // Both have one, or neither.
            Some(range) => {
                range.last = line;
                range.retry_until = range.retry_until.min(retry_until);
            }
            None => {
                let bytes = self.details_bytes + detail.len();
                let detail = (bytes <= limits::ERROR_DETAILS_BYTES_MAX).then(|| detail.into());
                self.details_bytes = detail.as_ref().map_or(self.details_bytes, |_| bytes);
                if self.errors.len() == self.errors.capacity() {
                    // It doubles, and ends at the limit.
                    let left = limits::ERROR_RANGES_MAX.saturating_sub(self.errors.len());
                    self.errors.reserve_exact(self.errors.len().max(4).min(left.max(1)));
                }
                let (first, last) = (line, line);
                self.errors.push(LineRange { first, last, outcome, kind, detail, retry_until });
            }
        }
    }

    /// The answer to a stream that was read to its end. If no line was applied, the answer is a problem, of the
    /// type that the first line had: a client that looks only at the status must not take it for a success.
    pub(crate) fn answer(self) -> Result<Summary, Problem> {
        let Some(first) = self.errors.first().filter(|_| self.is_untouched()) else {
            return Ok(self);
        };
        let place = format!("No line of the stream was applied; line {}", first.first);
        let detail = first.detail.as_deref().unwrap_or_default().to_owned();
        let problem = Problem { detail, ..Problem::new(first.kind, "") };
        Err(problem.within(&place).with_summary(self))
    }

    /// Whether the outcomes of this many more lines have room.
    pub(crate) fn has_room(&self, lines: usize) -> bool {
        self.errors.len() + lines <= limits::ERROR_RANGES_MAX
    }

    /// Bytes of memory that the errors take.
    pub(crate) fn bytes(&self) -> usize {
        self.errors.capacity() * size_of::<LineRange>() + self.details_bytes
    }
}

/// A stream's summary shows many problems, and clients can send long invalid input.
const DETAIL_BYTES_MAX: usize = 2_048;

/// One occurrence of a problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    kind: ProblemType,
    detail: String,
    /// Only for updates: refused or unknown.
    outcome: Option<Outcome>,
    summary: Option<Box<Summary>>,
    /// Only for updates with an id: until when it can be sent again.
    retry_until: Option<Timestamp>,
    /// The `Accept-Encoding` of the answer.
    accept_encoding: Option<&'static str>,
}

/// An error (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody<'a> {
    /// The page that explains this type of problem, on this server.
    #[schema(example = "/problems/bad-op")]
    r#type: String,
    /// Short name of the problem type.
    title: &'a str,
    /// HTTP status.
    status: u16,
    /// What is wrong in this case, and what to do.
    detail: &'a str,
    /// The request id, as in `X-Request-Id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<&'a str>,
    /// Only for updates: a `refused` update is certainly not counted by this request, an `unknown`
    /// one may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<NotAckedText>)]
    outcome: Option<Outcome>,
    /// Only for updates with an id: send the update again with the same id, up to this time. It counts once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    retry_until: Option<String>,
    /// Only for a stream that ended early, or of which no line was applied: the outcomes of the lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<&'a Summary>,
}

impl Problem {
    /// `detail` says what is wrong in this case and what to do about it. It can repeat what a client
    /// sent, so it is cut off after 2 KiB.
    #[must_use]
    pub fn new(kind: ProblemType, detail: impl Into<String>) -> Problem {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            let end = (0..=DETAIL_BYTES_MAX).rfind(|&at| detail.is_char_boundary(at));
            detail.truncate(end.expect("invariant: 0 is one"));
            detail.push('…');
        }
        Problem {
            kind,
            detail,
            outcome: None,
            summary: None,
            retry_until: None,
            accept_encoding: None,
        }
    }

    /// Says that the update is certainly not counted: it is safe to send it again.
    fn refused(self) -> Problem {
        Problem { outcome: Some(Outcome::Refused), ..self }
    }

    /// Says that the update may be counted: sending it again may count it twice.
    fn unknown(self) -> Problem {
        Problem { outcome: Some(Outcome::Unknown), ..self }
    }

    /// Says until when this update with an id can be sent again, if that can change its outcome.
    #[must_use]
    pub(crate) fn of_named(self, until: Option<Timestamp>) -> Problem {
        let Entry { status, retry_after_s, .. } = self.kind.entry();
        let is_for_good = status.is_client_error()
            && retry_after_s.is_none()
            && self.kind != ProblemType::IdAhead;
        match until {
            Some(until) if !is_for_good => {
                let again = match self.kind {
                    ProblemType::IdAhead => {
                        "Otherwise send it again with the same id: it counts once."
                    }
                    _ => "Send it again with the same id: it counts once.",
                };
                let problem = self.and(again);
                Problem { retry_until: Some(until), ..problem }
            }
            _ => self,
        }
    }

    /// The outcome of the update with this problem, and the problem with that outcome: refused, unless it
    /// says unknown.
    pub(crate) fn of_update(mut self) -> (Outcome, Problem) {
        let outcome = *self.outcome.get_or_insert(Outcome::Refused);
        (outcome, self)
    }

    /// Adds the summary of a stream. A partly applied stream never gets a retryable problem type, because
    /// clients would send everything again.
    #[must_use]
    pub(crate) fn with_summary(mut self, summary: Summary) -> Problem {
        let is_untouched = summary.is_untouched();
        self.summary = Some(Box::new(summary));
        if is_untouched {
            return self.refused();
        }
        if self.kind.entry().retry_after_s.is_some() {
            self.kind = ProblemType::OutcomeUnknown;
        }
        self.unknown()
    }

    /// Adds a sentence to the detail.
    #[must_use]
    pub(crate) fn and(mut self, sentence: &str) -> Problem {
        self.detail = format!("{} {sentence}", self.detail);
        self
    }

    /// Puts `place` before the detail: the part of the request that the problem is about.
    #[must_use]
    pub fn within(mut self, place: &str) -> Problem {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    /// Names the encoding that the endpoint reads (RFC 9110, section 12.5.3).
    #[must_use]
    pub(crate) fn accepting(self, encoding: &'static str) -> Problem {
        Problem { accept_encoding: Some(encoding), ..self }
    }

    #[must_use]
    pub fn kind(&self) -> ProblemType {
        self.kind
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.kind.entry().status
    }

    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    fn body<'a>(&'a self, instance: Option<&'a str>) -> ProblemBody<'a> {
        let entry = self.kind.entry();
        ProblemBody {
            r#type: self.kind.address(),
            title: entry.title,
            status: entry.status.as_u16(),
            detail: &self.detail,
            instance,
            outcome: self.outcome,
            retry_until: self.retry_until.map(rfc3339),
            summary: self.summary.as_deref(),
        }
    }
}

/// A problem as one item of a batch, without the request id.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.body(None).serialize(serializer)
    }
}

/// A response without a body. `render` completes it.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// Writes the problem that a handler left in its response. An error of the framework becomes a
/// problem too. If the problem of an update has no outcome, the update was refused, or is unknown after a
/// bug. Also returns the problem's type.
pub(crate) fn render(
    mut response: Response,
    request_id: &str,
    is_update: bool,
) -> (Response, Option<ProblemType>) {
    let status = response.status();
    let mut problem = match response.extensions_mut().remove::<Problem>() {
        Some(problem) => problem,
        None if status.is_client_error() || status.is_server_error() => of_framework(status),
        None => return (response, None),
    };
    if is_update && problem.outcome.is_none() {
        let is_bug = status == StatusCode::INTERNAL_SERVER_ERROR;
        problem = if is_bug { problem.unknown() } else { problem.refused() };
    }
    let written = Json(problem.body(Some(request_id))).into_response();
    let (mut parts, _) = response.into_parts();
    let (_, body): (_, Body) = written.into_parts();
    parts.status = problem.status();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    if let Some(seconds) = problem.kind.entry().retry_after_s {
        parts.headers.insert(header::RETRY_AFTER, seconds.into());
    }
    if let Some(encoding) = problem.accept_encoding {
        parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(encoding));
    }
    if problem.kind == ProblemType::Unauthenticated {
        // RFC 9110, section 15.5.2, requires it with every 401.
        let challenge = HeaderValue::from_static("Bearer realm=\"orderfree\"");
        parts.headers.insert(header::WWW_AUTHENTICATE, challenge);
    }
    (Response::from_parts(parts, body), Some(problem.kind))
}

/// The problem for an error response of the framework.
fn of_framework(status: StatusCode) -> Problem {
    let (kind, detail) = match status {
        StatusCode::NOT_FOUND => (ProblemType::UnknownRoute, "No endpoint has this path."),
        StatusCode::METHOD_NOT_ALLOWED => {
            (ProblemType::MethodNotAllowed, "Use one of the methods in the Allow header.")
        }
        StatusCode::PAYLOAD_TOO_LARGE => (ProblemType::BodyTooLarge, "Send a smaller body."),
        StatusCode::URI_TOO_LONG => (ProblemType::UriTooLong, "Use a shorter address."),
        status if status.is_client_error() => {
            (ProblemType::BadRequest, "The request is malformed; correct it and send it again.")
        }
        _ => (ProblemType::Internal, "The server met an impossible state; see its log."),
    };
    Problem::new(kind, detail)
}

impl From<UpdateError> for Problem {
    fn from(error: UpdateError) -> Problem {
        match error {
            UpdateError::Refused(refused) => refused.into(),
            UpdateError::Unknown(_) => {
                Problem::new(ProblemType::OutcomeUnknown, sentence(&error.to_string())).unknown()
            }
            UpdateError::IdExpired { .. } => {
                Problem::new(ProblemType::IdExpired, sentence(&error.to_string())).unknown()
            }
            UpdateError::IdBeforeReset => {
                Problem::new(ProblemType::IdBeforeReset, sentence(&error.to_string())).unknown()
            }
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let kind = match &refused {
            Refused::Op(error) => return Problem::from(error.clone()),
            Refused::Clock(_) => ProblemType::Clock,
            Refused::Resets(_) => ProblemType::ResetLogUnread,
            Refused::Overloaded(_) => ProblemType::Overloaded,
            Refused::Quota(_) => ProblemType::OverQuota,
            Refused::BornTooOften => ProblemType::BornTooOften,
            Refused::IdAhead { .. } => ProblemType::IdAhead,
            Refused::TooManyIds { .. } | Refused::KeyHasTooManyIds => ProblemType::TooManyIds,
            Refused::Store(_) | Refused::Unacked => ProblemType::StoreRefused,
            Refused::Deadline(_) => ProblemType::Unsent,
            Refused::Stopping => ProblemType::Stopping,
        };
        Problem::new(kind, sentence(&refused.to_string())).refused()
    }
}

impl From<OpError> for Problem {
    fn from(error: OpError) -> Problem {
        let kind = match &error {
            OpError::Overflow { .. } => ProblemType::OutOfRange,
            OpError::TooLarge | OpError::KeyFull | OpError::TallyFull => ProblemType::StateTooLarge,
            OpError::OtherItem { .. } => ProblemType::OtherItem,
            OpError::IdReused => ProblemType::IdReused,
            OpError::SequenceBehind(_) => ProblemType::SequenceBehind,
            OpError::WrongKind { .. } | OpError::Invalid(_) => ProblemType::BadOp,
        };
        Problem::new(kind, sentence(&error.to_string())).refused()
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Problem {
        match error {
            ReadError::Store(error) => error.into(),
            ReadError::Overloaded(_) => {
                let detail = format!("{error}; send the request again in a second");
                Problem::new(ProblemType::Overloaded, sentence(&detail))
            }
            ReadError::TooLarge | ReadError::TooLargeToWatch => {
                Problem::new(ProblemType::AnswerFull, sentence(&error.to_string()))
            }
            ReadError::Bug => Problem::new(ProblemType::Internal, sentence(&error.to_string())),
            ReadError::Row { key, error } => {
                let detail = format!("The key {key} can't be read: {error}.");
                Problem::new(of_row(&error), detail)
            }
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let kind = match &error {
            StoreError::Unavailable(_) => ProblemType::StoreUnavailable,
            StoreError::TooManyRows { .. } => ProblemType::TooManyRows,
            StoreError::Corrupt(_) => ProblemType::Corrupt,
        };
        Problem::new(kind, sentence(&error.to_string()))
    }
}

impl From<FoldFailure> for Problem {
    fn from(failure: FoldFailure) -> Problem {
        let kind = match failure {
            FoldFailure::Read(error) => return error.into(),
            FoldFailure::Paused(_) => ProblemType::FoldPaused,
            FoldFailure::Busy => ProblemType::FoldBusy,
            FoldFailure::Write(_) => ProblemType::FoldUnknown,
            FoldFailure::Bug(_) => ProblemType::Internal,
            FoldFailure::Blocked { key, error } => {
                let kind = match &error {
                    FoldError::Row(error) => of_row(error),
                    FoldError::ClockMoved { .. } => ProblemType::FoldPaused,
                };
                return Problem::new(kind, format!("The key {key} can't be folded: {error}."));
            }
        };
        Problem::new(kind, sentence(&failure.to_string()))
    }
}

impl From<ResetFailure> for Problem {
    fn from(failure: ResetFailure) -> Problem {
        let kind = match &failure {
            ResetFailure::Refused(ResetError::Absent) => ProblemType::KeyAbsent,
            ResetFailure::Refused(ResetError::Row(_)) => ProblemType::NotResettable,
            ResetFailure::Refused(ResetError::TooManyIds) => ProblemType::TooManyIds,
            ResetFailure::Refused(ResetError::Overtaken) => ProblemType::ResetOvertaken,
            ResetFailure::Refused(ResetError::Ahead) => ProblemType::Clock,
            ResetFailure::TooManyRows { .. } => ProblemType::NotResettable,
            ResetFailure::IdAhead { .. } => ProblemType::IdAhead,
            ResetFailure::IdExpired => ProblemType::IdExpired,
            ResetFailure::Obstacle(_) | ResetFailure::Constants(_) => ProblemType::ResetPaused,
            ResetFailure::Clock(_) => ProblemType::Clock,
            ResetFailure::TooFast { .. } => ProblemType::ResetsTooFast,
            ResetFailure::TooManyAtOnce | ResetFailure::TooManyRemembered => {
                ProblemType::TooManyResets
            }
            ResetFailure::Store(_) => ProblemType::StoreUnavailable,
            ResetFailure::Unknown(_) => ProblemType::ResetUnknown,
        };
        let problem = Problem::new(kind, sentence(&failure.to_string()));
        match failure {
            ResetFailure::Unknown(_) | ResetFailure::IdExpired => problem.unknown(),
            _ => problem,
        }
    }
}

fn of_row(error: &RowError) -> ProblemType {
    match error {
        RowError::Undecodable { .. } => ProblemType::Undecodable,
        RowError::Merge(_) => ProblemType::Unmergeable,
    }
}

/// Turns an error of the lower layers into a sentence: they start in lower case and have no full stop.
pub(crate) fn sentence(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    let mut sentence: String = first.into_iter().chain(characters).collect();
    if !sentence.ends_with(['.', '!', '?']) {
        sentence.push('.');
    }
    sentence
}

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::crdt::{Kind, MergeError};
    use orderfree_core::protocol::clock::ClockError;
    use orderfree_core::protocol::{Key, Name};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::time::Duration;

    fn kind_of(problem: impl Into<Problem>) -> (ProblemType, Option<Outcome>) {
        let problem = problem.into();
        (problem.kind, problem.outcome)
    }

    #[test]
    fn what_a_client_sent_comes_back_in_part_and_whole_characters() {
        let of = |text: &str| Problem::new(ProblemType::BadBody, text).detail().to_owned();
        let fits = "x".repeat(DETAIL_BYTES_MAX);
        assert_eq!(of(&fits), fits);
        assert_eq!(of(&format!("{fits}x")), format!("{fits}…"));
        let two_bytes = format!("x{}", "é".repeat(DETAIL_BYTES_MAX));
        assert_eq!(of(&two_bytes), format!("x{}…", "é".repeat(DETAIL_BYTES_MAX / 2 - 1)));
    }

    /// The outcome of a line, its type of problem, and the number of blank lines before it.
    fn any_line() -> impl Strategy<Value = (Option<(Outcome, ProblemType)>, usize)> {
        let kinds = [ProblemType::BadBody, ProblemType::Overloaded];
        let problem = prop::sample::select(vec![Outcome::Refused, Outcome::Unknown]);
        (prop::option::of((problem, prop::sample::select(kinds.to_vec()))), 0..2_usize)
    }

    proptest! {
        #[test]
        fn a_summary_has_each_line_once(
            lines in vec(any_line(), 0..60),
            is_stored in any::<bool>(),
        ) {
            let durability = if is_stored { Durability::Stored } else { Durability::Memory };
            let (mut summary, mut all, mut number) = (Summary::default(), Vec::new(), 0);
            for (line, blank) in lines {
                number += blank + 1;
                all.push((number, line));
                let result = match line {
                    None => Ok(()),
                    Some((outcome, kind)) => {
                        Err(Problem { outcome: Some(outcome), ..Problem::new(kind, "x") })
                    }
                };
                summary.record(number, result, durability);
            }
            for (number, line) in &all {
                let has = |range: &&LineRange| (range.first..=range.last).contains(number);
                let found = summary.errors.iter().filter(has);
                let found: Vec<_> = found.map(|range| (range.outcome, range.kind)).collect();
                prop_assert_eq!(found, Vec::from_iter(*line), "line {} of {:?}", number, summary);
            }
            let numbers: Vec<usize> = all.iter().map(|(number, _)| *number).collect();
            for range in &summary.errors {
                prop_assert!(numbers.contains(&range.first) && numbers.contains(&range.last));
            }
            // Neighbours that could be one range are one.
            let begins = (0..all.len()).filter(|&at| {
                let before = at.checked_sub(1).and_then(|before| all[before].1);
                all[at].1.is_some() && all[at].1 != before
            });
            prop_assert_eq!(summary.errors.len(), begins.count());
            let count = |of: Option<Outcome>| {
                all.iter().filter(|(_, line)| line.map(|(outcome, _)| outcome) == of).count()
            };
            let right = if is_stored { (count(None), 0) } else { (0, count(None)) };
            prop_assert_eq!((summary.acked, summary.accepted), right);
            prop_assert_eq!(summary.refused, count(Some(Outcome::Refused)));
            prop_assert_eq!(summary.unknown, count(Some(Outcome::Unknown)));
            prop_assert_eq!(summary.lines, all.len());
        }
    }

    #[test]
    fn details_are_left_out_when_they_have_no_room() {
        let mut summary = Summary::default();
        let long = "x".repeat(DETAIL_BYTES_MAX);
        for line in 0..limits::ERROR_RANGES_MAX {
            // The lines between are acked.
            let problem = Problem::new(ProblemType::BadBody, &*long);
            summary.record(2 * line, Err(problem), Durability::Stored);
            summary.record(2 * line + 1, Ok(()), Durability::Stored);
        }
        let shown = summary.errors.iter().filter(|range| range.detail.is_some()).count();
        assert_eq!(shown, limits::ERROR_DETAILS_BYTES_MAX / DETAIL_BYTES_MAX);
        assert!(summary.errors[shown - 1].detail.is_some(), "the first ones have room");
        assert!(summary.bytes() < 1024 * 1024 && !summary.has_room(1));
    }

    #[test]
    fn every_error_of_an_update_says_what_became_of_it() {
        let refused = Some(Outcome::Refused);
        for (error, expected) in [
            (Refused::Op(OpError::Overflow { kind: "counter" }), ProblemType::OutOfRange),
            (Refused::Op(OpError::TooLarge), ProblemType::StateTooLarge),
            (Refused::Op(OpError::KeyFull), ProblemType::StateTooLarge),
            (Refused::Op(OpError::TallyFull), ProblemType::StateTooLarge),
            (Refused::Op(OpError::OtherItem { field: "seen" }), ProblemType::OtherItem),
            (Refused::BornTooOften, ProblemType::BornTooOften),
            (Refused::Op(OpError::Invalid("x".to_owned())), ProblemType::BadOp),
            (Refused::Clock(ClockError::Moved), ProblemType::Clock),
            (Refused::Overloaded("too much"), ProblemType::Overloaded),
            (Refused::Store("down".to_owned()), ProblemType::StoreRefused),
            (Refused::Deadline(Duration::from_secs(1)), ProblemType::Unsent),
            (Refused::Stopping, ProblemType::Stopping),
        ] {
            assert_eq!(kind_of(UpdateError::Refused(error)), (expected, refused));
        }
        let unknown = UpdateError::Unknown("late".to_owned());
        assert_eq!(kind_of(unknown), (ProblemType::OutcomeUnknown, Some(Outcome::Unknown)));
    }

    #[test]
    fn errors_of_reads_and_folds_have_their_types() {
        let store = |error| kind_of(ReadError::Store(error)).0;
        let down = StoreError::Unavailable("down".to_owned());
        assert_eq!(store(down), ProblemType::StoreUnavailable);
        assert_eq!(store(StoreError::TooManyRows { limit: 9, bytes: 0 }), ProblemType::TooManyRows);
        assert_eq!(store(StoreError::Corrupt("x".to_owned())), ProblemType::Corrupt);
        assert_eq!(kind_of(ReadError::Overloaded("too much")).0, ProblemType::Overloaded);
        let name = Name::new("g").expect("name");
        let key = Key { kind: Kind::Counter, group: name.clone(), name };
        let merge = RowError::Merge(MergeError::Implausible { kind: "distinct" });
        let row = |error| FoldFailure::Blocked { key: key.clone(), error: FoldError::Row(error) };
        assert_eq!(kind_of(row(merge.clone())).0, ProblemType::Unmergeable);
        let read = ReadError::Row { key: key.clone(), error: merge };
        assert_eq!(kind_of(read).0, ProblemType::Unmergeable);
        assert_eq!(kind_of(FoldFailure::Busy).0, ProblemType::FoldBusy);
    }

    #[test]
    fn details_are_sentences() {
        assert_eq!(sentence("the store is down"), "The store is down.");
        assert_eq!(sentence("Ärger!"), "Ärger!");
        assert_eq!(sentence(""), ".");
    }
}
