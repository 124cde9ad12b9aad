//! Bearer tokens (RFC 6750): they identify callers, what each can do with which groups, and how fast.
//!
//! A token is `orderfree_` and 64 hexadecimal digits: 256 bits from the operating system's generator.
//! Scanners for leaked secrets recognize the prefix, and the bits can't be guessed. The policy keeps only the
//! token's SHA-256. One round is enough: slow hashes are for passwords, which have few bits.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota as Pace, RateLimiter};
use orderfree_core::protocol::{Name, Timestamp};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;
use crate::runtime::random;

/// How every token begins.
pub const TOKEN_PREFIX: &str = "orderfree_";

/// The audit log's name for callers of a server without tokens.
const ANONYMOUS: &str = "anonymous";

/// The audit log's name for callers without a valid token.
pub(crate) const UNAUTHENTICATED: &str = "unauthenticated";

/// Hexadecimal digits after the prefix.
const TOKEN_DIGITS: usize = 64;

/// What a caller can do with a key. No verb implies another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// Reads values.
    Read,
    /// Updates keys.
    Write,
    /// Inspects shards, folds, lists groups, and discards a row.
    Admin,
    /// Resets and deletes keys.
    Reset,
}

impl Verb {
    pub const ALL: [Verb; 4] = [Verb::Read, Verb::Write, Verb::Admin, Verb::Reset];

    /// The verb's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Write => "write",
            Verb::Admin => "admin",
            Verb::Reset => "reset",
        }
    }
}

/// All callers that the policy knows.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// By the first bytes of each token's hash. The time of a lookup depends on these bytes, which reveals
    /// nothing about a token: to choose the bytes of a hash, an attacker would have to invert it.
    by_hash: HashMap<[u8; 8], Arc<Token>>,
}

#[derive(Debug)]
struct Token {
    name: String,
    hash: [u8; 32],
    expires: Option<Timestamp>,
    grants: Vec<Grant>,
    rate: Option<(NonZeroU32, Arc<DefaultDirectRateLimiter>)>,
    streams: Arc<Semaphore>,
    watch_room: WatchRoom,
}

/// What a token can still watch.
#[derive(Debug, Clone)]
pub struct WatchRoom {
    /// Different keys.
    pub keys: Arc<Semaphore>,
    /// The keys of all its streams together, and their groups.
    pub places: Arc<Semaphore>,
}

impl Default for WatchRoom {
    fn default() -> WatchRoom {
        WatchRoom {
            keys: Arc::new(Semaphore::new(limits::WATCHED_KEYS_OF_TOKEN_MAX)),
            places: Arc::new(Semaphore::new(limits::WATCHED_PLACES_OF_TOKEN_MAX)),
        }
    }
}

/// A `[[token.grant]]` table of the file: for one group, or for all groups with a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantEntry {
    group: Option<String>,
    group_prefix: Option<String>,
    verbs: Vec<Verb>,
}

/// What a caller can do with which groups.
#[derive(Debug)]
struct Grant {
    groups: Groups,
    verbs: Vec<Verb>,
}

/// Compared with the bytes of the decoded group name, as it is stored.
#[derive(Debug)]
enum Groups {
    One(Name),
    /// All groups that begin with this text. Empty: all groups.
    Prefix(String),
}

/// A `[[token]]` table of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    name: String,
    sha256: String,
    expires: Option<String>,
    rate: Option<NonZeroU32>,
    #[serde(default)]
    grant: Vec<GrantEntry>,
}

/// The caller who sent a request. `None`: a caller of a server that requires no tokens.
#[derive(Debug, Clone)]
pub struct Caller(Option<Arc<Token>>);

/// Why a request's caller is not known. The message does not repeat the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Denied {
    /// There is no `Authorization` header.
    #[error("this server requires a token; send `Authorization: Bearer orderfree_…`")]
    Missing,
    /// The header does not have the form of a bearer token.
    #[error(
        "the Authorization header must be `Bearer` and a token: `orderfree_` and 64 hexadecimal digits"
    )]
    Malformed,
    /// No caller of the policy has this token, or it has expired.
    #[error(
        "this server does not know the token: it was revoked, has expired, or belongs to another server"
    )]
    Unknown,
}

/// A caller exceeds its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFast {
    /// Time after which to try again.
    pub again_in: Duration,
}

/// A caller has reached its number of concurrent streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyStreams;

/// A new token. This is the only time that the token itself is visible.
#[derive(Debug)]
pub struct NewToken {
    pub token: String,
    /// The token's hash, for the policy file.
    pub sha256: String,
}

impl NewToken {
    /// Makes a random token.
    #[must_use]
    pub fn draw() -> NewToken {
        let token = format!("{TOKEN_PREFIX}{}", hex(&random::secret()));
        NewToken { sha256: hex(&Sha256::digest(token.as_bytes())), token }
    }
}

