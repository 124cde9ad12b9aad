//! What must be true of a cluster before a pod counts on it. All rules are pure functions of the contents of
//! the system tables.

use std::collections::BTreeMap;

use orderfree_core::protocol::consistency::{Levels, Replication};

use super::connect_error::ConnectError;

/// The oldest Apache Cassandra that works, as major and minor version.
const CASSANDRA_MIN: (u32, u32) = (4, 1);

/// The first release with the compaction strategy of `schema.cql`.
const CASSANDRA_UNIFIED_COMPACTION: (u32, u32) = (5, 0);

/// The first release whose `nodetool scrub` loses partitions with range deletions. No later release is known to be without
/// this defect. On one that is, the test `scrub_loses_folded_partitions_from_5_0_on` in `tests/harness/conformance` fails.
const CASSANDRA_LOSING_SCRUB: (u32, u32) = (5, 0);

/// The releases for which `schema print` has statements.
const CASSANDRA_PRINTED: [(u32, u32); 3] = [(4, 1), (5, 0), (6, 0)];

/// The name of ScyllaDB for `schema print`.
const SCYLLA: &str = "scylla";

/// What the nodes run, as far as it changes the statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    /// Apache Cassandra, with the oldest version of its nodes.
    Cassandra((u32, u32)),
    /// ScyllaDB: the same statements, untested.
    Scylla,
}

impl Engine {
    /// Returns the engine from the nodes' release versions. If one is too old or unreadable, the error is
    /// that release.
    pub(super) fn of_releases(releases: &[String]) -> Result<Engine, String> {
        let mut oldest = (u32::MAX, u32::MAX);
        for release in releases {
            let version = version(release).filter(|version| *version >= CASSANDRA_MIN);
            oldest = oldest.min(version.ok_or_else(|| release.clone())?);
        }
        if releases.is_empty() { Err("unknown".into()) } else { Ok(Engine::Cassandra(oldest)) }
    }

    /// Returns the engine that a person names: a release such as `5.0` or `5.0.6`, or `scylla`.
    pub(super) fn of_name(name: &str) -> Option<Engine> {
        if name.eq_ignore_ascii_case(SCYLLA) {
            return Some(Engine::Scylla);
        }
        version(name).filter(|version| CASSANDRA_PRINTED.contains(version)).map(Engine::Cassandra)
    }

    /// The names for [`Engine::of_name`], as a part of a sentence.
    pub(super) fn names() -> String {
        let releases = CASSANDRA_PRINTED.map(|(major, minor)| format!("{major}.{minor}"));
        format!("{} or {SCYLLA}", releases.join(", "))
    }

    pub(super) fn has_read_repair(self) -> bool {
        self != Engine::Scylla
    }

    /// Whether `speculative_retry` accepts the lesser of a percentile and a time. A coordinator asks another
    /// replica after that time.
    pub(super) fn has_hybrid_speculation(self) -> bool {
        self != Engine::Scylla
    }

    /// Checks that the engine has reads at these levels.
    pub(super) fn check(self, levels: Levels) -> Result<(), ConnectError> {
        match self == Engine::Scylla && levels.reads_each_quorum() {
            true => Err(ConnectError::NoEachQuorumReads),
            false => Ok(()),
        }
    }

    pub(super) fn has_unified_compaction(self) -> bool {
        matches!(self, Engine::Cassandra(version) if version >= CASSANDRA_UNIFIED_COMPACTION)
    }
}

/// Whether `nodetool scrub` on a node of this release loses folded partitions.
#[must_use]
pub fn scrub_loses_rows(release: &str) -> bool {
    version(release).is_some_and(|version| version >= CASSANDRA_LOSING_SCRUB)
}

/// Major and minor number of `5.0.6`, `4.1-beta1` and the like.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(['.', '-', '~']).map(str::parse::<u32>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// One row of `system_schema.columns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// `partition_key`, `clustering`, `regular` or `static`.
    pub(super) role: String,
    pub(super) position: i32,
    /// `asc`, `desc` or `none`.
    pub(super) order: String,
    pub(super) cql_type: String,
}

/// A column that a table must have: name, role, position, order, type.
type Rule = (&'static str, &'static str, i32, &'static str, &'static str);

/// The columns of the table of shards. It must have these and no others.
const SHARDS: [Rule; 6] = [
    ("kind", "partition_key", 0, "none", "text"),
    ("grp", "partition_key", 1, "none", "text"),
    ("name", "clustering", 0, "asc", "text"),
    ("expires_at", "clustering", 1, "desc", "bigint"),
    ("mutator_id", "clustering", 2, "asc", "uuid"),
    ("state", "regular", -1, "none", "blob"),
];

