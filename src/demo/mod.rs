//! `orderfree demo`: a whole installation in one process, to be broken. Three pods count over three replicas in memory,
//! clients send them a few hundred updates a second, and the live page has buttons for what goes wrong in production.
//! The pods and their protocol are the ones that ship. Only the nodes are in memory.

mod cluster;
mod load;
mod pods;
mod store;

use std::fmt::Arguments;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Args;
use orderfree_core::protocol::{Constants, Overrides};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::signal::ctrl_c;
use tokio::time::{Instant, sleep};

use cluster::{Cluster, Health, NODES};
use load::Load;
use pods::{PODS, Pods};

use crate::pod::config::address;

/// The time between two looks at the counters.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How long the pods have at the end to count everything.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Address and port to listen on. Anyone who reaches it can break the demo.
    #[arg(long, default_value = "127.0.0.1:8080", value_parser = address, value_name = "IP:PORT")]
    listen: SocketAddr,
    /// Updates per second.
    #[arg(long, default_value_t = 300, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// End after this time, such as `10m` [default: when it is interrupted].
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    span: Option<Duration>,
    /// Press a random button about every second.
    #[arg(long)]
    chaos: bool,
}

/// The demo, as the handlers see it.
#[derive(Clone)]
struct Demo {
    cluster: Arc<Cluster>,
    pods: Arc<Pods>,
    load: Arc<Load>,
}

/// What the page shows.
#[derive(Serialize)]
struct Status {
    /// Updates that clients have sent, and updates that were acknowledged.
    sent: i64,
    acknowledged: i64,
    /// Updates that clients have given up, because no pod took them for a minute.
    unknown: i64,
    /// The sum of the counters when they were read last.
    counted: i64,
    /// What a counter without ids says.
    native: i64,
    /// Requests of clients, with repetitions.
    attempts: u64,
    /// Looks at the counters, and those that found a wrong sum.
    looks: u64,
    wrong: u64,
    storms: bool,
    pods: Vec<PodStatus>,
    nodes: [Health; NODES],
}

#[derive(Serialize)]
struct PodStatus {
    is_alive: bool,
    ahead_ms: i64,
}

