//! `bench`: a model over a dataset, answers scored, or this build measured on this machine. Every bar of `--self` is a ratio of two figures of the same run.

mod device;
mod evaluate;
mod model;
mod parts;
mod score;
mod scoretext;
mod tensors;

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::cli::{BenchArgs, BenchCommand, DeviceArg, Format};
use crate::console;
use crate::exit::{Status, usage};

/// One figure with what it is held against.
#[derive(Debug, Serialize)]
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
    /// What `value` is divided by for `ratio`, in the same unit.
    against: Option<f64>,
    ratio: Option<f64>,
    note: String,
}

impl Figure {
    fn plain(name: &'static str, value: f64, unit: &'static str, note: impl Into<String>) -> Self {
        Self { name, value, unit, against: None, ratio: None, note: note.into() }
    }

    fn ratio(
        name: &'static str,
        (value, against): (f64, f64),
        unit: &'static str,
        note: impl Into<String>,
    ) -> Self {
        Self {
            name,
            value,
            unit,
            against: Some(against),
            ratio: Some(value / against),
            note: note.into(),
        }
    }
}

/// A measurement: takes the arguments and a folder for what it makes.
type Part = fn(&BenchArgs, &std::path::Path) -> anyhow::Result<Vec<Figure>>;

const PARTS: [(&str, Part); 6] = [
    ("decode", parts::decode),
    ("replay", parts::replay),
    ("gather", parts::gather),
    ("diff", parts::diff),
    ("import", parts::import),
    ("tensors", tensors::tensors),
];

pub(crate) fn execute(args: &BenchArgs, format: Format) -> anyhow::Result<Status> {
    match &args.command {
        Some(BenchCommand::Run(args)) => return evaluate::execute(args, format),
        Some(BenchCommand::Merge(args)) => return evaluate::merge(args, format),
        Some(BenchCommand::Score(args)) => return score::execute(args, format),
        None => {}
    }
    if !args.itself {
        return Err(usage("bench measures Lockstep itself: give --self"));
    }
    let on_device = matches!(args.device, DeviceArg::Cuda | DeviceArg::Emulated);
    let known: Vec<&str> = if on_device {
        device::PARTS.iter().map(|(name, _)| *name).collect()
    } else {
        PARTS.iter().map(|(name, _)| *name).collect()
    };
    if let Some(name) = args.only.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(usage(format!("no figure `{name}`; there are {}", known.join(", "))));
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let own = tempfile::tempdir()?;
    let scratch = args.scratch.clone().unwrap_or_else(|| PathBuf::from(own.path()));
    std::fs::create_dir_all(&scratch)?;
    let mut figures = Vec::new();
    if on_device {
        let stage = device::Stage::open(args, &scratch)?;
        for (name, part) in device::PARTS.into_iter().filter(|(name, _)| wanted(name)) {
            console::note(&format!("bench: {name}"));
            figures.extend(part(&stage)?);
        }
    } else {
        for (name, part) in PARTS.into_iter().filter(|(name, _)| wanted(name)) {
            console::note(&format!("bench: {name}"));
            figures.extend(part(args, &scratch)?);
        }
    }
    let mut text = String::new();
    for figure in &figures {
        let ratio =
            figure.ratio.zip(figure.against).map_or_else(String::new, |(ratio, against)| {
                format!("  ratio {ratio:.3} (against {against:.3} {})", figure.unit)
            });
        let _ = writeln!(
            text,
            "{:<34} {:>12.3} {:<8}{ratio}  {}",
            figure.name, figure.value, figure.unit, figure.note
        );
    }
    console::answer(format, &text, &figures)?;
    Ok(Status::Parity)
}