/// The columns of the table of resets, in the same way.
const RESETS: [Rule; 10] = [
    ("bucket", "partition_key", 0, "none", "tinyint"),
    ("at", "clustering", 0, "desc", "bigint"),
    ("kind", "clustering", 1, "asc", "text"),
    ("grp", "clustering", 2, "asc", "text"),
    ("id", "clustering", 3, "asc", "uuid"),
    ("names", "regular", -1, "none", "text"),
    ("until", "regular", -1, "none", "bigint"),
    ("deletes", "regular", -1, "none", "boolean"),
    ("cleared", "regular", -1, "none", "blob"),
    ("done", "regular", -1, "none", "boolean"),
];

/// The rules that the table of shards breaks, each as a part of a sentence. Empty if the table is right.
pub(super) fn shards(
    columns: &[Column],
    default_time_to_live: i32,
    read_repair: Option<&str>,
    engine: Engine,
) -> Vec<String> {
    let mut broken = broken_columns(columns, &SHARDS);
    if default_time_to_live != 0 {
        broken.push(format!("default_time_to_live is {default_time_to_live}, not 0"));
    }
    if engine.has_read_repair() && read_repair != Some("NONE") {
        let found = read_repair.unwrap_or("absent");
        broken.push(format!("read_repair is {found}, not 'NONE'"));
    }
    broken
}

/// Checks the columns of `resets`. Each of its rows is written with a time to live, and none is deleted, so the
/// properties of the table break nothing.
pub(super) fn resets(columns: &[Column]) -> Vec<String> {
    broken_columns(columns, &RESETS)
}

fn broken_columns(columns: &[Column], rules: &[Rule]) -> Vec<String> {
    let mut broken = Vec::new();
    for &(name, role, position, order, cql_type) in rules {
        let Some(column) = columns.iter().find(|column| column.name == name) else {
            broken.push(format!("column {name} is missing"));
            continue;
        };
        if (column.role.as_str(), column.position) != (role, position) {
            broken.push(format!("column {name} has the wrong place in the primary key"));
        }
        if column.order != order {
            broken.push(format!("column {name} is ordered {}, not {order}", column.order));
        }
        // The system tables of some releases call `text` `varchar`.
        if column.cql_type != cql_type && (column.cql_type != "varchar" || cql_type != "text") {
            broken.push(format!("column {name} is of type {}, not {cql_type}", column.cql_type));
        }
    }
    for column in columns {
        if !rules.iter().any(|(name, ..)| *name == column.name) {
            broken.push(format!("column {} is not part of the schema", column.name));
        }
    }
    broken
}

/// Returns the replicas per data centre from a keyspace's `replication` map, or what is wrong with the map.
/// `SimpleStrategy` ignores data centres, so it fits only a cluster with one.
pub(super) fn replication(
    options: &BTreeMap<String, String>,
    datacenters: &[String],
) -> Result<Replication, String> {
    let class = options.get("class").map_or("", String::as_str);
    let class = class.rsplit('.').next().unwrap_or_default();
    let factor = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| format!("replication factor `{text}` is not a plain number"))
    };
    match (class, datacenters) {
        ("SimpleStrategy", [only]) => {
            let text = options.get("replication_factor").map_or("", String::as_str);
            Ok(Replication::new([(only.clone(), factor(text)?)]))
        }
        ("SimpleStrategy", _) => Err(format!(
            "SimpleStrategy ignores data centres, and the cluster has {}; use NetworkTopologyStrategy",
            datacenters.join(", ")
        )),
        ("NetworkTopologyStrategy", _) => {
            let others = options.iter().filter(|(name, _)| *name != "class");
            let factors: Result<Vec<_>, String> =
                others.map(|(name, text)| Ok((name.clone(), factor(text)?))).collect();
            match Replication::new(factors?) {
                none if none.total() == 0 => Err("no data centre has replicas".to_owned()),
                some => Ok(some),
            }
        }
        _ => Err(format!(
            "replication class `{class}` is not supported; use NetworkTopologyStrategy"
        )),
    }
}

