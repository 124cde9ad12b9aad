//! `schema print` and `schema apply`.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{say, show_all};
use crate::pod::config::{OnOff, StoreArgs, StoreConfig};
use crate::runtime::telemetry;
use crate::store::cassandra::schema;

/// Arguments of `schema`.
#[derive(Debug, Args)]
pub(super) struct SchemaArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the CQL statements.
    Print(Box<PrintArgs>),
    /// Create the keyspace and the tables if they are missing.
    Apply(Box<PlaceArgs>),
}

#[derive(Debug, Args)]
struct PrintArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// What the statements are for: a release of Cassandra, such as 4.1, 5.0 or 5.0.6, or `scylla`. For a cluster
    /// with several releases, name the oldest.
    #[arg(long = "for", default_value = "5.0", value_name = "RELEASE")]
    engine: String,
}

#[derive(Debug, Args)]
struct PlaceArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Replicas of a new keyspace: `dc1:3,dc2:3`, or `3` for each data centre [default: 3 per data centre, or its
    /// number of nodes if that is lower].
    #[arg(long, env = "ORDERFREE_REPLICATION", value_name = "DC:COUNT")]
    replication: Option<String>,
    /// Whether the schema has a table for resets. With it, keys can be reset and deleted, and every pod looks at the
    /// table each second. First upgrade all pods.
    #[arg(long, env = "ORDERFREE_RESETS", default_value = "on", value_name = "ON|OFF")]
    resets: OnOff,
}

pub(super) async fn run(args: SchemaArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::Print(args) => {
            let PrintArgs { place, engine } = *args;
            let replication = place.replication.as_deref().unwrap_or("datacenter1:3");
            let with_resets = place.resets == OnOff::On;
            let keyspace = &place.store.keyspace;
            show_all(&schema::print(keyspace, replication, with_resets, &engine)?)?;
        }
        Action::Apply(place) => {
            let _telemetry = telemetry::start();
            let StoreConfig::Cassandra(config) = place.store.resolve()? else {
                anyhow::bail!(
                    "no Cassandra is set; set --cassandra host:port (ORDERFREE_CASSANDRA)"
                );
            };
            let with_resets = place.resets == OnOff::On;
            let replication =
                schema::apply(&config, place.replication.as_deref(), with_resets).await?;
            say(format_args!("keyspace {} is ready, with replicas {replication}", config.keyspace));
        }
    }
    Ok(ExitCode::SUCCESS)
}
