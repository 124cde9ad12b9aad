//! The life of a pod: it starts, serves, handles signals, and drains.

use std::pin::pin;

use thiserror::Error;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http;
use crate::limits;
use crate::pod::config::ServeArgs;
use crate::pod::rotation::Rotation;
use crate::pod::start::{Started, start};
use crate::policy::Policies;

/// An operator sent a second signal, so the pod ends without a drain.
#[derive(Debug, Error)]
#[error("a second signal: ended without writing everything")]
pub struct SecondSignal;

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence that says what is wrong and what to do: the pod can't start or go on, or some writes were not
/// done when it ended.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let rotation = Rotation::begin(&args);
    let policies = Policies::open(args.policy.as_deref(), args.store.constants()?)?;
    args.check(policies.authenticates())?;
    #[cfg(debug_assertions)]
    if let Some(task) = args.faults.panic_in {
        tracing::warn!("this is a test: the task {:?} will panic", task.name());
        crate::runtime::tasks::panic_in(task);
    }
    // Before anything else, so that a signal also stops a pod that still waits for its store.
    let mut signals = Signals::listen()?;
    let started = tokio::select! {
        biased;
        _ = signals.end() => return Ok(()),
        started = start(&args, policies) => started?,
    };
    let Started { node, users, admins, readers } = started;
    let (reload, asked) = watch::channel(());
    if signals.hung_up {
        reload.send_replace(());
    }
    let mut rotating = pin!(rotation.follow(readers, node.metrics(), asked));
    let closing = CancellationToken::new();
    let mut serving = pin!(async {
        match admins {
            None => users.serve(node.router(), closing.clone()).await,
            Some(admins) => {
                let (for_users, for_admins) = http::routers_apart(node.app());
                let users = users.serve(for_users, closing.clone());
                futures::join!(users, admins.serve(for_admins, closing.clone()));
            }
        }
    });
    let signal = loop {
        let signal = tokio::select! {
            biased;
            signal = signals.next() => signal,
            reason = node.failed() => anyhow::bail!(reason),
            () = &mut serving => anyhow::bail!("the listeners stopped without a signal; restart the pod"),
            never = &mut rotating => match never {},
        };
        if signal != Signal::Hangup {
            break signal;
        }
        reload.send_replace(());
    };
    let ending = async {
        node.health.set_draining();
        if signal == Signal::Terminate {
            tracing::info!(grace = ?args.unready_grace, "unready; serving on for a while");
            let _ = tokio::time::timeout(args.unready_grace, &mut serving).await;
        }
        closing.cancel();
        tracing::info!("no more requests are taken; writing pending updates");
        let deadline = Instant::now() + limits::DRAIN_MAX;
        let _ = tokio::time::timeout(limits::REQUESTS_DRAIN_MAX, &mut serving).await;
        node.stop(deadline.saturating_duration_since(Instant::now())).await
    };
    let unwritten = tokio::select! {
        biased;
        () = signals.end() => return Err(SecondSignal.into()),
        unwritten = ending => unwritten,
    };
    anyhow::ensure!(unwritten == 0, "{unwritten} keys' last updates could not be written in time");
    tracing::info!("everything is written; goodbye");
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Signal {
    Terminate,
    Interrupt,
    Hangup,
}

/// The signals that a pod handles. Once this exists, none of them kills the process.
struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hangup: unix::Signal,
    /// A SIGHUP came before the pod could reload anything.
    hung_up: bool,
}

impl Signals {
    fn listen() -> anyhow::Result<Signals> {
        Ok(Signals {
            terminate: unix::signal(SignalKind::terminate())?,
            interrupt: unix::signal(SignalKind::interrupt())?,
            hangup: unix::signal(SignalKind::hangup())?,
            hung_up: false,
        })
    }

    async fn next(&mut self) -> Signal {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.hangup.recv() => Signal::Hangup,
        }
    }

    /// Waits for the next signal that ends a pod.
    async fn end(&mut self) {
        while self.next().await == Signal::Hangup {
            self.hung_up = true;
        }
    }
}
