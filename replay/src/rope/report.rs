//! What the comparison of tables says.

use lockstep_traces::Verdict;
use serde::Serialize;

use super::variants::variants;
use super::{EngineTable, RopeConfig, RopeQuestion, rounding};

/// A phase below which an error hides: the cosine of a key turned by it is still 0.995 of what it was.
const HIDDEN: f64 = 0.1;

/// The table that a configuration asks for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigTable {
    /// Configuration.
    pub config: String,
    /// Base.
    pub theta: f64,
    /// Where the base stands.
    pub base_from: String,
    /// Scaling.
    pub rope_type: String,
    /// Rotated dimensions of a head.
    pub rotated_dims: usize,
    /// Factor on cosines and sines, which no table of frequencies shows.
    pub attention_scaling: f64,
    /// Inverse frequencies in f64.
    pub inv_freq: Vec<f64>,
    /// The engine's table against it; `null` where there is none.
    pub engine: Option<TableCheck>,
    /// What a reader should know of the file.
    pub remarks: Vec<String>,
}

/// An engine's table against a configuration's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableCheck {
    /// Name in its file.
    pub table: String,
    /// Its values, a doubled table once.
    pub inv_freq: Vec<f64>,
    /// Every band is there and within the tolerance.
    pub right: bool,
    /// Largest relative difference that counts as none.
    pub tolerance: f64,
    /// Engine over reference by band.
    pub ratios: Vec<f64>,
    /// Bands that differ.
    pub differing: Vec<usize>,
    /// Mistakes that give the whole table, where the configuration does not.
    pub recognised: Vec<String>,
    /// Mistakes and how many bands each gives.
    pub hypotheses: Vec<TableFit>,
    /// Phase errors at the positions asked for.
    pub phase_errors: Vec<PhaseError>,
    /// Why the tables cannot be compared band by band, where they cannot.
    pub unlike: Option<String>,
}

/// How far a mistake explains a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TableFit {
    /// Stable name.
    pub name: String,
    /// In words.
    pub title: String,
    /// Bands that it gives.
    pub bands: usize,
    /// Bands.
    pub of: usize,
}

/// Error of the phase `position * frequency`, engine less reference, in radians.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseError {
    /// Position.
    pub position: u64,
    /// Of the slowest band.
    pub slowest_band: f64,
    /// The largest.
    pub largest: f64,
    /// Its band.
    pub largest_band: usize,
}

/// Something that a reader must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RopeFinding {
    /// `table_differs`, the name of a mistake, `grows_with_position`, `unlike`.
    pub name: String,
    /// Configuration.
    pub of: String,
    /// One line.
    pub title: String,
}

/// Answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RopeReport {
    /// Configurations in their order.
    pub configs: Vec<ConfigTable>,
    /// Configurations that ask for one and the same table, together.
    pub same_table: Vec<Vec<String>>,
    /// What was found.
    pub findings: Vec<RopeFinding>,
    /// What the evidence does not cover.
    pub limits: Vec<String>,
    /// Outcome.
    pub verdict: Verdict,
    /// One line.
    pub summary: String,
}

impl ConfigTable {
    pub(super) fn new(config: &RopeConfig, engine: Option<TableCheck>) -> Self {
        Self {
            config: config.name.clone(),
            theta: config.rope.theta,
            base_from: config.base_from.clone(),
            rope_type: config.rope.kind.name().to_owned(),
            rotated_dims: config.rope.head_dim,
            attention_scaling: config.rope.attention_scaling,
            inv_freq: config.rope.inv_freq_f64(),
            engine,
            remarks: config.remarks.clone(),
        }
    }
}

fn close(left: f64, right: f64, tolerance: f64) -> bool {
    (left / right - 1.0).abs() <= tolerance
}

