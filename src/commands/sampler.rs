//! `check sampler` and `replay sampler`: which sampler made the tokens.

use std::fmt::Write as _;
use std::path::Path;

use lockstep_replay::sampler::{
    self, Described, Device, DeviceSplit, KeptAnswer, LogprobAnswer, Overrides, SamplerOptions,
};
use lockstep_reports::model::{Paragraph, ParagraphKind};
use lockstep_reports::{Report, text};
use lockstep_traces::store::{RunReader, is_run};
use lockstep_traces::{CheckReport, Verdict};
use serde_json::{Value, json};

use super::{pages, replaying};
use crate::cli::{Format, SamplerArgs};
use crate::console;
use crate::exit::{Status, usage};

/// Hypotheses that the text shows where the claim does not hold; JSON has more.
const MOST_SHOWN: usize = 4;

pub(crate) fn execute(verb: &str, args: &SamplerArgs, format: Format) -> anyhow::Result<Status> {
    let Some(path) = args.run.as_deref() else {
        return devices(args, format);
    };
    if is_run(path) || path.is_dir() {
        if args.tokens.is_some() {
            return Err(usage("--tokens belongs to a file of rows; a run holds its own tokens"));
        }
        let run = RunReader::open(path)?;
        let report = check(&run, args)?;
        return answer(verb, path, vec![(None, report)], format);
    }
    file(verb, path, args, format)
}

/// The check of a run, as the demo and other verbs make it too.
pub(crate) fn check(run: &RunReader, args: &SamplerArgs) -> anyhow::Result<CheckReport> {
    let options = SamplerOptions { samples: args.sample.clone(), overrides: overrides(args) };
    let mut report = sampler::check(run, &options)?;
    report.verdict = replaying::finished(run, report.verdict);
    Ok(report)
}

fn overrides(args: &SamplerArgs) -> Overrides {
    Overrides {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
        sampler: args.sampler.clone(),
        filters: args.filters.clone(),
        sm_count: args.sm_count,
    }
}

/// A file: what it is shows in its keys.
fn file(verb: &str, path: &Path, args: &SamplerArgs, format: Format) -> anyhow::Result<Status> {
    if let Some(object) = object(path) {
        if let Some(found) = sampler::explain_kept(path, &object)? {
            return kept(&found, format);
        }
        if let Some(found) = sampler::explain_logprobs(path, &object)? {
            return logprobs(&found, format);
        }
        if let Some(split) = sampler::read_devices(path, &object)? {
            return print_devices(&split, format);
        }
    }
    let mut evidence = sampler::read_file(path, args.tokens.as_deref())?;
    for list in &mut evidence.lists {
        sampler::apply_overrides(&mut list.evidence, &overrides(args))?;
        if !args.sample.is_empty() {
            list.evidence.streams.retain(|stream| args.sample.contains(&stream.sample_id));
        }
    }
    let reports = sampler::file_report(&evidence);
    let reports = reports.into_iter().map(|(name, report)| (Some(name), report)).collect();
    answer(verb, path, reports, format)
}

/// The JSON object of a file; `None` where it is none, which the reader of rows then says.
fn object(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).ok()?;
    serde_json::from_str(text.trim_start_matches('\u{feff}')).ok().filter(Value::is_object)
}

/// Prints one or several identifications and turns their verdicts into a status.
pub(crate) fn answer(
    verb: &str,
    path: &Path,
    reports: Vec<(Option<String>, CheckReport)>,
    format: Format,
) -> anyhow::Result<Status> {
    let verdicts = reports.iter().map(|(_, report)| report.verdict.clone());
    let verdict = verdicts.fold(Verdict::Identical, Verdict::worst);
    let mut page =
        Report::new(verb, format!("lockstep {verb} {}", path.display()), verdict.clone());
    for (name, report) in &reports {
        for line in words(name.as_deref().filter(|_| reports.len() > 1), report) {
            page.story.push(Paragraph::new(ParagraphKind::Text, line));
        }
        pages::add_check(&mut page, report.clone());
    }
    let rendered = text::render(&page, console::text_options());
    let checks: Vec<&CheckReport> = reports.iter().map(|(_, report)| report).collect();
    match checks.as_slice() {
        [one] => console::answer(format, &rendered, one)?,
        many => console::answer(format, &rendered, &many)?,
    }
    Ok(Status::of(&verdict))
}

