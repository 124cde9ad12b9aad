//! `/v1/watch`: the values of keys as a stream of Server-Sent Events, as the HTML standard defines them.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::{FutureExt, stream};
use orderfree_core::protocol::{Key, Name};
use serde_json::json;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use utoipa::ToSchema;

use crate::engine::read::ReadOutcome;
use crate::engine::service::{GroupQuery, ReadError, Sight};
use crate::engine::watch::{Text, TooManyWatched, WatchPermit, Watcher};
use crate::http::api::batch::{QUERY_EXAMPLE, ReadResult};
use crate::http::api::read;
use crate::http::body::extract::{self, MediaType};
use crate::http::body::json;
use crate::http::body::parameters::{
    self, KeyTexts, NUMBERS, NumbersParams, Query, ValueParams, bad_query, params,
};
use crate::http::body::requests::{self, WatchBody};
use crate::http::body::wire::{KeyValueView, write_json};
use crate::http::catalog::ProblemType;
use crate::http::guard::access;
use crate::http::guard::lists::{Group, List, Names};
use crate::http::problem::{self, Problem};
use crate::http::state::Served;
use crate::http::time::rfc3339;
use crate::limits;
use crate::net::linger::IsWatch;
use crate::policy::{Caller, Verb};
use crate::runtime::tasks::Task;

const LAST_EVENT_ID: &str = "last-event-id";

params! {
    /// Query parameters of a stream of values.
    struct WatchParams {
        keys: KeyTexts,
        group: Option<String> = parameters::GROUP,
        prefix: Option<Name> = parameters::name("prefix", "With `group`: only names with this prefix"),
        as_digits: bool = NUMBERS,
    }
}

/// A stream of values.
#[derive(ToSchema)]
#[schema(value_type = String)]
#[allow(dead_code, reason = "it only describes")]
pub(crate) struct Events(String);

/// Watch keys
///
/// A stream of Server-Sent Events for up to 1,000 keys, or for up to 1,000 keys of a group. It starts with the value of each
/// key. Each change is then an event, at most ten per second for a key. An update that this pod takes shows at once, an update
/// that another pod takes within a second. New keys of a watched group are added within 15 seconds.
///
/// The data of an event is a result of `/v1/query`: the key with its value, with `"absent": true`, or with a `problem`. An
/// event with a value has its entity tag as id. A client that connects again sends its last id as `Last-Event-ID`, and
/// does not get that event again. The last event of a stream has the type `end`, with a `reason` and the `status` that the
/// next request would get: connect again, except after 401 and 403, when the token no longer allows it. The pod sends a
/// comment every five seconds, so a client can notice a dead connection.
#[utoipa::path(
    get, path = "/v1/watch", tag = "many keys",
    params(WatchParams),
    responses((status = 200, description = "Events, until the client or the pod ends them", content(
        (Events = "text/event-stream", example = json!("id: W/\"j5f0c4f5e2a0b4b6f\"\ndata: {\"kind\":\"counter\",\
            \"group\":\"site\",\"name\":\"home\",\"value\":1234,\"exact\":true,\
            \"as_of\":\"2026-11-21T08:00:00.123456Z\",\"consistency\":\"local_quorum\",\"shards\":7,\
            \"folded_through\":null}\n\n")))))
)]
pub(crate) async fn watch(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<WatchParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    extract::of_read(&headers)?;
    let to_read = caller.to(Verb::Read);
    let keys = params.keys.to(to_read)?;
    let group = params.group.map(|group| parameters::group_of(to_read, &group)).transpose()?;
    match (keys.is_empty(), &group) {
        (true, None) | (false, Some(_)) => {
            return Err(bad_query(
                "Say what to watch: `?key=KIND/GROUP/NAME`, several times for several keys, or \
                 `?group=KIND/GROUP`."
                    .to_owned(),
            ));
        }
        (false, None) if params.prefix.is_some() => {
            return Err(bad_query("prefix is for a group; leave it out.".to_owned()));
        }
        _ => {}
    }
    let group = group.map(|(kind, group)| Group { kind, group, prefix: params.prefix });
    start(served, caller, keys, group, params.as_digits, &headers).await
}