/// Compares one table.
pub(super) fn table(
    config: &RopeConfig,
    engine: &EngineTable,
    question: &RopeQuestion,
) -> TableCheck {
    let own = config.rope.inv_freq_f64();
    let tolerance = question.tolerance.unwrap_or_else(|| rounding(config.rope.theta));
    let values = single(&engine.values, own.len());
    let unlike = (values.len() != own.len()).then(|| {
        format!(
            "the engine has {} frequencies, the configuration {}",
            engine.values.len(),
            own.len()
        )
    });
    let ratios: Vec<f64> = match unlike {
        Some(_) => Vec::new(),
        None => values.iter().zip(&own).map(|(engine, own)| engine / own).collect(),
    };
    let off = |(_, ratio): &(usize, &f64)| !close(**ratio, 1.0, tolerance);
    let differing: Vec<usize> =
        ratios.iter().enumerate().filter(off).map(|(band, _)| band).collect();
    let right = unlike.is_none() && differing.is_empty();
    let hypotheses: Vec<TableFit> = if right || unlike.is_some() {
        Vec::new()
    } else {
        let fit = |variant: super::variants::Variant| TableFit {
            name: variant.name.to_owned(),
            title: variant.words,
            bands: values
                .iter()
                .zip(&variant.values)
                .filter(|(l, r)| close(**l, **r, tolerance))
                .count(),
            of: values.len(),
        };
        variants(config, &values).into_iter().map(fit).collect()
    };
    let whole = |fit: &&TableFit| fit.bands == fit.of && fit.of > 0;
    let mut recognised: Vec<String> =
        hypotheses.iter().filter(whole).map(|fit| fit.name.clone()).collect();
    // A base that was fitted to the table says less than a mistake that names it.
    if recognised.len() > 1 {
        recognised.retain(|name| name != "other_base");
    }
    TableCheck {
        table: engine.name.clone(),
        right,
        tolerance,
        phase_errors: if unlike.is_some() { Vec::new() } else { phases(&own, &values, question) },
        inv_freq: values,
        ratios,
        differing,
        recognised,
        hypotheses,
        unlike,
    }
}

/// Tables are often stored for every dimension: the half twice, or each value twice.
fn single(values: &[f64], bands: usize) -> Vec<f64> {
    let same = |l: f64, r: f64| l.to_bits() == r.to_bits();
    if bands > 0 && values.len() == 2 * bands {
        let (front, back) = values.split_at(bands);
        if front.iter().zip(back).all(|(l, r)| same(*l, *r)) {
            return front.to_vec();
        }
        if values.chunks_exact(2).all(|pair| same(pair[0], pair[1])) {
            return values.iter().step_by(2).copied().collect();
        }
    }
    values.to_vec()
}

fn phases(own: &[f64], engine: &[f64], question: &RopeQuestion) -> Vec<PhaseError> {
    let slowest =
        own.iter().enumerate().min_by(|l, r| l.1.total_cmp(r.1)).map_or(0, |(band, _)| band);
    let at = |position: u64| {
        let errors: Vec<f64> =
            engine.iter().zip(own).map(|(engine, own)| (engine - own) * position as f64).collect();
        let largest = errors.iter().enumerate().max_by(|l, r| l.1.abs().total_cmp(&r.1.abs()));
        let (largest_band, largest) = largest.map_or((0, 0.0), |(band, error)| (band, *error));
        PhaseError {
            position,
            slowest_band: errors.get(slowest).copied().unwrap_or(0.0),
            largest,
            largest_band,
        }
    };
    question.positions.iter().map(|position| at(*position)).collect()
}

/// Configurations with one table; equal to the rounding of f64.
pub(super) fn groups(tables: &[ConfigTable]) -> Vec<Vec<String>> {
    let mut groups: Vec<(&ConfigTable, Vec<String>)> = Vec::new();
    for table in tables {
        let known = groups.iter_mut().find(|(first, _)| same(first, table));
        match known {
            Some((_, names)) => names.push(table.config.clone()),
            None => groups.push((table, vec![table.config.clone()])),
        }
    }
    groups.into_iter().map(|(_, names)| names).collect()
}

