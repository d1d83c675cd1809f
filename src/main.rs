//! `lockstep`: finds out why one LLM runtime's output is not another's.

mod cli;
mod commands;
mod console;
mod exit;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::execute(&cli) {
        Ok(status) => status.into(),
        Err(error) => {
            console::error(&error, cli.verbose);
            exit::status_of(&error).into()
        }
    }
}
