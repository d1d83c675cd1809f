//! The summary as text.

use std::fmt::Write as _;

use super::summary::{Configured, Summary};

/// Tables of outcomes and of rates, pairs, the reference, flags.
pub(super) fn table(summary: &Summary) -> String {
    let mut text = String::new();
    let dataset = &summary.dataset;
    let shard = summary.shard.as_ref().map_or_else(String::new, |shard| format!(", shard {shard}"));
    let _ = writeln!(
        text,
        "{} ({}, sha256 {}): {} of {} rows{shard}, batch {}, template {}",
        dataset.path,
        dataset.form,
        dataset.sha256.get(..12).unwrap_or_default(),
        summary.rows,
        dataset.rows,
        summary.batch,
        summary.prompts.template,
    );
    for flag in &summary.flags {
        let _ = writeln!(text, "FLAG {flag}");
    }
    outcomes(&mut text, &summary.runs);
    rates(&mut text, &summary.runs);
    for pair in &summary.pairs {
        let _ = writeln!(text, "\n{pair}");
    }
    if let Some(reference) = &summary.reference {
        let _ = writeln!(text, "\n{}", reference.line());
    }
    text
}

fn width(runs: &[Configured]) -> usize {
    runs.iter().map(|run| run.name.len()).max().unwrap_or(0).max(13)
}

fn outcomes(text: &mut String, runs: &[Configured]) {
    let wide = width(runs);
    let _ = writeln!(
        text,
        "\n{:wide$}  {:>9}  {:>6}  {:>8}  {:>11}  correct, 95 % interval; other outcomes",
        "configuration", "rows", "cached", "computed", "compactions"
    );
    for run in runs {
        let others: Vec<String> = run
            .scores
            .outcomes
            .iter()
            .filter(|(word, count)| **count > 0 && **word != "correct")
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        let others =
            if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
        let rows = format!("{}/{}", run.rows, run.expected);
        let _ = writeln!(
            text,
            "{:wide$}  {rows:>9}  {:>6}  {:>8}  {:>11}  {}{others}",
            run.name, run.from_cache, run.computed, run.compactions, run.scores.correct
        );
    }
    if let Some(run) = runs.first() {
        let _ = writeln!(text, "answers by {}, equal as {}", run.scores.rule, run.scores.normalise);
    }
}

fn rates(text: &mut String, runs: &[Configured]) {
    let wide = width(runs);
    let _ = writeln!(
        text,
        "\n{:wide$}  {:>9}  {:>9}  {:>9}  {:>9}  {:>10}  {:>12}  {:>10}  {:>10}",
        "configuration",
        "prompt",
        "generated",
        "prefill s",
        "decode s",
        "gen/decode",
        "(gen-1)/dec.",
        "gen/wall",
        "batch tok/s"
    );
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    for run in runs {
        let speed = &run.speed;
        let _ = writeln!(
            text,
            "{:wide$}  {:>9}  {:>9}  {:>9.2}  {:>9.2}  {:>10}  {:>12}  {:>10}  {:>10}",
            run.name,
            speed.prompt_tokens,
            speed.generated_tokens,
            speed.prefill_seconds,
            speed.decode_seconds,
            rate(speed.generated_per_decode_second),
            rate(speed.generated_less_one_per_decode_second),
            rate(speed.generated_per_wall_second),
            rate(run.work.and_then(|work| work.decode_tokens_per_second)),
        );
    }
    text.push_str("tok/s are sums over sums, as one row sees them; the last column is the machine's throughput of what was computed now\n");
}
