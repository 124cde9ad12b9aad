//! The scenarios: which keys are incremented, how often, over how many connections and at which rate.

use std::time::Duration;

use clap::ValueEnum;
use orderfree_load::workload::zipf;
use serde::{Deserialize, Serialize};

use crate::load::{Choice, Pace, Prepared};
use crate::peers::{Key, Peer};
use crate::wire::request;

/// Skew of the Zipf scenarios, as in YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// Keys of the scenarios with many keys.
const MANY_KEYS: usize = 10_000;

/// Increments per batch.
const BATCH: usize = 100;

/// Requests per second of the open loop: many, but few enough that one write per request can keep up.
const STEADY_RATE: u32 = 5_000;
const CALM_RATE: u32 = 1_000;

/// Requests per second while a node is in trouble: few enough for the two other nodes.
const TROUBLE_RATE: u32 = 200;

/// Keys of the scenarios with a fault, each in a group of its own.
const TROUBLE_KEYS: usize = 100;

/// Length of such a round, when the fault begins, and how long it lasts.
pub(crate) const TROUBLE: [Duration; 3] =
    [Duration::from_secs(20), Duration::from_secs(5), Duration::from_secs(5)];

/// One way to load a server.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scenario {
    /// One key, 64 connections.
    Hot64,
    /// One key, 256 connections.
    Hot,
    /// One key, 1,024 connections.
    Hot1024,
    /// 10,000 equally likely keys, each in a group of its own.
    UniformGroups,
    /// 10,000 equally likely keys, in 100 groups.
    Uniform,
    /// 10,000 keys in groups of their own, by Zipf's law.
    Zipf,
    /// One key, 100 increments per request, each with its key.
    BatchHot,
    /// One key, 100 increments per request; for Orderfree, a list of ops of that key.
    OpsHot,
    /// 10,000 keys in 100 groups, 100 different keys per request.
    BatchUniform,
    /// One key, 5,000 requests per second, even if answers are late.
    Steady,
    /// One key, 1,000 requests per second, even if answers are late.
    Calm,
    /// 100 keys in groups of their own, 200 requests per second, while one of three nodes is paused and the others do
    /// not know it yet.
    NodePaused,
    /// 100 keys in groups of their own, 200 requests per second, while a node is killed and started again.
    NodeKilled,
}