/// Writes a line for people.
pub type Note = fn(Arguments<'_>);

/// Runs the demo until its time is over or it is interrupted. True if every number was right.
///
/// # Errors
/// The address can't be used.
pub async fn run(args: &DemoArgs, note: Note) -> anyhow::Result<bool> {
    let listener = TcpListener::bind(args.listen).await;
    let listener = listener.with_context(|| {
        format!("{} can't be used; choose another address with --listen", args.listen)
    })?;
    let cluster = Cluster::new(Handle::current());
    let pods = Pods::start(Arc::clone(&cluster), constants());
    let load = Load::new(Arc::clone(&pods), Arc::clone(&cluster));
    let demo = Demo { cluster, pods, load };
    let address = listener.local_addr()?;
    note(format_args!(
        "Open http://{address}/ and break it. Ctrl-C ends the demo, and nothing is left behind."
    ));
    let routes = routes(demo.clone());
    let serving = tokio::spawn(async move { axum::serve(listener, routes).await });
    let clients = tokio::spawn(Arc::clone(&demo.load).run(args.rate));
    let looks = tokio::spawn({
        let load = Arc::clone(&demo.load);
        async move {
            loop {
                let _ = load.look().await;
                sleep(LOOK_EVERY).await;
            }
        }
    });
    let until = async {
        match args.span {
            Some(span) => sleep(span).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = until => {}
        _ = ctrl_c() => {}
        () = demo.press_buttons(), if args.chaos => {}
    }
    note(format_args!("Waiting until everything that was sent is acknowledged."));
    let end = async {
        demo.heal();
        demo.load.stop().await;
        looks.abort();
        demo.settle(note).await
    };
    let is_right = tokio::select! {
        biased;
        _ = ctrl_c() => bail!("interrupted before everything was acknowledged"),
        is_right = end => is_right,
    };
    clients.abort();
    serving.abort();
    demo.pods.end();
    Ok(is_right)
}

/// Short times, so that folds are seen.
fn constants() -> Constants {
    let seconds = |count| Some(Duration::from_secs(count));
    let constants = Constants::resolve(Overrides {
        lifetime: seconds(60),
        drain_margin: seconds(10),
        cutoff: seconds(30),
        request_budget: seconds(5),
        clock_offset_max: seconds(2),
        fence_quantum: Some(Duration::from_millis(900)),
        ..Overrides::default()
    });
    constants.expect("invariant: they are consistent")
}

impl Demo {
    /// Waits until the counters show what was acknowledged, and prints the books.
    async fn settle(&self, note: Note) -> bool {
        let begun = Instant::now();
        loop {
            let counted = self.load.look().await;
            let books = self.load.books();
            let is_right = counted.is_some() && books.are_right();
            if is_right || begun.elapsed() > END_TIME_MAX {
                let wrong = self.load.wrong.load(Ordering::Relaxed);
                let is_right = is_right && wrong == 0;
                note(format_args!(
                    "{}: acknowledged {}, given up {}, counted {}; a counter without ids says {}; {} requests, {wrong} wrong sums in {} checks",
                    if is_right { "every number is right" } else { "a number is WRONG" },
                    books.acked,
                    books.unknown,
                    books.counted,
                    books.native,
                    books.attempts,
                    self.load.looks.load(Ordering::Relaxed),
                ));
                return is_right;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// Undoes what buttons have done.
    fn heal(&self) {
        (0..NODES).for_each(|at| self.cluster.set_health(at, Health::Up));
        (0..PODS).for_each(|at| self.pods.clock(at).set_ahead(0));
        self.load.storms.store(false, Ordering::Relaxed);
    }

    /// Presses random buttons, and lets the demo recover now and then.
    async fn press_buttons(&self) {
        let random = crate::runtime::random::Random::system();
        let pick = |count: usize| random.below(u32::try_from(count).unwrap_or(1)) as usize;
        loop {
            sleep(Duration::from_millis(500 + u64::from(random.below(1_000)))).await;
            match random.below(13) {
                0..3 => self.pods.kill(pick(PODS)),
                3..5 => self.cluster.set_health(pick(NODES), Health::Cut),
                5..7 => self.cluster.set_health(pick(NODES), Health::Paused),
                7 => self.pods.clock(pick(PODS)).set_ahead(3_000),
                8 => self.load.storms.store(true, Ordering::Relaxed),
                9 => {
                    let load = Arc::clone(&self.load);
                    // A fold waits for nodes that are away. The next button does not.
                    tokio::spawn(async move { load.fold().await });
                }
                _ => self.heal(),
            }
        }
    }

    fn status(&self) -> Status {
        let load::Books { sent, acked, unknown, counted, native, attempts } = self.load.books();
        let pod = |(at, is_alive)| PodStatus { is_alive, ahead_ms: self.pods.clock(at).ahead_ms() };
        Status {
            sent,
            acknowledged: acked,
            unknown,
            counted,
            native,
            attempts,
            looks: self.load.looks.load(Ordering::Relaxed),
            wrong: self.load.wrong.load(Ordering::Relaxed),
            storms: self.load.storms.load(Ordering::Relaxed),
            pods: self.pods.are_alive().into_iter().enumerate().map(pod).collect(),
            nodes: self.cluster.health(),
        }
    }
}

fn routes(demo: Demo) -> Router {
    Router::new()
        .route("/demo", get(status))
        .route("/demo/heal", post(heal))
        .route("/demo/storm", post(storm))
        .route("/demo/pods/{at}/kill", post(kill))
        .route("/demo/pods/{at}/clock", post(clock))
        .route("/demo/nodes/{at}/{health}", post(break_node))
        .fallback(pass_on)
        .with_state(demo)
}

async fn status(State(demo): State<Demo>) -> Json<Status> {
    Json(demo.status())
}

async fn heal(State(demo): State<Demo>) -> Json<Status> {
    demo.heal();
    Json(demo.status())
}

/// Begins or ends a retry storm.
async fn storm(State(demo): State<Demo>) -> Json<Status> {
    demo.load.storms.fetch_xor(true, Ordering::Relaxed);
    Json(demo.status())
}

async fn kill(State(demo): State<Demo>, Path(at): Path<usize>) -> Response {
    if at >= PODS {
        return no_such("pod");
    }
    demo.pods.kill(at);
    Json(demo.status()).into_response()
}

#[derive(Deserialize)]
struct Ahead {
    ahead_ms: i64,
}

async fn clock(
    State(demo): State<Demo>,
    Path(at): Path<usize>,
    Query(Ahead { ahead_ms }): Query<Ahead>,
) -> Response {
    if at >= PODS {
        return no_such("pod");
    }
    demo.pods.clock(at).set_ahead(ahead_ms.clamp(-60_000, 60_000));
    Json(demo.status()).into_response()
}

async fn break_node(
    State(demo): State<Demo>,
    Path((at, health)): Path<(usize, String)>,
) -> Response {
    let health = match health.as_str() {
        "up" => Health::Up,
        "cut" => Health::Cut,
        "paused" => Health::Paused,
        _ => return no_such("state of a node"),
    };
    if at >= NODES {
        return no_such("node");
    }
    demo.cluster.set_health(at, health);
    Json(demo.status()).into_response()
}

fn no_such(what: &str) -> Response {
    (StatusCode::NOT_FOUND, Json(json!({"detail": format!("There is no such {what}.")})))
        .into_response()
}

/// All other requests go to the first pod that is alive.
async fn pass_on(State(demo): State<Demo>, request: Request) -> Response {
    match demo.pods.send_to_any(request).await {
        Ok(response) => response,
        Err(_) => {
            let detail = json!({"detail": "The pod of this request was killed; send it again."});
            (StatusCode::BAD_GATEWAY, Json(detail)).into_response()
        }
    }
}
