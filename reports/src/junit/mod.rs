//! Answers as JUnit XML, the form in which CI systems show tests.
//!
//! One case is one check, finding, audit or sample. What was not decided is an `error`, what was not looked at is `skipped`; neither
//! ever passes. Layout: `testsuites` / `testsuite` / `testcase` with at most one of `failure`, `error`, `skipped`, counts on both
//! upper levels.

mod answers;
mod checks;
mod scores;
mod xml;

use std::fmt::Write as _;

pub use answers::{AnswerKind, of_json};
pub use scores::of_score;

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Looked at, and it holds.
    Passed,
    /// It does not hold.
    Failed {
        /// Short word: `diverged`, `wrong`, `flag`, ...
        kind: String,
        /// One line.
        message: String,
    },
    /// Not decided: incomparable, void, inconclusive.
    Error {
        /// Short word.
        kind: String,
        /// One line.
        message: String,
    },
    /// Not looked at, with the reason.
    Skipped {
        /// One line.
        message: String,
    },
}

impl Outcome {
    fn failed(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failed { kind: kind.into(), message: message.into() }
    }

    fn error(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Error { kind: kind.into(), message: message.into() }
    }

    fn skipped(message: impl Into<String>) -> Self {
        Self::Skipped { message: message.into() }
    }
}

/// One `testcase`.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Group, with dots: `audit`, `check.gather`, `score.strict-match`.
    pub class: String,
    /// Name, unique within its class where the source's names are.
    pub name: String,
    /// Seconds, where they are recorded.
    pub seconds: Option<f64>,
    /// Outcome.
    pub outcome: Outcome,
    /// Further lines: the body of its `failure` or `error`, else its `system-out`.
    pub lines: Vec<String>,
}

impl Case {
    fn new(class: impl Into<String>, name: impl Into<String>, outcome: Outcome) -> Self {
        Self { class: class.into(), name: name.into(), seconds: None, outcome, lines: Vec::new() }
    }

    fn with(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.lines.extend(lines);
        self
    }
}

/// One `testsuite`.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Name: a verb, a file.
    pub name: String,
    /// Cases. A suite without any would count as passed, so [`render`] puts an error into it.
    pub cases: Vec<Case>,
}

/// `[tests, failures, errors, skipped]`.
fn counts<'c>(cases: impl Iterator<Item = &'c Case>) -> [usize; 4] {
    let mut counts = [0; 4];
    for case in cases {
        counts[0] += 1;
        match case.outcome {
            Outcome::Passed => {}
            Outcome::Failed { .. } => counts[1] += 1,
            Outcome::Error { .. } => counts[2] += 1,
            Outcome::Skipped { .. } => counts[3] += 1,
        }
    }
    counts
}

/// The file. Equal suites give equal bytes.
#[must_use]
pub fn render(mut suites: Vec<Suite>) -> String {
    if suites.is_empty() {
        suites.push(Suite { name: "answer".to_owned(), cases: Vec::new() });
    }
    for suite in &mut suites {
        if suite.cases.is_empty() {
            let outcome = Outcome::error("empty", "nothing was compared: nothing has passed");
            suite.cases.push(Case::new("lockstep", "anything was compared", outcome));
        }
    }
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let all = counts(suites.iter().flat_map(|suite| &suite.cases));
    let _ = writeln!(out, "<testsuites name=\"lockstep\"{}>", attributes(all));
    for suite in &suites {
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\"{}>",
            xml::text(&suite.name),
            attributes(counts(suite.cases.iter()))
        );
        for case in &suite.cases {
            write_case(&mut out, case);
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn attributes([tests, failures, errors, skipped]: [usize; 4]) -> String {
    format!(" tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"")
}

fn write_case(out: &mut String, case: &Case) {
    let time = case.seconds.map_or_else(String::new, |seconds| format!(" time=\"{seconds:.6}\""));
    let _ = write!(
        out,
        "    <testcase classname=\"{}\" name=\"{}\"{time}",
        xml::text(&case.class),
        xml::text(&case.name)
    );
    let body = case.lines.join("\n");
    let (tag, attributes) = match &case.outcome {
        Outcome::Passed if body.is_empty() => {
            out.push_str("/>\n");
            return;
        }
        Outcome::Passed => ("system-out", String::new()),
        Outcome::Failed { kind, message } => ("failure", typed(kind, message)),
        Outcome::Error { kind, message } => ("error", typed(kind, message)),
        Outcome::Skipped { message } => ("skipped", format!(" message=\"{}\"", xml::text(message))),
    };
    let _ =
        writeln!(out, ">\n      <{tag}{attributes}>{}</{tag}>\n    </testcase>", xml::text(&body));
}

fn typed(kind: &str, message: &str) -> String {
    format!(" type=\"{}\" message=\"{}\"", xml::text(kind), xml::text(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_on_both_levels_and_text_is_escaped() {
        let suite = Suite {
            name: "a <b> & \"c\"".to_owned(),
            cases: vec![
                Case::new("x", "one", Outcome::Passed),
                Case::new("x", "two\u{7}", Outcome::failed("diverged", "5 < 6 & so on"))
                    .with(["line 1".to_owned(), "]]> line 2".to_owned()]),
                Case::new("x", "three", Outcome::error("incomparable", "no rows")),
                Case::new("x", "four", Outcome::skipped("no gold")),
            ],
        };
        let text = render(vec![suite]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "testsuites");
        for node in [root, root.first_element_child().unwrap()] {
            let count = |name: &str| node.attribute(name).unwrap().to_owned();
            assert_eq!(
                [count("tests"), count("failures"), count("errors"), count("skipped")],
                ["4", "1", "1", "1"]
            );
        }
        let suite = root.first_element_child().unwrap();
        assert_eq!(suite.attribute("name"), Some("a <b> & \"c\""));
        let failure = document.descendants().find(|node| node.has_tag_name("failure")).unwrap();
        assert_eq!(failure.attribute("message"), Some("5 < 6 & so on"));
        assert_eq!(failure.text(), Some("line 1\n]]> line 2"));
        let two = failure.parent_element().unwrap();
        assert_eq!(two.attribute("name"), Some("two\\u{7}"));
    }

    #[test]
    fn nothing_is_an_error() {
        for suites in [Vec::new(), vec![Suite { name: "s".to_owned(), cases: Vec::new() }]] {
            let text = render(suites);
            assert!(text.contains("tests=\"1\" failures=\"0\" errors=\"1\""), "{text}");
        }
    }
}
