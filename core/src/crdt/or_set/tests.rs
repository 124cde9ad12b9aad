//! The laws, the codec, refused ops, and the answers of reads.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::crdt::dots::Writer;
use crate::crdt::item::tests::items;
use crate::crdt::{Kind, Op, STATE_BYTES_MAX, State, laws};
use crate::protocol::{MutatorId, Name};

const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 24 * 3600 * SECOND_US;

/// Dots of the mutators that write the shards of [`laws::folded`].
fn dots() -> impl Strategy<Value = Dot> {
    (0..12usize, 1..6u64).prop_map(|(index, seq)| {
        let (expires_at, mutator_id) = laws::writer(index);
        Dot { expires_at, mutator_id, seq }
    })
}

/// Fences between those mutators' expiries and at them.
fn fences() -> impl Strategy<Value = Option<Timestamp>> {
    let fence = (0..13i64, -1..2i64);
    let fence = fence.prop_map(|(at, by)| Timestamp::from_micros(at * laws::WRITER_EVERY_US + by));
    prop_oneof![2 => Just(None), 1 => fence.prop_map(Some)]
}

fn contexts() -> impl Strategy<Value = Context> {
    let live = btree_map(0..12usize, 1..6u64, 0..6);
    (fences(), live).prop_map(|(fence, live)| {
        let live: Newest = live.iter().map(|(&index, &seq)| (laws::writer(index), seq)).collect();
        let mut context = Context::seen(live.iter(), None);
        context.join(&Context::up_to(fence));
        context
    })
}

fn few() -> impl Strategy<Value = Item> {
    prop_oneof![4 => (0..4i64).prop_map(Item::Number), 1 => items()]
}

fn ops() -> impl Strategy<Value = OrSetOp> {
    prop_oneof![
        4 => (btree_set(few(), 1..4), dots())
            .prop_map(|(items, dot)| OrSetOp::Add { items, dot: Some(dot) }),
        3 => (few(), contexts())
            .prop_map(|(item, seen)| OrSetOp::Remove { item, seen: Token::Opened(seen) }),
        1 => contexts().prop_map(|context| OrSetOp::Clear { context: Token::Opened(context) }),
    ]
}

laws::suite!(OrSet, ops());

fn encoded(state: &OrSet) -> Vec<u8> {
    laws::bytes(state)
}

fn decoded(payload: &[u8]) -> Result<OrSet, DecodeError> {
    OrSet::decode(OrSet::FORMAT, None, payload)
}

proptest! {
    #[test]
    fn merging_a_state_with_itself_changes_nothing(
        ops in vec(ops(), 0..20), fence in fences(),
    ) {
        let mut state: OrSet = laws::accumulate(&ops);
        if let Some(fence) = fence {
            state.settle(fence);
        }
        prop_assert_eq!(laws::merged(&state, &state), state);
    }

    /// The running count is never below the written size, and equals a recount.
    #[test]
    fn the_count_of_bytes_is_right(ops in vec(ops(), 0..40)) {
        let mut state: OrSet = laws::accumulate(&ops);
        prop_assert!(encoded(&state).len() <= HEADER_BYTES_MAX + state.bytes);
        let count = state.bytes;
        state.normalize();
        prop_assert_eq!(state.bytes, count);
    }

    /// Near-misses of a payload, settled or not: whatever can be read is written back the same.
    #[test]
    fn what_is_not_canonical_is_undecodable(
        ops in vec(ops(), 1..12), fence in fences(), at: prop::sample::Index, byte: u8, cut: bool,
    ) {
        let mut state: OrSet = laws::accumulate(&ops);
        if let Some(fence) = fence {
            state.settle(fence);
        }
        let mut payload = encoded(&state);
        prop_assert_eq!(decoded(&payload), Ok(state));
        let at = at.index(payload.len());
        if cut {
            payload.remove(at);
        } else {
            payload[at] = byte;
        }
        if let Ok(state) = decoded(&payload) {
            prop_assert_eq!(encoded(&state), payload);
        }
    }
}

fn writer(id: u128) -> Writer {
    (Timestamp::from_micros(1_000), MutatorId::new(uuid::Uuid::from_u128(id)))
}

fn newest(id: u128, seq: u64) -> Newest {
    Newest::from([(writer(id), seq)])
}

fn covering(id: u128, seq: u64) -> Context {
    Context::seen(newest(id, seq).iter(), None)
}

fn set(item: i64, dots: Newest, removed: Context, cleared: Context) -> OrSet {
    let entries = BTreeMap::from([(Item::Number(item), Entry { dots, removed })]);
    OrSet { entries, cleared, ..OrSet::default() }
}

