use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    serve: ServeArgs,
}

fn parse(args: &[&str]) -> ServeArgs {
    Cli::try_parse_from([&["orderfree"], args].concat()).expect("parses").serve
}

#[test]
fn three_durations_alone_are_a_valid_set() {
    let args = parse(&["--lifetime", "60s", "--drain-margin", "10s", "--cutoff", "30s"]);
    let constants = args.store.constants().expect("consistent");
    assert_eq!(constants.request_budget(), Duration::from_secs(2));
    assert!(matches!(args.store.resolve(), Ok(StoreConfig::Embedded { .. })));
}

#[test]
fn contradictions_are_named() {
    let error = |args: &[&str]| parse(args).store.resolve().expect_err("refused").to_string();
    assert!(error(&["--cutoff", "10s"]).starts_with("cutoff 10s must be longer"));
    assert!(error(&["--cassandra", "localhost"]).contains("host:port"));
    let told = error(&["--cassandra", "b:1,u:hush@a:1"]);
    assert!(told.contains("write a:1") && !told.contains("hush"), "{told}");
    assert!(error(&["--cassandra", "a:1", "--cassandra-user", "u"]).contains("both"));
    let weak = error(&["--cassandra", "a:1", "--write-consistency", "one"]);
    assert!(weak.contains("hint window"), "{weak}");
    assert!(error(&["--local-dc", "east"]).contains("but no Cassandra; set --cassandra"));
    assert!(parse(&["--local-dc", ""]).store.resolve().is_ok(), "templates leave it empty");
}

#[test]
fn strangers_are_kept_out_by_default() {
    let open = ["--listen", "0.0.0.0:1"];
    assert!(matches!(parse(&open).check(false), Err(ConfigError::Insecure(_))));
    assert!(parse(&open).check(true).is_ok());
    assert!(parse(&[&open[..], &["--insecure"]].concat()).check(false).is_ok());
    assert!(parse(&["--listen", "[::1]:1"]).check(false).is_ok());
    let admin = ["--admin-listen", "10.0.0.1:1"];
    assert!(matches!(parse(&admin).check(false), Err(ConfigError::Insecure(_))));
}

#[test]
fn a_password_is_never_printed() {
    let args =
        parse(&["--cassandra", "a:1", "--cassandra-user", "u", "--cassandra-password", "hush"]);
    let shown = format!("{args:?} {:?}", args.store.resolve());
    assert!(!shown.contains("hush"), "{shown}");
}

#[test]
fn tools_read_at_the_level_of_folds() {
    let args = ["--cassandra", "a:1", "--read-consistency", "one", "--fold-consistency", "quorum"];
    let config = parse(&args).store.resolve().expect("consistent");
    let StoreConfig::Cassandra(pods) = &config else { panic!("{config:?}") };
    let (of_pods, constants) = (pods.levels, pods.constants);
    let StoreConfig::Cassandra(tools) = config.for_tools() else { panic!("no cluster") };
    assert_eq!(tools.levels, Levels { read: Level::Quorum, ..of_pods });
    assert_eq!(tools.constants, constants.assumed());
}