/// The answer in a few lines.
fn words(name: Option<&str>, report: &CheckReport) -> Vec<String> {
    let detail = &report.detail;
    let mut lines = Vec::new();
    let label = name.map_or(String::new(), |name| format!("{name}: "));
    let line = |value: &Value| {
        serde_json::from_value::<Described>(value.clone()).ok().map(|described| described.line())
    };
    let named = line(&detail["sampler"]);
    let (reproduced, draws) = (&detail["reproduced"], &detail["draws"]);
    lines.push(match detail["answer"].as_str() {
        Some("claimed") => format!(
            "{label}the tokens are those of the claimed sampler, {}: {reproduced} of {draws}.",
            named.unwrap_or_default()
        ),
        Some("identified") => {
            let named = named.unwrap_or_default();
            format!("{label}the tokens are those of {named}: {reproduced} of {draws}.")
        }
        Some("not_decidable") => {
            format!("{label}not decidable: {}.", detail["why"].as_str().unwrap_or_default())
        }
        _ => {
            let best = line(&detail["hypotheses"][0]["hypothesis"]).unwrap_or_default();
            let most = &detail["hypotheses"][0]["reproduced"];
            format!(
                "{label}none fits; the best of {} tried is {best}: {most} of {draws}.",
                detail["tried"]
            )
        }
    });
    if let Some(claimed) = detail["claimed"].as_object().filter(|_| report.different > 0) {
        lines.push(format!(
            "{label}the claimed sampler gives {} of {draws}; the first that it does not give is draw {} of {} (position {}).",
            claimed["reproduced"],
            detail["first_misfit"]["draw"],
            detail["first_misfit"]["sample_id"].as_str().unwrap_or("?"),
            detail["first_misfit"]["position"],
        ));
    }
    if detail["answer"] != "claimed" {
        for one in detail["hypotheses"].as_array().into_iter().flatten().take(MOST_SHOWN) {
            let words = line(&one["hypothesis"]).unwrap_or_default();
            lines.push(format!("{label}{} of {draws}: {words}.", one["reproduced"]));
        }
    }
    let split = &detail["against_baseline"];
    if let Some(first) = split["first_sampled_split"].as_u64() {
        lines.push(format!(
            "{label}first sampled-token split from the baseline: step {first}; {} of {} agree; the rows are the same, so no logit or argmax split exists.",
            split["agree"], split["of"]
        ));
    }
    let edges = &detail["sensitivity"];
    if let Some(smallest) = edges["smallest_margin"].as_f64() {
        lines.push(format!(
            "{label}{} draws had a choice, {} had none; nearest decision edge {smallest:.1e} ({}), {} below what the evidence can tell.",
            edges["with_choice"], edges["deterministic"], edges["unit"].as_str().unwrap_or_default(), edges["below_precision"]
        ));
    }
    lines
}

fn devices(args: &SamplerArgs, format: Format) -> anyhow::Result<Status> {
    let &[left, right] = args.devices.as_slice() else {
        return Err(usage("--devices takes two, as 40x1024,58x1536"));
    };
    let device = |(multiprocessors, threads_each): (u32, u32)| Device {
        name: format!("{multiprocessors}x{threads_each}"),
        multiprocessors,
        threads_each,
    };
    let pair = [&device(left), &device(right)];
    let elements = args.elements.unwrap_or(0);
    let split = sampler::compare_devices(pair, elements, args.seed.unwrap_or(0))?;
    print_devices(&split, format)
}

fn print_devices(split: &DeviceSplit, format: Format) -> anyhow::Result<Status> {
    let mut text = String::new();
    for place in &split.places {
        let _ = writeln!(
            text,
            "{}: grid of {} blocks, {} threads for {} elements; a fill moves the generator by {}",
            place.device, place.blocks, place.threads, split.elements, place.advance
        );
    }
    match split.first_different {
        None => text.push_str("every element comes from the same word on both\n"),
        Some(first) => {
            let _ = writeln!(
                text,
                "elements below {first} have the same numbers on both; {first} is the first that differs ({} do)",
                split.different
            );
            for place in &split.places {
                let (Some(thread), Some(call), Some(component), Some(uniform)) =
                    (place.thread, place.call, place.component, place.uniform)
                else {
                    continue;
                };
                let _ = writeln!(
                    text,
                    "  {}: thread {thread}, call {call}, component {component} -> {uniform:.7}",
                    place.device
                );
            }
        }
    }
    text.push_str(if split.same_advance {
        "the next fill begins at the same offset on both\n"
    } else {
        "the next fill begins at another offset: everything after differs\n"
    });
    console::answer(format, &text, split)?;
    Ok(if split.first_different.is_some() || !split.same_advance {
        Status::Differs
    } else {
        Status::Parity
    })
}

fn kept(found: &KeptAnswer, format: Format) -> anyhow::Result<Status> {
    let shown: Vec<String> =
        found.probabilities.iter().take(16).map(|p| format!("{p:.4}")).collect();
    let mut text = format!("probabilities {}\n", shown.join(" "));
    for (name, ids) in &found.hypotheses {
        let _ = writeln!(text, "{name} keeps {ids:?}");
    }
    for list in &found.lists {
        let why = match list.answer {
            "identified" if list.fault => format!("{} (a fault)", list.fits.join(" or ")),
            "identified" => list.fits.join(" or "),
            "not_decidable" => format!("not decidable between {}", list.fits.join(" and ")),
            _ => "none fits".to_owned(),
        };
        let _ = writeln!(text, "{} {:?}: {why}", list.name, list.kept);
    }
    console::answer(format, &text, &json!({"kind": "kept", "answer": found}))?;
    let answers = || found.lists.iter();
    Ok(if answers().any(|list| list.fault || list.answer == "none_fits") {
        Status::Differs
    } else if answers().any(|list| list.answer == "not_decidable") || found.lists.is_empty() {
        Status::Inconclusive
    } else {
        Status::Parity
    })
}

fn logprobs(found: &LogprobAnswer, format: Format) -> anyhow::Result<Status> {
    let mut text = String::new();
    for list in &found.lists {
        let named = list.transform.as_deref().unwrap_or("nothing known gives it");
        let _ = write!(text, "{}: {named}", list.name);
        if !list.also.is_empty() {
            let _ = write!(text, " (or {})", list.also.join(", or "));
        }
        if !list.is_distribution {
            let _ = write!(text, "; no distribution, exp sums to {:.6}", list.mass);
        }
        if !list.lost.is_empty() {
            let _ = write!(text, "; lost ids {:?}", list.lost);
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}", found.remedy);
    console::answer(format, &text, &json!({"kind": "logprobs", "answer": found}))?;
    Ok(if found.one_convention { Status::Parity } else { Status::Differs })
}
