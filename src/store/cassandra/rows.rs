//! Converts the driver's rows into the protocol's rows. Every row from the cluster is checked: a row that
//! breaks a rule is an error for every reader, and is never skipped (invariant I10).

use orderfree_core::protocol::{MutatorId, Name, Row, Timestamp};
use scylla::deserialize::row::DeserializeRow;
use scylla::response::query_result::{QueryResult, QueryRowsResult};
use uuid::Uuid;

use crate::store::StoreError;

/// `expires_at, mutator_id, state` of a key's row.
type KeyRow = (i64, Uuid, Option<Vec<u8>>);

/// `name, expires_at, mutator_id, state` of a group's row.
type GroupRow = (String, i64, Uuid, Option<Vec<u8>>);

/// Reads the rows of one key.
pub(super) fn of_key(answer: QueryResult) -> Result<Vec<Row>, StoreError> {
    collect(answer, |(expires_at, mutator_id, state): KeyRow| {
        checked(expires_at, mutator_id, state)
    })
}

/// Reads rows of one key that come without their states.
pub(super) fn ids_of_key(answer: QueryResult) -> Result<Vec<Row>, StoreError> {
    collect(answer, |(expires_at, mutator_id): (i64, Uuid)| {
        checked(expires_at, mutator_id, Some(Vec::new()))
    })
}

/// Reads the rows of a group's chunk.
pub(super) fn of_group(answer: QueryResult) -> Result<Vec<(Name, Row)>, StoreError> {
    collect(answer, |(name, expires_at, mutator_id, state): GroupRow| {
        let name = Name::new(&name)
            .map_err(|error| StoreError::Corrupt(format!("a row's name {name:?} {error}")))?;
        Ok((name, checked(expires_at, mutator_id, state)?))
    })
}

/// Reads rows of a system table, without further checks.
pub(super) fn of_system<R>(answer: QueryResult) -> Result<Vec<R>, StoreError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    collect(answer, Ok)
}

fn collect<R, T>(
    answer: QueryResult,
    check: impl Fn(R) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError>
where
    R: for<'frame> DeserializeRow<'frame, 'frame>,
{
    let rows: QueryRowsResult = answer.into_rows_result().map_err(undecodable)?;
    let rows = rows.rows::<R>().map_err(undecodable)?;
    rows.map(|row| check(row.map_err(undecodable)?)).collect()
}

/// Accepts a row only if it has a state and a possible expiry, and either both or neither of its two key
/// columns are those of the tally.
fn checked(expires_at: i64, mutator_id: Uuid, state: Option<Vec<u8>>) -> Result<Row, StoreError> {
    let broken = |rule| {
        StoreError::Corrupt(format!("row (expires_at {expires_at}, mutator {mutator_id}) {rule}"))
    };
    let state = state.ok_or_else(|| broken("has no state"))?;
    let row = Row {
        expires_at: Timestamp::from_micros(expires_at),
        mutator_id: MutatorId::new(mutator_id),
        state,
    };
    if expires_at <= 0 {
        return Err(broken("expired before 1970"));
    }
    if row.is_tally() != (row.mutator_id == MutatorId::TALLY) {
        return Err(broken("is half a tally, half a shard"));
    }
    Ok(row)
}

fn undecodable(error: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_break_a_rule_are_corrupt() {
        let (id, state) = (Uuid::from_u128(7), Some(vec![1]));
        assert!(checked(1, id, state.clone()).is_ok());
        assert!(checked(i64::MAX, Uuid::nil(), state.clone()).is_ok());
        for (expires_at, id, state, rule) in [
            (1, id, None, "no state"),
            (0, id, state.clone(), "before 1970"),
            (-5, id, state.clone(), "before 1970"),
            (i64::MAX, id, state.clone(), "half a tally"),
            (1, Uuid::nil(), state.clone(), "half a tally"),
        ] {
            let error = checked(expires_at, id, state).expect_err(rule).to_string();
            assert!(error.contains(rule) && error.contains("expires_at"), "{error}");
        }
    }
}
