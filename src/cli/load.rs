//! `orderfree load`: the load test of the crate `orderfree-load`, and how it connects to the pods.

use std::process::ExitCode;

use clap::Args;
use reqwest::Url;

use super::connect::{self, ConnectArgs};

#[derive(Debug, Args)]
pub(super) struct LoadCommand {
    #[command(flatten)]
    load: orderfree_load::LoadArgs,
    #[command(flatten, next_help_heading = "Pods")]
    connect: ConnectArgs,
}

pub(super) async fn run(args: LoadCommand) -> anyhow::Result<ExitCode> {
    let LoadCommand { load, connect } = args;
    // The load waits for pods that are not ready yet. At a wrong address it would wait in vain.
    for url in load.urls().iter().filter_map(|url| Url::parse(url).ok()) {
        connect::check_address(&url).await?;
    }
    orderfree_load::run(load, |url| connect.builder(url)).await
}
