//! `orderfree purge` removes the graves that every replica has had for a day, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::cassandra::CassandraConfig;
use orderfree_core::protocol::fold::{self, Idle, Plan};
use orderfree_core::protocol::{Constants, Key, Mutator, MutatorId, Now, Overrides};
use uuid::Uuid;

use crate::cassandra::{CLUSTER, connect, drop_keyspace, fresh_on_own};
use crate::contract::{Subject, key, next_write};
use crate::pod::run;

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// The machine's clocks. The wall clock is behind by this time.
struct Behind(Duration);

impl Clock for Behind {
    fn now(&self) -> Now {
        let Now { wall, boot } = SystemClock.now();
        Now { wall: wall.minus(self.0), boot }
    }
}

/// Counts in a key four days before a time that was `age` ago, and forgets the key at that time.
async fn bury(config: &CassandraConfig, key: &Key, age: Duration) {
    let (constants, clock) = (config.constants, Arc::new(Behind(age + 4 * DAY)));
    let store = connect(config, clock.clone()).await;
    let id = MutatorId::new(Uuid::new_v4());
    let mut mutator = Mutator::born(key.clone(), id, None, clock.now(), &constants);
    let write = next_write(&mut mutator, 5, clock.now());
    assert_eq!(store.write_shard(&write).await, Ok(()));
    let read_at = clock.now().boot;
    let read = store.read_for_fold(key).await.expect("a full read");
    let idle = Some(Idle { ttl: 2 * DAY, read_at });
    let forgotten = fold::plan_or_forget(&read, idle, Behind(age).now().wall, &constants);
    let Ok(Plan::Fold(grave)) = forgotten else { panic!("{forgotten:?}") };
    assert!(grave.report().forgotten);
    assert_eq!(store.write_fold(&grave).await, Ok(()));
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_purge_removes_only_graves_that_are_old() {
    let _others_too = CLUSTER.read().await;
    let constants = Constants::resolve(Overrides::default()).expect("defaults");
    let config = fresh_on_own(constants).await;
    let [old, young, alive] = ["old", "young", "alive"].map(|name| key("g", name));
    bury(&config, &old, 2 * DAY).await;
    bury(&config, &young, HOUR).await;
    let subject = Subject::on_cluster(&config).await;
    subject.put(&alive, 5).await;

    let now_us = SystemClock.now().wall.as_micros();
    let repaired = DateTime::from_timestamp_micros(now_us).expect("a time").to_rfc3339();
    let purge = async |more: &[&str]| {
        let more = [&["--repaired-since", &repaired], more].concat();
        let output = run(&config, "purge", &more).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for (more, says, rows) in [
        (&["--dry-run"][..], "2 graves: 1 can be removed (dry run), 0 not checked;", 1),
        (&[], "2 graves: 1 removed, 0 not checked;", 0),
        (&[], "1 graves: 0 removed, 0 not checked;", 0),
    ] {
        let said = purge(more).await;
        assert!(said.starts_with(says), "{said}");
        assert_eq!(subject.rows(&old).await, Ok(rows), "{said}");
    }
    assert_eq!(subject.rows(&young).await, Ok(1));
    assert_eq!(subject.total(&young).await, None);
    assert_eq!(subject.total(&alive).await, Some(5));
    subject.store.close().await;
    drop_keyspace(&config).await;
}