/// Watch many keys
///
/// Like `GET /v1/watch`, for more keys than an address has room for.
#[utoipa::path(
    post, path = "/v1/watch", tag = "many keys",
    params(NumbersParams),
    request_body(description = "Up to 1,000 keys",
        content((WatchBody = "application/json", example = json!({
            "keys": [{"kind": "counter", "group": "site", "name": "home"}]})))),
    responses((status = 200, description = "Events, until the client or the pod ends them", content(
        (Events = "text/event-stream"))))
)]
pub(crate) async fn watch_many(
    State(served): State<Served>,
    caller: Caller,
    Query(params): Query<NumbersParams>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, Problem> {
    match MediaType::of(&headers) {
        MediaType::Json => {}
        media => return Err(media.refuse("application/json")),
    }
    extract::of_read(&headers)?;
    let body = served.bodies.read(&headers, request.into_body(), limits::BODY_BYTES_MAX).await?;
    let body: WatchBody<'_> = json::read(json::text(&body)?, QUERY_EXAMPLE)?;
    let to_read = caller.to(Verb::Read);
    let keys = body.keys.0.iter().map(|key| requests::key(to_read, key.get()));
    let keys: Vec<Key> = keys.collect::<Result<_, _>>()?;
    start(served, caller, keys, None, params.as_digits, &headers).await
}

async fn start(
    served: Served,
    caller: Caller,
    keys: Vec<Key>,
    group: Option<Group>,
    as_digits: bool,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    if served.app.health.draining().is_cancelled() {
        return Err(stopping());
    }
    caller.pass_or_refuse(keys.len().saturating_sub(1))?;
    let last_id = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let mut heart =
        interval_at(Instant::now() + limits::WATCH_HEARTBEAT_EVERY, limits::WATCH_HEARTBEAT_EVERY);
    heart.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let watcher = served.app.service.watcher(text, as_digits, caller.watch_room());
    let group = group.map(|group| Listing::new(group, &watcher, &served)).transpose()?;
    let mut events = Watching {
        watcher,
        served,
        caller,
        group,
        last_id,
        told: HashSet::new(),
        heart,
        has_begun: false,
        has_lost_key: false,
        has_ended: false,
    };
    events.add(keys)?;
    if let Some(group) = &mut events.group {
        let names = (&mut group.next).await;
        events.take(names)?;
    }
    let stream = stream::unfold(events, |mut events| async {
        let event = events.next().await?;
        Some((Ok::<_, Infallible>(event), events))
    });
    // Without this header, nginx and similar proxies buffer the events.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok((Extension(IsWatch), [unbuffered], Sse::new(stream)).into_response())
}

/// The group that a stream watches.
struct Listing {
    group: Group,
    list: Arc<List>,
    /// Its next names. A stream waits for them and for events at the same time, because a list can take long.
    next: BoxFuture<'static, Result<Arc<Names>, Problem>>,
    /// The group counts as a key, because even a group without keys is read again and again.
    _permit: WatchPermit,
}

impl Listing {
    fn new(group: Group, watcher: &Watcher, served: &Served) -> Result<Listing, Problem> {
        let (list, next) = (served.lists.of(&group), pending().boxed());
        let mut listing =
            Listing { group, list, next, _permit: watcher.permit().map_err(too_many)? };
        listing.ask_at(Instant::now(), served);
        Ok(listing)
    }

    /// Gets the names at this time.
    fn ask_at(&mut self, at: Instant, served: &Served) {
        let (served, group, list) = (served.clone(), self.group.clone(), Arc::clone(&self.list));
        self.next = async move {
            sleep_until(at).await;
            names(&served, &group, &list).await
        }
        .boxed();
    }
}

/// The names of a group, from the latest list or from the next one.
async fn names(served: &Served, group: &Group, list: &Arc<List>) -> Result<Arc<Names>, Problem> {
    let oldest = served.app.service.now().boot.saturating_sub(limits::WATCH_GROUP_EVERY);
    let read = || {
        let (served, group, list) = (served.clone(), group.clone(), Arc::clone(list));
        let tasks = served.lists.tasks.clone();
        tasks.spawn(Task::Watch, async move {
            let clock = || served.app.service.now().boot;
            list.0.answer(clock, || read_names(&served, &group)).await;
        });
    };
    let (said, _) = list.0.ask(Some(oldest), read).await;
    said.unwrap_or_else(|| Err(ReadError::Bug.into()))
}

async fn read_names(served: &Served, group: &Group) -> Result<Arc<Names>, Problem> {
    /// Bytes of a name beyond its text: its place in the list, and its counts of references.
    const NAME_BYTES: usize = 2 * size_of::<Name>();
    let Group { kind, group, prefix } = group;
    let (begun, limit) = (Instant::now(), limits::BATCH_ITEMS_MAX);
    let query =
        GroupQuery { prefix: prefix.clone(), ..GroupQuery::all(*kind, group.clone(), limit) };
    let _turn = served.turns.page(*kind, limit).await?;
    let (mut names, mut bytes) = (Vec::new(), 0);
    let pages = served.app.service.read_group(&query, |name, _| {
        bytes += NAME_BYTES + name.as_str().len();
        names.push(name);
        0
    });
    let of_group = |error: ReadError| read::problem_of(error, &format!("{kind}/{group}"));
    pages.await.map_err(of_group)?;
    let memory = served.lists.memory.take(bytes).ok_or_else(|| {
        let detail = "The names of the groups that are watched here use all the memory for them.";
        Problem::new(ProblemType::Overloaded, detail)
    })?;
    let until = begun + limits::WATCH_GROUP_EVERY.max(2 * begun.elapsed());
    Ok(Arc::new(Names { names, until, _memory: memory }))
}

/// The next names of the group. Without a group this waits forever.
async fn next_names(group: &mut Option<Listing>) -> Result<Arc<Names>, Problem> {
    match group {
        Some(group) => (&mut group.next).await,
        None => pending().await,
    }
}

/// One stream.
struct Watching {
    served: Served,
    caller: Caller,
    watcher: Watcher,
    group: Option<Listing>,
    /// The id of the event that the client has from a stream before, and the places of keys that had an event on this one.
    last_id: Option<String>,
    told: HashSet<usize>,
    heart: Interval,
    has_begun: bool,
    /// A key is not followed any more.
    has_lost_key: bool,
    has_ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Event> {
        if !std::mem::replace(&mut self.has_begun, true) {
            return Some(Event::default().retry(limits::WATCH_RETRY_AFTER).comment("watching"));
        }
        let draining = self.served.app.health.draining().clone();
        loop {
            if self.has_ended {
                return None;
            }
            if self.has_lost_key {
                return Some(self.end(&Problem::new(
                    ProblemType::Internal,
                    "A read of a key hit a bug; see the log of this pod, and connect \
                     again.",
                )));
            }
            tokio::select! {
                biased;
                () = draining.cancelled() => return Some(self.end(&stopping())),
                _ = self.heart.tick() => return Some(self.beat()),
                names = next_names(&mut self.group) => {
                    if let Err(problem) = self.take(names) {
                        return Some(self.late(&problem));
                    }
                }
                (place, text) = self.watcher.changed() => {
                    if let Some(event) = self.event(place, &text) {
                        return Some(event);
                    }
                }
            }
        }
    }

    /// A comment as a sign of life, or the end of the stream if its token no longer allows it: a stream can outlast its token.
    fn beat(&mut self) -> Event {
        let app = &self.served.app;
        let renewed = app.policies.renew(&self.caller, app.service.now().wall);
        let checked = renewed.map_err(access::unauthenticated).and_then(|renewed| {
            self.caller = renewed;
            let to_read = self.caller.to(Verb::Read);
            self.watcher.keys().try_for_each(|key| to_read.of(&key.group))?;
            self.group.iter().try_for_each(|listing| to_read.of(&listing.group.group))
        });
        match checked {
            Ok(()) => Event::default().comment(""),
            Err(problem) => self.end(&problem),
        }
    }

    /// A problem with the group's names. If it can pass within seconds, the keys that are already known stay watched.
    fn late(&mut self, problem: &Problem) -> Event {
        match can_pass(problem.status()) {
            true => Event::default().comment("late"),
            false => self.end(problem),
        }
    }

    /// Starts to watch the group's new keys, and stops watching those that are gone.
    fn take(&mut self, names: Result<Arc<Names>, Problem>) -> Result<(), Problem> {
        let Some(listing) = &mut self.group else { return Ok(()) };
        let soon = Instant::now() + limits::WATCH_GROUP_EVERY;
        listing.ask_at(names.as_ref().map_or(soon, |names| names.until), &self.served);
        let (kind, group) = (listing.group.kind, listing.group.group.clone());
        let names = names?;
        let listed: HashSet<&Name> = names.names.iter().collect();
        self.watcher.leave_absent(|key| !listed.contains(&key.name));
        let watched: HashSet<&Name> = self.watcher.keys().map(|key| &key.name).collect();
        let room = limits::BATCH_ITEMS_MAX.saturating_sub(watched.len());
        let new = names.names.iter().filter(|name| !watched.contains(name)).take(room);
        let new = new.map(|name| Key { kind, group: group.clone(), name: name.clone() }).collect();
        self.add(new)
    }

    fn add(&mut self, keys: Vec<Key>) -> Result<(), Problem> {
        keys.into_iter().try_for_each(|key| self.watcher.add(key)).map_err(too_many)
    }

    /// None if the client already has this event. Later events always come: their value can be an earlier one again.
    fn event(&mut self, place: usize, text: &Text) -> Option<Event> {
        self.has_lost_key |= text.is_last;
        let is_first = self.told.insert(place);
        if is_first && text.tag.is_some() && text.tag == self.last_id {
            return None;
        }
        let event = Event::default().data(&text.data);
        Some(match &text.tag {
            Some(tag) => event.id(tag),
            None => event,
        })
    }

    fn end(&mut self, problem: &Problem) -> Event {
        self.has_ended = true;
        let data = json!({"reason": problem.detail(), "status": problem.status().as_u16()});
        Event::default().event("end").data(data.to_string())
    }
}

fn stopping() -> Problem {
    Problem::new(ProblemType::Stopping, "This pod is shutting down; connect again.")
}

fn too_many(error: TooManyWatched) -> Problem {
    Problem::new(ProblemType::TooManyWatched, problem::sentence(&error.to_string()))
}

/// Whether the same request can succeed later.
fn can_pass(status: StatusCode) -> bool {
    status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS
}

/// The data of an event, and its id.
fn text(key: &Key, shown: &ReadOutcome, sight: &Sight, as_digits: bool) -> Text {
    let params = ValueParams::of_numbers(as_digits);
    let result = match shown {
        Ok(Some(held)) => ReadResult::Found(KeyValueView::new(held, &params)),
        Ok(None) => ReadResult::absent(key, sight),
        Err(error) => ReadResult::failed(key, error.clone()),
    };
    let mut text = Vec::new();
    write_json(&mut text, &result);
    let data = String::from_utf8(text).expect("invariant: JSON is UTF-8");
    let held = shown.as_ref().ok().and_then(Option::as_ref);
    let tag = held.map(|held| read::tag_of(&data, &rfc3339(held.as_of)));
    let (is_absent, is_last) = (matches!(shown, Ok(None)), matches!(shown, Err(ReadError::Bug)));
    Text { data, tag, is_absent, is_last }
}
