//! The pods of the demo. Each has a runtime of its own, so that it can be killed: nothing of it goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use futures::StreamExt;
use orderfree_core::protocol::Constants;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt;

use super::cluster::Cluster;
use super::store::{DemoClock, DemoStore};
use crate::pod::node::{Node, Parts};
use crate::runtime::random::Random;

/// Number of pods.
pub(super) const PODS: usize = 3;

/// How long a killed pod is away.
const RESTART_AFTER: Duration = Duration::from_secs(3);

/// Pieces of a stream that wait for their reader.
const PIECES_MAX: usize = 16;

/// See the [module documentation](self).
pub(super) struct Pods {
    slots: [Mutex<Option<Pod>>; PODS],
    clocks: [Arc<DemoClock>; PODS],
    cluster: Arc<Cluster>,
    constants: Constants,
    /// No pod comes back any more.
    has_ended: AtomicBool,
}

struct Pod {
    runtime: Runtime,
    router: Router,
}

/// Why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// There is no such pod now, so nothing was sent.
    Before,
    /// The pod was killed when it had the request.
    Meanwhile,
}

impl Pods {
    pub(super) fn start(cluster: Arc<Cluster>, constants: Constants) -> Arc<Pods> {
        let pods = Arc::new(Pods {
            slots: Default::default(),
            clocks: Default::default(),
            cluster,
            constants,
            has_ended: AtomicBool::new(false),
        });
        (0..PODS).for_each(|at| pods.boot(at));
        pods
    }

    fn boot(&self, at: usize) {
        let threads = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = threads.expect("a thread for a pod");
        let router = {
            let _inside = runtime.enter();
            let (cluster, clock) = (Arc::clone(&self.cluster), Arc::clone(&self.clocks[at]));
            let (random, constants) = (Random::system(), self.constants);
            let store = DemoStore { cluster, clock: Arc::clone(&clock), constants, random };
            let node = Node::new(Parts::new(Arc::new(store), constants, clock));
            node.start();
            node.router()
        };
        let mut slot = self.slot(at);
        // `end` takes the pods after it has set this, so it also takes a pod that comes back meanwhile.
        match self.has_ended.load(Ordering::SeqCst) {
            true => runtime.shutdown_background(),
            false => *slot = Some(Pod { runtime, router }),
        }
    }

    /// Kills a pod. It comes back by itself.
    pub(super) fn kill(self: &Arc<Self>, at: usize) {
        let Some(pod) = self.slot(at).take() else { return };
        pod.runtime.shutdown_background();
        let this = Arc::clone(self);
        Handle::current().spawn(async move {
            tokio::time::sleep(RESTART_AFTER).await;
            this.boot(at);
        });
    }

    pub(super) fn are_alive(&self) -> [bool; PODS] {
        std::array::from_fn(|at| self.slot(at).is_some())
    }

    pub(super) fn clock(&self, at: usize) -> &DemoClock {
        &self.clocks[at]
    }

    /// Sends a request to a pod.
    pub(super) async fn send(&self, at: usize, request: Request) -> Result<Response, Gone> {
        let (answered, answer) = oneshot::channel();
        {
            let slot = self.slot(at);
            let pod = slot.as_ref().ok_or(Gone::Before)?;
            let router = pod.router.clone();
            pod.runtime.spawn(async move {
                let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
                let (parts, body) = response.into_parts();
                // The body runs on timers of its pod, so the pod must also read it.
                let (told, pieces) = mpsc::channel::<Result<Bytes, axum::Error>>(PIECES_MAX);
                let pieces = futures::stream::unfold(pieces, |mut pieces| async {
                    Some((pieces.recv().await?, pieces))
                });
                let response = Response::from_parts(parts, Body::from_stream(pieces));
                if answered.send(response).is_err() {
                    return;
                }
                let mut body = body.into_data_stream();
                while let Some(piece) = body.next().await {
                    if told.send(piece).await.is_err() {
                        return;
                    }
                }
            });
        }
        answer.await.map_err(|_| Gone::Meanwhile)
    }

    /// Sends a request to the first pod that is alive.
    pub(super) async fn send_to_any(&self, request: Request) -> Result<Response, Gone> {
        let at = self.are_alive().iter().position(|is_alive| *is_alive).ok_or(Gone::Before)?;
        self.send(at, request).await
    }

    fn slot(&self, at: usize) -> MutexGuard<'_, Option<Pod>> {
        self.slots[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all pods. Killed ones do not come back.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        for at in 0..PODS {
            if let Some(pod) = self.slot(at).take() {
                pod.runtime.shutdown_background();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_killed_pod_comes_back_only_before_the_end() {
        let pods = Pods::start(Cluster::new(Handle::current()), super::super::constants());
        pods.kill(0);
        assert_eq!(pods.are_alive(), [false, true, true]);
        tokio::time::sleep(2 * RESTART_AFTER).await;
        assert_eq!(pods.are_alive(), [true; PODS]);
        pods.kill(1);
        pods.end();
        tokio::time::sleep(2 * RESTART_AFTER).await;
        assert_eq!(pods.are_alive(), [false; PODS], "a pod came back after the end");
    }
}
