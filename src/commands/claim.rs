//! `claim`: the ledger of what is said to be shown, and whether it still is.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lockstep_diff::claims::{self, ClaimStatus, ClaimsReport, JudgedClaim};
use lockstep_traces::Choice;
use lockstep_traces::claims::{Claim, Ledger, Scope, cite};

use crate::cli::{ClaimAddArgs, ClaimCommand, Format};
use crate::console;
use crate::exit::{Status, usage};

/// Most ordinals of one claim.
const MOST_ORDINALS: u32 = 100_000;

pub(crate) fn execute(command: &ClaimCommand, format: Format) -> anyhow::Result<Status> {
    match command {
        ClaimCommand::Add(args) => add(args, format),
        ClaimCommand::List(args) => {
            let report = report(&args.ledger)?;
            console::answer(format, &text(&report), &report)?;
            Ok(Status::Parity)
        }
        ClaimCommand::Check(args) => {
            let report = report(&args.ledger)?;
            console::answer(format, &text(&report), &report)?;
            Ok(Status::of(&report.verdict))
        }
    }
}

/// The ledger, its artifacts hashed again.
pub(crate) fn report(path: &Path) -> anyhow::Result<ClaimsReport> {
    let ledger = Ledger::read(path)?;
    Ok(claims::check(&path.display().to_string(), &ledger, &folder(path)))
}

fn folder(ledger: &Path) -> PathBuf {
    ledger.parent().map(Path::to_owned).unwrap_or_default()
}

fn add(args: &ClaimAddArgs, format: Format) -> anyhow::Result<Status> {
    let path = &args.ledger.ledger;
    if args.text.trim().is_empty() {
        return Err(usage("a claim needs a text"));
    }
    if args.evidence.is_empty() && args.rests_on.is_empty() {
        return Err(usage("a claim needs --evidence PATH, or --rests-on ID"));
    }
    let scope = Scope {
        samples: args.samples.clone(),
        ordinals: ordinals(args.ordinals.as_ref())?,
        windows: args.windows.clone(),
        modes: args.modes.clone(),
    };
    if scope.is_empty() && args.rests_on.is_empty() {
        return Err(usage(
            "a claim needs a scope: --samples, --ordinals, --windows or --modes say what it is about",
        ));
    }
    let known = if path.exists() { Ledger::read(path)? } else { Ledger::default() };
    if let Some(id) =
        args.supersedes.iter().chain(&args.rests_on).find(|id| known.get(id).is_none())
    {
        return Err(usage(format!("no claim `{id}` in {}", path.display())));
    }
    if let Some(id) = args.id.as_ref().filter(|id| known.get(id).is_some()) {
        return Err(usage(format!("a claim `{id}` stands in {} already", path.display())));
    }
    let base = folder(path);
    let evidence = args
        .evidence
        .iter()
        .map(|artifact| cite(&base, artifact))
        .collect::<Result<Vec<_>, _>>()?;
    let claim = Claim {
        id: args.id.clone().unwrap_or_default(),
        text: args.text.clone(),
        date: args.date.clone(),
        supersedes: args.supersedes.clone(),
        rests_on: args.rests_on.clone(),
        digest: String::new(),
        scope,
        evidence,
    }
    .sealed();
    let ledger = Ledger::append(path, &claim)?;
    let report = claims::check(&path.display().to_string(), &ledger, &base);
    let Some(judged) = report.claims.last() else {
        return Ok(Status::Unreadable);
    };
    let mut out = format!("appended to {}\n", path.display());
    one(&mut out, judged);
    console::answer(format, &out, judged)?;
    Ok(if judged.holds() { Status::Parity } else { Status::Differs })
}

fn ordinals(choice: Option<&Choice>) -> anyhow::Result<Vec<u32>> {
    let all = || {
        usage("--ordinals names ordinals, such as 1,2 or 1-4: a claim covers what was looked at")
    };
    match choice {
        None => Ok(Vec::new()),
        Some(Choice::These(list)) => Ok(list.clone()),
        Some(Choice::Range { start, end, step }) if end - start < MOST_ORDINALS => {
            Ok((*start..=*end).step_by(usize::try_from(*step)?).collect())
        }
        Some(_) => Err(all()),
    }
}

fn text(report: &ClaimsReport) -> String {
    let mut out = format!("{}: {}\n", report.ledger, report.summary);
    for claim in &report.claims {
        one(&mut out, claim);
    }
    out
}

/// One claim: its status and scope first, then what speaks against it.
fn one(out: &mut String, claim: &JudgedClaim) {
    let status = match claim.status {
        ClaimStatus::Supported if claim.wider.is_empty() => "supported",
        ClaimStatus::Supported => "WIDER THAN ITS EVIDENCE",
        ClaimStatus::Unsupported if claim.superseded_by.is_some() => "unsupported (superseded)",
        ClaimStatus::Unsupported => "UNSUPPORTED",
    };
    let date = claim.date.as_ref().map_or_else(String::new, |date| format!(" ({date})"));
    let _ = writeln!(out, "{}{date}: {status} [{}]", claim.id, claim.scope_line);
    let _ = writeln!(out, "  \"{}\"", claim.text.replace('\n', " "));
    for reason in &claim.reasons {
        let _ = writeln!(out, "  ! {}", reason.line());
    }
    for wider in &claim.wider {
        let covered = if wider.covered.is_empty() {
            "the evidence names none".to_owned()
        } else {
            format!("the evidence covers {}", wider.covered.join(", "))
        };
        let _ =
            writeln!(out, "  ! claims {} {}; {covered}", wider.dimension, wider.claimed.join(", "));
    }
    for state in &claim.evidence {
        let verdict = state.found_verdict.as_deref().or(state.cited_verdict.as_deref());
        let hash = state.cited_sha256.get(..12).unwrap_or(&state.cited_sha256);
        let _ = writeln!(
            out,
            "  on {} ({}, sha256 {hash})",
            state.path,
            verdict.unwrap_or("no verdict of its own")
        );
    }
    for note in &claim.notes {
        let _ = writeln!(out, "  note: {note}");
    }
}
