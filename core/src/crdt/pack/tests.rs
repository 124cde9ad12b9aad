use super::*;
use crate::crdt::{CounterOp, Distinct};
use proptest::prelude::*;

fn id(id: u128, index: u32) -> OpId {
    OpId { id: id.to_be_bytes(), index }
}

fn add(by: i64) -> Op {
    Op::Counter(CounterOp::Add { by })
}

fn op(op_id: OpId, sequence: u64, by: i64) -> IdOp {
    IdOp::new(Kind::Counter, op_id, sequence, &[add(by)]).expect("an op")
}

fn bytes(pack: &Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack.encode(&mut bytes);
    bytes
}

fn total(packs: &[Pack]) -> (i128, United) {
    let bytes: Vec<Vec<u8>> = packs.iter().filter(|pack| pack.bytes() > 0).map(bytes).collect();
    let stored: Vec<_> =
        bytes.iter().map(|bytes| StoredPack::decode(None, bytes).expect("a pack")).collect();
    let (entries, united) = unite(stored.iter());
    let mut state = State::identity(Kind::Counter);
    for entry in entries {
        state.merge(&entry.state(Kind::Counter).expect("a delta")).expect("in range");
    }
    let State::Counter(counter) = state else { panic!("{state:?}") };
    (counter.total(), united)
}

/// Kept permanently: a release that can't read these bytes loses data.
#[test]
fn golden_bytes() {
    let mut pack = Pack::new(Kind::Counter, None);
    pack.put(&op(id(0x0102, 300), 7, -2)).expect("room");
    pack.put(&op(id(0x0102, 0), 0, 64)).expect("room");
    let hex: String = bytes(&pack).iter().map(|byte| format!("{byte:02x}")).collect();
    let id = "0".repeat(28) + "0102";
    assert_eq!(hex, format!("02{id}0000028001{id}ac02070103"));
}

#[test]
fn an_id_is_taken_once() {
    let mut pack = Pack::new(Kind::Counter, None);
    assert_eq!(pack.put(&op(id(1, 0), 0, 5)), Ok(Effect::Changed));
    let before = pack.clone();
    assert_eq!(pack.put(&op(id(1, 0), 0, 5)), Ok(Effect::Unchanged));
    assert_eq!(pack.put(&op(id(1, 0), 0, 6)), Err(OpError::IdReused));
    assert_eq!(pack, before);
    assert_eq!(pack.put(&op(id(1, 1), 0, 6)), Ok(Effect::Changed), "another place");
    assert_eq!(total(&[pack]).0, 11);
}

#[test]
fn a_greater_total_replaces_a_smaller_one() {
    let mut pack = Pack::new(Kind::Counter, None);
    assert_eq!(pack.put(&op(id(1, 0), 3, 300)), Ok(Effect::Changed));
    assert_eq!(pack.put(&op(id(1, 0), 5, 500)), Ok(Effect::Changed));
    assert_eq!(pack.put(&op(id(1, 0), 4, 400)), Err(OpError::SequenceBehind(5)));
    assert_eq!(pack.put(&op(id(1, 0), 5, 501)), Err(OpError::IdReused));
    assert_eq!(bytes(&pack).len(), pack.bytes() + 1);
    assert_eq!(total(&[pack]).0, 500);
}

