//! `make exhaustive`: every scope, then every broken rule.

use std::process::ExitCode;

use orderfree_exhaustive::sabotage::Sabotage;
use orderfree_exhaustive::scope::Scope;
use orderfree_exhaustive::{explore, hunt};

fn main() -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut is_well = true;
    println!("scope: worlds, depth, time");
    let scopes = [
        Scope::quick(),
        Scope::writer(),
        Scope::id(),
        Scope::quorum(),
        Scope::folds(),
        Scope::full(),
    ];
    for scope in scopes {
        let (name, unseen_allowed) = (scope.name, scope.unseen.clone());
        let run = explore(scope, None, threads);
        println!("{name}: {} worlds, depth {}, {:.1?}", run.unique, run.depth, run.took);
        for (rule, way) in &run.broken {
            println!("  BROKEN: {rule}: {way:#?}");
        }
        for sight in run.unseen.iter().filter(|sight| !unseen_allowed.contains(*sight)) {
            println!("  NOT MET: {sight}");
            is_well = false;
        }
        is_well &= run.broken.is_empty();
    }
    println!("broken rule: steps to find it, and the property that it breaks");
    for sabotage in Sabotage::ALL {
        let run = hunt(sabotage);
        let Some((rule, way)) = run.broken.first() else {
            println!("{sabotage:?}: NOT FOUND in {} worlds", run.unique);
            is_well = false;
            continue;
        };
        println!("{sabotage:?}: {}, {rule}\n  {way:?}", way.len());
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
