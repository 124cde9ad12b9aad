//! What is measured: which keys, how often each, how many connections, at which pace.

use std::time::Duration;

use clap::ValueEnum;
use orderfree_load::workload::zipf;
use serde::{Deserialize, Serialize};

use crate::load::{Choice, Pace, Prepared};
use crate::peers::{Key, Peer};
use crate::wire::request;

/// Skew of the zipf scenarios: that of YCSB.
const ZIPF_EXPONENT: f64 = 0.99;

/// Keys of the scenarios with many.
const MANY_KEYS: usize = 10_000;

/// Increments in one batch.
const BATCH: usize = 100;

/// Requests a second of the open loop: many, and so few that a write for each of them keeps up.
const STEADY_RATE: u32 = 5_000;
const CALM_RATE: u32 = 1_000;

/// The same while a node is in trouble: few enough for two nodes of three to serve everyone.
const TROUBLE_RATE: u32 = 200;

/// Keys, each in a group of its own, that are counted meanwhile.
const TROUBLE_KEYS: usize = 100;

/// How long the round is then, when the trouble begins, and how long it lasts.
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
    /// 10,000 keys alike, each in a group of its own.
    UniformGroups,
    /// 10,000 keys alike, in 100 groups.
    Uniform,
    /// 10,000 keys in groups of their own, by Zipf's law.
    Zipf,
    /// One key, 100 increments in a request, each with its key.
    BatchHot,
    /// One key, 100 increments in a request; to ours as a list of ops of that key.
    OpsHot,
    /// 10,000 keys in 100 groups, 100 different ones in a request.
    BatchUniform,
    /// One key, 5,000 requests a second, whatever the answers do.
    Steady,
    /// The same with 1,000.
    Calm,
    /// 100 keys in groups of their own, 200 requests a second, while a node of three is stopped and
    /// does not know it.
    NodePaused,
    /// The same while one is killed and started again.
    NodeKilled,
}

impl Scenario {
    /// Its name, as on the command line.
    #[must_use]
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("invariant: none is hidden").get_name().to_owned()
    }

    /// One line for tables.
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

    /// What happens to a node meanwhile, and what ends it, in words of `tests/cassandra/cluster`.
    #[must_use]
    pub(crate) fn trouble(self) -> Option<[&'static str; 2]> {
        match self {
            Scenario::NodePaused => Some(["pause", "resume"]),
            Scenario::NodeKilled => Some(["kill", "restart"]),
            _ => None,
        }
    }

    /// Connections that send.
    #[must_use]
    pub(crate) fn connections(self) -> usize {
        match self {
            Scenario::Hot64 | Scenario::BatchHot | Scenario::OpsHot | Scenario::BatchUniform => 64,
            Scenario::Hot1024 => 1_024,
            _ => 256,
        }
    }

    /// When requests are sent.
    #[must_use]
    pub(crate) fn pace(self) -> Pace {
        match self {
            Scenario::Steady => Pace::Open(STEADY_RATE),
            Scenario::Calm => Pace::Open(CALM_RATE),
            Scenario::NodePaused | Scenario::NodeKilled => Pace::Open(TROUBLE_RATE),
            _ => Pace::Closed,
        }
    }

    /// The keys of one peer, apart from all others: `mark` sets runs apart.
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

    /// What is sent to a peer, and how often each request is chosen.
    #[must_use]
    pub(crate) fn requests(self, peer: Peer, keys: &[Key]) -> (Vec<Prepared>, Choice) {
        let batch = |chosen: Vec<usize>| Prepared {
            bytes: batch_request(peer, chosen.iter().map(|key| &keys[*key])),
            adds: chosen.into_iter().map(|key| (key, 1)).collect(),
        };
        let requests: Vec<Prepared> = match self {
            Scenario::OpsHot if peer == Peer::Ours => {
                vec![Prepared { bytes: ops_request(&keys[0]), adds: vec![(0, BATCH as u64)] }]
            }
            Scenario::BatchHot | Scenario::OpsHot => vec![batch(vec![0; BATCH])],
            Scenario::BatchUniform => (0..keys.len() / BATCH)
                .map(|number| batch((number * BATCH..(number + 1) * BATCH).collect()))
                .collect(),
            _ => keys
                .iter()
                .enumerate()
                .map(|(index, key)| Prepared {
                    bytes: request("POST", &peer.path(key), "", ""),
                    adds: vec![(index, 1)],
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

/// As many increments of one key of ours, in one list.
fn ops_request(key: &Key) -> Vec<u8> {
    let ops = vec![serde_json::json!({"op": "add"}); BATCH];
    let body = serde_json::json!({ "ops": ops }).to_string();
    request("POST", &Peer::Ours.path(key), "application/json", &body)
}

/// One increment of each of these keys, in one request.
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
    fn groups_hold_as_many_keys_as_they_should() {
        let keys = Scenario::Uniform.keys("m", Peer::Ours);
        let of_first = keys.iter().filter(|key| key.group == keys[0].group).count();
        assert_eq!((keys.len(), of_first), (10_000, 100));
        let keys = Scenario::Zipf.keys("m", Peer::Ours);
        assert_eq!(keys.iter().filter(|key| key.group == keys[0].group).count(), 1);
    }
}
