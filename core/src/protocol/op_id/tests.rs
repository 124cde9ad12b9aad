use super::*;
use crate::crdt::{Counter, State};
use crate::protocol::Overrides;
use proptest::prelude::*;

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn constants() -> Constants {
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let overrides = Overrides {
        lifetime: seconds(600),
        drain_margin: seconds(60),
        cutoff: seconds(120),
        request_budget: seconds(10),
        clock_offset_max: seconds(5),
        ..Overrides::default()
    };
    Constants::resolve(overrides).expect("consistent")
}

fn parse(text: &str) -> ClientId {
    ClientId::parse(text).expect(text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn millis(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * MILLISECOND_US)
}

/// 2026-11-27T04:00:00Z.
const TIME: i64 = 1_795_752_000_000;

/// Kept permanently: pods of two releases that disagree on one of these count twice.
#[test]
fn golden_vectors() {
    for (window, group, expires_at) in [
        (Window::Minute, "site", 1_795_752_095_398_448),
        (Window::Short, "site", 1_795_753_475_398_448),
        (Window::Long, "site", 1_795_888_475_398_448),
        (Window::Minute, "ä/☃", 1_795_752_108_836_430),
        (Window::Short, "ä/☃", 1_795_753_728_836_430),
        (Window::Long, "ä/☃", 1_795_895_028_836_430),
    ] {
        let found = window.expires_at(millis(TIME), &name(group)).as_micros();
        assert_eq!(found, expires_at, "{} {group}", window.name());
    }
    for (text, id, time) in [
        (
            "019ac3ee-6e80-7abc-8def-0123456789ab",
            "019ac3ee6e807abc8def0123456789ab",
            Some(1_764_223_774_336),
        ),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "01563e3ab5d3d6764c61efb99302bd5b", Some(1_469_922_850_259)),
        ("order-4711", "5ce3c1004554009f35b8e8bf6819e539", None),
        ("6f9619ff-8b86-4011-b42d-00c04fc964ff", "6f9619ff8b864011b42d00c04fc964ff", None),
    ] {
        let parsed = parse(text);
        assert_eq!(hex(&parsed.bytes), id, "{text}");
        assert_eq!(
            parsed.time().map(Timestamp::as_micros),
            time.map(|time| time * 1_000),
            "{text}"
        );
    }
    let event = ClientId::of_event("/sensors/a", "order-4711").expect("ids");
    assert_eq!(hex(&event.bytes), "b23ca36ccd790e3beeda61e95a76be1f");
    let named = NamedOp::new(parse("order-4711"), 3, millis(TIME), Window::Short);
    assert_eq!(
        (hex(&named.id.id), named.id.index),
        ("b1f2d4909b0ac37217a98b9ddaa9a7bb".to_owned(), 3)
    );
    assert_eq!(named.writer().to_string(), "2633da16-aff0-821a-92b2-f1d157cec8a0");
}

#[test]
fn an_id_is_the_same_in_any_notation_of_its_letters() {
    let upper = "019AC3EE-6E80-7ABC-8DEF-0123456789AB";
    assert_eq!(parse(upper), parse(&upper.to_lowercase()));
    assert_eq!(parse("01arz3ndektsv4rrffq69g5fav"), parse("01ARZ3NDEKTSV4RRFFQ69G5FAV"));
    assert_ne!(parse("a"), parse("A"), "other ids are taken as they are");
    // Beyond 128 bits, so not a ULID.
    assert_eq!(parse("81ARZ3NDEKTSV4RRFFQ69G5FAV").time(), None);
    assert_eq!(parse("019ac3ee6e807abc8def0123456789ab").time(), None, "not the usual form");
}

#[test]
fn times_are_read_from_uuids_that_have_one() {
    // The examples of RFC 9562, appendix A: 2022-02-22T19:22:22Z.
    for text in [
        "C232AB00-9414-11EC-B3C8-9F6BDECED846",
        "1EC9414C-232A-6B00-B3C8-9F6BDECED846",
        "017F22E2-79B0-7CC3-98C4-DC0C0C07398F",
    ] {
        assert_eq!(parse(text).time(), Some(millis(1_645_557_742_000)), "{text}");
    }
    assert_eq!(parse("919108f7-52d1-4320-9bac-f847db4148a8").time(), None, "version 4");
    let named = NamedOp::new(
        parse("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"),
        0,
        millis(1_645_557_742_000),
        Window::Short,
    );
    assert_eq!(named.op_time().as_micros(), 1_645_557_742_000_797, "0xcc3 of 4096");
}

