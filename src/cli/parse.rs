//! The command line, and what is wrong with it in one line.

use std::ffi::OsString;

use clap::Parser as _;
use clap::error::ErrorKind;

use super::Cli;

/// What stands in the way of a command.
pub(crate) enum Refused {
    /// Help or the version was asked for and printed.
    Shown,
    /// One line on what is wrong.
    Wrong(String),
}

/// Parses the words of a command line, the program's name first.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, Refused> {
    Cli::try_parse_from(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed pipe is the reader's choice.
            let _ = error.print();
            if error.use_stderr() {
                Refused::Wrong("give a command".to_owned())
            } else {
                Refused::Shown
            }
        }
        _ => Refused::Wrong(one_line(&error.render().to_string())),
    })
}

/// The message, its tips and where help is, without the usage block.
fn one_line(rendered: &str) -> String {
    let mut parts = Vec::new();
    let mut verb = String::from("lockstep");
    for block in rendered.split("\n\n") {
        let line = block.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(usage) = line.strip_prefix("Usage: ") {
            let words = usage.split(' ').take_while(|word| !word.starts_with(['-', '[', '<', '{']));
            verb = words.collect::<Vec<_>>().join(" ");
        } else if let Some(message) = line.strip_prefix("error: ") {
            parts.push(message.to_owned());
        } else if !line.is_empty() && !line.starts_with("For more information") {
            parts.push(line);
        }
    }
    parts.push(format!("`{verb} --help` tells more"));
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        match parse(line.split(' ').map(OsString::from)) {
            Err(Refused::Wrong(line)) => line,
            Err(Refused::Shown) => panic!("{line}: help"),
            Ok(_) => panic!("{line}: accepted"),
        }
    }

    #[test]
    fn every_mistake_is_one_line_with_a_remedy() {
        for (line, parts) in [
            ("lockstep import x", &["--out <OUT>", "`lockstep import --help` tells more"][..]),
            ("lockstep run --pormpt x", &["--pormpt", "tip", "--prompt"]),
            ("lockstep run --policy dens --out x", &["dens", "dense", "triattention"]),
            ("lockstep export", &["required"]),
            ("lockstep frobnicate", &["frobnicate", "`lockstep --help` tells more"]),
            ("lockstep check gather", &["<RUN>"]),
        ] {
            let told = refused(line);
            assert!(!told.contains('\n'), "{told}");
            for part in parts {
                assert!(told.contains(part), "{line}: {told}");
            }
        }
    }
}
