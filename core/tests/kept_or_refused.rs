//! What a client sends comes back as it was sent, or is refused. Nothing is rounded, dropped or ignored in
//! silence.

use orderfree_core::crdt::{Kind, Op, OpError, Question, State};
use orderfree_core::protocol::{Key, Name, Timestamp};
use serde_json::{Value as Json, json};

fn parse(kind: Kind, op: &Json) -> Result<Op, OpError> {
    kind.parse_op(op)
}

fn state_of(kind: Kind, ops: &[Json]) -> State {
    let mut state = State::new(kind, None);
    for op in ops {
        state.apply(&parse(kind, op).expect("an op")).expect("room");
    }
    state
}

fn shown(state: &State, as_digits: bool) -> Json {
    serde_json::to_value(state.value(&Question::default()).shown(as_digits)).expect("JSON")
}

#[test]
fn an_observation_without_a_label_takes_no_label_away() {
    let labelled = json!({"op": "observe", "value": 9, "label": "eu-1"});
    let bare = json!({"op": "observe", "value": 9});
    let kind = Kind::Extrema;
    for ops in [[labelled.clone(), bare.clone()], [bare, labelled]] {
        assert_eq!(shown(&state_of(kind, &ops), false)["min"]["label"], "eu-1", "{ops:?}");
        assert_eq!(shown(&state_of(kind, &ops), false)["max"]["label"], "eu-1", "{ops:?}");
    }
}

#[test]
fn a_flat_list_a_little_longer_than_k_is_listed() {
    let ops: Vec<Json> =
        (0..257).map(|item| json!({"op": "add", "item": item, "by": 1_000})).collect();
    let value = shown(&state_of(Kind::TopK, &ops), false);
    assert_eq!(value["items"].as_array().map(Vec::len), Some(256), "{value}");
    assert_eq!(value["items"][255]["at_least"], 1_000);
    assert_eq!(value["error"], 1_000, "the item that is not listed");
}

#[test]
fn a_token_of_another_item_is_refused() {
    let name = |text| Name::new(text).expect("a name");
    let key = Key { kind: Kind::OrSet, group: name("team"), name: name("admins") };
    let mut state = State::new(Kind::OrSet, None);
    for (seq, item) in [(1, "ann"), (2, "bob")] {
        let mut op = parse(Kind::OrSet, &json!({"op": "add", "item": item})).expect("an op");
        op.assign(&mut || orderfree_core::crdt::Dot {
            expires_at: Timestamp::from_micros(100),
            mutator_id: orderfree_core::protocol::MutatorId::new(uuid::Uuid::from_u128(1)),
            seq,
        });
        state.apply(&op).expect("room");
    }
    let question = Question { key: Some(key.clone()), ..Question::default() };
    let read = serde_json::to_value(state.value(&question).shown(false)).expect("JSON");
    let remove = |item: &str, token: &Json| {
        let mut op = parse(Kind::OrSet, &json!({"op": "remove", "item": item, "seen": token}))?;
        op.open(&key, Timestamp::from_micros(50))?;
        let mut state = state.clone();
        state.apply(&op)?;
        Ok::<_, OpError>(shown(&state, false)["size"].clone())
    };
    let (ann, bob) = (&read["items"][0]["seen"], &read["items"][1]["seen"]);
    assert_eq!(remove("ann", ann), Ok(json!(1)));
    assert_eq!(remove("bob", bob), Ok(json!(1)));
    let error = remove("bob", ann).expect_err("ann's token").to_string();
    assert!(error.contains("another item"), "{error}");
    assert_eq!(remove("bob", &read["context"]), Ok(json!(1)), "the context is good for any item");
}

