//! What is counted: a key, `(kind, group, name)`.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::crdt::Kind;

/// Longest group or name, in bytes of UTF-8.
const NAME_BYTES_MAX: usize = 256;

/// A checked group or name: 1 to 256 bytes of UTF-8 without control characters. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a valid [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NameError {
    /// The text is empty.
    #[error("is empty; give it 1 to {NAME_BYTES_MAX} bytes")]
    Empty,
    /// The text is too long.
    #[error("has {bytes} bytes; at most {NAME_BYTES_MAX} are allowed")]
    TooLong {
        /// Length in bytes of UTF-8.
        bytes: usize,
    },
    /// The text is `.` or `..`, which a client can't choose.
    #[error(
        "can't be `.` or `..`, because HTTP clients and proxies remove these from addresses; choose another"
    )]
    Dots,
    /// The text contains a control character.
    #[error("has the control character {character:?} at byte {at}; leave it out")]
    Control {
        /// The character.
        character: char,
        /// Its position in bytes.
        at: usize,
    },
}

impl Name {
    /// Checks a text.
    ///
    /// # Errors
    /// [`NameError`] says which rule the text breaks.
    pub fn new(text: &str) -> Result<Name, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        match text.char_indices().find(|(_, character)| character.is_control()) {
            Some((at, character)) => Err(NameError::Control { character, at }),
            None => Ok(Name(text.into())),
        }
    }

    /// Checks a text that a client sends as a whole group or name. Rows with `.` and `..` can exist, so only
    /// clients can't use them.
    ///
    /// # Errors
    /// As for [`Name::new`], and [`NameError::Dots`].
    pub fn requested(text: &str) -> Result<Name, NameError> {
        match text {
            "." | ".." => Err(NameError::Dots),
            _ => Name::new(text),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The address of one value. `(kind, group)` is one Cassandra partition; `name` is a prefix of its rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Data type. It is part of the address, so no two pods can disagree about it.
    pub kind: Kind,
    /// Partition; a whole group can be read together.
    pub group: Name,
    /// Name of the value within its group.
    pub name: Name,
}

impl Key {
    /// The partition. Keys of one partition are written together or not at all.
    #[must_use]
    pub fn partition(&self) -> (Kind, &Name) {
        (self.kind, &self.group)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.group, self.name)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::protocol) fn key(kind: Kind) -> Key {
        let name = |text| Name::new(text).expect("a name");
        Key { kind, group: name("g"), name: name("n") }
    }

    #[test]
    fn a_key_is_shown_as_its_address() {
        let name = |text| Name::new(text).expect("a name");
        let key = Key { kind: Kind::Counter, group: name("page:home"), name: name("views") };
        assert_eq!(key.to_string(), "counter/page:home/views");
    }

    #[test]
    fn names_are_checked() {
        let name = Name::new("page:home ☃/2026").expect("a name");
        assert_eq!((name.as_str(), &*name.to_string()), ("page:home ☃/2026", "page:home ☃/2026"));
        assert_eq!(Name::new(""), Err(NameError::Empty));
        assert!(Name::new(&"x".repeat(256)).is_ok());
        assert_eq!(Name::new(&"x".repeat(257)), Err(NameError::TooLong { bytes: 257 }));
        assert_eq!(Name::new("a\u{7f}"), Err(NameError::Control { character: '\u{7f}', at: 1 }));
        assert_eq!(Name::new("é\n"), Err(NameError::Control { character: '\n', at: 2 }));
    }

    #[test]
    fn clients_cannot_use_what_addresses_lose_but_rows_can() {
        for text in [".", ".."] {
            assert_eq!(Name::requested(text), Err(NameError::Dots));
            assert_eq!(Name::new(text).expect("a name").as_str(), text);
        }
        for text in ["...", ".a", "a.", "..a", "a/.."] {
            assert_eq!(Name::requested(text), Name::new(text));
        }
        assert_eq!(Name::requested(""), Err(NameError::Empty));
    }
}
