//! What a file of log-probabilities holds, with what is wrong in it.

use lockstep_traces::logprobs::{Entry, LogprobFile, Oddity, Part, Said, Sequence, Source, State};
use lockstep_traces::{Evidence, Verdict};
use serde::Serialize;
use serde_json::Value;

use super::{candidates, consistency};

/// Entries of a sequence that are shown; all are checked.
const MOST_SHOWN: usize = 256;

/// Something about a file that is wrong, or that a reader must know.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobFinding {
    /// Stable name: `duplicate_keys`, `merged_entries`, `count_disagrees`, ...
    pub name: String,
    /// True where the file contradicts itself; false for a note.
    pub grave: bool,
    /// Index of the sequence.
    pub sequence: usize,
    /// Index of the entry, where it is about one.
    pub entry: Option<usize>,
    /// One line for people.
    pub title: String,
    /// Figures that carry it.
    pub evidence: Vec<Evidence>,
}

impl LogprobFinding {
    pub(super) fn new(name: &str, grave: bool, at: (usize, Option<usize>), title: String) -> Self {
        Self {
            name: name.to_owned(),
            grave,
            sequence: at.0,
            entry: at.1,
            title,
            evidence: Vec::new(),
        }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.push(Evidence { name: name.to_owned(), value: value.into() });
        self
    }
}

/// One entry, with what can be counted about it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EntryView {
    /// Index in its sequence.
    pub index: usize,
    /// Candidates as the file lists them.
    pub pairs: usize,
    /// Candidates that an ordinary map keeps: those of different names.
    pub distinct: usize,
    /// Sum of the measured candidates' probabilities; the token's own where it is not among them.
    pub probability_sum: f64,
    /// The entry.
    #[serde(flatten)]
    pub entry: Entry,
}

/// One sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SequenceView {
    /// Record of the file, from 0.
    pub record: usize,
    /// Choice.
    pub choice: u64,
    /// Prompt, completion or list.
    pub part: Part,
    /// Name of a list.
    pub name: Option<String>,
    /// Text as the file has it.
    pub text: Option<String>,
    /// Text put together from the entries.
    pub rebuilt: Option<String>,
    /// Entries.
    pub entries: usize,
    /// Tokens that the usage counts.
    pub usage_tokens: Option<u64>,
    /// Candidates asked for.
    pub asked: Option<u64>,
    /// Sum of the measured log-probabilities.
    pub total_logprob: f64,
    /// Entries that are in that sum.
    pub measured: usize,
    /// Largest measured log-probability.
    pub max_logprob: Option<f64>,
    /// The first entries.
    pub shown: Vec<EntryView>,
    /// Entries that are not shown.
    pub hidden: usize,
}

/// Answer of `inspect` on a file of log-probabilities.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogprobReport {
    /// File as given.
    pub path: String,
    /// `logprobs`.
    pub kind: String,
    /// Layout.
    pub source: Source,
    /// Whether the layout says that values are raw or processed.
    pub said: Said,
    /// The last record is whole.
    pub complete: bool,
    /// Entries over all sequences.
    pub entries: usize,
    /// Sequences.
    pub sequences: Vec<SequenceView>,
    /// Values that stand for "impossible" and are no measurements: `-Infinity`, `null`, -9999, -1000, -100.
    pub impossible: usize,
    /// Of these, finite numbers.
    pub sentinels: usize,
    /// Values that are no number.
    pub nan: usize,
    /// What is no JSON by the letter, with byte offset and path (the first ones).
    pub oddities: Vec<Oddity>,
    /// How many of these there are.
    pub oddity_count: usize,
    /// What is wrong, and what to know.
    pub findings: Vec<LogprobFinding>,
    /// What the file cannot tell.
    pub cannot: Vec<String>,
    /// What was read around.
    pub remarks: Vec<String>,
    /// `identical` where nothing contradicts, `diverged` where something does.
    pub verdict: Verdict,
    /// One line for people.
    pub summary: String,
}

/// Looks through a file. `asked` is the number of candidates that the request asked for, where the file does not say.
#[must_use]
pub fn inspect(path: &str, file: &LogprobFile, asked: Option<u64>) -> LogprobReport {
    let sequences: Vec<Sequence> = file
        .sequences
        .iter()
        .map(|sequence| Sequence { asked: sequence.asked.or(asked), ..sequence.clone() })
        .collect();
    let findings = consistency::check(&sequences);
    let mut counts = [0_usize; 3];
    for entry in sequences.iter().flat_map(|sequence| &sequence.entries) {
        // A list's own value is one of its candidates.
        let own = (file.source != Source::Lists).then_some(entry.logprob);
        for logprob in entry.candidates.iter().map(|candidate| candidate.logprob).chain(own) {
            counts[0] += usize::from(logprob.state == State::Impossible);
            counts[1] += usize::from(logprob.sentinel);
            counts[2] += usize::from(logprob.state == State::Nan);
        }
    }
    let grave = findings.iter().filter(|finding| finding.grave).count();
    let entries = file.entries();
    let verdict = if grave > 0 { Verdict::Diverged } else { Verdict::Identical };
    let summary = match findings.iter().find(|finding| finding.grave) {
        Some(first) if grave == 1 => first.title.clone(),
        Some(first) => format!("{grave} findings; the first: {}", first.title),
        None => format!("{entries} entries, nothing contradicts itself"),
    };
    LogprobReport {
        path: path.to_owned(),
        kind: "logprobs".to_owned(),
        source: file.source,
        said: file.said,
        complete: file.complete,
        entries,
        sequences: sequences.iter().map(view).collect(),
        impossible: counts[0],
        sentinels: counts[1],
        nan: counts[2],
        oddities: file.oddities.clone(),
        oddity_count: file.oddity_count,
        findings,
        cannot: file.cannot(),
        remarks: file.remarks.clone(),
        verdict,
        summary,
    }
}

fn view(sequence: &Sequence) -> SequenceView {
    let values = || sequence.entries.iter().filter_map(|entry| entry.logprob.value());
    let shown =
        sequence.entries.iter().take(MOST_SHOWN).enumerate().map(|(index, entry)| EntryView {
            index,
            pairs: entry.candidates.len(),
            distinct: candidates::distinct(entry),
            probability_sum: candidates::probability_sum(entry).0,
            entry: entry.clone(),
        });
    SequenceView {
        record: sequence.record,
        choice: sequence.choice,
        part: sequence.part,
        name: sequence.name.clone(),
        text: sequence.text.clone(),
        rebuilt: super::text::rebuilt(&sequence.entries),
        entries: sequence.entries.len(),
        usage_tokens: sequence.usage_tokens,
        asked: sequence.asked,
        total_logprob: values().sum(),
        measured: values().count(),
        max_logprob: values().reduce(f64::max),
        shown: shown.collect(),
        hidden: sequence.entries.len().saturating_sub(MOST_SHOWN),
    }
}