#[test]
fn whole_numbers_that_no_double_equals_are_refused() {
    for (kind, op) in [("stats", "record"), ("extrema", "observe"), ("histogram", "record")] {
        let kind = Kind::from_name(kind).expect("a kind");
        let read = |value: Json| parse(kind, &json!({"op": op, "value": value}));
        for value in [1_795_690_038_174_982_123_i64, -1_795_690_038_174_982_123, (1 << 53) + 1] {
            let error = read(json!(value)).expect_err("no double").to_string();
            assert!(error.contains(&value.to_string()), "{kind}: {error}");
        }
        let error = read(json!(1_795_690_038_174_982_123_i64)).expect_err("no double").to_string();
        for near in ["1795690038174981888", "1795690038174982144", "counter", "string"] {
            assert!(error.contains(near), "{kind}: {error}");
        }
        assert!(read(json!(u64::MAX)).is_err(), "2^64 - 1 is no double");
        for value in [json!(1_i64 << 53), json!((1_i64 << 53) + 2), json!(i64::MIN), json!(0.1)] {
            assert!(read(value.clone()).is_ok(), "{kind}: {value}");
        }
        // However it is written.
        let written = |number: &str| {
            let json = format!(r#"{{"op":"{op}","value":{number}}}"#);
            assert_eq!(kind.read_op(&json).is_ok(), kind.read_bare_op(number).is_ok(), "{number}");
            kind.read_op(&json)
        };
        for number in [
            "9007199254740993.0",
            "1795690038174982123.0",
            "1.795690038174982123e18",
            "90071992547409930E-1",
        ] {
            let error = written(number).expect_err(number).to_string();
            assert!(error.contains("no double equals"), "{kind}: {error}");
        }
        // As programs write doubles.
        for number in ["9007199254740992.0", "1.7956900381749821e+18", "1e23", "1e300"] {
            assert!(written(number).is_ok(), "{kind}: {number}");
        }
    }
}

#[test]
fn numbers_beyond_those_of_javascript_are_quoted_on_request() {
    let large = 9_007_199_254_740_993_i64;
    for (kind, at) in
        [(Kind::GSet, "/items/0"), (Kind::LwwSet, "/items/0"), (Kind::TopK, "/items/0/item")]
    {
        let state = state_of(kind, &[json!({"op": "add", "item": large})]);
        assert_eq!(shown(&state, false).pointer(at), Some(&json!(large)), "{kind}");
        assert_eq!(shown(&state, true).pointer(at), Some(&json!(large.to_string())), "{kind}");
    }
    let state = state_of(Kind::Register, &[json!({"op": "set", "value": {"a": [large, 7, 0.5]}})]);
    assert_eq!(shown(&state, true)["value"], json!({"a": [large.to_string(), 7, 0.5]}));
}

#[test]
fn white_space_around_bare_text_is_no_part_of_it() {
    for kind in Kind::ALL {
        assert_eq!(kind.bare_op(" 7\n"), kind.bare_op("7"), "{kind}");
    }
    assert!(Kind::GSet.bare_op("\" a \"\n").ends_with(r#""item":" a "}"#));
}

/// JSON has one type of number: `1`, `1.0` and `1e0` are the same. A serializer can write any of them.
#[test]
fn a_whole_number_is_the_same_however_json_writes_it() {
    let fields = [
        ("counter", r#"{"op":"add","by":N}"#),
        ("sum", r#"{"op":"add","by":N}"#),
        ("stats", r#"{"op":"record","value":1,"count":N}"#),
        ("histogram", r#"{"op":"record","value":1,"count":N}"#),
        ("topk", r#"{"op":"add","item":"a","by":N}"#),
        ("topk", r#"{"op":"add","item":N}"#),
        ("distinct", r#"{"op":"add","items":[1,N]}"#),
        ("audience", r#"{"op":"add","items":[1,N]}"#),
        ("gset", r#"{"op":"add","item":N}"#),
        ("lww_set", r#"{"op":"remove","item":N}"#),
        ("lww_set", r#"{"op":"add","item":"a","after":N}"#),
        ("or_set", r#"{"op":"add","items":[N]}"#),
        ("register", r#"{"op":"set","value":1,"after":N}"#),
    ];
    for (kind, op) in fields {
        let kind = Kind::from_name(kind).expect("a kind");
        let read = |number: &str| kind.read_op(&op.replace('N', number));
        let expected = |number: &str| read(number).unwrap_or_else(|error| panic!("{op}: {error}"));
        for (number, others) in [
            ("100", ["100.0", "1e2", "1.00E+2", "1000e-1"]),
            // The nearest double is 9007199254740992.
            (
                "9007199254740993",
                [
                    "9007199254740993.0",
                    "9007199254740993e0",
                    "9.007199254740993e15",
                    "90071992547409930e-1",
                ],
            ),
            (
                "9223372036854775807",
                [
                    "9223372036854775807.000",
                    "9223372036854775807e0",
                    "9.223372036854775807e18",
                    "92233720368547758070E-1",
                ],
            ),
        ] {
            for other in others {
                let read = read(other).unwrap_or_else(|error| panic!("{op} {other}: {error}"));
                assert_eq!(read, expected(number), "{op} {other}");
            }
        }
        for number in ["1.5", "1e-1", "9007199254740993.5", "1e-400", "18446744073709551616.0"] {
            assert!(read(number).is_err(), "{op} {number}");
        }
    }
}
