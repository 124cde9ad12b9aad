//! `doctor`: checks an installation from the outside in, and says what to do.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::clock::{Clock, SystemClock};
use crate::config::StoreArgs;
use crate::server;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) async fn run(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut is_well = true;
    let mut say = |what: &str, result: Result<String, String>| {
        is_well &= result.is_ok();
        match result {
            Ok(found) => println!("ok    {what}: {found}"),
            Err(wrong) => println!("WRONG {what}: {wrong}"),
        }
    };
    let resolved =
        args.store.constants().and_then(|constants| Ok((args.store.resolve()?, constants)));
    let (config, constants) = match resolved {
        Ok(resolved) => resolved,
        Err(error) => {
            say("configuration", Err(error.to_string()));
            return Ok(ExitCode::FAILURE);
        }
    };
    let advice = constants.warning().unwrap_or_else(|| "consistent".into());
    say("configuration", Ok(advice));
    let clock = Arc::new(SystemClock);
    // Opening checks reachability, credentials, engine, table properties, replication and levels.
    match server::open_store(config, constants, clock.clone()).await {
        Err(error) => say("store", Err(format!("{error:#}"))),
        Ok(store) => {
            let levels = store.levels();
            let levels =
                format!("write {}, read {}, fold {}", levels.write, levels.read, levels.fold);
            say("store", Ok(format!("{}, {levels}", store.name())));
            let offset = match store.clock_offset_us() {
                Some(offset_us) => {
                    let offset = Duration::from_micros(offset_us.unsigned_abs());
                    format!("largest measured offset {offset:?}")
                }
                None => "no second clock to compare with".into(),
            };
            let trusted = store.check_clock(clock.now());
            say("clock", trusted.map(|()| offset).map_err(|error| error.to_string()));
            let may_fold = store.fold_time(clock.now());
            let may_fold = may_fold.map(|_| "allowed".into()).map_err(|error| error.to_string());
            say("folding", may_fold);
            store.close().await;
        }
    }
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
