//! Listing a group: for any bounds, all pages together are exactly the names that match, each once and in order.

use std::cell::OnceCell;

use axum::body::Body;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode, utf8_percent_encode};
use serde_json::Value as Json;

use super::decoders::is_name;
use super::pod::Pod;

/// The group's names in byte order.
const NAMES: [&str; 12] =
    [" ", "a", "a b", "a+b", "ab", "abc", "b", "b/c", "z%2F", "é", "日本", "🦀"];

/// Lines: limit, prefix, from, to. An empty line means that it is not given.
pub(super) fn run(input: &[u8]) {
    let mut lines = input.splitn(4, |&byte| byte == b'\n');
    let [limit, prefix, from, to] = std::array::from_fn(|_| lines.next().unwrap_or_default());
    let mut query = String::new();
    for (name, text) in [("limit", limit), ("prefix", prefix), ("from", from), ("to", to)] {
        if !text.is_empty() {
            query += &format!("{name}={}&", percent_encode(text, NON_ALPHANUMERIC));
        }
    }
    let size = std::str::from_utf8(limit).ok().and_then(|limit| limit.parse::<usize>().ok());
    let is_right = (limit.is_empty() || size.is_some_and(|size| (1..=10_000).contains(&size)))
        && [prefix, from, to].iter().all(|text| text.is_empty() || is_name(text));
    let expected: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| name.as_bytes().starts_with(prefix) && name.as_bytes() >= from)
        .filter(|name| to.is_empty() || name.as_bytes() < to)
        .collect();
    let mut found = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = with_group(|pod| pod.get(&format!("/v1/counter/g?{query}{cursor}")));
        if !is_right || query.len() > 8_000 {
            assert!(matches!(answer.status.as_u16(), 400 | 414), "{query}: {answer:?}");
            return;
        }
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        let page = answer.json();
        let keys = page["keys"].as_array().expect("keys");
        assert!(keys.len() <= size.unwrap_or(1_000), "{query}: {page}");
        for key in keys {
            let name = key["name"].as_str().expect("a name").to_owned();
            let place = NAMES.iter().position(|known| *known == name).expect("a name of ours");
            assert_eq!(key["value"], place, "{page}");
            found.push(name);
        }
        match &page["next"] {
            Json::Null => break,
            next => {
                assert_eq!(keys.len(), size.unwrap_or(1_000), "a short page before the last");
                cursor = format!("cursor={}", next.as_str().expect("a cursor"));
            }
        }
    }
    assert_eq!(found, expected, "{query}");
}

fn with_group<T>(action: impl FnOnce(&Pod) -> T) -> T {
    thread_local! {
        static POD: OnceCell<Pod> = const { OnceCell::new() };
    }
    POD.with(|pod| action(pod.get_or_init(filled)))
}

fn filled() -> Pod {
    let pod = Pod::new();
    for (place, name) in NAMES.iter().enumerate() {
        for group in ["f", "g", "ga"] {
            let name = utf8_percent_encode(name, NON_ALPHANUMERIC);
            let address = format!("/v1/counter/{group}/{name}");
            let answer = pod.post(&address, "text/plain", Body::from(place.to_string()));
            assert_eq!(answer.status, 200, "{answer:?}");
        }
    }
    pod
}
