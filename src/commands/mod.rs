//! What each verb does. A command wires libraries together; it computes nothing itself.

mod conformance;
mod doctor;
mod inputs;
mod inspect;
mod recording;
mod run;
mod selection;

use crate::cli::{Cli, Command};
use crate::exit::Status;

/// Carries out the command line.
pub(crate) fn execute(cli: &Cli) -> anyhow::Result<Status> {
    match &cli.command {
        Command::Conformance(args) => conformance::execute(args, cli.format),
        Command::Run(args) => run::execute(args, cli.format),
        Command::Inspect(args) => inspect::execute(args, cli.format),
        Command::Doctor => doctor::execute(cli.format),
        _ => Err(crate::exit::usage("not wired")),
    }
}
