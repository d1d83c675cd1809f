//! Runs the binary and reads what it says.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What one call printed and returned.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit status; 128 + n where a signal ended it.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output as JSON.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Fails unless the call returned `code`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Fails unless the call ended with exit 3 (or `code`) and one line on stderr that holds every part.
    #[track_caller]
    pub(crate) fn expect_refusal(self, code: i32, parts: &[&str]) {
        let run = self.expect(code);
        let errors: Vec<_> =
            run.stderr.lines().filter(|line| line.starts_with("lockstep:")).collect();
        assert_eq!(errors.len(), 1, "one line of error: {}", run.stderr);
        assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
        for part in parts {
            assert!(errors[0].contains(part), "`{part}` is not in: {}", errors[0]);
        }
    }
}

/// The binary under test.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.stdin(Stdio::null());
    command
}

/// Runs the binary with these arguments.
pub(crate) fn lockstep<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(args: I) -> Ran {
    ran(binary().args(args))
}

/// Runs a prepared command.
pub(crate) fn ran(command: &mut Command) -> Ran {
    use std::os::unix::process::ExitStatusExt as _;
    let output = command.output().expect("the command starts");
    Ran {
        code: output.status.code().unwrap_or_else(|| 128 + output.status.signal().unwrap_or(0)),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The embedded model's folder.
pub(crate) fn ledger() -> String {
    text(&lockstep_testkit::ledger())
}

/// The ledger problems as a dataset.
pub(crate) fn tasks() -> String {
    text(&lockstep_testkit::data().join("golden/traces/tasks.jsonl"))
}

/// A path as text.
pub(crate) fn text(path: &Path) -> String {
    path.to_str().expect("test paths are UTF-8").to_owned()
}

/// A folder for one test, and a function that names paths in it.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    /// An empty folder.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A path in it, as text.
    pub(crate) fn path(&self, name: &str) -> String {
        text(&self.0.path().join(name))
    }

    /// A path in it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Records one ledger problem; `extra` are further flags.
#[track_caller]
pub(crate) fn record(out: &str, sample: &str, extra: &[&str]) -> Ran {
    let (ledger, tasks) = (ledger(), tasks());
    let mut args =
        vec!["run", "--model", &ledger, "--dataset", &tasks, "--select", sample, "--dtype", "f32"];
    args.extend(["--max-new-tokens", "2000", "--device", "cpu", "--out", out]);
    args.extend(extra);
    lockstep(args)
}