impl Tokens {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Tokens> {
        let mut tokens = Tokens::default();
        for entry in entries {
            let token = Arc::new(entry.token()?);
            let is_named = |other: &Arc<Token>| other.name == token.name;
            ensure!(
                !tokens.by_hash.values().any(is_named),
                "two tokens are named {:?}; rename one",
                token.name
            );
            let same = tokens.by_hash.insert(start(&token.hash), Arc::clone(&token));
            if let Some(same) = same {
                anyhow::bail!(
                    "the tokens {:?} and {:?} have the same hash; remove one",
                    same.name,
                    token.name
                );
            }
        }
        Ok(tokens)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Takes over each caller's current rate and streams, and what it watches, from the policy before.
    pub(super) fn go_on_from(&mut self, before: &Tokens) {
        for token in self.by_hash.values_mut() {
            let same = |old: &&Arc<Token>| old.name == token.name;
            let Some(old) = before.by_hash.values().find(same) else { continue };
            let token =
                Arc::get_mut(token).expect("invariant: nothing else shares a new token yet");
            token.streams = Arc::clone(&old.streams);
            token.watch_room = old.watch_room.clone();
            if let (Some((rate, limiter)), Some((old_rate, old_limiter))) =
                (&mut token.rate, &old.rate)
                && rate == old_rate
            {
                *limiter = Arc::clone(old_limiter);
            }
        }
    }

    pub(super) fn find(
        &self,
        authorization: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<Caller, Denied> {
        let token = bearer(authorization.ok_or(Denied::Missing)?).ok_or(Denied::Malformed)?;
        self.of_hash(&Sha256::digest(token).into(), now)
    }

    pub(super) fn renew(&self, caller: &Caller, now: Timestamp) -> Result<Caller, Denied> {
        match &caller.0 {
            Some(token) => self.of_hash(&token.hash, now),
            None => Ok(caller.clone()),
        }
    }

    fn of_hash(&self, hash: &[u8; 32], now: Timestamp) -> Result<Caller, Denied> {
        let found = self.by_hash.get(&start(hash)).filter(|found| {
            let is_same: bool = found.hash.ct_eq(hash).into();
            is_same && found.expires.is_none_or(|expires| now < expires)
        });
        found.map(|found| Caller(Some(Arc::clone(found)))).ok_or(Denied::Unknown)
    }
}

/// The position of a token, or most of one, in a text.
pub(super) fn position(text: &str) -> Option<usize> {
    const DIGITS_LEAST: usize = 16;
    text.match_indices(TOKEN_PREFIX).map(|(at, _)| at).find(|at| {
        let digits = text[at + TOKEN_PREFIX.len()..].bytes();
        digits.take(DIGITS_LEAST).filter(u8::is_ascii_hexdigit).count() == DIGITS_LEAST
    })
}

/// A text for the log: every token in it, which is there by mistake, is cut to its prefix.
#[must_use]
pub fn without_tokens(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    while let Some(at) = position(&text) {
        let digits = at + TOKEN_PREFIX.len();
        let rest = text[digits..].trim_start_matches(|digit: char| digit.is_ascii_hexdigit());
        text = format!("{}…{rest}", &text[..digits]).into();
    }
    text
}

/// The token of a header `Bearer TOKEN`.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked("Bearer ".len())?;
    let digits = token.strip_prefix(TOKEN_PREFIX.as_bytes())?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let is_token = digits.len() == TOKEN_DIGITS && digits.iter().all(is_digit);
    (scheme.eq_ignore_ascii_case(b"Bearer ") && is_token).then_some(token)
}

fn start(hash: &[u8; 32]) -> [u8; 8] {
    *hash.first_chunk().expect("invariant: 32 bytes are more than 8")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("invariant: writing to a String does not fail");
        text
    })
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(16 * digit(0)? + digit(1)?).ok()?;
    }
    Some(bytes)
}

impl Entry {
    fn token(self) -> anyhow::Result<Token> {
        let Entry { name, sha256, expires, rate, grant } = self;
        ensure!(
            (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic()),
            "a token's name must have 1 to 64 visible ASCII characters, as logs contain it"
        );
        ensure!(
            ![ANONYMOUS, UNAUTHENTICATED].contains(&&*name),
            "a token can't have the name {name:?}, because the audit log has it for callers without a token"
        );
        let hash = unhex(&sha256).with_context(|| {
            format!("the token {name:?} needs `sha256` as 64 hexadecimal digits")
        })?;
        let expires = expires.map(|text| {
            let time = DateTime::parse_from_rfc3339(&text);
            let time = time
                .map(|time| Timestamp::from_micros(time.with_timezone(&Utc).timestamp_micros()));
            time.with_context(|| {
                format!("the token {name:?} has the bad time {text:?}; write `expires` as 2027-01-31T00:00:00Z")
            })
        });
        let grants = grant.into_iter().map(|entry| entry.grant(&name));
        let grants = grants.collect::<anyhow::Result<_>>()?;
        let rate = rate.map(|rate| {
            // A batch passes as a whole or not at all, so the burst must fit the largest batch.
            let burst = rate.max(BURST_LEAST);
            (rate, Arc::new(RateLimiter::direct(Pace::per_second(rate).allow_burst(burst))))
        });
        let streams = Arc::new(Semaphore::new(limits::STREAMS_OF_TOKEN_MAX));
        let (expires, watch_room) = (expires.transpose()?, WatchRoom::default());
        Ok(Token { name, hash, expires, grants, rate, streams, watch_room })
    }
}