#[test]
fn each_rule_of_the_normal_form_is_checked_by_the_codec() {
    let none = Context::default;
    let fence = Some(Timestamp::from_micros(1_000));
    let refused = |state: &OrSet| {
        assert_eq!(decoded(&encoded(state)), Err(DecodeError::NotCanonical), "{state:?}");
    };
    assert!(decoded(&encoded(&set(1, newest(1, 2), covering(1, 1), none()))).is_ok());
    refused(&set(1, newest(1, 2), covering(1, 2), none()));
    refused(&set(1, newest(1, 2), none(), covering(1, 2)));
    refused(&set(1, newest(1, 2), none(), Context::up_to(fence)));
    refused(&set(1, Newest::new(), none(), none()));
    refused(&set(1, newest(1, 0), none(), none()));
    refused(&set(1, Newest::new(), covering(1, 2), covering(1, 2)));
    refused(&set(1, Newest::new(), covering(1, 2), Context::up_to(fence)));
    refused(&set(1, Newest::new(), Context::up_to(fence), Context::up_to(fence)));
    let settled = |state| OrSet { fence, ..state };
    assert!(decoded(&encoded(&settled(set(1, newest(1, 2), none(), none())))).is_ok());
    refused(&settled(set(1, Newest::new(), covering(1, 2), none())));
    refused(&settled(set(1, Newest::new(), Context::up_to(fence), none())));
    // Also for an entry that does not become empty by it.
    refused(&set(1, newest(2, 1), covering(1, 2), covering(1, 2)));
    refused(&settled(set(1, newest(2, 1), covering(1, 2), none())));
    refused(&settled(OrSet { cleared: covering(1, 2), ..OrSet::default() }));
    refused(&settled(OrSet { cleared: Context::up_to(fence), ..OrSet::default() }));
}

/// The first format, kept permanently: a release that can't read these bytes loses data.
#[test]
fn golden_bytes_of_format_1() {
    let mut state = set(1, newest(2, 3), covering(1, 2), covering(3, 4));
    state.entries.insert(Item::Text("a".into()), Entry { dots: newest(2, 5), ..Entry::default() });
    state.fence = Some(Timestamp::from_micros(2));
    let hex: String = encoded(&state).iter().map(|byte| format!("{byte:02x}")).collect();
    let id = |id: u8| format!("d00f{}{id:02x}", "00".repeat(15));
    let (one, two, three) = (id(1), id(2), id(3));
    let wanted = format!("01040200020 1{two}03 0001{one}02 0161 01{two}05 0000 0001{three}04");
    assert_eq!(hex, wanted.replace(' ', ""));
    assert!(decoded(&encoded(&state)).is_ok());
}

#[test]
fn a_state_of_256_kib_is_full_for_adds_removes_and_clears() {
    let mut state = OrSet::default();
    let dot = |seq| Dot { expires_at: writer(1).0, mutator_id: writer(1).1, seq };
    let add = |items: std::ops::Range<i64>, seq| OrSetOp::Add {
        items: items.map(Item::Number).collect(),
        dot: Some(dot(seq)),
    };
    let mut added = 0;
    while state.apply(&add(added..added + 1, 1)).is_ok() {
        added += 1;
        assert!(added < 10_000, "the state is never full");
    }
    assert!(HEADER_BYTES_MAX + state.bytes <= STATE_BYTES_MAX);
    assert!(HEADER_BYTES_MAX + state.bytes > STATE_BYTES_MAX - 60);
    let mut many = Newest::new();
    (1..=8_000).for_each(|id| many.extend(newest(id, 9)));
    many.remove(&writer(1));
    let seen = || Token::Opened(Context::seen(many.iter(), None));
    let before = encoded(&state);
    for op in [
        add(added - 1..added + 1, 2),
        OrSetOp::Remove { item: Item::Number(0), seen: seen() },
        OrSetOp::Remove { item: Item::Number(-1), seen: seen() },
        OrSetOp::Clear { context: seen() },
    ] {
        assert_eq!(state.apply(&op), Err(OpError::TooLarge));
        assert_eq!(encoded(&state), before, "a refused op left a trace");
    }
    assert_eq!(state.apply(&add(0..2, 2)), Ok(Effect::Changed), "known items still fit");
    let all = Token::Opened(covering(1, 2));
    assert_eq!(state.apply(&OrSetOp::Clear { context: all }), Ok(Effect::Changed));
    assert_eq!(state.bytes, DOT_BYTES_MAX, "a clear makes room");
}