/// Returns the data centre of this pod: the configured one, or the only one with replicas. It is never guessed, because
/// pods of one installation could then disagree, and each would miss what was counted by the others.
pub(super) fn local_datacenter(
    replication: &Replication,
    configured: Option<&str>,
    datacenters: &[String],
) -> Result<String, ConnectError> {
    let with_replicas: Vec<&str> = replication.datacenters().collect();
    let known = || with_replicas.join(", ");
    let only = || if let [only] = with_replicas[..] { Some(only) } else { None };
    let Some(name) = configured.or_else(only).map(str::to_owned) else {
        return Err(ConnectError::WhichDatacenter { known: known() });
    };
    if !datacenters.contains(&name) {
        let known = datacenters.join(", ");
        return Err(ConnectError::UnknownDatacenter { name, known });
    }
    match replication.factor(&name) {
        0 => Err(ConnectError::NoReplica { name, known: known() }),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use orderfree_core::protocol::consistency::Level;

    use super::*;

    const NEW: Engine = Engine::Cassandra((5, 0));

    fn columns(rules: &[Rule]) -> Vec<Column> {
        let column = |&(name, role, position, order, cql_type): &Rule| {
            let owned = str::to_owned;
            Column {
                name: owned(name),
                role: owned(role),
                position,
                order: owned(order),
                cql_type: owned(cql_type),
            }
        };
        rules.iter().map(column).collect()
    }

    #[test]
    fn engines_are_told_apart_by_their_oldest_node() {
        let of = |releases: &[&str]| {
            Engine::of_releases(&releases.iter().map(|&text| text.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["5.0.6", "4.1.3"]), Ok(Engine::Cassandra((4, 1))));
        assert_eq!(of(&["5.0-beta1"]), Ok(Engine::Cassandra((5, 0))));
        assert_eq!(of(&["5.0.6", "4.0.11"]), Err("4.0.11".into()));
        assert_eq!(of(&["3.11.0"]), Err("3.11.0".into()));
        assert_eq!(of(&["next"]), Err("next".into()));
        assert!(of(&[]).is_err());
        assert!(
            !Engine::Cassandra((4, 1)).has_unified_compaction() && NEW.has_unified_compaction()
        );
    }

    #[test]
    fn engines_are_named_by_a_release_of_their_line() {
        assert_eq!(Engine::of_name("4.1"), Some(Engine::Cassandra((4, 1))));
        assert_eq!(Engine::of_name("5.0.6"), Some(NEW));
        assert_eq!(Engine::of_name("6.0-alpha2"), Some(Engine::Cassandra((6, 0))));
        assert_eq!(Engine::of_name("Scylla"), Some(Engine::Scylla));
        for unknown in ["", "5", "4.0", "4.0.11", "3.11", "5.1", "50", "latest", "v5.0", "5.x"] {
            assert_eq!(Engine::of_name(unknown), None, "{unknown}");
        }
        assert_eq!(Engine::names(), "4.1, 5.0, 6.0 or scylla");
    }

    #[test]
    fn scylla_has_no_reads_at_each_quorum() {
        let each = Level::EachQuorum;
        let folds = Levels { fold: each, ..Levels::default() };
        let reads = Levels { read: each, ..Levels::default() };
        for levels in [folds, reads] {
            assert!(NEW.check(levels).is_ok(), "{levels:?}");
            let refused = Engine::Scylla.check(levels);
            assert!(matches!(refused, Err(ConnectError::NoEachQuorumReads)), "{levels:?}");
        }
        let writes = Levels { write: each, ..Levels::default() };
        for levels in [Levels::default(), writes] {
            assert!(Engine::Scylla.check(levels).is_ok(), "{levels:?}");
        }
    }

    #[test]
    fn scrub_is_named_from_the_release_on_that_loses_rows() {
        // ScyllaDB says 3.0.8.
        for release in ["3.0.8", "4.1.10", "unknown", ""] {
            assert!(!scrub_loses_rows(release), "{release}");
        }
        for release in ["5.0-beta1", "5.0.6", "6.0-alpha2"] {
            assert!(scrub_loses_rows(release), "{release}");
        }
    }

    #[test]
    fn the_tables_must_be_exactly_as_in_the_schema() {
        assert_eq!(shards(&columns(&SHARDS), 0, Some("NONE"), NEW), Vec::<String>::new());
        assert_eq!(shards(&columns(&SHARDS), 0, None, Engine::Scylla), Vec::<String>::new());
        let broken = |change: &dyn Fn(&mut Vec<Column>)| {
            let mut columns = columns(&SHARDS);
            change(&mut columns);
            shards(&columns, 0, Some("NONE"), NEW).join("; ")
        };
        assert_eq!(
            broken(&|columns| columns[3].order = "asc".into()),
            "column expires_at is ordered asc, not desc"
        );
        assert_eq!(
            broken(&|columns| columns[3].cql_type = "timestamp".into()),
            "column expires_at is of type timestamp, not bigint"
        );
        assert_eq!(
            broken(&|columns| columns[1].role = "clustering".into()),
            "column grp has the wrong place in the primary key"
        );
        assert_eq!(
            broken(&|columns| columns[5].role = "static".into()),
            "column state has the wrong place in the primary key"
        );
        assert_eq!(broken(&|columns| _ = columns.pop()), "column state is missing");
        assert_eq!(
            broken(&|columns| {
                let extra = Column { name: "note".into(), ..columns[5].clone() };
                columns.push(extra);
            }),
            "column note is not part of the schema"
        );
        assert_eq!(
            shards(&columns(&SHARDS), 86_400, Some("BLOCKING"), NEW),
            ["default_time_to_live is 86400, not 0", "read_repair is BLOCKING, not 'NONE'"]
        );
        assert_eq!(resets(&columns(&RESETS)), Vec::<String>::new());
        let mut columns = columns(&RESETS);
        columns[1].order = "asc".into();
        columns[2].position = 2;
        columns[6].cql_type = "timestamp".into();
        columns.pop();
        columns.push(Column { name: "note".into(), ..columns[5].clone() });
        assert_eq!(
            resets(&columns),
            [
                "column at is ordered asc, not desc",
                "column kind has the wrong place in the primary key",
                "column until is of type timestamp, not bigint",
                "column done is missing",
                "column note is not part of the schema",
            ]
        );
    }

    #[test]
    fn the_rules_name_the_columns_of_the_file() {
        let file = include_str!("../../../schema.cql");
        let tables: Vec<&str> = file.split("CREATE TABLE").skip(1).collect();
        assert_eq!(tables.len(), 2);
        for (table, rules) in tables.into_iter().zip([&SHARDS[..], &RESETS]) {
            let (columns, _) = table.split_once("PRIMARY KEY").expect("a primary key");
            let columns = columns.lines().filter_map(|line| line.split_once(','));
            let columns: Vec<&str> = columns.map(|(column, _)| column.trim()).collect();
            let of_rule = |(name, .., cql_type): &Rule| format!("{name} {cql_type}");
            assert_eq!(columns, rules.iter().map(of_rule).collect::<Vec<_>>());
        }
    }

    fn read(options: &[(&str, &str)], datacenters: &[&str]) -> Result<Replication, String> {
        let options = options.iter().map(|&(name, text)| (name.to_owned(), text.to_owned()));
        replication(&options.collect(), &owned(datacenters))
    }

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    const SIMPLE: (&str, &str) = ("class", "org.apache.cassandra.locator.SimpleStrategy");
    const TOPOLOGY: (&str, &str) =
        ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");

    #[test]
    fn replication_is_read_from_the_keyspace() {
        let one = read(&[SIMPLE, ("replication_factor", "3")], &["here"]).expect("simple");
        assert_eq!((one.total(), one.factor("here")), (3, 3));
        let weak = Levels { write: Level::LocalOne, read: Level::LocalOne, fold: Level::All };
        assert!(one.check(Levels::default(), "here").is_ok() && one.check(weak, "here").is_err());
        let two = read(&[TOPOLOGY, ("here", "3"), ("there", "2")], &["here"]).expect("topology");
        assert_eq!((two.total(), two.factor("there")), (5, 2));
        let wrong =
            |options: &[(&str, &str)]| read(options, &["here", "there"]).expect_err("wrong");
        assert!(wrong(&[SIMPLE, ("replication_factor", "3")]).contains("has here, there"));
        assert!(wrong(&[TOPOLOGY, ("here", "3/1")]).contains("`3/1`"));
        assert!(wrong(&[("class", "LocalStrategy")]).contains("LocalStrategy"));
        assert!(wrong(&[]).contains("not supported"));
        assert!(wrong(&[TOPOLOGY, ("here", "0")]).contains("no data centre has replicas"));
    }

    #[test]
    fn the_own_data_centre_is_never_guessed() {
        let known = owned(&["a", "b", "c"]);
        let local = |factors: &[(&str, &str)], configured| {
            let replication = read(&[&[TOPOLOGY][..], factors].concat(), &[]).expect("right");
            local_datacenter(&replication, configured, &known).map_err(|error| error.to_string())
        };
        let (one, two) = ([("a", "3")], [("a", "3"), ("b", "3")]);
        assert_eq!(local(&one, None), Ok("a".to_owned()));
        assert_eq!(local(&two, Some("b")), Ok("b".to_owned()));
        assert!(local(&two, None).expect_err("two").contains("ORDERFREE_LOCAL_DC to one of a, b"));
        assert!(local(&two, Some("c")).expect_err("no replica").contains("one of a, b"));
        assert!(local(&two, Some("d")).expect_err("unknown").contains("a, b, c"));
        assert!(local(&[("z", "3")], None).expect_err("no node").contains("z"));
    }
}