#[test]
fn bad_ids_are_refused_with_the_rule() {
    let long = "x".repeat(ID_BYTES_MAX + 1);
    for (text, error) in
        [("", BadId::Empty), (&*long, BadId::TooLong(256)), ("a\nb", BadId::Control)]
    {
        assert_eq!(ClientId::parse(text), Err(error));
        assert_eq!(ClientId::of_event(text, "id"), Err(error));
        assert_eq!(ClientId::of_event("source", text), Err(error));
    }
    assert!(ClientId::parse(&long[1..]).is_ok());
    let (a, b) = (ClientId::of_event("a", "bc"), ClientId::of_event("ab", "c"));
    assert_ne!(a, b, "the source and the id do not run into each other");
}

#[test]
fn an_op_is_taken_within_its_window_by_exact_bounds() {
    let (group, constants) = (name("g"), constants());
    let named = NamedOp::new(parse("a"), 0, millis(TIME), Window::Minute);
    let expires_at = Window::Minute.expires_at(millis(TIME), &group);
    let until = named.retry_until(&group, &constants);
    assert_eq!(until, expires_at.minus(Duration::from_secs(20)));
    let earliest = millis(TIME).minus(Duration::from_secs(10));
    let taken = |now| named.expiry(&group, now, &constants);
    assert_eq!(taken(earliest), Ok(expires_at));
    assert_eq!(taken(until.shifted(-1)), Ok(expires_at));
    assert_eq!(taken(until), Err(IdRefusal::Expired { until }));
    let ahead = Duration::from_micros(10_000_001);
    assert_eq!(taken(earliest.shifted(-1)), Err(IdRefusal::Ahead { by: ahead }));
    // Times at the ends of their range are refused and do not wrap.
    for time in [i64::MIN, i64::MAX] {
        let named = NamedOp::new(parse("a"), 0, Timestamp::from_micros(time), Window::Long);
        assert!(named.expiry(&group, millis(TIME), &constants).is_err(), "{time}");
    }
}

#[test]
fn an_id_with_another_time_is_another_id() {
    let id = |text: &str, time| NamedOp::new(parse(text), 0, time, Window::Short).id;
    let uuid = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F";
    let inner = millis(1_645_557_742_000);
    assert_eq!(id(uuid, inner).id, parse(uuid).bytes, "its own time changes nothing");
    assert_eq!(id(uuid, inner.shifted(999)), id(uuid, inner), "rounded down");
    for text in [uuid, "order-4711"] {
        let all = [0, 1, 60_000].map(|later| id(text, inner.shifted(1_000_000 * later + 1_000)));
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2], "{text}: {all:?}");
        assert_ne!(all[0].id, parse(text).bytes);
    }
    let named = NamedOp::new(parse(uuid), 0, inner.shifted(1_000), Window::Short);
    assert_eq!(named.op_time(), inner.shifted(1_000), "a time that was sent is the time");
}

#[test]
fn only_plausible_times_are_read_from_an_id() {
    for text in [
        // 26 digits, an order number.
        "20261127000000000000004711",
        // Version 1, of 1969.
        "00000000-ffff-11b1-8000-000000000000",
        // Version 7 in the variant of Microsoft.
        "017F22E2-79B0-7CC3-C8C4-DC0C0C07398F",
    ] {
        assert_eq!(parse(text).time(), None, "{text}");
        assert_eq!(parse(text).fraction_us, 0, "{text}");
    }
    assert_ne!(parse("20261127000000000000004711"), parse("20261127000000000000004712"));
}

