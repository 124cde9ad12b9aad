//! Queries for the sweep and for operators: rare, and not urgent.

use std::collections::BTreeMap;
use std::fmt;

use futures::StreamExt;
use orderfree_core::crdt::Kind;
use orderfree_core::protocol::fold::Grave;
use orderfree_core::protocol::sweep::{GroupSize, Nomination, Nominator};
use orderfree_core::protocol::{Key, Name, Row, Timestamp, WriteError, WriteOutcome};
use scylla::client::session::Session;
use tokio::sync::mpsc;

use super::statements::Statements;
use super::{GroupCursor, GroupList, count, rows, session};
use crate::store::StoreError;

/// Scans the primary keys of a range of tokens, and sends the keys that are worth a fold.
pub(super) async fn sweep(
    session: &Session,
    statements: &Statements,
    range: (i64, i64),
    mut nominator: Nominator,
    found: mpsc::Sender<Nomination>,
) -> Result<Option<GroupSize>, StoreError> {
    let unavailable = |error: &dyn fmt::Display| StoreError::Unavailable(error.to_string());
    let pages = session.execute_iter(statements.sweep.clone(), range).await;
    let rows = pages.map_err(|error| unavailable(&error))?;
    let mut rows = rows
        .rows_stream::<(String, String, String, i64)>()
        .map_err(|error| StoreError::Corrupt(error.to_string()))?;
    while let Some(row) = rows.next().await {
        let (kind, group, name, expires_at) = row.map_err(|error| unavailable(&error))?;
        let Some(key) = nameable(&kind, &group, &name) else {
            tracing::debug!(kind, group, name, "the sweep skips a key unknown to this release");
            continue;
        };
        if let Some(nomination) = nominator.pass(key, Timestamp::from_micros(expires_at))
            && found.send(nomination).await.is_err()
        {
            return Ok(None);
        }
    }
    let (last, largest) = nominator.finish();
    if let Some(nomination) = last {
        // An error means that the receiver is closed, and the sweep ends here anyway.
        let _ = found.send(nomination).await;
    }
    Ok(largest)
}

/// The key of a swept row, if this release knows its kind and both names are valid.
fn nameable(kind: &str, group: &str, name: &str) -> Option<Key> {
    let kind = Kind::from_name(kind)?;
    Some(Key { kind, group: Name::new(group).ok()?, name: Name::new(name).ok()? })
}

/// Lists the groups of a kind by their tokens. The next list starts after the last token of this one.
pub(super) async fn groups(
    session: &Session,
    statements: &Statements,
    kind: Kind,
    behind: Option<&GroupCursor>,
    limit: usize,
) -> Result<GroupList, StoreError> {
    // No partition has the smallest token.
    let behind = behind.map_or(i64::MIN, |cursor| cursor.0);
    let answer = session.execute_unpaged(&statements.groups, (behind, count(limit))).await;
    let answer = answer.map_err(|error| StoreError::Unavailable(error.to_string()))?;
    let partitions: Vec<(String, String, i64)> = rows::of_system(answer)?;
    let last = partitions.last().filter(|_| partitions.len() == limit);
    let next = last.map(|(_, _, token)| GroupCursor(*token));
    let of_kind = partitions.iter().filter(|(found, ..)| found == kind.name());
    let named = of_kind.map(|(_, group, _)| {
        Name::new(group).map_err(|error| StoreError::Corrupt(format!("a group {group:?} {error}")))
    });
    Ok(GroupList { groups: named.collect::<Result<_, _>>()?, next })
}

/// Counts the names of a group, up to `most`. It requests a page after it has counted the one before.
pub(super) async fn count_names(
    session: &Session,
    statements: &Statements,
    kind: Kind,
    group: &Name,
    most: usize,
) -> Result<usize, StoreError> {
    let unavailable = |error: &dyn fmt::Display| StoreError::Unavailable(error.to_string());
    let values = (kind.name(), group.as_str());
    let pages = session.execute_iter(statements.names.clone(), values).await;
    let rows = pages.map_err(|error| unavailable(&error))?;
    let mut rows =
        rows.rows_stream::<(String,)>().map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let (mut names, mut last) = (0, None);
    while names < most
        && let Some(row) = rows.next().await
    {
        // All rows of a name are adjacent.
        let (name,) = row.map_err(|error| unavailable(&error))?;
        if last.as_ref() != Some(&name) {
            names += 1;
            last = Some(name);
        }
    }
    Ok(names)
}

pub(super) async fn versions(session: &Session) -> Result<BTreeMap<String, usize>, StoreError> {
    let releases = session::releases(session).await;
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    for release in releases.map_err(|error| StoreError::Unavailable(error.to_string()))? {
        *nodes.entry(release.unwrap_or_else(|| "unknown".to_owned())).or_default() += 1;
    }
    Ok(nodes)
}

/// Removes a row at the timestamp of its last write. Later writes to the row stay, as they do after a fold.
pub(super) async fn remove_row(
    session: &Session,
    statements: &Statements,
    key: &Key,
    row: &Row,
) -> WriteOutcome {
    let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
    let place = (kind, group, name, row.expires_at.as_micros(), row.mutator_id.as_uuid());
    let asked = session.execute_unpaged(&statements.written_at, place).await;
    let found: Result<Vec<(Option<i64>,)>, String> = match asked {
        Ok(answer) => rows::of_system(answer).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let written_at = match found {
        Ok(found) => found.first().and_then(|(written_at,)| *written_at),
        Err(reason) => return Err(WriteError::Refused(reason)),
    };
    // Another process removed it.
    let Some(written_at) = written_at else { return Ok(()) };
    remove_at(session, statements, written_at, key, row).await
}

/// Removes a grave at the timestamp of its write. A later tally stays.
pub(super) async fn remove_grave(
    session: &Session,
    statements: &Statements,
    grave: &Grave,
) -> WriteOutcome {
    remove_at(session, statements, grave.timestamp().as_micros(), grave.key(), grave.row()).await
}

async fn remove_at(
    session: &Session,
    statements: &Statements,
    written_at: i64,
    key: &Key,
    row: &Row,
) -> WriteOutcome {
    let (kind, group, name) = (key.kind.name(), key.group.as_str(), key.name.as_str());
    let (expires_at, mutator_id) = (row.expires_at.as_micros(), row.mutator_id.as_uuid());
    let values = (written_at, kind, group, name, expires_at, mutator_id);
    match session.execute_unpaged(&statements.remove, values).await {
        Ok(_) => Ok(()),
        Err(error) => Err(WriteError::Unknown(error.to_string())),
    }
}
