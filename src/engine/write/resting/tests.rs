use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use proptest::prelude::*;

use orderfree_core::protocol::Timestamp;

use super::*;

struct Hashes(RandomState);

impl HashesKeys for Hashes {
    fn hash_parts(&self, kind: Kind, group: &[u8], name: &[u8]) -> u64 {
        self.0.hash_one((kind, group, name))
    }
}

/// All keys share three hashes.
struct Collides;

impl HashesKeys for Collides {
    fn hash_parts(&self, _: Kind, _: &[u8], name: &[u8]) -> u64 {
        u64::from(name[name.len() - 1] % 3) << 32
    }
}

/// A key of 40 bytes.
fn key(at: usize) -> Key {
    let name = |text: &str| Name::new(text).expect("a name");
    Key {
        kind: Kind::Counter,
        group: name("group-of-18-bytes!"),
        name: name(&format!("{at:0>22}")),
    }
}

fn writer(at: usize) -> Writer {
    Writer::of_state(&key(at))
}

const A: Tenant = Tenant::OTHERS;
const B: Tenant = Tenant::numbered(1);
const C: Tenant = Tenant::numbered(2);

struct World<H> {
    table: Resting,
    hasher: H,
}

impl<H: HashesKeys> World<H> {
    fn new(bytes_max: usize, hasher: H) -> World<H> {
        World { table: Resting::new(bytes_max), hasher }
    }

    fn insert(&mut self, tenant: Tenant, at: usize, mutator: &[u8]) -> usize {
        self.insert_keeping(tenant, at, mutator, |_| false)
    }

    fn insert_keeping(
        &mut self,
        tenant: Tenant,
        at: usize,
        mutator: &[u8],
        keeps: impl Fn(u64) -> bool,
    ) -> usize {
        let hash = self.hasher.hash_key(&key(at));
        let record = Record::new(&writer(at), Stay::State, mutator);
        let forgotten = self.table.insert(hash, tenant, record, &self.hasher, keeps);
        assert!(self.table.bytes() <= self.table.bytes_max, "{}", self.table.bytes());
        forgotten
    }

    fn find(&self, at: usize) -> Option<&[u8]> {
        self.table.find(self.hasher.hash_key(&key(at)), &writer(at))
    }

    fn remove(&mut self, at: usize) -> Option<Vec<u8>> {
        let hash = self.hasher.hash_key(&key(at));
        let removed = self.table.remove(hash, &writer(at), &self.hasher);
        removed.map(|(record, _)| record.mutator().to_vec())
    }
}

const AMPLE: usize = 1 << 30;

#[derive(Debug, Clone)]
enum Step {
    Insert(usize, u8),
    Remove(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..40usize, any::<u8>()).prop_map(|(at, length)| Step::Insert(at, length)),
        2 => (0..40usize).prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 0..200)
}

fn behaves_as_a_map(steps: Vec<Step>, mut world: World<impl HashesKeys>) {
    let mut model: HashMap<usize, Vec<u8>> = HashMap::new();
    for step in steps {
        match step {
            Step::Insert(at, length) if !model.contains_key(&at) => {
                let mutator = vec![length; length.into()];
                assert_eq!(world.insert([A, B, C][at % 3], at, &mutator), 0);
                model.insert(at, mutator);
            }
            Step::Insert(..) => {}
            Step::Remove(at) => assert_eq!(world.remove(at), model.remove(&at)),
        }
        assert_eq!(world.table.len(), model.len());
    }
    for at in 0..40 {
        assert_eq!(world.find(at), model.get(&at).map(Vec::as_slice));
    }
    let records = model.values().map(|mutator| allocated(HEADER_BYTES + 40 + mutator.len()));
    assert_eq!(world.table.records_bytes, records.sum::<usize>());
}

proptest! {
    #[test]
    fn it_has_what_was_put_there(steps in steps()) {
        behaves_as_a_map(steps.clone(), World::new(AMPLE, Hashes(RandomState::new())));
        behaves_as_a_map(steps, World::new(AMPLE, Collides));
    }
}

#[test]
fn sizes_are_those_of_the_allocator() {
    for (bytes, taken) in [
        (1, 16),
        (16, 16),
        (17, 32),
        (64, 64),
        (65, 80),
        (88, 96),
        (97, 112),
        (128, 128),
        (129, 160),
        (256, 256),
        (257, 320),
        (1_000, 1_024),
        (262_144, 262_144),
    ] {
        assert_eq!(allocated(bytes), taken, "{bytes}");
    }
}

/// Ten million keys fit into 1.5 GiB.
#[test]
fn a_counter_with_a_key_of_40_bytes_takes_150_bytes() {
    let mut world = World::new(AMPLE, Hashes(RandomState::new()));
    for at in 0..100_000 {
        world.insert(A, at, &[7; 48]);
        if at > 5_000 {
            let each = world.table.bytes() / (at + 1);
            assert!(each <= 150, "{each} bytes for each of {at}");
        }
    }
}

#[test]
fn a_full_table_stays_within_its_bytes_and_forgets_the_oldest() {
    const BYTES: usize = 100_000;
    let mut world = World::new(BYTES, Hashes(RandomState::new()));
    let forgotten: usize = (0..20_000).map(|at| world.insert(A, at, &[1; 48])).sum();
    let left = world.table.len();
    assert_eq!(forgotten + left, 20_000);
    assert!(left * 150 > BYTES * 9 / 10, "{left} of them fit");
    for at in 0..20_000 {
        assert_eq!(world.find(at).is_some(), at >= forgotten, "{at}");
    }
}

