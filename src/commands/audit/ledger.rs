//! A ledger of claims as facts of an audit.

use std::path::Path;

use lockstep_diff::audits::Subject;
use lockstep_diff::audits::facts::{Claim, ClaimScope, Kind};
use lockstep_diff::claims::{ClaimStatus, JudgedClaim, Reason, Wider};

/// Mode of a claim's scope that tells what sort of claim it is: `kind:parity`.
const KIND: &str = "kind:";

/// Is this a ledger? It is the one TOML file that an audit reads.
pub(super) fn is_ledger(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|extension| extension == "toml")
}

/// The claims of a ledger, their artifacts hashed again.
///
/// # Errors
/// What the ledger's reader says.
pub(super) fn subject(path: &Path) -> anyhow::Result<Subject<'static>> {
    let report = crate::commands::claim::report(path)?;
    let mut subject = Subject::new(path.display().to_string(), Kind::Claims);
    subject.claims = report.claims.iter().map(fact).collect();
    Ok(subject)
}

fn fact(claim: &JudgedClaim) -> Claim {
    let modes = &claim.scope.modes;
    let kind = modes.iter().find_map(|mode| mode.strip_prefix(KIND)).map(str::to_owned);
    let mode = modes.iter().find(|mode| matches!(mode.as_str(), "greedy" | "sampled")).cloned();
    let stands = claim.status == ClaimStatus::Supported;
    Claim {
        id: claim.id.clone(),
        text: claim.text.clone(),
        kind,
        evidence: claim.evidence.iter().map(|cited| cited.path.clone()).collect(),
        scope: ClaimScope {
            samples: claim.scope.samples.clone(),
            ordinals: claim.scope.ordinals.clone(),
            window: claim.scope.windows.first().map(|window| (window.first, window.last)),
            mode,
        },
        retracted: claim.superseded_by.is_some(),
        unsupported: if stands { Vec::new() } else { lines(&claim.reasons) },
        wider: claim.wider.iter().map(beyond).collect(),
        held: true,
    }
}

fn lines(reasons: &[Reason]) -> Vec<String> {
    reasons.iter().map(Reason::line).collect()
}

fn beyond(wider: &Wider) -> String {
    let covered = if wider.covered.is_empty() {
        "nothing that the evidence names".to_owned()
    } else {
        wider.covered.join(", ")
    };
    format!("{} {} are claimed, covered: {covered}", wider.dimension, wider.claimed.join(", "))
}
