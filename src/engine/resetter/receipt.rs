//! What a reset cleared, as the log keeps it: for each key its name and a tally with its state, one after the other.
//! So any later release can read it as it reads tallies.

use orderfree_core::crdt::State;
use orderfree_core::crdt::envelope::{self, KeySeal};
use orderfree_core::protocol::generation::Generation;
use orderfree_core::protocol::reset::LogRow;
use orderfree_core::protocol::{Key, Name};

/// Maximum bytes of what was cleared. If a reset cleared more, the log keeps only that it did.
const BYTES_MAX: usize = 256 * 1024;

/// Writes what was cleared; nothing if it is too much.
#[must_use]
pub(super) fn encode(cleared: &[(&Key, &State)], generation: Generation) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, state) in cleared {
        let tally = envelope::encode_tally(KeySeal::of(key), state, generation.time());
        for part in [key.name.as_str().as_bytes(), &tally] {
            let length = u32::try_from(part.len()).unwrap_or(u32::MAX);
            bytes.extend(length.to_le_bytes());
            bytes.extend(part);
        }
        if bytes.len() > BYTES_MAX {
            return Vec::new();
        }
    }
    bytes
}

/// Reads what was cleared; none if it was too much, or is damaged.
#[must_use]
pub(super) fn decode(row: &LogRow, mut bytes: &[u8]) -> Option<Vec<(Key, State)>> {
    let mut cleared = Vec::new();
    while !bytes.is_empty() {
        let name = std::str::from_utf8(part(&mut bytes)?).ok()?;
        let name = Name::new(name).ok()?;
        let key = Key { kind: row.kind, group: row.group.clone(), name };
        let tally = part(&mut bytes)?;
        let (_, state) = envelope::decode_tally(KeySeal::of(&key), key.kind, tally).ok()?;
        cleared.push((key, state));
    }
    (!cleared.is_empty()).then_some(cleared)
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orderfree_core::crdt::{Counter, Kind};
    use orderfree_core::protocol::Timestamp;
    use uuid::Uuid;

    #[test]
    fn what_was_cleared_is_read_back_and_damage_is_noticed() {
        let name = |text: &str| Name::new(text).expect("a name");
        let key = |text| Key { kind: Kind::Counter, group: name("g"), name: name(text) };
        let state = |total| State::Counter(Counter::from_total(total));
        let all = [(key("a"), state(7)), (key("b ☃"), state(-1))];
        let generation = Generation::at(Timestamp::from_micros(9));
        let row = LogRow {
            id: Uuid::nil(),
            kind: Kind::Counter,
            group: name("g"),
            names: vec![name("a"), name("b ☃")],
            generation,
            until: Timestamp::from_micros(10),
            is_deletion: false,
        };
        let parts: Vec<_> = all.iter().map(|(key, state)| (key, state)).collect();
        let bytes = encode(&parts, generation);
        assert_eq!(decode(&row, &bytes), Some(all.to_vec()));
        assert_eq!(decode(&row, &[]), None);
        for cut in 1..bytes.len() {
            assert_ne!(decode(&row, &bytes[..cut]), Some(all.to_vec()), "{cut}");
        }
        let other = LogRow { group: name("h"), ..row };
        assert_eq!(decode(&other, &bytes), None, "the states belong to other keys");
        let much = vec![parts[0]; BYTES_MAX / 10];
        assert_eq!(encode(&much, generation), Vec::<u8>::new());
    }
}
