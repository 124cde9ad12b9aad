//! A coordinator's work on one request: the replicas it asks, when they answer, and what it tells the driver. Each step
//! takes time and can go wrong, with the probabilities of the weather.

use std::sync::Arc;
use std::time::Duration;

use orderfree_core::protocol::consistency::Level;
use rand::Rng;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::statement::Consistency;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::cluster::{Address, Cell, Mutation, Piece, Range, merge, repair};
use crate::coverage::Hazard;
use crate::sabotage::Sabotage;
use crate::world::{Fate, Shared, World};

/// How long a coordinator waits for replicas.
const COORDINATOR_PATIENCE: Duration = Duration::from_secs(2);

/// How often too few replicas of one of several partitions are up.
const PART_SHORT: f64 = 0.2;

/// One attempt to write a mutation at a consistency level.
pub(crate) async fn write(
    shared: &Shared,
    datacenter: usize,
    level: Level,
    mutation: &Arc<Mutation>,
    patience: Duration,
) -> Result<(), ExecutionError> {
    let sent = shared.with(|world| {
        let parts = world.parts(level, datacenter);
        let is_alive = |node: &&usize| world.reaches(datacenter, **node);
        if parts.iter().any(|(reach, quota)| reach.iter().filter(is_alive).count() < *quota) {
            return None;
        }
        let acks: Vec<_> = parts.iter().map(|_| Arc::new(Semaphore::new(0))).collect();
        // Every replica in every data centre gets the write, whichever must answer.
        for node in 0..world.nodes.len() {
            let part = parts.iter().position(|(reach, _)| reach.contains(&node));
            let counts = part.map(|part| Arc::clone(&acks[part]));
            let fate = world.fate(datacenter, node);
            tokio::spawn(deliver(shared.clone(), node, Arc::clone(mutation), fate, counts));
        }
        let silent = world.weather.silent;
        let quotas = parts.into_iter().map(|(_, quota)| quota);
        Some((acks.into_iter().zip(quotas), world.dice.random_bool(silent)))
    });
    let (parts, silent) = sent.ok_or_else(unavailable)?;
    let answered = async {
        for (acks, quota) in parts {
            let quota = u32::try_from(quota).expect("few replicas");
            let _ = acks.acquire_many(quota).await;
        }
    };
    let answered = timeout(patience.min(COORDINATOR_PATIENCE), answered).await;
    if answered.is_err() || silent {
        return Err(ExecutionError::RequestTimeout(patience));
    }
    sleep(shared.with(World::travel)).await;
    Ok(())
}

/// One attempt to write mutations of several partitions in one request. In a larger cluster their replicas differ, so
/// one partition may have too few. Then the answer is an error, whatever happens to the others.
pub(crate) async fn write_parts(
    shared: &Shared,
    datacenter: usize,
    level: Level,
    mut parts: Vec<Arc<Mutation>>,
    patience: Duration,
) -> Result<(), ExecutionError> {
    let is_short = parts.len() > 1 && shared.with(|world| world.dice.random_bool(PART_SHORT));
    if is_short {
        let at = shared.with(|world| world.dice.random_range(0..parts.len()));
        parts.remove(at);
        shared.met(Hazard::InPart);
    }
    let writes = parts.iter().map(|part| write(shared, datacenter, level, part, patience));
    let results = futures::future::join_all(writes).await;
    if is_short { Err(unavailable()) } else { results.into_iter().collect() }
}

/// Delivers a mutation to one node: now, later or never.
async fn deliver(
    shared: Shared,
    node: usize,
    mutation: Arc<Mutation>,
    fate: Fate,
    acks: Option<Arc<Semaphore>>,
) {
    let Fate::Arrives(after) = fate else { return hinted(shared, node, mutation, fate).await };
    sleep(after).await;
    if shared.with(|world| world.arrive(node, &mutation, false)) {
        if let Some(acks) = acks {
            acks.add_permits(1);
        }
    } else {
        let fate = shared.with(World::hint);
        hinted(shared, node, mutation, fate).await;
    }
}

/// A hint. It is delivered when its node is up, but never later than `gc_grace` after it was stored.
async fn hinted(shared: Shared, node: usize, mutation: Arc<Mutation>, fate: Fate) {
    let Fate::Hinted(after) = fate else { return };
    let (kept, most) = shared.with(|world| (world.time.elapsed(), world.plan.gc_grace));
    let mut wait = after;
    loop {
        sleep(wait).await;
        let now = shared.with(|world| world.time.elapsed());
        if now - kept > most || shared.with(|world| world.arrive(node, &mutation, true)) {
            return;
        }
        wait = Duration::from_secs(2);
    }
}

