//! Keys with more rows than one answer can have. `make long` runs these tests with 600,000 rows.

use std::sync::Arc;

use orderfree::engine::service::GroupQuery;
use orderfree::limits::AnswerBounds;
use orderfree::pod::config::Switch;
use orderfree::pod::node::{Node, Parts};
use orderfree::store::{StoreError, prefix};
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::fold::{self, Plan, TALLY_BYTES_MAX};
use orderfree_core::protocol::prefix::{Part, Until};
use orderfree_core::protocol::{Key, Row, Timestamp};

use super::{Subject, key, total_of};

/// Rows per request, which is one mutation of one group.
const TOGETHER: usize = 250;

impl Subject {
    /// Writes rows that add 1 each.
    async fn fill(&self, key: &Key, rows: usize) {
        for at in (0..rows).step_by(TOGETHER) {
            let count = TOGETHER.min(rows - at);
            let writes: Vec<_> = (0..count).map(|_| self.shard(key, 1)).collect();
            assert_eq!(self.store.write_shards(&writes).await, Ok(()));
        }
    }

    /// Plans the fold of the oldest part of a long key.
    async fn plan_part(&self, key: &Key, now: Timestamp) -> Plan {
        let cut = fold::cut(now, &self.constants);
        let until = Until::cut(cut, self.store.bounds(key.kind).fold_step, TALLY_BYTES_MAX);
        let read = prefix::read(&*self.store, key, cut, until, 3).await.expect("a walk");
        fold::plan_prefix(read, now, &self.constants).expect("a plan")
    }

    /// Reads the key in parts to its end, and returns its total and its number of shards.
    async fn total_by_parts(&self, key: &Key) -> (i128, usize) {
        let now = self.now().wall;
        let until = Until::the_end(now);
        let read = prefix::read(&*self.store, key, now, until, 3).await.expect("a walk");
        let reading = read.into_reading().expect("a value");
        (total_of(&reading.state), reading.shards)
    }
}

/// The number of final rows, and also of live rows.
fn rows_each() -> usize {
    let asked = std::env::var("LONG_ROWS").ok();
    asked.map_or(12_000, |rows| rows.parse().expect("LONG_ROWS is a number"))
}

pub(crate) async fn more_rows_than_a_slice_takes_are_an_error(subject: Subject) {
    let key = key("g", "n");
    let writes: Vec<_> = (0..=10).map(|_| subject.shard(&key, 1)).collect();
    let oldest = writes[0].expires_at();
    subject.write_all(writes).await;
    let level = subject.store.levels().read;
    let read = |after| subject.store.read_slice(&key, after, level, 10);
    let error = read(None).await.expect_err("one too many");
    assert!(matches!(error, StoreError::TooManyRows { limit: 10, .. }), "{error}");
    // After the oldest row there are exactly 10.
    assert_eq!(read(Some(oldest)).await.expect("whole").len(), 10);
}

pub(crate) async fn a_part_has_the_oldest_rows_between_two_expiries(subject: Subject) {
    let key = key("g", "n");
    let writes: Vec<_> = (0..10).map(|_| subject.shard(&key, 1)).collect();
    let mut expiries: Vec<_> = writes.iter().map(|write| write.expires_at()).collect();
    expiries.sort_unstable();
    subject.write_all(writes).await;
    assert_eq!(subject.store.read_tally(&key).await.expect("an answer"), None);
    let found = async |after: Option<usize>, through: usize, limit| {
        let (after, through) = (after.map(|at| expiries[at]), expiries[through]);
        let part = |ids_only| Part { after, through, limit, ids_only };
        let rows = subject.store.read_part(&key, part(false)).await.expect("rows");
        let ids = subject.store.read_part(&key, part(true)).await.expect("rows");
        let id = |row: &Row| (row.expires_at, row.mutator_id);
        assert!(rows.iter().map(id).eq(ids.iter().map(id)), "with and without states");
        rows.iter().map(|row| row.expires_at).collect::<Vec<_>>()
    };
    assert_eq!(found(None, 9, 10).await, expiries);
    assert_eq!(found(None, 9, 3).await, expiries[..3]);
    assert_eq!(found(Some(2), 6, 10).await, expiries[3..7]);
    assert_eq!(found(Some(6), 6, 10).await, []);
    let fold = subject.fold(&key, subject.when_final()).await;
    let tally = subject.store.read_tally(&key).await.expect("an answer").expect("a tally");
    assert_eq!(tally.state, fold.tally());
    assert_eq!(found(None, 9, 10).await, [], "the tally is not a shard");
}

pub(crate) async fn a_long_key_is_read_whole_and_folded_step_by_step(subject: Subject) {
    let (long, rows) = (key("g", "long"), rows_each());
    assert!(rows > AnswerBounds::of(Kind::Counter).fold_rows, "the key is long");
    let neighbours = [key("g", "a"), key("g", "z")];
    subject.fill(&long, rows).await;
    let final_now = subject.when_final();
    subject.clock.advance(final_now.since(subject.now().wall));
    for neighbour in &neighbours {
        subject.put(neighbour, 7).await;
    }
    subject.fill(&long, rows).await;
    let all = i128::try_from(2 * rows).expect("few");
    let error = subject.store.read_for_fold(&long).await.expect_err("too many for one answer");
    assert_eq!(error.class(), "too_many_rows");
    assert_eq!(subject.total_by_parts(&long).await, (all, 2 * rows));

    // Read it as a pod does, alone and in its group.
    let (store, clock) = (Arc::clone(&subject.store), Arc::clone(&subject.clock) as _);
    let pod = Node::new(Parts { fold: Switch::Off, ..Parts::new(store, subject.constants, clock) });
    let service = pod.service();
    let value = service.read(&long, None).await.expect("readable").expect("there");
    assert_eq!((total_of(&value.state), value.shards), (all, 2 * rows));
    let (query, mut totals) = (GroupQuery::all(Kind::Counter, long.group.clone(), 10), Vec::new());
    let page = service.read_group(&query, |name, value| {
        totals.push((name.to_string(), total_of(&value.expect("readable").state)));
        0
    });
    page.await.expect("a page");
    let expected = [("a", 7), ("long", all), ("z", 7)].map(|(name, sum)| (name.to_owned(), sum));
    assert_eq!(totals, expected);

    // Two folders. The folder that reads first writes last, and undoes nothing.
    let (mut steps, mut folded) = (0, 0);
    loop {
        let plan = subject.plan_part(&long, final_now).await;
        let Some(late) = plan.fold() else { break };
        let (_, bytes) = subject.store.bounds(long.kind).fold_step;
        let cut = fold::cut(final_now, &subject.constants);
        let few = Until::cut(cut, (7, bytes), TALLY_BYTES_MAX);
        let other = prefix::read(&*subject.store, &long, cut, few, 3).await.expect("a walk");
        let other = fold::plan_prefix(other, final_now, &subject.constants).expect("a plan");
        subject.execute(other.fold().expect("the same rows are there")).await;
        assert_eq!(subject.total_by_parts(&long).await.0, all, "between two steps");
        subject.execute(late).await;
        folded += late.report().folded;
        steps += 1;
        if !late.report().has_more {
            break;
        }
    }
    assert_eq!(folded, rows);
    assert!(steps > rows / 30_000, "{steps} steps");
    assert_eq!(subject.total_by_parts(&long).await, (all, rows), "live rows stay");
    let value = service.read(&long, None).await.expect("readable").expect("there");
    assert_eq!((total_of(&value.state), value.shards), (all, rows));
    assert!(subject.store.read_tally(&long).await.expect("an answer").is_some());
}