impl Scenario {
    /// The name on the command line.
    #[must_use]
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("invariant: none is hidden").get_name().to_owned()
    }

    /// A description of one line for tables.
    #[must_use]
    pub(crate) fn title(self) -> &'static str {
        match self {
            Scenario::Hot64 => "one hot key, 64 connections",
            Scenario::Hot => "one hot key, 256 connections",
            Scenario::Hot1024 => "one hot key, 1,024 connections",
            Scenario::UniformGroups => "10,000 keys in 10,000 groups, 256 connections",
            Scenario::Uniform => "10,000 keys in 100 groups, 256 connections",
            Scenario::Zipf => "10,000 keys by Zipf's law (0.99), 256 connections",
            Scenario::BatchHot => {
                "one hot key, 100 increments a request, each with its key, 64 connections"
            }
            Scenario::OpsHot => {
                "one hot key, 100 increments a request, to ours as one list of ops, 64 connections"
            }
            Scenario::BatchUniform => {
                "10,000 keys in 100 groups, 100 keys a request, 64 connections"
            }
            Scenario::Steady => "one hot key, 5,000 requests/s (open loop), 256 connections",
            Scenario::Calm => "one hot key, 1,000 requests/s (open loop), 256 connections",
            Scenario::NodePaused => {
                "100 keys in 100 groups, 200 requests/s for 20 s, one node of three stopped for 5 s"
            }
            Scenario::NodeKilled => {
                "100 keys in 100 groups, 200 requests/s for 20 s, one node of three killed for 5 s"
            }
        }
    }

    /// The commands of `tests/cassandra/cluster` that start and end the fault.
    #[must_use]
    pub(crate) fn trouble(self) -> Option<[&'static str; 2]> {
        match self {
            Scenario::NodePaused => Some(["pause", "resume"]),
            Scenario::NodeKilled => Some(["kill", "restart"]),
            _ => None,
        }
    }

    #[must_use]
    pub(crate) fn connections(self) -> usize {
        match self {
            Scenario::Hot64 | Scenario::BatchHot | Scenario::OpsHot | Scenario::BatchUniform => 64,
            Scenario::Hot1024 => 1_024,
            _ => 256,
        }
    }

    #[must_use]
    pub(crate) fn pace(self) -> Pace {
        match self {
            Scenario::Steady => Pace::Open(STEADY_RATE),
            Scenario::Calm => Pace::Open(CALM_RATE),
            Scenario::NodePaused | Scenario::NodeKilled => Pace::Open(TROUBLE_RATE),
            _ => Pace::Closed,
        }
    }

    /// The keys of one peer. Different values of `mark` give different keys.
    #[must_use]
    pub(crate) fn keys(self, mark: &str, peer: Peer) -> Vec<Key> {
        let group = format!("{mark}-{}-{}", self.name(), peer.name());
        let (count, groups) = match self {
            Scenario::UniformGroups | Scenario::Zipf => (MANY_KEYS, MANY_KEYS),
            Scenario::Uniform | Scenario::BatchUniform => (MANY_KEYS, 100),
            Scenario::NodePaused | Scenario::NodeKilled => (TROUBLE_KEYS, TROUBLE_KEYS),
            _ => (1, 1),
        };
        (0..count)
            .map(|i| Key {
                group: format!("{group}-{}", i % groups),
                name: format!("k{}", i / groups),
            })
            .collect()
    }

    /// The requests to a peer, and how often each is sent.
    #[must_use]
    pub(crate) fn requests(self, peer: Peer, keys: &[Key]) -> (Vec<Prepared>, Choice) {
        let batch = |chosen: Vec<usize>| {
            let bytes = batch_request(peer, chosen.iter().map(|key| &keys[*key]));
            Prepared::new(bytes, chosen.into_iter().map(|key| (key, 1)).collect())
        };
        let requests: Vec<Prepared> = match self {
            Scenario::OpsHot if peer == Peer::Ours => {
                vec![Prepared::new(ops_request(&keys[0], BATCH), vec![(0, BATCH as u64)])]
            }
            Scenario::BatchHot | Scenario::OpsHot => vec![batch(vec![0; BATCH])],
            Scenario::BatchUniform => (0..keys.len() / BATCH)
                .map(|number| batch((number * BATCH..(number + 1) * BATCH).collect()))
                .collect(),
            _ => keys
                .iter()
                .enumerate()
                .map(|(index, key)| {
                    Prepared::new(request("POST", &peer.path(key), "", ""), vec![(index, 1)])
                })
                .collect(),
        };
        let choice = match self {
            Scenario::Zipf => Choice::Cumulative(zipf(requests.len(), ZIPF_EXPONENT)),
            _ => Choice::Uniform,
        };
        (requests, choice)
    }
}

/// A request with one list of that many increments of a key, for Orderfree.
pub(crate) fn ops_request(key: &Key, count: usize) -> Vec<u8> {
    let ops = vec![serde_json::json!({"op": "add"}); count];
    let body = serde_json::json!({ "ops": ops }).to_string();
    request("POST", &Peer::Ours.path(key), "application/json", &body)
}

/// A request with one increment of each of these keys.
pub(crate) fn batch_request<'a>(peer: Peer, keys: impl Iterator<Item = &'a Key>) -> Vec<u8> {
    let body = if peer == Peer::Ours {
        let update = |Key { group, name }: &Key| serde_json::json!({"kind": "counter", "group": group, "name": name, "op": {"op": "add"}});
        serde_json::json!({"updates": keys.map(update).collect::<Vec<_>>()})
    } else {
        serde_json::json!(keys.collect::<Vec<_>>())
    };
    request("POST", &peer.batch_path(), "application/json", &body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_reaches_every_key_of_its_own() {
        for scenario in Scenario::value_variants() {
            for peer in Peer::value_variants() {
                let keys = scenario.keys("m", *peer);
                let (requests, _) = scenario.requests(*peer, &keys);
                let mut reached = vec![false; keys.len()];
                for (key, by) in requests.iter().flat_map(|request| &request.adds) {
                    let is_list = scenario == &Scenario::OpsHot && *peer == Peer::Ours;
                    assert_eq!(*by, if is_list { 100 } else { 1 });
                    reached[*key] = true;
                }
                assert!(reached.iter().all(|reached| *reached), "{scenario:?} of {peer:?}");
            }
        }
    }

    #[test]
    fn groups_have_the_right_number_of_keys() {
        let keys = Scenario::Uniform.keys("m", Peer::Ours);
        let of_first = keys.iter().filter(|key| key.group == keys[0].group).count();
        assert_eq!((keys.len(), of_first), (10_000, 100));
        let keys = Scenario::Zipf.keys("m", Peer::Ours);
        assert_eq!(keys.iter().filter(|key| key.group == keys[0].group).count(), 1);
    }
}
