//! What must always hold, and what a run must have seen so that the result means something.

use std::cell::RefCell;

use orderfree_core::protocol::{Slice, Timestamp, read};
use stateright::Property;

use crate::model::{LIMIT, Small};
use crate::replica::{Contents, merged};
use crate::sabotage::Sabotage;
use crate::scope::OPS_MAX;
use crate::tables::{NONE, total};
use crate::world::{OpState, World};

/// Observations about one world.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    // Must never happen.
    lost: bool,
    doubled: bool,
    phantom: bool,
    unreadable: bool,
    open: bool,
    prefix_broken: bool,
    chain_broken: bool,
    leftover: bool,
    // Must happen in some world.
    zombie: bool,
    both: bool,
    read_again: bool,
}

macro_rules! never {
    ($name:literal, $field:ident) => {
        Property::always($name, |model: &Small, world: &World| !judge(model, world).$field)
    };
}

/// Every property, in the order of reports.
pub(crate) fn properties() -> Vec<Property<Small>> {
    let mut all = vec![
        never!("no acked op is lost", lost),
        never!("no op is doubled", doubled),
        never!("no phantom is counted", phantom),
        never!("every read is decoded", unreadable),
        never!("I5 prefix: a tally holds all up to its fence, and nothing later", prefix_broken),
        never!("I7 closure: no deletion without its tally", open),
        never!("I8 chain: a greater fence holds every acked op of a smaller one", chain_broken),
        never!("no row lies below a deletion", leftover),
    ];
    all.extend(sights());
    all
}

/// Observations that a run must have made.
fn sights() -> Vec<Property<Small>> {
    let sometimes = Property::<Small>::sometimes;
    vec![
        sometimes("every op is acked", |model, world| {
            let lives = world.lives.iter().zip(&model.tables.scope.lives);
            lives
                .into_iter()
                .all(|(life, scope)| life.ops[..scope.ops].iter().all(|op| *op == OpState::Acked))
        }),
        sometimes("an acknowledgement came too late", |_, world| {
            world.lives.iter().any(|life| life.ops.contains(&OpState::TooLate))
        }),
        sometimes("an op is unknown, and folded", |model, world| {
            let is_unknown = |at: usize, op: usize| world.lives[at].ops[op] == OpState::Unknown;
            world.planned().filter(|fold| fold.landed).any(|fold| {
                let held = model.tables.tally(fold.id).1;
                places().any(|(at, op)| digit_of(model, held, at, op) == 1 && is_unknown(at, op))
            })
        }),
        sometimes("a fold lies on every replica", |_, world| {
            let first = world.replicas[0].holds.tally;
            first != NONE && world.replicas.iter().all(|replica| replica.holds.tally == first)
        }),
        sometimes("two folds with different fences are in hand", |model, world| {
            let mut fences = world.planned().filter(|fold| !fold.sent);
            let fence = |fold: &crate::world::Planned| model.tables.fence(fold.id);
            let first = fences.next().map(fence);
            first.is_some() && fences.any(|fold| Some(fence(fold)) != first)
        }),
        sometimes("two folds have one fence and different tallies", |model, world| {
            let folds: Vec<_> = world.planned().map(|fold| model.tables.tally(fold.id)).collect();
            folds.iter().any(|a| folds.iter().any(|b| a.0 == b.0 && a.1 != b.1))
        }),
        sometimes("an old fold is about to reach a replica with a newer one", |model, world| {
            world.replicas.iter().any(|replica| {
                let is_older =
                    |id| model.tables.fence(id) < model.tables.fence(replica.holds.tally);
                replica.holds.tally != NONE
                    && replica
                        .pending()
                        .any(|(id, _)| world.planned().any(|fold| fold.id == id) && is_older(id))
            })
        }),
        sometimes("a deletion was purged", |model, world| world.purges < model.tables.scope.purges),
        sometimes("a zombie came back", |model, world| judge(model, world).zombie),
        sometimes("a reader saw a tally and a live shard", |model, world| judge(model, world).both),
        sometimes("a cached fence was ahead of the answer", |model, world| {
            judge(model, world).read_again
        }),
    ]
}

thread_local! {
    /// The last judged world, because every property looks at the same world in turn.
    static LAST: RefCell<Option<(usize, World, Verdict)>> = const { RefCell::new(None) };
}

fn judge(model: &Small, world: &World) -> Verdict {
    let of = std::ptr::from_ref(model).addr();
    LAST.with_borrow_mut(|last| match last {
        Some((model, known, verdict)) if *model == of && known == world => *verdict,
        _ => {
            let verdict = judged(model, world);
            *last = Some((of, *world, verdict));
            verdict
        }
    })
}

fn judged(model: &Small, world: &World) -> Verdict {
    let mut verdict = Verdict::default();
    let fences = world.planned().filter(|fold| fold.landed);
    let mut cached: Vec<_> = fences.map(|fold| Some(model.tables.fence(fold.id))).collect();
    cached.push(None);
    cached.sort();
    cached.dedup();
    for quorum in world.quorums(model.tables.scope.reads) {
        let contents = merged(&quorum, &model.tables);
        for after in &cached {
            judge_read(model, world, seen(model, contents, *after), &mut verdict);
        }
    }
    judge_folds(model, world, &mut verdict);
    for replica in &world.replicas {
        judge_replica(model, &replica.holds, &mut verdict);
    }
    verdict
}

/// The result of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    /// An error.
    Unreadable,
    /// The cached fence was ahead. The reader reads again without it, which is judged too.
    Again,
    /// A value.
    Total { total: i128, had_zombies: bool, had_both: bool },
}

