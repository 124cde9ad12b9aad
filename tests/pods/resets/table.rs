//! Where the table of resets is missing, and while it is new.

use std::sync::Arc;

use orderfree::engine::resetter::ResetFailure;
use orderfree::pod::node::{Node, Parts};
use orderfree::runtime::clock::{Clock, SystemClock};
use orderfree::store::Store;
use orderfree::store::cassandra::schema;
use orderfree_core::crdt::{CounterOp, Op};
use orderfree_core::protocol::Durability;

use crate::cassandra::{CLUSTER, DEFINING, connect, drop_keyspace, unmade_on_own};
use crate::contract::key;
use crate::pod::constants;

/// Every pod must have found the table before a key is reset: what another one acknowledges would be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_reset_without_the_table_or_while_it_is_new() {
    let _others_too = CLUSTER.read().await;
    let config = unmade_on_own(constants());
    let apply = async |with_resets| {
        let _one_at_a_time = DEFINING.lock().await;
        schema::apply(&config, None, with_resets).await.expect("applied");
    };
    apply(false).await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let store: Arc<dyn Store> = connect(&config, Arc::clone(&clock)).await;
    let node = Node::new(Parts::new(store, config.constants, clock));
    let (resetter, key) = (node.resetter(), key("g", "n"));
    let add = async || {
        let ops = vec![Op::Counter(CounterOp::Add { by: 1 })];
        node.service().update(&key, ops, Durability::Stored).await.expect("acknowledged");
    };
    let refused = async || match resetter.reset(&key, false).await {
        Err(ResetFailure::Obstacle(why)) => why,
        other => panic!("{other:?}"),
    };
    resetter.look().await;
    add().await;
    let why = refused().await;
    assert!(why.contains("no table") && why.contains("orderfree schema apply"), "{why}");
    apply(true).await;
    resetter.look().await;
    add().await;
    let why = refused().await;
    assert!(why.contains("less than 5 minutes ago; wait"), "{why}");
    let value = node.service().read(&key, None).await.expect("readable").expect("a value");
    assert_eq!(value.shards, 1, "nothing was reset");
    drop_keyspace(&config).await;
}
