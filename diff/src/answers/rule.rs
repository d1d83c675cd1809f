//! Rules of extraction, by name.

use serde::{Deserialize, Serialize};

use super::{boxed, trtmc};

/// How an answer is read from a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The text is an answer already (a field of predictions): nothing is stripped a second time.
    Recorded,
    /// Last `\boxed{...}`, brace-balanced; no fallback.
    StrictBoxed,
    /// The same, where `\fbox{...}` counts too.
    StrictBoxedFbox,
    /// The four steps of TensorRT-Model-Connect's benchmark, as its C++ program takes them.
    TrtmcCpp,
    /// The same as its Python driver takes them.
    TrtmcPython,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 5] = [
        Self::Recorded,
        Self::StrictBoxed,
        Self::StrictBoxedFbox,
        Self::TrtmcCpp,
        Self::TrtmcPython,
    ];

    /// Name in records and on the command line.
    #[must_use]
    pub const fn slug(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::StrictBoxed => "strict-boxed",
            Self::StrictBoxedFbox => "strict-boxed-fbox",
            Self::TrtmcCpp => "trtmc-cpp",
            Self::TrtmcPython => "trtmc-python",
        }
    }

    /// The rule of that name.
    #[must_use]
    pub fn from_slug(slug: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.slug() == slug)
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.slug())
    }
}

/// What a rule met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    /// An answer.
    Answer,
    /// A box with nothing in it.
    Empty,
    /// A box that is never closed: the text ends inside it.
    CutOff,
    /// No answer.
    None,
}

/// What a rule read, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extracted {
    /// The rule.
    pub rule: Rule,
    /// What it met.
    pub found: Found,
    /// The answer as it stands in the text, without outer blanks; `null` unless one was found.
    pub answer: Option<String>,
    /// Which step of the rule found it, from 1: the strict rules have one (the box); TensorRT-Model-Connect's are 1 box, 2 `Final
    /// answer:`, 3 a phrase, 4 the last integer. `null` where nothing was found and for recorded answers.
    pub step: Option<u8>,
    /// The step guesses: it reads a phrase or a number that the text does not mark as its answer (steps 3 and 4).
    pub fallback: bool,
    /// Byte offset in the text where the deciding match starts.
    pub at: Option<usize>,
    /// Where the last box is empty or cut off: content of the last box before it that is neither. It is not the answer.
    pub earlier: Option<String>,
}

impl Extracted {
    pub(super) fn nothing(rule: Rule, found: Found) -> Self {
        Self { rule, found, answer: None, step: None, fallback: false, at: None, earlier: None }
    }

    pub(super) fn answer(rule: Rule, answer: &str, step: u8, at: usize) -> Self {
        Self {
            answer: Some(answer.to_owned()),
            step: Some(step),
            fallback: step > 2,
            at: Some(at),
            ..Self::nothing(rule, Found::Answer)
        }
    }
}

/// Reads the answer of `text` by `rule`.
#[must_use]
pub fn extract(text: &str, rule: Rule) -> Extracted {
    match rule {
        Rule::Recorded => recorded(text),
        Rule::StrictBoxed => boxed::last(text, rule, &[boxed::BOXED]),
        Rule::StrictBoxedFbox => boxed::last(text, rule, &[boxed::BOXED, boxed::FBOX]),
        Rule::TrtmcCpp => trtmc::cpp(text),
        Rule::TrtmcPython => trtmc::python(text),
    }
}

/// `[invalid]` is what lm-eval's filters write where they found nothing.
fn recorded(text: &str) -> Extracted {
    const NOTHING: &str = "[invalid]";
    let answer = text.trim();
    let found = match answer {
        "" => Found::Empty,
        NOTHING => Found::None,
        _ => Found::Answer,
    };
    let answer = (found == Found::Answer).then(|| answer.to_owned());
    Extracted { answer, ..Extracted::nothing(Rule::Recorded, found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_has_a_name_that_reads_back() {
        for rule in Rule::ALL {
            assert_eq!(Rule::from_slug(rule.slug()), Some(rule));
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{rule}\""));
        }
        assert_eq!(Rule::from_slug("boxed"), None);
    }

    #[test]
    fn a_recorded_answer_is_taken_as_it_is() {
        let found = extract(" 5 ", Rule::Recorded);
        assert_eq!(
            (found.found, found.answer.as_deref(), found.step),
            (Found::Answer, Some("5"), None)
        );
        assert_eq!(extract("[invalid]", Rule::Recorded).found, Found::None);
        assert_eq!(extract("  ", Rule::Recorded).found, Found::Empty);
        assert_eq!(extract(r"\boxed{5}", Rule::Recorded).answer.as_deref(), Some(r"\boxed{5}"));
    }
}
