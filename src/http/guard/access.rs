//! Authentication and permissions. Only a [`Permit`] can create a request's group or key, and it checks the
//! same text that goes to the store: decoded once, compared as bytes. So there is no second reading of an
//! address that could allow what the first one denies.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Name, Timestamp};
use tokio::sync::OwnedSemaphorePermit;

use crate::http::catalog::ProblemType;
use crate::http::problem::{self, Problem};
use crate::limits;
use crate::policy::{Caller, Denied, Policies, TooFast, TooManyStreams, Verb};

/// The caller that these headers authenticate.
pub(crate) fn caller(
    policies: &Policies,
    headers: &HeaderMap,
    now: Timestamp,
) -> Result<Caller, Problem> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let first = values.next().map(|value| value.as_bytes());
    // Two such headers would be ambiguous.
    let caller = match values.next() {
        None => policies.authenticate(first, now),
        Some(_) => Err(Denied::Malformed),
    };
    caller.map_err(unauthenticated)
}

pub(crate) fn unauthenticated(denied: Denied) -> Problem {
    Problem::new(ProblemType::Unauthenticated, problem::sentence(&denied.to_string()))
}

/// `observe` puts the caller into the extensions before any handler runs.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Caller, Problem> {
        let missing = || Problem::new(ProblemType::Internal, "The request was not authenticated.");
        parts.extensions.get().cloned().ok_or_else(missing)
    }
}

/// A caller that wants to use one verb. Its methods check the grants.
#[derive(Clone, Copy)]
pub(crate) struct Permit<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) verb: Verb,
}

impl Caller {
    pub(crate) fn to(&self, verb: Verb) -> Permit<'_> {
        Permit { caller: self, verb }
    }

    /// Lets `count` more updates pass, all or none.
    pub(crate) fn pass_or_refuse(&self, count: usize) -> Result<(), Problem> {
        self.pass(count).map_err(|TooFast { again_in }| {
            let detail = format!(
                "The token {:?} exceeds its rate; send the request again in {} ms.",
                self.name(),
                again_in.as_millis().max(1)
            );
            Problem::new(ProblemType::TooFast, detail)
        })
    }

    /// Takes a place for one more NDJSON stream.
    pub(crate) fn stream_or_refuse(&self) -> Result<Option<OwnedSemaphorePermit>, Problem> {
        self.stream().map_err(|TooManyStreams| {
            let (name, max) = (self.name(), limits::STREAMS_OF_TOKEN_MAX);
            let detail = format!(
                "The token {name:?} has {max} streams in progress here, which is the limit for a token; \
                 end one before you send this one."
            );
            Problem::new(ProblemType::TooFast, detail)
        })
    }
}

impl Permit<'_> {
    pub(crate) fn key(self, kind: &str, group: &str, name: &str) -> Result<Key, Problem> {
        let (kind, group) = self.group(kind, group)?;
        Ok(Key { kind, group, name: parse_name("name", name)? })
    }

    pub(crate) fn group(self, kind: &str, group: &str) -> Result<(Kind, Name), Problem> {
        let (kind, group) = (parse_kind(kind)?, parse_name("group", group)?);
        self.of(&group)?;
        Ok((kind, group))
    }

    /// Checks that the caller has the verb in some group.
    pub(crate) fn somewhere(self) -> Result<(), Problem> {
        if self.caller.may_somewhere(self.verb) {
            return Ok(());
        }
        let (name, verb) = (self.caller.name(), self.verb.name());
        let detail = format!("The token {name:?} has the verb {verb} for no group.");
        Err(Problem::new(ProblemType::Forbidden, detail))
    }

    /// Checks that the caller has the verb in this group.
    pub(crate) fn of(self, group: &Name) -> Result<(), Problem> {
        if self.caller.may(self.verb, group) {
            return Ok(());
        }
        let detail = format!(
            "The token {:?} does not have the verb {} for the group {:?}.",
            self.caller.name(),
            self.verb.name(),
            group.as_str()
        );
        Err(Problem::new(ProblemType::Forbidden, detail))
    }
}

/// The counter in which a picture counts. The policy allows it, instead of a grant.
pub(crate) fn key_of_pixel(policies: &Policies, group: &str, name: &str) -> Result<Key, Problem> {
    let (group, name) = (parse_name("group", group)?, parse_name("name", name)?);
    let key = Key { kind: Kind::Counter, group, name };
    match policies.pass_pixel(&key) {
        Some(Ok(())) => Ok(key),
        None => {
            let detail = format!(
                "No [[pixel]] table of the policy lets pictures count in the group {:?}.",
                key.group.as_str()
            );
            Err(Problem::new(ProblemType::Forbidden, detail))
        }
        Some(Err(TooFast { again_in })) => {
            let detail = format!(
                "Pictures of the group {:?} are loaded faster than the policy allows; send the request again in {} ms.",
                key.group.as_str(),
                again_in.as_millis().max(1)
            );
            Err(Problem::new(ProblemType::TooFast, detail))
        }
    }
}

/// The kind in a path `/v1/{kind}`.
pub(crate) struct KindPath(String);

/// The key in a path, before the permission check.
pub(crate) struct KeyPath {
    caller: Caller,
    kind: String,
    group: String,
    name: String,
}

/// A key's reset in a path, before the permission check.
pub(crate) struct ResetPath {
    key: KeyPath,
    id: String,
}

/// The kind and the group in a path, before the permission check.
pub(crate) struct GroupPath {
    caller: Caller,
    kind: String,
    group: String,
}

impl KindPath {
    pub(crate) fn kind(&self) -> Result<Kind, Problem> {
        parse_kind(&self.0)
    }
}

impl KeyPath {
    pub(crate) fn to(self, verb: Verb) -> Result<(Key, Caller), Problem> {
        let key = self.caller.to(verb).key(&self.kind, &self.group, &self.name)?;
        Ok((key, self.caller))
    }
}

impl ResetPath {
    pub(crate) fn to(self, verb: Verb) -> Result<(Key, String), Problem> {
        Ok((self.key.to(verb)?.0, self.id))
    }
}

impl GroupPath {
    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn to(self, verb: Verb) -> Result<(Kind, Name), Problem> {
        self.caller.to(verb).group(&self.kind, &self.group)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for KindPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<KindPath, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(kind) = path.map_err(|error| bad_path(error.status()))?;
        Ok(KindPath(kind))
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

impl<S: Send + Sync> FromRequestParts<S> for ResetPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<ResetPath, Problem> {
        let caller = Caller::from_request_parts(parts, state).await?;
        let path = Path::<(String, String, String, String)>::from_request_parts(parts, state).await;
        let Path((kind, group, name, id)) = path.map_err(|error| bad_path(error.status()))?;
        Ok(ResetPath { key: KeyPath { caller, kind, group, name }, id })
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

pub(crate) fn bad_path(status: StatusCode) -> Problem {
    if status.is_server_error() {
        return Problem::new(ProblemType::Internal, "The route's parameters do not match.");
    }
    Problem::new(
        ProblemType::BadAddress,
        "A part of the path is not UTF-8 after percent-decoding; percent-encode UTF-8 bytes.",
    )
}

fn parse_kind(text: &str) -> Result<Kind, Problem> {
    Kind::from_name(text).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let detail = format!("There is no kind {text:?}; the kinds are: {}.", names.join(", "));
        Problem::new(ProblemType::UnknownKind, detail)
    })
}

fn parse_name(which: &str, text: &str) -> Result<Name, Problem> {
    Name::requested(text)
        .map_err(|error| Problem::new(ProblemType::BadName, format!("The {which} {error}.")))
}
