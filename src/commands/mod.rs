//! What each verb does. A command wires libraries together; it computes nothing itself.

mod audit;
mod bench;
mod calibrate;
mod check;
mod conformance;
mod demo;
mod device;
mod diff;
mod doctor;
mod foreign;
mod inputs;
mod inspect;
mod ops;
mod pages;
mod recording;
mod replay;
mod replaying;
mod report;
mod run;
mod selection;
mod settings;

use crate::cli::{Cli, Command};
use crate::exit::Status;

/// Carries out the command line.
pub(crate) fn execute(cli: &Cli) -> anyhow::Result<Status> {
    match &cli.command {
        Command::Audit(args) => audit::execute(args, cli.verbose, cli.format),
        Command::Check(command) => check::execute(command, cli.format),
        Command::Demo(args) => demo::execute(args, cli.format),
        Command::Replay(command) => replay::execute(command, cli.format),
        Command::Diff(args) => diff::execute(args, cli.format),
        Command::Conformance(args) => conformance::execute(args, cli.format),
        Command::Run(args) => run::execute(args, cli.format),
        Command::Inspect(args) => inspect::execute(args, cli.format),
        Command::Doctor => doctor::execute(cli.format),
        Command::Ops(args) => ops::execute(args, cli.verbose, cli.format),
        Command::Report(args) => report::execute(args, cli.format),
        Command::Calibrate(args) => calibrate::execute(args, cli.format),
        Command::Import(args) => foreign::import(args, cli.format),
        Command::Export(args) => foreign::export(args, cli.format),
        Command::Bench(args) => bench::execute(args, cli.format),
    }
}