#[test]
fn an_op_that_changes_nothing_says_so() {
    let mut state = OrSet::default();
    let dot = |seq| Some(Dot { expires_at: writer(1).0, mutator_id: writer(1).1, seq });
    let one = || Item::Number(1);
    let add = |seq| OrSetOp::Add { items: BTreeSet::from([one()]), dot: dot(seq) };
    let remove = |seen| OrSetOp::Remove { item: one(), seen: Token::Opened(seen) };
    let clear = |context| OrSetOp::Clear { context: Token::Opened(context) };
    for (op, effect) in [
        (remove(Context::default()), Effect::Unchanged),
        (clear(Context::default()), Effect::Unchanged),
        (add(1), Effect::Changed),
        (add(2), Effect::Changed),
        (remove(covering(1, 1)), Effect::Changed),
        (remove(covering(1, 1)), Effect::Unchanged),
        (clear(covering(1, 2)), Effect::Changed),
        (remove(covering(1, 2)), Effect::Unchanged),
        // As after a forged token.
        (add(2), Effect::Unchanged),
        (add(3), Effect::Changed),
    ] {
        assert_eq!(state.apply(&op), Ok(effect), "{op:?}");
    }
}

pub(super) fn key(name: &str) -> Key {
    let [group, name] = ["group", name].map(|name| Name::new(name).expect("a name"));
    Key { kind: Kind::OrSet, group, name }
}

fn parse(json: &serde_json::Value) -> Result<OrSetOp, OpError> {
    match Kind::OrSet.parse_op(json)? {
        Op::OrSet(op) => Ok(op),
        other => panic!("not an op of this kind: {other:?}"),
    }
}

#[test]
fn reads_answer_items_with_tokens_that_remove_them() {
    let mut state = set(1, newest(1, 2), Context::default(), Context::default());
    state.merge(&set(2, newest(2, 7), Context::default(), Context::default())).expect("merges");
    let later = (Timestamp::from_micros(2_000), MutatorId::new(uuid::Uuid::from_u128(3)));
    let late = Newest::from([(later, 4)]);
    state.merge(&set(2, late.clone(), Context::default(), Context::default())).expect("merges");
    let fence = Some(writer(1).0);
    state.settle(writer(1).0);
    let (settled, mixed) = (Context::up_to(fence), {
        let mut context = Context::up_to(fence);
        context.join(&Context::seen(late.iter(), None));
        context
    });
    let json = |contains: Option<i64>, key: Option<Key>| {
        let contains = contains.map(Item::Number);
        let value = state.value(&Question { key, contains, ..Question::default() });
        serde_json::to_value(value.shown(false)).expect("JSON")
    };
    let (key, of) = (key("a"), |item| Some(Item::Number(item)));
    let one = settled.seal(&key, of(1).as_ref());
    let (two, all) = (mixed.seal(&key, of(2).as_ref()), mixed.seal(&key, None));
    assert_eq!(json(None, None), serde_json::json!({"size": 2, "items": [1, 2]}));
    assert_eq!(
        json(None, Some(key.clone())),
        serde_json::json!({"size": 2, "context": all,
            "items": [{"item": 1, "seen": one}, {"item": 2, "seen": two}]})
    );
    let contains = |item, is_in| serde_json::json!({"size": 2, "item": item, "contains": is_in});
    assert_eq!(json(Some(1), None), contains(1, true));
    assert_eq!(json(Some(3), None), contains(3, false));
    let answer = json(Some(3), Some(key.clone()));
    assert_eq!(answer, serde_json::json!({"size": 2, "item": 3, "contains": false, "seen": null}));
    assert_eq!(json(Some(1), Some(key.clone()))["seen"], one);
    let now = Timestamp::from_micros(3_000);
    let request = serde_json::json!({"op": "remove", "item": 2, "seen": two});
    let mut op = parse(&request).expect("an op");
    OrSet::open(&mut op, &key, now).expect("its own token");
    for (item, seen, is_good) in
        [(2, &all, true), (1, &all, true), (1, &two, false), (3, &one, false)]
    {
        let request = serde_json::json!({"op": "remove", "item": item, "seen": seen});
        let refused = OrSet::open(&mut parse(&request).expect("an op"), &key, now);
        let other = OpError::OtherItem { field: "seen" };
        assert_eq!(refused, if is_good { Ok(()) } else { Err(other) }, "{item}");
    }
    let request = serde_json::json!({"op": "clear", "context": two});
    let refused = OrSet::open(&mut parse(&request).expect("an op"), &key, now);
    assert_eq!(refused, Err(OpError::OtherItem { field: "context" }));
    assert_eq!(op, OrSetOp::Remove { item: Item::Number(2), seen: Token::Opened(mixed) });
    // The fence of a token whose dots are all above it would cover nothing.
    assert_eq!(Context::seen(late.iter(), fence), Context::seen(late.iter(), None));
}