/// A read by the shipped rule, in a pod that last saw the fence `after`.
fn seen(model: &Small, contents: Contents, after: Option<Timestamp>) -> Seen {
    let tables = &model.tables;
    if let Some(known) = tables.reads.read().expect("no panic").get(&(contents, after)) {
        return *known;
    }
    let seen = read(model, contents, after);
    tables.reads.write().expect("no panic").insert((contents, after), seen);
    seen
}

fn read(model: &Small, contents: Contents, after: Option<Timestamp>) -> Seen {
    let tables = &model.tables;
    let is = |sabotage| tables.sabotage == Some(sabotage);
    let believed = if is(Sabotage::CachedFenceTrusted) { None } else { after };
    let mut rows = contents.query(after, tables);
    if is(Sabotage::ReadsCountCopies) {
        tables.with_own_ids(&mut rows);
    }
    let slice = Slice::new(rows, believed, LIMIT);
    let slice = slice.whole().expect("few rows");
    // Matters only for what a reader tells the folds.
    let now = tables.scope.pod_now(0).wall;
    let reading = match read::assemble(&tables.key, &slice, now, &tables.constants) {
        Err(_) => return Seen::Unreadable,
        Ok(read::Answer::ReadAgain) => return Seen::Again,
        Ok(read::Answer::Absent | read::Answer::Grave(..)) => {
            return Seen::Total { total: 0, had_zombies: false, had_both: false };
        }
        Ok(read::Answer::Value(reading)) => reading,
    };
    let mut value = total(&reading.state);
    if is(Sabotage::FenceIgnored) {
        let tally =
            read::tally(&tables.key, &slice).map_or(0, |tally| total(&tally.expect("decoded").1));
        let views = read::shards(&tables.key, &slice, now, &tables.constants);
        let shards = views.iter().map(|view| total(view.state.as_ref().expect("decoded")));
        value = tally + shards.sum::<i128>();
    }
    Seen::Total {
        total: value,
        had_zombies: reading.zombies > 0,
        had_both: reading.shards > 0 && reading.fence.is_some(),
    }
}

/// A read that begins now.
fn judge_read(model: &Small, world: &World, seen: Seen, verdict: &mut Verdict) {
    let (total, had_zombies, had_both) = match seen {
        Seen::Unreadable => return verdict.unreadable = true,
        Seen::Again => return verdict.read_again = true,
        Seen::Total { total, had_zombies, had_both } => (total, had_zombies, had_both),
    };
    verdict.zombie |= had_zombies;
    verdict.both |= had_both;
    for (at, op) in places() {
        match digit_of(model, total, at, op) {
            0 => verdict.lost |= world.lives[at].ops[op] == OpState::Acked,
            1 => verdict.phantom |= !attempts(model, world, at, op).any(OpState::may_count),
            _ => verdict.doubled = true,
        }
    }
}

/// Checks I5 and I8 for every planned fold.
fn judge_folds(model: &Small, world: &World, verdict: &mut Verdict) {
    let scope = &model.tables.scope;
    let folds: Vec<_> = world.planned().map(|fold| model.tables.tally(fold.id)).collect();
    for (at, op) in places() {
        let life = &world.lives[at];
        let Some(born) = life.born.checked_sub(1) else { continue };
        let expires_at = scope.expires_at(born, &model.tables.constants);
        let is_acked = life.ops[op] == OpState::Acked;
        let mut held_by: Option<Timestamp> = None;
        for &(fence, total) in &folds {
            let digit = digit_of(model, total, at, op);
            verdict.prefix_broken |= digit > 1
                || (digit == 1 && expires_at > fence)
                || (digit == 0 && expires_at <= fence && is_acked);
            if digit == 1 {
                held_by = Some(held_by.map_or(fence, |other| other.min(fence)));
            }
        }
        // A write that was never acked may arrive between the reads of two folds.
        verdict.chain_broken |= is_acked
            && folds.iter().any(|&(fence, total)| {
                held_by.is_some_and(|held| fence > held) && digit_of(model, total, at, op) == 0
            });
    }
}

/// Checks I7, and that a deletion removes its rows.
fn judge_replica(model: &Small, replica: &Contents, verdict: &mut Verdict) {
    if replica.deletion == NONE {
        return;
    }
    let fence = model.tables.fence(replica.deletion);
    verdict.open |= replica.tally == NONE || model.tables.fence(replica.tally) < fence;
    let rows = replica.shards.iter().filter_map(|id| model.tables.row(*id));
    verdict.leftover |= rows.into_iter().any(|row| row.expires_at <= fence);
}

fn places() -> impl Iterator<Item = (usize, usize)> {
    (0..crate::scope::LIVES_MAX).flat_map(|at| (0..OPS_MAX).map(move |op| (at, op)))
}

/// The states of an op in all lives that got it: one, or every life if it has an id.
fn attempts(
    model: &Small,
    world: &World,
    at: usize,
    op: usize,
) -> impl Iterator<Item = OpState> + use<> {
    let (lives, has_id) = (world.lives, model.tables.scope.has_id);
    let lives = lives.into_iter().enumerate();
    lives.filter(move |(life, _)| has_id || *life == at).map(move |(_, life)| life.ops[op])
}

/// How often an op is counted in a total.
fn digit_of(model: &Small, total: i128, life: usize, op: usize) -> i128 {
    total / i128::from(model.tables.digit(life, op)) % 8
}
