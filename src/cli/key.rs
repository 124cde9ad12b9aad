//! How keys, groups and other values are written on the command line.

use orderfree_core::crdt::Kind;
use orderfree_core::protocol::{Key, Name};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

/// Reads `KIND/GROUP/NAME`. The name can contain slashes.
pub(super) fn key(text: &str) -> Result<Key, String> {
    let [kind, group, name] = text.splitn(3, '/').collect::<Vec<_>>()[..] else {
        return Err("write KIND/GROUP/NAME, such as counter/site/home".to_owned());
    };
    Ok(Key { kind: kind_of(kind)?, group: part("group", group)?, name: part("name", name)? })
}

/// Reads `KIND/GROUP`.
pub(super) fn group(text: &str) -> Result<(Kind, Name), String> {
    let [kind, group] = text.split('/').collect::<Vec<_>>()[..] else {
        return Err(
            "write KIND/GROUP, such as counter/site, and a slash in the group as %2F".to_owned()
        );
    };
    Ok((kind_of(kind)?, part("group", group)?))
}

/// Reads the name of a kind.
pub(super) fn kind_of(text: &str) -> Result<Kind, String> {
    Kind::from_name(text).ok_or_else(|| {
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("there is no kind `{text}`; the kinds are {}", known.join(", "))
    })
}

/// Reads a value of JSON.
pub(super) fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("the value is not JSON: {error}"))
}

/// Reads one part of a key, which is percent-encoded as in a URL.
fn part(what: &str, text: &str) -> Result<Name, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| format!("the percent-encoded {what} is not UTF-8"))?;
    Name::requested(&decoded).map_err(|error| format!("the {what} {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_are_part_of_a_name_or_written_as_in_a_url() {
        for (text, parts) in [
            ("counter/a b/x/y", ["a b", "x/y"]),
            ("counter/a%2Fb/x%2fy", ["a/b", "x/y"]),
            ("counter/50%/100%25", ["50%", "100%"]),
            ("counter/%E2%98%83/n", ["☃", "n"]),
        ] {
            let key = key(text).expect(text);
            assert_eq!([key.group.as_str(), key.name.as_str()], parts, "{text}");
        }
        let (kind, name) = group("gset/a%2Fb").expect("a group");
        assert_eq!((kind, name.as_str()), (Kind::GSet, "a/b"));
    }

    #[test]
    fn an_error_says_how_to_write_it() {
        for (text, says) in [
            ("counter/a", "KIND/GROUP/NAME"),
            ("counter//x", "group"),
            ("counter/a/", "name"),
            ("count/a/b", "counter, sum,"),
            ("counter/a/%ff", "UTF-8"),
            ("counter/a/..", "the name can't be `.` or `..`"),
            ("counter/%2E/n", "the group can't be `.` or `..`"),
        ] {
            let error = key(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(group("counter/a/b").expect_err("a key").contains("%2F"));
        assert!(group("counter").expect_err("a kind").contains("KIND/GROUP"));
    }
}
