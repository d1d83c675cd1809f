//! The only place that prints: answers on stdout, progress and errors on stderr.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use lockstep_reports::text::TextOptions;
use serde::Serialize;

use crate::cli::Format;

/// Prints an answer: text, one JSON document, or one JSON line.
pub(crate) fn answer(format: Format, text: &str, json: &impl Serialize) -> anyhow::Result<()> {
    let bytes = match format {
        Format::Text => text.trim_end().to_owned(),
        Format::Json => serde_json::to_string_pretty(json)?,
        Format::Jsonl => serde_json::to_string(json)?,
    };
    let mut out = std::io::stdout().lock();
    // A closed pipe (`lockstep ... | head`) is the reader's choice, not a failure of ours.
    match writeln!(out, "{bytes}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// One line on stderr.
pub(crate) fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A text as one line that moves no cursor: line ends are blanks, other control characters (a foreign file's names may hold any) are
/// escaped.
fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push(' '),
            control if control.is_control() => out.extend(control.escape_default()),
            other => out.push(other),
        }
    }
    out
}

/// An error with what the system said, where its own words do not hold that.
fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).filter(|cause| cause.is::<std::io::Error>()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    one_line(&text)
}

/// An error as one line; with `verbose` the chain of causes below it.
pub(crate) fn error(error: &anyhow::Error, verbose: bool) {
    note(&format!("lockstep: {}", told(error)));
    if verbose {
        for cause in error.chain().skip(1) {
            note(&format!("  caused by: {}", one_line(&cause.to_string())));
        }
    }
}

/// How text is set on this stdout: colours only on a terminal that wants them.
pub(crate) fn text_options() -> TextOptions {
    let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    TextOptions { color, ..TextOptions::default() }
}

/// A progress line with an ETA on stderr; silent for the first second and where stderr is no terminal it prints
/// whole lines, at most one every ten seconds.
pub(crate) struct Progress {
    what: String,
    started: Instant,
    last: Instant,
    terminal: bool,
    dirty: bool,
}

impl Progress {
    /// Starts the clock.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        let now = Instant::now();
        Self {
            what: what.into(),
            started: now,
            last: now,
            terminal: std::io::stderr().is_terminal(),
            dirty: false,
        }
    }

    /// Says how much of `total` is done.
    pub(crate) fn update(&mut self, done: u64, total: u64) {
        let pause =
            if self.terminal { Duration::from_millis(500) } else { Duration::from_secs(10) };
        if self.last.elapsed() < pause {
            return;
        }
        self.last = Instant::now();
        let line = self.line(done, total);
        if self.terminal {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{line}");
            self.dirty = true;
        } else {
            note(&line);
        }
    }

    fn line(&self, done: u64, total: u64) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a progress display")]
        let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
        let eta = if share > 0.0 {
            format!("{:.0} s left", seconds * (1.0 - share) / share)
        } else {
            "..".to_owned()
        };
        format!("{}: {done}/{total} ({:.0} %), {seconds:.0} s, {eta}", self.what, share * 100.0)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.dirty {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::{one_line, told};

    #[test]
    fn a_path_that_cannot_be_read_comes_with_the_reason() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let bare = Err::<(), _>(missing()).context("nope.jsonl").unwrap_err();
        assert_eq!(told(&bare), format!("nope.jsonl: {}", missing()));
        let said = Err::<(), _>(missing()).context(format!("a: {}", missing())).unwrap_err();
        assert_eq!(told(&said), format!("a: {}", missing()));
    }

    #[test]
    fn an_error_is_one_line_whatever_names_it_quotes() {
        assert_eq!(
            one_line("key `a\x1b[2J\r` of\nfile \u{e9}"),
            "key `a\\u{1b}[2J\\r` of file \u{e9}"
        );
    }
}
