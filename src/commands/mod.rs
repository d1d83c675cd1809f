//! What each verb does. A command wires libraries together; it computes nothing itself.

mod audit;
mod bench;
mod calibrate;
mod check;
mod claim;
mod conformance;
mod demo;
mod device;
mod diff;
mod doctor;
mod export;
mod import;
mod inputs;
mod inspect;
mod kld;
mod logprobs;
mod loose;
mod numbering;
mod ops;
mod pages;
mod recording;
mod replay;
mod replaying;
mod report;
mod rope;
mod run;
mod sampler;
mod selection;
mod settings;
mod states;
mod tensors;
mod tokens;
mod vocabulary;

use crate::cli::{AuditCommand, Cli, Command, DiffCommand};
use crate::exit::Status;

/// Carries out the command line.
pub(crate) fn execute(cli: &Cli) -> anyhow::Result<Status> {
    match &cli.command {
        Command::Audit(verb) => match &verb.what {
            Some(AuditCommand::Arms(args)) => audit::arms(args, cli.format),
            None => audit::execute(&verb.evidence, cli.verbose, cli.format),
        },
        Command::Check(command) => check::execute(command, cli.format),
        Command::Demo(args) => demo::execute(args, cli.format),
        Command::Replay(command) => replay::execute(command, cli.format),
        Command::Diff(verb) => match (&verb.what, &verb.traces) {
            (Some(DiffCommand::Tokens(args)), _) => tokens::compare(args, cli.format),
            (Some(DiffCommand::Tensors(args)), _) => tensors::execute(args, cli.format),
            (Some(DiffCommand::Kld(args)), _) => kld::execute(args, cli.format),
            (Some(DiffCommand::Logprobs(args)), _) => logprobs::compare(args, cli.format),
            (None, Some(args)) => diff::execute(args, cli.format),
            (None, None) => Err(crate::exit::usage("give a baseline and a target")),
        },
        Command::Conformance(args) => conformance::execute(args, cli.format),
        Command::Run(args) => run::execute(args, cli.format),
        Command::Inspect(args) => inspect::execute(args, cli.format),
        Command::Doctor => doctor::execute(cli.format),
        Command::Ops(args) => ops::execute(args, cli.verbose, cli.format),
        Command::Claim(command) => claim::execute(command, cli.format),
        Command::Report(args) => report::execute(args, cli.format),
        Command::Calibrate(args) => calibrate::execute(args, cli.format),
        Command::Import(args) => import::execute(args, cli.format),
        Command::Export(args) => export::execute(args, cli.format),
        Command::Bench(args) => bench::execute(args, cli.format),
    }
}
