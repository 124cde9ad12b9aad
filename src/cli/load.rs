//! `orderfree load`: the load test of the crate `orderfree-load`, and how it connects to the pods.

use std::process::ExitCode;

use clap::Args;

use super::connect::ConnectArgs;

#[derive(Debug, Args)]
pub(super) struct LoadCommand {
    #[command(flatten)]
    load: orderfree_load::LoadArgs,
    #[command(flatten, next_help_heading = "Pods")]
    connect: ConnectArgs,
}

pub(super) async fn run(args: LoadCommand) -> anyhow::Result<ExitCode> {
    let LoadCommand { load, connect } = args;
    orderfree_load::run(load, |url| connect.builder(url)).await
}