#[test]
fn a_table_of_no_bytes_takes_nothing() {
    let mut world = World::new(0, Hashes(RandomState::new()));
    assert_eq!((world.insert(A, 1, &[1]), world.table.len(), world.table.bytes()), (1, 0, 0));
}

#[test]
fn a_record_that_would_drive_out_many_is_forgotten_itself() {
    let mut world = World::new(10_000, Hashes(RandomState::new()));
    world.insert(A, 1, &[1]);
    assert_eq!(world.insert(A, 2, &[2; 3_000]), 1);
    assert!(world.find(1).is_some() && world.find(2).is_none());
}

/// A tenant within its share loses nothing, whatever others do.
#[test]
fn tenants_share_a_full_table_fairly() {
    const BYTES: usize = 100_000;
    let mut world = World::new(BYTES, Hashes(RandomState::new()));
    for at in 0..200 {
        world.insert(B, at, &[1; 48]);
    }
    for at in 1_000..20_000 {
        world.insert(A, at, &[1; 48]);
    }
    for at in 0..200 {
        assert!(world.find(at).is_some(), "the small tenant's {at}");
    }
    // A third tenant takes its share from the large one, and no more.
    for at in 20_000..40_000 {
        world.insert(C, at, &[1; 48]);
    }
    let bytes = |tenant| world.table.lists[&(tenant, Stay::State)].bytes;
    assert!(bytes(A).abs_diff(bytes(C)) < 1_000, "{} and {}", bytes(A), bytes(C));
    assert!((0..200).all(|at| world.find(at).is_some()));
    // Beyond its share, the small tenant loses its own entries.
    for at in 40_000..60_000 {
        world.insert(B, at, &[1; 48]);
    }
    assert!(world.find(0).is_none());
    let bytes = |tenant| world.table.lists[&(tenant, Stay::State)].bytes;
    assert!(bytes(A).abs_diff(bytes(B)) < 1_000, "{} and {}", bytes(A), bytes(B));
}

#[test]
fn a_key_that_keeps_its_place_is_passed_over() {
    let mut world = World::new(10_000, Hashes(RandomState::new()));
    let kept = world.hasher.hash_key(&key(0));
    for at in 0..1_000 {
        world.insert_keeping(A, at, &[1; 48], |hash| hash == kept);
    }
    assert!(world.find(0).is_some() && world.find(1).is_none());
    let all = world.table.len();
    assert_eq!(world.insert_keeping(A, 2_000, &[1; 48], |_| true), 1, "the limit still holds");
    assert_eq!(world.table.len(), all);
}

#[test]
fn those_that_are_over_go_from_the_old_end() {
    let mut world = World::new(AMPLE, Hashes(RandomState::new()));
    for (at, over) in [1, 1, 0, 1, 1, 0].into_iter().enumerate() {
        world.insert([A, B][at % 2], at, &[over]);
    }
    world.table.tidy(&world.hasher, |mutator| mutator == [1]);
    let left: Vec<usize> = (0..6).filter(|at| world.find(*at).is_some()).collect();
    assert_eq!(left, [2, 4, 5], "entries after one that stays also stay");
}

/// The bytes of a pack's mutator begin with its expiry, as those of every mutator do.
fn pack(expires_at: i64) -> (Writer, Vec<u8>) {
    let until = Some(Timestamp::from_micros(expires_at));
    (Writer { key: key(0), until }, [&expires_at.to_le_bytes()[..], &[1; 40]].concat())
}

#[test]
fn a_key_has_a_state_and_packs_by_their_expiries() {
    let hasher = Hashes(RandomState::new());
    let hash = hasher.hash_key(&key(0));
    let mut table = Resting::new(AMPLE);
    let state = (writer(0), vec![7; 48]);
    for (writer, mutator) in [state.clone(), pack(100), pack(200)] {
        let stay = if writer.until.is_some() { Stay::Half } else { Stay::State };
        table.insert(hash, A, Record::new(&writer, stay, &mutator), &hasher, |_| false);
    }
    for (writer, mutator) in [state, pack(200), pack(100)] {
        assert_eq!(table.find(hash, &writer), Some(&mutator[..]));
        let (removed, _) = table.remove(hash, &writer, &hasher).expect("it is there");
        assert_eq!(removed.mutator(), mutator);
        assert_eq!(table.find(hash, &writer), None);
    }
    assert_eq!((table.len(), table.find(hash, &pack(300).0)), (0, None));
}

/// Otherwise packs whose windows are over would take the place of states until these are dropped.
#[test]
fn packs_are_dropped_though_states_that_rest_longer_stay() {
    let hasher = Hashes(RandomState::new());
    let hash = hasher.hash_key(&key(0));
    let mut table = Resting::new(AMPLE);
    let states = Record::new(&writer(0), Stay::State, &[7; 48]);
    table.insert(hash, A, states, &hasher, |_| false);
    for (expires_at, stay) in [(900, Stay::Days), (100, Stay::Minutes), (200, Stay::Half)] {
        let (writer, mutator) = pack(expires_at);
        table.insert(hash, A, Record::new(&writer, stay, &mutator), &hasher, |_| false);
    }
    table.tidy(&hasher, |mutator| Mutator::resting_expiry(mutator).as_micros() < 500);
    assert_eq!(table.len(), 2);
    assert!(table.find(hash, &pack(900).0).is_some() && table.find(hash, &writer(0)).is_some());
}