fn same(left: &ConfigTable, right: &ConfigTable) -> bool {
    left.inv_freq.len() == right.inv_freq.len()
        && left.inv_freq.iter().zip(&right.inv_freq).all(|(l, r)| close(*l, *r, 1e-14))
        && close(left.attention_scaling, right.attention_scaling, 1e-14)
}

pub(super) fn conclude(report: &mut RopeReport) {
    report.findings = report.configs.iter().flat_map(findings).collect();
    for table in &report.configs {
        let scaled = table.engine.is_some() && !close(table.attention_scaling, 1.0, 1e-14);
        if scaled {
            report.limits.push(format!(
                "{}: cosines and sines are also scaled by {}, which no table of frequencies shows",
                table.config, table.attention_scaling
            ));
        }
        for check in table.engine.iter().filter(|check| !check.right && check.recognised.is_empty())
        {
            report.limits.push(format!(
                "{}: no known mistake gives the whole table {}",
                table.config, check.table
            ));
        }
    }
    let compared: Vec<&ConfigTable> =
        report.configs.iter().filter(|one| one.engine.is_some()).collect();
    let wrong = compared.iter().any(|one| one.engine.as_ref().is_some_and(|check| !check.right));
    // A configuration without a table of its own is covered by another one that asks for the same.
    let open: Vec<&str> = report
        .configs
        .iter()
        .filter(|one| one.engine.is_none() && !compared.iter().any(|other| same(one, other)))
        .map(|one| one.config.as_str())
        .collect();
    if !compared.is_empty() && !open.is_empty() {
        report.limits.push(format!("no engine table for {}", open.join(", ")));
    }
    report.verdict = match (compared.is_empty(), wrong) {
        (_, true) => Verdict::Diverged,
        (false, false) if !open.is_empty() => {
            Verdict::Incomparable { why: format!("no engine table for {}", open.join(", ")) }
        }
        (true, false) if report.configs.len() < 2 => Verdict::Incomparable {
            why: "one configuration and no engine table: nothing to compare".to_owned(),
        },
        (true, false) if report.same_table.len() > 1 => Verdict::Diverged,
        _ => Verdict::Identical,
    };
    let groups: Vec<String> = report.same_table.iter().map(|names| names.join(" = ")).collect();
    report.summary = match &report.verdict {
        Verdict::Incomparable { why } => why.clone(),
        _ if compared.is_empty() => format!("tables by configuration: {}", groups.join("; ")),
        Verdict::Diverged => {
            let parts = report.findings.iter().map(|one| format!("{}: {}", one.of, one.title));
            parts.collect::<Vec<_>>().join("; ")
        }
        _ => format!("{} engine tables are what their configurations ask for", compared.len()),
    };
}

fn findings(table: &ConfigTable) -> Vec<RopeFinding> {
    let mut out = Vec::new();
    let Some(check) = table.engine.as_ref().filter(|check| !check.right) else { return out };
    let mut add = |name: &str, title: String| {
        out.push(RopeFinding { name: name.to_owned(), of: table.config.clone(), title });
    };
    if let Some(unlike) = &check.unlike {
        add("unlike", unlike.clone());
        return out;
    }
    add(
        "table_differs",
        format!("{} of {} bands differ", check.differing.len(), check.ratios.len()),
    );
    for name in &check.recognised {
        if let Some(fit) = check.hypotheses.iter().find(|fit| fit.name == *name) {
            add(name, fit.title.clone());
        }
    }
    let mut by_position: Vec<&PhaseError> = check.phase_errors.iter().collect();
    by_position.sort_by_key(|error| error.position);
    if let [first, .., last] = by_position.as_slice()
        && first.largest.abs() < HIDDEN
        && last.largest.abs() > HIDDEN
    {
        add(
            "grows_with_position",
            format!(
                "no band is off by more than {:.6} rad at position {}, one is off by {:.6} at {} (the slowest by {:.6} and {:.6}): short prompts pass, long ones drift",
                first.largest.abs(),
                first.position,
                last.largest.abs(),
                last.position,
                first.slowest_band.abs(),
                last.slowest_band.abs()
            ),
        );
    }
    out
}
