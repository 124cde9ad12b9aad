//! How many keys groups can have in a pod, and how fast they can get new ones. One tenant must neither
//! displace the mutators of others nor fill the store with keys.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::ensure;
use governor::{DefaultDirectRateLimiter, Quota as Pace, RateLimiter};
use orderfree_core::protocol::Name;
use serde::Deserialize;
use thiserror::Error;

/// All quotas, and the number of each tenant.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// The longest prefix first.
    all: Vec<Quota>,
    /// For each prefix that ever had a quota in this process: numbers are not reused.
    tenants: BTreeMap<String, Tenant>,
}

#[derive(Debug)]
struct Quota {
    entry: Entry,
    tenant: Tenant,
    births: Option<Arc<DefaultDirectRateLimiter>>,
    live: Arc<AtomicUsize>,
}

/// A `[[quota]]` table of the file.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    group_prefix: String,
    new_keys_per_minute: Option<NonZeroU32>,
    live_mutators: Option<usize>,
}

/// The groups of one quota, by a number. All groups without a quota are one tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenant(u16);

impl Tenant {
    /// All groups without a quota, and groups whose prefix got no number because none was left.
    pub const OTHERS: Tenant = Tenant(0);

    /// For tests of the separation between tenants.
    #[must_use]
    pub const fn numbered(number: u16) -> Tenant {
        Tenant(number)
    }
}

/// How a mutator became awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// It is new, and so may be its key.
    Born,
    /// It is new, and its key is not.
    Next,
    /// It was at rest.
    Woken,
}

/// The permit of one mutator in its group's quota, until it is dropped.
#[derive(Debug)]
pub struct QuotaPermit {
    live: Option<Arc<AtomicUsize>>,
    tenant: Tenant,
}

/// Why a group gets no further mutator.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OverQuota {
    /// It has reached its number of new keys per minute.
    #[error(
        "groups that begin with {group_prefix:?} can have {per_minute} new keys per minute in each pod, and this pod \
         has reached that; send the update again later"
    )]
    NewKeys { group_prefix: String, per_minute: NonZeroU32 },
    /// It has reached its number of awake mutators. A clean one can make room.
    #[error(
        "groups that begin with {:?} have reached their quota of {} live mutators in this pod; send the update \
         again later",
        .0.group_prefix,
        .0.max
    )]
    Live(QuotaPermits),
}

/// The permits of one quota.
#[derive(Debug, Clone)]
pub struct QuotaPermits {
    group_prefix: Arc<str>,
    live: Arc<AtomicUsize>,
    max: usize,
    tenant: Tenant,
}

impl PartialEq for QuotaPermits {
    fn eq(&self, other: &QuotaPermits) -> bool {
        Arc::ptr_eq(&self.live, &other.live)
    }
}

impl QuotaPermits {
    /// Takes one permit.
    ///
    /// # Errors
    /// [`OverQuota::Live`] if no permit is free.
    pub fn take(&self) -> Result<QuotaPermit, OverQuota> {
        // The permit exists before the check, so that a refused one is counted down again by its drop.
        // Counting before the check keeps two callers from taking the last permit together.
        let permit = QuotaPermit { live: Some(Arc::clone(&self.live)), tenant: self.tenant };
        if self.live.fetch_add(1, Ordering::SeqCst) >= self.max {
            return Err(OverQuota::Live(self.clone()));
        }
        Ok(permit)
    }
}

impl Quotas {
    pub(super) fn new(entries: Vec<Entry>) -> anyhow::Result<Quotas> {
        let mut quotas: Vec<Quota> = entries
            .into_iter()
            .map(|entry| Quota {
                births: entry
                    .new_keys_per_minute
                    .map(|rate| Arc::new(RateLimiter::direct(Pace::per_minute(rate)))),
                live: Arc::default(),
                tenant: Tenant::OTHERS,
                entry,
            })
            .collect();
        quotas.sort_by_key(|quota| std::cmp::Reverse(quota.entry.group_prefix.len()));
        for (index, Quota { entry, .. }) in quotas.iter().enumerate() {
            let is_same = |other: &Quota| other.entry.group_prefix == entry.group_prefix;
            ensure!(
                !quotas[..index].iter().any(is_same),
                "two quotas for the prefix {:?}; keep one",
                entry.group_prefix
            );
            ensure!(
                entry.new_keys_per_minute.is_some() || entry.live_mutators.is_some(),
                "the quota of the prefix {:?} limits nothing; set new_keys_per_minute, live_mutators or both",
                entry.group_prefix
            );
        }
        let mut quotas = Quotas { all: quotas, tenants: BTreeMap::new() };
        quotas.number();
        Ok(quotas)
    }

    /// Gives each prefix its number. A new prefix gets the next one.
    fn number(&mut self) {
        for Quota { entry, tenant, .. } in &mut self.all {
            let next = u16::try_from(self.tenants.len() + 1).map_or(Tenant::OTHERS, Tenant);
            *tenant = match self.tenants.get(&entry.group_prefix) {
                Some(known) => *known,
                None if next == Tenant::OTHERS => next,
                None => *self.tenants.entry(entry.group_prefix.clone()).or_insert(next),
            };
        }
    }

    /// Takes over the counts and rates of the policy before.
    pub(super) fn go_on_from(&mut self, before: &Quotas) {
        self.tenants.clone_from(&before.tenants);
        self.number();
        for quota in &mut self.all {
            let same = |old: &&Quota| old.entry.group_prefix == quota.entry.group_prefix;
            let Some(old) = before.all.iter().find(same) else { continue };
            quota.live = Arc::clone(&old.live);
            if quota.entry.new_keys_per_minute == old.entry.new_keys_per_minute {
                quota.births.clone_from(&old.births);
            }
        }
    }

    fn of(&self, group: &Name) -> Option<&Quota> {
        let fits = |quota: &&Quota| group.as_str().starts_with(&quota.entry.group_prefix);
        self.all.iter().find(fits)
    }

    /// A permit for a mutator that no quota counts.
    pub(super) fn uncounted_permit(&self, group: &Name) -> QuotaPermit {
        QuotaPermit {
            live: None,
            tenant: self.of(group).map_or(Tenant::OTHERS, |quota| quota.tenant),
        }
    }

    pub(super) fn permit(&self, group: &Name, arrival: Arrival) -> Result<QuotaPermit, OverQuota> {
        let Some(quota) = self.of(group) else { return Ok(self.uncounted_permit(group)) };
        if arrival == Arrival::Born
            && let (Some(births), Some(per_minute)) =
                (&quota.births, quota.entry.new_keys_per_minute)
            && births.check().is_err()
        {
            let group_prefix = quota.entry.group_prefix.clone();
            return Err(OverQuota::NewKeys { group_prefix, per_minute });
        }
        let permits = QuotaPermits {
            group_prefix: quota.entry.group_prefix.as_str().into(),
            live: Arc::clone(&quota.live),
            max: quota.entry.live_mutators.unwrap_or(usize::MAX),
            tenant: quota.tenant,
        };
        permits.take()
    }
}

impl QuotaPermit {
    /// The tenant whose mutator has this permit.
    #[must_use]
    pub fn tenant(&self) -> Tenant {
        self.tenant
    }

    /// Whether this is one of `permits`.
    #[must_use]
    pub fn is_of(&self, permits: &QuotaPermits) -> bool {
        self.live.as_ref().is_some_and(|own| Arc::ptr_eq(own, &permits.live))
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        if let Some(live) = &self.live {
            live.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
