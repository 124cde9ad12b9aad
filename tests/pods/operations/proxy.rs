//! HAProxy with the rules of `compose/haproxy.cfg`: it sends an update a second time only if the update has an id.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::sleep;

use crate::haproxy::Proxy;
use crate::pod::Setup;
use crate::relay::{Relay, Request};

const PATH: &str = "/v1/counter/g/n";

/// How a server fails after it has received an update.
#[derive(Debug, Clone, Copy)]
enum Failure {
    /// The update is counted, and then the connection breaks, as if the pod was killed.
    Dies,
    /// The update is counted, and there is no answer, as if the pod was paused.
    Hangs,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_repeats_only_updates_with_ids() {
    let pod = Setup::new().start().await;
    let port = pod.port();
    let mut counted = 0;
    for failure in [Failure::Dies, Failure::Hangs] {
        // Two servers. Both fail at the first try of each id, and at each update without one.
        let failed: Arc<Mutex<HashSet<String>>> = Arc::default();
        let answer = move |_, request: Request| {
            let failed = failed.clone();
            async move {
                let fails = request.line().starts_with("POST")
                    && request.id().is_none_or(|id| failed.lock().expect("a set").insert(id));
                let answer = request.to(port).await;
                match failure {
                    _ if !fails => answer,
                    Failure::Dies => None,
                    Failure::Hangs => {
                        sleep(Duration::from_secs(30)).await;
                        None
                    }
                }
            }
        };
        let servers = [Relay::start(answer.clone()).await, Relay::start(answer).await];
        let proxy = Proxy::start(&pod.setup, &servers.each_ref().map(|server| server.port)).await;
        let tries = || {
            let all = servers.iter().flat_map(Relay::lines);
            all.filter(|line| line.starts_with("POST")).count()
        };
        for at in 0..4 {
            let id = format!("{failure:?} {at}");
            let answer = proxy.add(PATH, Some(&id)).await.expect("an answer");
            assert_eq!(answer.status, 200, "{id}: {}", answer.text());
        }
        counted += 4;
        assert_eq!(pod.count(PATH).await, counted, "{failure:?}: each id counts once");
        assert_eq!(tries(), 8, "{failure:?}: each id was sent twice");
        for _ in 0..3 {
            let answer = proxy.add(PATH, None).await.expect("an answer");
            let status = match failure {
                Failure::Dies => 502,
                Failure::Hangs => 504,
            };
            assert_eq!(answer.status, status, "{failure:?}: {}", answer.text());
        }
        counted += 3;
        assert_eq!(tries(), 8 + 3, "{failure:?}: without an id, nothing is sent twice");
        assert_eq!(pod.count(PATH).await, counted, "{failure:?}");
    }
}