#[test]
fn bad_tokens_are_refused_with_the_rule() {
    let now = Timestamp::from_micros(400 * DAY_US);
    let by = |expires_at| (expires_at, MutatorId::new(uuid::Uuid::from_u128(1)));
    let until = |us: i64| Context::up_to(Some(now.shifted(us))).seal(&key("a"), None);
    let live = |us: i64| {
        Context::seen(Newest::from([(by(now.shifted(us)), 1)]).iter(), None).seal(&key("a"), None)
    };
    let good = live(0);
    let mut damaged = good.clone().into_bytes();
    damaged[12] ^= 1;
    let damaged = String::from_utf8(damaged).expect("text");
    for (token, says) in [
        (String::new(), "is not a token"),
        ("AQAA".to_owned(), "is not a token"),
        (good.replacen('A', "B", 1), "is not a token"),
        // With a valid checksum, but a fence flag of 2, or with more bytes after the context.
        (dots::tests::sealed(&key("a"), &[2]), "is not a token"),
        (dots::tests::sealed(&key("a"), &[0, 0, 0]), "is not a token"),
        ("no token!".to_owned(), "is not base64url without padding"),
        (format!("{good}=="), "is not base64url without padding"),
        (damaged, "is damaged or from another key"),
        (live(0)[..good.len() - 4].to_owned(), "is damaged or from another key"),
        (covering(1, 1).seal(&key("b"), None), "is damaged or from another key"),
        (until(1), "claims a fence in the future"),
        (live(367 * DAY_US + 1), "claims an expiry in more than 367 days"),
        ("A".repeat(524_289), "has 524289 bytes; a token has at most 524288"),
    ] {
        for (field, request) in [
            ("seen", serde_json::json!({"op": "remove", "item": 1, "seen": token})),
            ("context", serde_json::json!({"op": "clear", "context": token})),
        ] {
            let mut op = parse(&request).expect("an op");
            let sealed = op.clone();
            let error = OrSet::open(&mut op, &key("a"), now).expect_err(says).to_string();
            assert!(error.starts_with(&format!("`{field}` {says}")), "{token}: {error}");
            assert_eq!(op, sealed);
            // It can't be applied either, and leaves no trace.
            let mut state: State = set(1, newest(1, 1), covering(2, 2), covering(3, 3)).into();
            let before = state.clone();
            let refused = format!("`{field}` was not opened");
            assert_eq!(state.apply(&Op::OrSet(op)), Err(OpError::Invalid(refused)));
            assert_eq!(state, before);
        }
    }
    for token in [good, until(0), live(367 * DAY_US), Context::default().seal(&key("a"), None)] {
        let request = serde_json::json!({"op": "clear", "context": token});
        let mut op = parse(&request).expect("an op");
        assert_eq!(OrSet::open(&mut op, &key("a"), now), Ok(()));
        assert_eq!(OrSet::open(&mut op, &key("a"), now), Ok(()), "open stays open");
    }
}