impl GrantEntry {
    fn grant(self, token: &str) -> anyhow::Result<Grant> {
        let GrantEntry { group, group_prefix, verbs } = self;
        ensure!(
            !verbs.is_empty(),
            "a grant of the token {token:?} has no verbs; write read, write, reset or admin"
        );
        let groups = match (group, group_prefix) {
            (Some(group), None) => {
                let group = Name::requested(&group).map_err(|error| {
                    anyhow::anyhow!(
                        "the `group` of a grant of the token {token:?} {error}; for all groups, write an empty `group_prefix`"
                    )
                })?;
                Groups::One(group)
            }
            (None, Some(prefix)) => Groups::Prefix(prefix),
            _ => anyhow::bail!(
                "a grant of the token {token:?} needs either `group` (one group) or `group_prefix` (all groups that \
                 begin with it)"
            ),
        };
        Ok(Grant { groups, verbs })
    }
}

impl Grant {
    fn allows(&self, verb: Verb, group: &Name) -> bool {
        let is_for = match &self.groups {
            Groups::One(one) => group == one,
            Groups::Prefix(prefix) => group.as_str().starts_with(prefix.as_str()),
        };
        is_for && self.verbs.contains(&verb)
    }
}

/// The updates of the largest batch, and its request.
#[allow(clippy::cast_possible_truncation, reason = "a thousand fits")]
const BURST_LEAST: NonZeroU32 =
    NonZeroU32::new(limits::BATCH_ITEMS_MAX as u32 + 1).expect("a thousand is not zero");

impl Caller {
    /// A caller of a server that requires no tokens. It can do everything.
    #[must_use]
    pub fn anonymous() -> Caller {
        Caller(None)
    }

    /// The token's name, for logs.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or(ANONYMOUS, |token| &token.name)
    }

    /// Whether the caller can do this with the keys of this group.
    #[must_use]
    pub fn may(&self, verb: Verb, group: &Name) -> bool {
        let Some(token) = &self.0 else { return true };
        token.grants.iter().any(|grant| grant.allows(verb, group))
    }

    /// Whether the caller can do this with the keys of at least one group.
    #[must_use]
    pub fn may_somewhere(&self, verb: Verb) -> bool {
        let Some(token) = &self.0 else { return true };
        token.grants.iter().any(|grant| grant.verbs.contains(&verb))
    }

    /// Takes a place for one more NDJSON stream. Dropping the permit returns the place.
    ///
    /// # Errors
    /// [`TooManyStreams`] if the caller has [`limits::STREAMS_OF_TOKEN_MAX`] streams already.
    pub fn stream(&self) -> Result<Option<OwnedSemaphorePermit>, TooManyStreams> {
        let streams = self.0.as_ref().map(|token| Arc::clone(&token.streams));
        let place = streams.map(Semaphore::try_acquire_owned).transpose();
        place.map_err(|_| TooManyStreams)
    }

    /// What the caller can still watch. `None`: it has no limit of its own.
    #[must_use]
    pub fn watch_room(&self) -> Option<WatchRoom> {
        self.0.as_ref().map(|token| token.watch_room.clone())
    }

    /// Lets `count` requests or updates pass, all or none.
    ///
    /// # Errors
    /// [`TooFast`] if they exceed the caller's rate.
    pub fn pass(&self, count: usize) -> Result<(), TooFast> {
        let Some((_, limiter)) = self.0.as_ref().and_then(|token| token.rate.as_ref()) else {
            return Ok(());
        };
        let Some(count) = u32::try_from(count).ok().and_then(NonZeroU32::new) else {
            return Ok(());
        };
        match limiter.check_n(count) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(not_until)) => {
                Err(TooFast { again_in: not_until.wait_time_from(DefaultClock::default().now()) })
            }
            // More than a burst: a retry can't help. No batch is that large.
            Err(_) => Err(TooFast { again_in: Duration::from_secs(1) }),
        }
    }

    /// Waits until `count` updates can pass.
    pub async fn pass_in_time(&self, count: usize) {
        let Some((_, limiter)) = self.0.as_ref().and_then(|token| token.rate.as_ref()) else {
            return;
        };
        if let Some(count) = u32::try_from(count).ok().and_then(NonZeroU32::new) {
            let _ = limiter.until_n_ready(count).await;
        }
    }
}
