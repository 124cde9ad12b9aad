//! The contract suite on the embedded store. `embedded/` has the tests of what only a file can get wrong.

mod contract;

use std::sync::Arc;

use contract::{Subject, TestClock, short_constants};
use orderfree::store::embedded::EmbeddedStore;

every_test!(with_store);

async fn with_store(test: impl AsyncFnOnce(Subject)) {
    let folder = tempfile::tempdir().expect("a folder");
    let (clock, constants) = (Arc::new(TestClock::default()), short_constants());
    let path = folder.path().join("counters.redb");
    let store = EmbeddedStore::open(&path, constants, Arc::clone(&clock) as _).expect("a store");
    let subject = Subject { store: Arc::new(store), clock, constants };
    test(subject.clone()).await;
    subject.store.close().await;
}