/// One attempt to read rows at a consistency level. Returns the merged rows in the table's order.
pub(crate) async fn read(
    shared: &Shared,
    datacenter: usize,
    level: Level,
    range: Range,
) -> Result<Vec<(Address, Cell)>, ExecutionError> {
    let asked = shared.with(|world| world.asked(level, datacenter)).ok_or_else(unavailable)?;
    let mut pieces: Vec<(usize, Piece)> = Vec::with_capacity(asked.len());
    let mut waited = Duration::ZERO;
    for (after, node) in asked {
        sleep(after - waited).await;
        waited = after;
        pieces.push((node, ask(shared, datacenter, node, &range).ok_or_else(no_answer)?));
    }
    let split = shared.with(|world| world.is(Sabotage::SplitTally));
    let rows = loop {
        let answers: Vec<Piece> = pieces.iter().map(|(_, piece)| piece.clone()).collect();
        let mut rows: Vec<_> = merge(&answers, split).into_iter().collect();
        if range.is_backwards {
            rows.reverse();
        }
        let is_cut = rows.len() > range.limit;
        rows.truncate(range.limit);
        let last = rows.last().map(|(address, _)| *address);
        // Short-read protection: asks a replica again that stopped before the end of the answer.
        let reaches = |piece: &Piece| {
            let own = piece.rows.last().map(|(address, _)| *address);
            let is_past = own.zip(last).is_some_and(|(own, last)| range.reaches(&own, &last));
            !piece.is_cut || (rows.len() == range.limit && is_past)
        };
        let Some((node, piece)) = pieces.iter_mut().find(|(_, piece)| !reaches(piece)) else {
            break finish(shared, &pieces, &range, rows, is_cut.then_some(last).flatten());
        };
        shared.met(Hazard::ShortRead);
        sleep(shared.with(World::travel)).await;
        let behind = piece.rows.last().map(|(address, _)| *address);
        let more =
            ask(shared, datacenter, *node, &Range { behind, ..range }).ok_or_else(no_answer)?;
        piece.rows.extend(more.rows);
        piece.tombstones.extend(more.tombstones);
        piece.is_cut = more.is_cut;
    };
    let silent = shared.with(|world| {
        let silent = world.weather.silent;
        world.dice.random_bool(silent)
    });
    if silent {
        return Err(no_answer());
    }
    sleep(shared.with(World::travel)).await;
    Ok(rows)
}

/// One replica's answer; `None` if it can't be reached.
fn ask(shared: &Shared, datacenter: usize, node: usize, range: &Range) -> Option<Piece> {
    shared
        .with(|world| world.reaches(datacenter, node).then(|| world.nodes[node].disk.answer(range)))
}

/// An error because a replica did not answer.
fn no_answer() -> ExecutionError {
    ExecutionError::RequestTimeout(COORDINATOR_PATIENCE)
}

/// The end of a read: records hazards, and repairs rows if read repair is on.
fn finish(
    shared: &Shared,
    pieces: &[(usize, Piece)],
    range: &Range,
    rows: Vec<(Address, Cell)>,
    cut_at: Option<Address>,
) -> Vec<(Address, Cell)> {
    shared.with(|world| {
        for name in range.from_name..=range.to_name {
            // A replica that stopped before the tally's position has not told whether it has one.
            let address = Address::tally(name);
            let says = |(_, piece): &&(usize, Piece)| {
                let has_come = |(last, _): &(Address, Cell)| range.reaches(last, &address);
                !piece.is_cut || piece.rows.last().is_some_and(has_come)
            };
            let tally = |(_, piece): &(usize, Piece)| {
                let found = piece.rows.iter().find(|(found, _)| *found == address);
                found.map(|(_, cell)| cell.timestamp)
            };
            let mut tallies = pieces.iter().filter(says).map(tally);
            let first = tallies.next();
            if tallies.any(|other| Some(other) != first) {
                world.met(Hazard::UnevenTally);
            }
        }
        if world.is(Sabotage::BlockingRepair) && pieces.len() > 1 {
            let answers: Vec<Piece> = pieces.iter().map(|(_, piece)| piece.clone()).collect();
            let repair = repair(&answers, range, cut_at.as_ref());
            for (node, _) in pieces {
                world.nodes[*node].disk.apply(&repair, false);
            }
        }
    });
    rows
}

/// An error because too few replicas are up. None was asked.
pub(crate) fn unavailable() -> ExecutionError {
    let consistency = Consistency::LocalQuorum;
    let error = DbError::Unavailable { consistency, required: 2, alive: 1 };
    ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, String::new()))
}
