//! `lockstep`: finds out why one LLM runtime's output is not another's.

mod cli;
mod commands;
mod console;
mod exit;

use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(cli::Refused::Shown) => return ExitCode::SUCCESS,
        Err(cli::Refused::Wrong(line)) => {
            console::note(&format!("lockstep: {line}"));
            return exit::Status::Usage.into();
        }
    };
    match commands::execute(&cli) {
        Ok(status) => status.into(),
        Err(error) => {
            console::error(&error, cli.verbose);
            exit::status_of(&error).into()
        }
    }
}
