//! Who asks, and for what. A request's group or key comes into being only by a [`Permit`], from the very
//! text that the store will be asked with: decoded once, compared as bytes. So there is no second reading
//! of an address that could let pass what the first one would not.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Name, Timestamp};
use tokio::sync::OwnedSemaphorePermit;

use super::catalog::ProblemType;
use super::problem::{self, Problem};
use crate::limits;
use crate::policy::{Caller, Denied, Policies, TooFast, TooManyStreams, Verb};

/// Who sends a request with these headers.
pub(super) fn caller(
    policies: &Policies,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Caller, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let first = values.next().map(|value| value.as_bytes());
    // Two of them could be understood in two ways.
    let caller = match values.next() {
        None => policies.authenticate(first, now),
        Some(_) => Err(Denied::Malformed),
    };
    caller.map_err(unauthenticated)
}

pub(super) fn unauthenticated(denied: Denied) -> Problem {
    Problem::new(ProblemType::Unauthenticated, problem::sentence(&denied.to_string()))
}

/// Put there by `observe`, before any handler.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        let missing =
            || Problem::new(ProblemType::Internal, "Nobody looked who sends this request.");
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

/// Somebody who wants to do one thing.
#[derive(Clone, Copy)]
pub(super) struct Permit<'a> {
    pub(super) caller: &'a Caller,
    pub(super) verb: Verb,
}

impl Caller {
    /// For what this verb allows.
    pub(super) fn to(&self, verb: Verb) -> Permit<'_> {
        Permit { caller: self, verb }
    }

    /// Lets so many more updates pass, all or none.
    pub(super) fn pass_or_refuse(&self, count: usize) -> Result<(), Problem> {
        self.pass(count).map_err(|TooFast { again_in }| {
            let detail = format!(
                "The token {:?} sends more than its rate; send it again in {} ms.",
                self.name(),
                again_in.as_millis().max(1)
            );
            Problem::new(ProblemType::TooFast, detail)
        })
    }

    /// A place for one more NDJSON stream.
    pub(super) fn stream_or_refuse(&self) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        self.stream().map_err(|TooManyStreams| {
            let (name, max) = (self.name(), limits::STREAMS_OF_TOKEN_MAX);
            let detail = format!(
                "The token {name:?} has {max} streams in progress here, of the most that a token may have; end \
                 one, and send this then."
            );
            Problem::new(ProblemType::TooFast, detail)
        })
    }
}

impl Permit<'_> {
    /// The key of these three texts.
    pub(super) fn key(self, kind: &str, group: &str, name: &str) -> Result<Key, Problem> {
        let (kind, group) = self.group(kind, group)?;
        Ok(Key { kind, group, name: parse_name("name", name)? })
    }

    /// A kind, and the group of this text.
    pub(super) fn group(self, kind: &str, group: &str) -> Result<(Kind, Name), Problem> {
        let (kind, group) = (parse_kind(kind)?, parse_name("group", group)?);
        self.of(&group)?;
        Ok((kind, group))
    }

    /// Whether it is allowed in any group.
    pub(super) fn somewhere(self) -> Result<(), Problem> {
        if self.caller.may_somewhere(self.verb) {
            return Ok(());
        }
        let (name, verb) = (self.caller.name(), self.verb.name());
        let detail = format!("The token {name:?} has no grant to {verb} anything.");
        Err(Problem::new(ProblemType::Forbidden, detail))
    }

    /// Whether it is allowed in this group.
    pub(super) fn of(self, group: &Name) -> Result<(), Problem> {
        if self.caller.may(self.verb, group) {
            return Ok(());
        }
        let detail = format!(
            "The token {:?} has no grant to {} in the group {:?}.",
            self.caller.name(),
            self.verb.name(),
            group.as_str()
        );
        Err(Problem::new(ProblemType::Forbidden, detail))
    }
}

/// The key that a path names, for whoever may use it.
pub(super) struct KeyPath {
    caller: Caller,
    kind: String,
    group: String,
    name: String,
}

/// The kind and the group that a path names, for whoever may use it.
pub(super) struct GroupPath {
    caller: Caller,
    kind: String,
    group: String,
}

impl KeyPath {
    /// The key, and who asks for it.
    pub(super) fn to(self, verb: Verb) -> Result<(Key, Caller), Problem> {
        let key = self.caller.to(verb).key(&self.kind, &self.group, &self.name)?;
        Ok((key, self.caller))
    }
}

impl GroupPath {
    /// The kind and the group.
    pub(super) fn to(self, verb: Verb) -> Result<(Kind, Name), Problem> {
        self.caller.to(verb).group(&self.kind, &self.group)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for KeyPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<KeyPath, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<(String, String, String)>::from_request_parts(parts, state).await;
        let Path((kind, group, name)) = path.map_err(|error| bad_path(error.status()))?;
        Ok(KeyPath { caller, kind, group, name })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for GroupPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<GroupPath, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<(String, String)>::from_request_parts(parts, state).await;
        let Path((kind, group)) = path.map_err(|error| bad_path(error.status()))?;
        Ok(GroupPath { caller, kind, group })
    }
}

fn bad_path(status: StatusCode) -> Problem {
    if status.is_server_error() {
        return Problem::new(ProblemType::Internal, "The route's parameters don't fit.");
    }
    Problem::new(
        ProblemType::BadAddress,
        "Percent-decoded, a part of the path is not UTF-8; encode the bytes of UTF-8 text.",
    )
}

/// The kind of this name.
pub(super) fn parse_kind(text: &str) -> Result<Kind, Problem> {
    Kind::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let detail = format!("There is no kind {text:?}; the kinds are: {}.", names.join(", "));
        Problem::new(ProblemType::UnknownKind, detail)
    })
}

fn parse_name(which: &str, text: &str) -> Result<Name, Problem> {
    Name::new(text)
        .map_err(|error| Problem::new(ProblemType::BadName, format!("The {which} {error}.")))
}
