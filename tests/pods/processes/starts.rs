//! A pod that starts before its schema or its nodes becomes ready by itself.

use std::time::{Duration, Instant};

use crate::cassandra::{CLUSTER, DEFINING, cql, drop_keyspace, unmade_on_own};
use crate::pod::run;
use crate::{defaults, is_refused, pods, ready};

const KEY: &str = "/v1/counter/site/home";

/// Longer than a check of the store and the pause before the next one.
const SAYS_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_started_before_its_schema_counts_after_it_is_applied() {
    let _others_too = CLUSTER.read().await;
    // The script's own cluster, because the name of its data centre is known.
    let config = unmade_on_own(defaults());
    let keyspace = &config.keyspace;
    let mut pod = pods(&config).spawn();
    let missing = |what: &str| {
        format!("waiting for the store: {what} is missing; run `orderfree schema apply`")
    };
    pod.logs(&missing(&format!("keyspace {keyspace}")), SAYS_WITHIN).await;
    // A pod may look between its two statements.
    let replicas = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 3}";
    cql(&config, &format!("CREATE KEYSPACE {keyspace} WITH replication = {replicas}")).await;
    pod.logs(&missing(&format!("table {keyspace}.shards")), SAYS_WITHIN).await;
    assert!(is_refused(pod.port()).await, "it can't serve yet");

    let points = config.contact_points.join(",");
    let place = [("ORDERFREE_CASSANDRA", points.as_str()), ("ORDERFREE_KEYSPACE", keyspace)];
    let applied = {
        let _one_at_a_time = DEFINING.lock().await;
        run(&["schema", "apply"], &place).await
    };
    assert!(applied.status.success(), "{applied:?}");
    let began = Instant::now();
    ready(&mut pod).await;
    println!("ready {:?} after the schema was applied", began.elapsed());
    for by in ["2", "3"] {
        let added = pod.ask("POST", KEY, &[("content-type", "text/plain")], by).await;
        assert_eq!(added.status, 200, "{}", added.text());
    }
    assert_eq!(pod.count(KEY).await, 5);
    // The level of pods. `doctor` itself reads at the level of folds.
    let weak = [place[0], place[1], ("ORDERFREE_READ_CONSISTENCY", "one")];
    let doctor = run(&["doctor"], &weak).await;
    let said = String::from_utf8_lossy(&doctor.stdout);
    let wrong = "WRONG levels: write consistency local_quorum and read consistency one";
    assert!(!doctor.status.success() && said.contains(wrong), "{said}");
    drop_keyspace(&config).await;
}