/// In a list, the later op wins, as without an id.
#[test]
fn the_order_of_ops_under_one_id_holds() {
    let value = |lists: &[(u32, &str)]| {
        let mut state = State::identity(Kind::Register);
        for (index, (ops_before, list)) in (0..).zip(lists) {
            let mut ops: Vec<Op> = list
                .split(' ')
                .map(|text| Kind::Register.read_bare_op(text).expect("an op"))
                .collect();
            let named = NamedOp::new(parse("a"), index, millis(TIME), Window::Short);
            let named = named.after_ops(*ops_before);
            named.prepare(Kind::Register, &name("g"), &mut ops).expect("ops");
            state.apply_all(&ops).expect("ops");
        }
        let State::Register(register) = &state else { panic!("{state:?}") };
        format!("{register:?}")
    };
    let ends_with = |lists: &[(u32, &str)], text: &str| {
        let found = value(lists);
        assert!(found.contains(&format!("\\\"{text}\\\"")), "{lists:?}: {found}");
    };
    ends_with(&[(0, "b a")], "a");
    ends_with(&[(0, "a b")], "b");
    ends_with(&[(0, "c"), (1, "a")], "a");
    ends_with(&[(0, "z y x"), (3, "a")], "a");
}

#[test]
fn times_and_dots_follow_from_the_name() {
    let prepared = |kind: Kind, text: &str, id: &str, index| {
        let mut ops = vec![kind.read_bare_op(text).expect("an op")];
        let named = NamedOp::new(parse(id), index, millis(TIME), Window::Short);
        named.prepare(kind, &name("g"), &mut ops).expect("an op")
    };
    for kind in [Kind::Register, Kind::LwwSet, Kind::OrSet] {
        assert_eq!(prepared(kind, "x", "a", 0), prepared(kind, "x", "a", 0), "{kind}");
    }
    let dots = [("a", 0), ("a", 1), ("b", 0)].map(|(id, index)| {
        let op = prepared(Kind::OrSet, "x", id, index);
        format!("{op:?}").split_once("delta").expect("a delta").1.to_owned()
    });
    assert!(dots[0] != dots[1] && dots[0] != dots[2] && dots[1] != dots[2], "{dots:?}");
    let after = |after: i64| {
        let op = format!(r#"{{"op":"set","value":1,"after":{after}}}"#);
        let mut ops = vec![Kind::Register.read_op(&op).expect("an op")];
        let named = NamedOp::new(parse("a"), 0, millis(TIME), Window::Short);
        named.prepare(Kind::Register, &name("g"), &mut ops).map(drop)
    };
    assert_eq!(after(TIME * 1_000 - 1), Ok(()));
    assert!(after(TIME * 1_000).is_err_and(|error| error.to_string().contains("`after`")));
}

#[test]
fn an_op_list_becomes_one_delta() {
    let mut ops = vec![
        Kind::Counter.read_bare_op("5").expect("an op"),
        Kind::Counter.read_bare_op("-2").expect("an op"),
    ];
    let named = NamedOp::new(parse("a"), 0, millis(TIME), Window::Short).with_sequence(7);
    let op = named.prepare(Kind::Counter, &name("g"), &mut ops).expect("an op");
    let expected = State::Counter(Counter::from_total(3));
    let mut delta = Vec::new();
    expected.encode_payload(&mut delta);
    assert_eq!((op.sequence, op.heap_bytes()), (7, delta.len()));
}

proptest! {
    /// A client has more than one window and at most two for its retries, and no two windows share an expiry.
    #[test]
    fn the_expiry_is_the_end_of_the_next_window(
        time in 0..4_000_000_000_000i64,
        later in 0..200_000_000i64,
        group in "[a-z]{1,8}",
        window in prop::sample::select(&Window::ALL[..]),
    ) {
        let (group, time) = (name(&group), millis(time));
        let expires_at = window.expires_at(time, &group);
        let span = expires_at.since(time);
        prop_assert!(window.length() < span && span <= 2 * window.length());
        prop_assert!(is_expiry_of_ids(expires_at, &group));
        prop_assert!(!is_expiry_of_ids(expires_at.next(), &group));
        let other = window.expires_at(time.shifted(later), &group);
        let apart = other.since(expires_at);
        prop_assert!(other >= expires_at);
        prop_assert_eq!(apart.as_micros() % window.length().as_micros(), 0);
    }
}
