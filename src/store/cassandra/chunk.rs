//! One chunk of a group, by two queries: why stands in [`orderfree_core::protocol::group`].
//!
//! Public because the simulator reads through it as well.

use std::convert::From as ConvertsFrom;

use orderfree_core::protocol::group::{self, BadRows, Chunk, From};
use orderfree_core::protocol::{Name, Row};

/// What a query of a group returns, in the table's order.
pub type Rows = Vec<(Name, Row)>;

/// Reads the chunk that begins at `from`. `limited` asks for `limit` rows from a text on, and is
/// believed only where the chunk ends. `range` asks for all rows from that text on and below a name,
/// or up to the end: those are the chunk's.
///
/// # Errors
/// The first that a query gives, or rows that are not in the table's order.
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
