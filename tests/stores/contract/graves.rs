//! Keys that are forgotten: a fold whose tally is newer than its deletion.

use std::time::Duration;

use orderfree_core::protocol::Key;
use orderfree_core::protocol::fold::{self, Fold, Grave, Idle, Plan};

use super::{Subject, key};

/// Plans to forget a key that was idle for a cutoff, by the subject's clock.
async fn forgotten(subject: &Subject, key: &Key) -> Fold {
    let read_at = subject.now().boot;
    let read = subject.store.read_for_fold(key).await.expect("a full read");
    let idle = Some(Idle { ttl: subject.constants.cutoff(), read_at });
    match fold::plan_or_forget(&read, idle, subject.now().wall, &subject.constants) {
        Ok(Plan::Fold(fold)) if fold.report().forgotten => fold,
        other => panic!("{other:?}"),
    }
}

/// Everything that was written before has been final for a while.
fn wait(subject: &Subject) {
    let now = subject.now().wall;
    subject.clock.advance(subject.when_final().since(now));
}

pub(crate) async fn a_grave_wins_over_folds_that_were_planned_before(subject: Subject) {
    let key = key("g", "n");
    for by in [1, 10] {
        subject.put(&key, by).await;
    }
    wait(&subject);
    let (constants, now) = (subject.constants, subject.now().wall);
    let apart = 2 * constants.clock_offset_max() + constants.fence_quantum();
    let [behind, ahead] = [now.minus(constants.fence_quantum()), now.plus(apart)];
    let (behind, ahead) = (subject.plan(&key, behind).await, subject.plan(&key, ahead).await);
    let grave = forgotten(&subject, &key).await;
    assert!(grave.fence() < ahead.fence() && ahead.timestamp() < grave.tally_timestamp());
    subject.execute(&behind).await;
    assert_eq!(subject.total(&key).await, Some(11));
    subject.execute(&grave).await;
    // The same again, which may be sent at any time.
    let later = subject.now().wall.plus(constants.grave_head_start());
    let again = subject.plan(&key, later).await;
    assert_eq!((again.tally(), again.fence()), (grave.tally(), grave.fence()));
    assert_eq!(again.tally_timestamp(), grave.tally_timestamp());
    for fold in [&ahead, &behind, &again, &ahead] {
        subject.execute(fold).await;
        assert_eq!(subject.total(&key).await, None);
        assert_eq!(subject.rows(&key).await.expect("rows"), 1);
    }
    // Neither the grave nor the folds touch a later update, and a fold of that update ends the grave.
    subject.put(&key, 100).await;
    subject.execute(&again).await;
    assert_eq!(subject.total(&key).await, Some(100));
    let ended = subject.fold(&key, subject.when_final()).await;
    assert!(grave.tally_timestamp() < ended.timestamp() && !ended.report().is_grave);
    subject.execute(&again).await;
    assert_eq!(subject.total(&key).await, Some(100));
}

pub(crate) async fn a_grave_is_written_again_and_removed_once_it_is_old(subject: Subject) {
    let (key, constants) = (key("g", "n"), subject.constants);
    subject.put(&key, 7).await;
    wait(&subject);
    let grave = forgotten(&subject, &key).await;
    subject.execute(&grave).await;
    subject.fold(&key, subject.now().wall.plus(constants.grave_head_start())).await;
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    let settled = grave.fence().plus(constants.grave_repeats_for());
    assert_eq!(Grave::of(&read, settled.shifted(-1), &constants), None);
    let old = Grave::of(&read, settled, &constants).expect("it is settled");
    // A tally that was written since the read stays.
    subject.put(&key, 8).await;
    subject.fold(&key, subject.when_final()).await;
    assert_eq!(subject.store.remove_grave(&old).await, Ok(()));
    assert_eq!(subject.total(&key).await, Some(8));
    wait(&subject);
    wait(&subject);
    let grave = forgotten(&subject, &key).await;
    subject.execute(&grave).await;
    let read = subject.store.read_for_fold(&key).await.expect("a full read");
    let settled = grave.fence().plus(constants.grave_repeats_for());
    let old = Grave::of(&read, settled, &constants).expect("it is settled");
    assert_eq!(subject.store.remove_grave(&old).await, Ok(()));
    assert_eq!(subject.rows(&key).await.expect("no rows"), 0);
}

pub(crate) async fn a_key_is_not_forgotten_long_after_its_read(subject: Subject) {
    let key = key("g", "n");
    subject.put(&key, 7).await;
    wait(&subject);
    let grave = forgotten(&subject, &key).await;
    subject.clock.advance(subject.constants.request_budget() + Duration::from_millis(1));
    let outcome = subject.store.write_fold(&grave).await;
    assert!(outcome.is_err(), "{outcome:?}");
    assert_eq!(subject.total(&key).await, Some(7));
}