#[test]
fn bad_ops_are_refused_with_the_rule() {
    for (json, says) in [
        (r#"{"op":"add"}"#, "give either `item` or `items`"),
        (r#"{"op":"add","item":"a","items":["b"]}"#, "give either `item` or `items`"),
        (r#"{"op":"add","item":1.5}"#, "whole number"),
        (r#"{"op":"add","item":"a","dot":1}"#, "unknown field"),
        (r#"{"op":"remove","item":"a"}"#, "needs the item's `seen` from a read"),
        (r#"{"op":"remove","item":"a","seen":5}"#, "expected a string"),
        (r#"{"op":"clear"}"#, "needs the `context` from a read"),
        (r#"{"op":"drop"}"#, "unknown variant"),
    ] {
        let json = serde_json::from_str(json).expect("JSON");
        let error = parse(&json).expect_err(says).to_string();
        assert!(error.contains(says), "{json}: {error}");
    }
    let add = parse(&serde_json::json!({"op": "add", "items": ["b", "a", "b"]})).expect("an op");
    let items = BTreeSet::from(["a", "b"].map(|text| Item::Text(text.into())));
    assert_eq!(add, OrSetOp::Add { items, dot: None });
    let refused = OrSet::default().apply(&add).expect_err("no dot").to_string();
    assert_eq!(refused, "the op has no dot");
}

/// A mutator that dies hands over ops with its own dots, which would name nothing.
#[test]
fn an_op_that_is_handed_on_gets_another_dot() {
    let mut op = parse(&serde_json::json!({"op": "add", "item": 1})).expect("an op");
    for seq in [7, 8] {
        let (expires_at, mutator_id) = writer(u128::from(seq));
        let dot = Dot { expires_at, mutator_id, seq };
        OrSet::assign(&mut op, &mut || dot);
        let items = BTreeSet::from([Item::Number(1)]);
        assert_eq!(op, OrSetOp::Add { items, dot: Some(dot) });
    }
}

#[test]
fn bytes_are_calculated_from_the_largest_of_every_part() {
    // A flag and the fence, and three bytes for the number of entries; for `cleared` a flag, and three bytes
    // for the number of its dots.
    assert_eq!((HEADER_BYTES_MAX, CONTEXT_FRAME_BYTES_MAX), (1 + 10 + 3 + 4, 4));
    let (item, none) = (Item::Number(1), Context::default);
    let entry = |dots, removed| Entry { dots, removed }.bytes(&item);
    assert_eq!(entry(Newest::default(), none()), 0);
    let one = item.encoded_bytes() + 3 + DOT_BYTES_MAX + 4;
    assert_eq!(entry(newest(1, 1), none()), one);
    let mut two = newest(1, 1);
    two.extend(newest(2, 1));
    assert_eq!(entry(two, none()), one + DOT_BYTES_MAX);
    assert_eq!(entry(newest(1, 1), covering(2, 1)), one + DOT_BYTES_MAX);
}

#[test]
fn an_op_weighs_its_item_and_its_token() {
    let token = || Token::Opened(covering(1, 1));
    let clear = OrSet::heap_bytes(&OrSetOp::Clear { context: token() });
    assert!(clear > 4);
    let remove = OrSetOp::Remove { item: Item::Text("abcd".into()), seen: token() };
    assert_eq!(OrSet::heap_bytes(&remove), clear + 4);
}

#[test]
fn a_large_set_still_removes() {
    let mut state = OrSet::default();
    for n in 0..100 {
        let items = BTreeSet::from([Item::Text(format!("{n:0>400}").into())]);
        let (expires_at, mutator_id) = writer(1);
        let dot = Dot { expires_at, mutator_id, seq: n + 1 };
        state.apply(&OrSetOp::Add { items, dot: Some(dot) }).expect("room");
    }
    assert!(state.bytes > STATE_BYTES_MAX / 10);
    let item = Item::Text(format!("{:0>400}", 7).into());
    let remove = OrSetOp::Remove { item, seen: Token::Opened(covering(1, 8)) };
    assert_eq!(state.apply(&remove), Ok(Effect::Changed));
    assert_eq!(state.members().count(), 99);
    let clear = OrSetOp::Clear { context: Token::Opened(covering(1, 50)) };
    assert_eq!(state.apply(&clear), Ok(Effect::Changed));
    assert_eq!(state.members().count(), 50);
}

/// One key's fence and tombstones say nothing about another key's dots, and an item that several keys have is
/// counted once.
#[test]
fn merges_of_keys_take_nothing_away() {
    let none = Context::default;
    let other = set(1, newest(2, 3), none(), none());
    let mut fenced = set(2, newest(1, 1), none(), none());
    fenced.fence = Some(writer(2).0);
    let cleared = set(2, newest(1, 1), none(), covering(2, 9));
    let mut removed = set(2, newest(1, 1), none(), none());
    removed
        .entries
        .insert(Item::Number(1), Entry { dots: Newest::default(), removed: covering(2, 9) });
    let keys = |states: &[&OrSet]| {
        let mut keys = OrSet::default();
        states.iter().for_each(|state| keys.merge_key(state).expect("sets merge"));
        keys
    };
    for state in [fenced, cleared, removed] {
        let items =
            |state: &OrSet| state.members().map(|(item, _)| item.clone()).collect::<Vec<_>>();
        assert_eq!(items(&laws::merged(&state, &other)), [Item::Number(2)]);
        let both = keys(&[&state, &other]);
        assert_eq!(items(&both), [Item::Number(1), Item::Number(2)]);
        assert_eq!(both, keys(&[&other, &state, &both]));
        assert_eq!(both.bytes, keys(&[&set(1, newest(5, 1), none(), none()), &state]).bytes);
    }
}
