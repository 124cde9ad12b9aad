//! Reads one chunk of a group with two queries. [`orderfree_core::protocol::group`] explains why.
//!
//! Public because the simulator uses it too.

use std::convert::From as ConvertsFrom;

use orderfree_core::protocol::group::{self, BadRows, Chunk, From};
use orderfree_core::protocol::{Name, Row};

/// The rows that a query of a group returns, in the table's order.
pub type Rows = Vec<(Name, Row)>;

/// Reads the chunk that begins at `from`. `limited` requests `limit` rows, starting at a name; its answer
/// only decides where the chunk ends. `range` requests all rows from the same start up to, but not including,
/// that end, or up to the end of the group. These rows are the chunk.
///
/// # Errors
/// The first error of a query, or rows that are not in the table's order.
pub async fn read<E: ConvertsFrom<BadRows>>(
    from: &From,
    limit: usize,
    limited: impl AsyncFnOnce(String) -> Result<Rows, E>,
    range: impl AsyncFnOnce(String, Option<Name>) -> Result<Rows, E>,
) -> Result<Chunk, E> {
    let lowest = from.lowest();
    let then = group::split(limited(lowest.clone()).await?, limit)?.then;
    let rows = range(lowest, then.below().cloned()).await?;
    Ok(Chunk { keys: group::whole(rows)?, then })
}
