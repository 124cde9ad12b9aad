//! Groups keys that are folded with one read and one write: keys of one partition with few, small rows.

use futures::{Stream, StreamExt, stream};
use orderfree_core::protocol::Key;
use orderfree_core::protocol::sweep::Nomination;
use tokio::sync::mpsc;

use crate::limits::group_chunk_rows;

/// Maximum number of nominations that are grouped at once.
const LOOK_MAX: usize = 256;

/// The nominations of a channel.
pub(super) fn stream(
    mut nominations: mpsc::Receiver<Nomination>,
) -> impl Stream<Item = Nomination> {
    stream::poll_fn(move |context| nominations.poll_recv(context))
}

/// Groups nominations into lists of keys to fold together. A list has only what is in the queue already; it
/// does not wait for more.
pub(super) fn lists(
    nominations: impl Stream<Item = Nomination>,
    keys_max: usize,
) -> impl Stream<Item = Vec<Key>> {
    nominations.ready_chunks(LOOK_MAX).flat_map(move |all| stream::iter(divide(all, keys_max)))
}

/// Divides nominations into lists of one partition. One answer carries all rows of a list, so a list has no
/// more rows than the chunk of a group, unless it has a single key.
fn divide(mut all: Vec<Nomination>, keys_max: usize) -> Vec<Vec<Key>> {
    all.sort_unstable();
    let mut lists: Vec<Vec<Key>> = Vec::new();
    let mut rows = 0;
    for Nomination { key, rows: its_rows, .. } in all {
        rows += its_rows;
        match lists.last_mut() {
            Some(list)
                if list[0].partition() == key.partition()
                    && key.kind.about().is_small()
                    && list.len() < keys_max
                    && rows <= group_chunk_rows(key.kind) =>
            {
                list.push(key);
            }
            _ => {
                rows = its_rows;
                lists.push(vec![key]);
            }
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use orderfree_core::crdt::Kind;
    use orderfree_core::protocol::Name;

    use super::*;
    use crate::limits::GROUP_CHUNK_ROWS;

    fn nomination(kind: Kind, group: &str, name: &str, rows: usize) -> Nomination {
        let text = |text| Name::new(text).expect("a name");
        let key = Key { kind, group: text(group), name: text(name) };
        Nomination { key, rows, is_tally_alone: false }
    }

    fn names(lists: &[Vec<Key>]) -> Vec<Vec<&str>> {
        lists.iter().map(|list| list.iter().map(|key| key.name.as_str()).collect()).collect()
    }

    #[test]
    fn small_keys_of_a_group_go_together() {
        let all = vec![
            nomination(Kind::Counter, "g", "c", 2),
            nomination(Kind::Counter, "h", "a", 2),
            nomination(Kind::Counter, "g", "a", 2),
            nomination(Kind::Sum, "g", "a", 2),
            nomination(Kind::Counter, "g", "b", 2),
        ];
        let lists = divide(all, 9);
        assert_eq!(names(&lists), [vec!["a", "b", "c"], vec!["a"], vec!["a"]]);
        for list in &lists {
            assert!(list.iter().all(|key| key.partition() == list[0].partition()));
        }
    }

    #[test]
    fn keys_of_a_kind_with_large_states_go_alone() {
        let all = ["a", "b"].map(|name| nomination(Kind::Distinct, "g", name, 2));
        assert_eq!(names(&divide(all.to_vec(), 9)), [["a"], ["b"]]);
    }

    #[test]
    fn a_list_has_few_keys_and_rows() {
        let counter = |name, rows| nomination(Kind::Counter, "g", name, rows);
        let all = ["a", "b", "c"].map(|name| counter(name, 2));
        assert_eq!(names(&divide(all.to_vec(), 2)), [vec!["a", "b"], vec!["c"]]);
        let (half, more) = (GROUP_CHUNK_ROWS / 2, GROUP_CHUNK_ROWS + 1);
        let all = [("a", half), ("b", half), ("c", 1), ("d", more), ("e", 1), ("f", 1)];
        let lists = divide(all.map(|(name, rows)| counter(name, rows)).to_vec(), 9);
        assert_eq!(names(&lists), [vec!["a", "b"], vec!["c"], vec!["d"], vec!["e", "f"]]);
    }
}
