//! Keys that take turns in a pod where only one may be awake: each continues in its own row.

use std::sync::Arc;

use orderfree::engine::write::{Bounds, Updates};
use orderfree::pod::config::Switch;
use orderfree::pod::node::{Node, Parts};
use orderfree::policy::{Policies, Policy};
use orderfree::store::embedded::EmbeddedStore;
use orderfree_core::crdt::{Counter, CounterOp, Kind, Op};
use orderfree_core::protocol::{Durability, Key, Name};

use crate::world::{TurnedClock, constants};

const UPDATES: i128 = 1_000_000;

/// Updates of one key before it is the other key's turn.
const OF_A_TURN: usize = 125;

/// Turns between two checks of the values.
const LOOK_EVERY: i128 = 200;

/// Each turn puts the other key to rest. If the pod forgot it instead, each turn would leave a row, until neither key
/// could be read.
#[tokio::test]
async fn two_alternating_keys_have_few_rows_after_a_million_updates() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = TurnedClock::new();
    let store = EmbeddedStore::open(&folder.path().join("rows.redb"), constants(), clock.clone());
    let policy: Policy =
        "[[quota]]\ngroup_prefix = \"\"\nlive_mutators = 1\n".parse().expect("a policy");
    let store = Arc::new(store.expect("a store"));
    let node = Node::new(Parts {
        bounds: Bounds::awake(1_000),
        policies: Policies::from(policy),
        fold: Switch::Off,
        ..Parts::new(store, constants(), clock)
    });
    let service = node.service();
    let keys = ["a", "b"].map(|name| {
        let checked = |text| Name::new(text).expect("a name");
        Key { kind: Kind::Counter, group: checked("g"), name: checked(name) }
    });
    let turns = UPDATES / OF_A_TURN as i128;
    for turn in 0..turns {
        let key = &keys[usize::from(turn % 2 == 1)];
        let add = || vec![Op::Counter(CounterOp::Add { by: 1 })].into();
        let lists = (0..OF_A_TURN).map(|_| add()).collect();
        let updates = Updates { key: key.clone(), lists };
        let outcomes = service.update_all(vec![updates], Durability::Stored).await;
        assert!(outcomes.iter().all(Result::is_ok), "turn {turn}: {:?}", outcomes[0]);
        if turn % LOOK_EVERY == LOOK_EVERY - 1 {
            let read = service.read(key, None).await.expect("it can be read").expect("it is there");
            let total = Counter::try_from(read.state.clone()).expect("a counter").total();
            assert_eq!(total, (turn + 1) / 2 * OF_A_TURN as i128, "turn {turn}");
        }
    }
    for key in &keys {
        let read = service.read(key, None).await.expect("it can be read").expect("it is there");
        let total = Counter::try_from(read.state.clone()).expect("a counter").total();
        assert_eq!(total, UPDATES / 2);
        let rows = service.shards(key).await.expect("it can be read").shards.len();
        assert!(rows <= 50, "{rows} rows");
    }
    let metrics = service.metrics();
    assert!(i128::from(metrics.wakes.get()) + 10 > turns, "{}", metrics.wakes.get());
}