#[test]
fn a_full_pack_takes_only_the_ids_it_has() {
    let mut pack = Pack::new(Kind::Counter, None);
    let mut next = 0;
    let refused = loop {
        let op = op(id(next, 0), 0, 1);
        match pack.put(&op) {
            Ok(_) => next += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(refused, OpError::TooLarge);
    assert!((600..900).contains(&next), "{next}");
    assert!(pack.bytes() <= PACK_BYTES_MAX && pack.bytes() > PACK_BYTES_MAX - 32);
    assert_eq!(pack.put(&op(id(3, 0), 0, 1)), Ok(Effect::Unchanged));
}

#[test]
fn one_large_op_fits_into_an_empty_pack() {
    let mut pack = Pack::new(Kind::Register, None);
    let value = "x".repeat(2 * PACK_BYTES_MAX);
    let set = Kind::Register.read_bare_op(&value).expect("an op");
    let large = |number| {
        IdOp::new(Kind::Register, id(number, 0), 0, std::slice::from_ref(&set)).expect("an op")
    };
    assert_eq!(pack.put(&large(1)), Ok(Effect::Changed));
    assert_eq!(pack.put(&large(2)), Err(OpError::TooLarge));
    let too_large = Kind::Register.read_bare_op(&"x".repeat(STATE_BYTES_MAX)).expect("an op");
    let refused = IdOp::new(Kind::Register, id(3, 0), 0, &[too_large]);
    assert_eq!(refused, Err(OpError::TooLarge));
}

/// The delta must be a function of the request, whatever precision a pod is configured with.
#[test]
fn a_delta_does_not_depend_on_the_precision_of_the_key() {
    let coarse = Pack::new(Kind::Distinct, Some(4));
    assert_eq!((coarse.precision(), coarse.kind()), (Some(4), Kind::Distinct));
    let item = Kind::Distinct.read_bare_op("u1").expect("an op");
    let delta = IdOp::new(Kind::Distinct, id(1, 0), 0, &[item]).expect("an op");
    let entry = Entry { id: delta.id, sequence: 0, delta: &delta.delta };
    let state = entry.state(Kind::Distinct).expect("a delta");
    assert_eq!(state.precision(), State::from(Distinct::default()).precision());
}

/// A sender that lost its total and began again must not be told that its ops count.
#[test]
fn a_total_that_goes_back_is_refused() {
    let mut pack = Pack::new(Kind::Counter, None);
    pack.put(&op(id(1, 0), 4, 10)).expect("room");
    pack.put(&op(id(2, 0), 0, 1)).expect("room");
    let before = pack.clone();
    assert_eq!(pack.put(&op(id(1, 0), 4, 10)), Ok(Effect::Unchanged));
    assert_eq!(pack.put(&op(id(1, 0), 3, 10)), Err(OpError::SequenceBehind(4)));
    assert_eq!(pack.put(&op(id(1, 0), 4, 11)), Err(OpError::IdReused));
    // An op is no total, nor the other way about.
    assert_eq!(pack.put(&op(id(1, 0), 0, 1)), Err(OpError::IdReused));
    assert_eq!(pack.put(&op(id(2, 0), 1, 1)), Err(OpError::IdReused));
    assert_eq!(pack, before);
    assert_eq!(pack.put(&op(id(1, 0), 5, 11)), Ok(Effect::Changed));
}

#[test]
fn packs_that_no_pack_writes_are_refused() {
    let mut pack = Pack::new(Kind::Counter, None);
    pack.put(&op(id(1, 0), 0, 1)).expect("room");
    pack.put(&op(id(2, 0), 0, 1)).expect("room");
    let right = bytes(&pack);
    assert!(StoredPack::decode(None, &right).is_ok());
    let (first, second) = (&right[1..21], &right[21..41]);
    for (wrong, why) in [
        (vec![0], "no entry"),
        ([&[2], second, first].concat(), "descending"),
        ([&[2], first, first].concat(), "twice the same id"),
        ([&[1], first, second].concat(), "more than it says"),
        ([&[3], first, second].concat(), "less than it says"),
        ([&[1][..], &first[..16], &[0x80, 0x80, 0x80, 0x80, 0x10, 0, 1, 2]].concat(), "an index"),
    ] {
        assert!(StoredPack::decode(None, &wrong).is_err(), "{why}");
    }
    for length in 0..right.len() {
        assert!(StoredPack::decode(None, &right[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn conflicts_are_counted_once_for_each_id() {
    let pack = |ops: &[(u128, u64, i64)]| {
        let mut pack = Pack::new(Kind::Counter, None);
        for &(number, sequence, by) in ops {
            pack.put(&op(id(number, 0), sequence, by)).expect("room");
        }
        pack
    };
    let packs = [
        pack(&[(1, 0, 1), (2, 0, 1), (3, 1, 1)]),
        pack(&[(1, 0, 2), (2, 0, 1), (3, 2, 2)]),
        pack(&[(1, 0, 3), (4, 0, 9)]),
    ];
    assert_eq!(total(&packs).1, United { ids: 4, conflicts: 1 });
}

proptest! {
    /// However ops are spread over packs, and whichever copies are missing or doubled, each id counts once.
    #[test]
    fn a_union_counts_each_id_once(
        sent in prop::collection::vec((0..20u128, 1..4u64, 0..4usize), 0..60),
    ) {
        let amount = |number: u128, sequence: u64| {
            i64::try_from(number).expect("small") * 1_000 + i64::try_from(sequence).expect("small")
        };
        let mut packs = vec![Pack::new(Kind::Counter, None); 4];
        let mut greatest = BTreeMap::new();
        for (number, sequence, pod) in sent {
            // Half of the ids are those of running totals.
            let sequence = if number < 10 { 0 } else { sequence };
            match packs[pod].put(&op(id(number, 0), sequence, amount(number, sequence))) {
                Ok(_) => {}
                Err(OpError::SequenceBehind(known)) => prop_assert!(sequence < known),
                Err(error) => prop_assert!(false, "{error}"),
            }
            let known = greatest.entry(number).or_insert(sequence);
            *known = sequence.max(*known);
        }
        let expected: i128 =
            greatest.iter().map(|(&number, &sequence)| i128::from(amount(number, sequence))).sum();
        let united = United { ids: greatest.len(), conflicts: 0 };
        prop_assert_eq!(total(&packs), (expected, united));
        packs.reverse();
        prop_assert_eq!(total(&packs), (expected, united));
        packs.extend(packs.clone());
        prop_assert_eq!(total(&packs), (expected, united));
    }

    #[test]
    fn packs_round_trip(
        ops in prop::collection::vec((any::<u128>(), any::<u32>(), any::<u64>(), any::<i64>()), 1..40),
    ) {
        let mut pack = Pack::new(Kind::Counter, None);
        for (number, index, sequence, by) in ops {
            let _ = pack.put(&op(id(number, index), sequence, by));
        }
        let bytes = bytes(&pack);
        let stored = StoredPack::decode(None, &bytes).expect("a pack");
        prop_assert_eq!(Pack::resumed(Kind::Counter, &stored), pack);
    }

    #[test]
    fn what_is_decoded_is_encoded_the_same(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(stored) = StoredPack::decode(None, &bytes) {
            let mut again = Vec::new();
            Pack::resumed(Kind::Counter, &stored).encode(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
