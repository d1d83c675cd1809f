//! JUnit XML of a run's answers or of a verb's answer.

use std::path::Path;

use anyhow::Context as _;
use lockstep_diff::answers::{Normalise, ScoreOptions, Scorer};
use lockstep_reports::junit::{Suite, of_json, of_score, render};
use lockstep_traces::answers::{Fields, read_answers};
use lockstep_traces::store::{RunReader, is_run};

/// Largest answer that is read.
const LONGEST: u64 = 1 << 30;

/// Writes the cases of `source` to `out`.
pub(super) fn write(source: &Path, out: &Path) -> anyhow::Result<()> {
    let suites = if is_run(source) { vec![of_run(source)?] } else { of_answer(source)? };
    std::fs::write(out, render(suites)).with_context(|| out.display().to_string())
}

fn of_answer(path: &Path) -> anyhow::Result<Vec<Suite>> {
    let shown = || path.display().to_string();
    let length = std::fs::metadata(path).with_context(shown)?.len();
    if length > LONGEST {
        anyhow::bail!("{}: {length} bytes; at most {LONGEST} are read of an answer", shown());
    }
    let bytes = std::fs::read(path).with_context(shown)?;
    let (_, suites) = of_json(&bytes).map_err(|what| anyhow::anyhow!("{}: {what}", shown()))?;
    Ok(suites)
}

/// A case for each answer, judged as `bench score` judges without options, with the sample's seconds where they are recorded.
fn of_run(path: &Path) -> anyhow::Result<Suite> {
    let mut scorer = Scorer::new(ScoreOptions { rule: None, normalise: Normalise::Number });
    let source = read_answers(path, &Fields::default(), |row| scorer.push(row))?;
    let mut suite = of_score(&scorer.finish(path.display().to_string(), &source));
    let samples = RunReader::open(path)?.samples()?;
    for case in &mut suite.cases {
        let sample = samples.iter().find(|sample| sample.sample_id == case.name);
        let seconds = sample.map(|sample| sample.prefill_seconds + sample.decode_seconds);
        case.seconds = seconds.filter(|seconds| *seconds > 0.0);
    }
    Ok(suite)
}
