//! The judgement of a ledger.

use std::collections::BTreeMap;

use lockstep_traces::Verdict;
use lockstep_traces::claims::{Cited, Claim, Coverage, Found, Ledger};

use super::scope::wider;
use super::{ClaimStatus, ClaimsReport, EvidenceState, FoundFor, JudgedClaim, Reason};

/// Judges every claim. `found[i][j]` is what was found for evidence j of claim i; what is not given counts as missing.
#[must_use]
pub fn judge(label: &str, ledger: &Ledger, found: &FoundFor) -> ClaimsReport {
    let mut replaced: BTreeMap<&str, &str> = BTreeMap::new();
    for claim in &ledger.claims {
        for old in &claim.supersedes {
            replaced.insert(old, &claim.id);
        }
    }
    let nothing = Vec::new();
    let mut claims: Vec<JudgedClaim> = Vec::new();
    for (index, claim) in ledger.claims.iter().enumerate() {
        let found = found.get(index).unwrap_or(&nothing);
        let judged = one(claim, found, replaced.get(claim.id.as_str()).copied(), &claims);
        claims.push(judged);
    }
    summed(label, claims)
}

/// Judges one claim; `earlier` holds every claim that it may rest on.
fn one(
    claim: &Claim,
    found: &[Found],
    replaced_by: Option<&str>,
    earlier: &[JudgedClaim],
) -> JudgedClaim {
    let mut reasons = Vec::new();
    let mut covers = Coverage::default();
    let missing = Found::default();
    let mut evidence = Vec::new();
    for (index, cited) in claim.evidence.iter().enumerate() {
        let found = found.get(index).unwrap_or(&missing);
        reasons.extend(faults(cited, found));
        covers.merge(&found.covers);
        evidence.push(EvidenceState {
            path: cited.path.clone(),
            cited_sha256: cited.sha256.clone(),
            found_sha256: found.sha256.clone(),
            cited_verdict: cited.verdict.clone(),
            found_verdict: found.verdict.clone(),
        });
    }
    if claim.evidence.is_empty() && claim.rests_on.is_empty() {
        reasons.push(Reason::NoEvidence);
    }
    for other in earlier.iter().filter(|other| claim.rests_on.contains(&other.id)) {
        if other.status == ClaimStatus::Unsupported {
            reasons.push(Reason::RestsOnUnsupported { claim: other.id.clone() });
        }
    }
    if !claim.intact() {
        reasons.push(Reason::Edited);
    }
    if let Some(by) = replaced_by {
        reasons.push(Reason::Superseded { by: by.to_owned() });
    }
    let (beyond, mut notes) = wider(&claim.scope, &covers);
    // A claim that follows from others only has no artifacts of its own to be measured by.
    let beyond = if claim.evidence.is_empty() { Vec::new() } else { beyond };
    if claim.scope.is_empty() {
        notes.push(
            "the claim states no scope: read it as what its evidence covers and no more".to_owned(),
        );
    }
    JudgedClaim {
        id: claim.id.clone(),
        text: claim.text.clone(),
        date: claim.date.clone(),
        status: if reasons.is_empty() { ClaimStatus::Supported } else { ClaimStatus::Unsupported },
        reasons,
        wider: beyond,
        superseded_by: replaced_by.map(str::to_owned),
        supersedes: claim.supersedes.clone(),
        rests_on: claim.rests_on.clone(),
        scope_line: claim.scope.to_string(),
        scope: claim.scope.clone(),
        evidence,
        notes,
    }
}

fn faults(cited: &Cited, found: &Found) -> Vec<Reason> {
    let path = || cited.path.clone();
    if let Some(why) = &found.problem {
        return vec![Reason::Unreadable { path: path(), why: why.clone() }];
    }
    let Some(sha256) = &found.sha256 else {
        return vec![Reason::Missing { path: path() }];
    };
    let mut reasons = Vec::new();
    if *sha256 != cited.sha256 {
        reasons.push(Reason::Changed { path: path(), sha256: sha256.clone() });
    }
    if !found.voids.is_empty() {
        reasons.push(Reason::Void { path: path(), parts: found.voids.clone() });
    } else if found.proves_nothing {
        let verdict = found.verdict.clone().unwrap_or_default();
        reasons.push(Reason::ProvesNothing { path: path(), verdict });
    }
    reasons
}

fn summed(label: &str, claims: Vec<JudgedClaim>) -> ClaimsReport {
    let count = |keep: &dyn Fn(&JudgedClaim) -> bool| {
        claims.iter().filter(|claim| keep(claim)).count() as u64
    };
    let live = |claim: &JudgedClaim| claim.superseded_by.is_none();
    let supported = count(&|claim| claim.status == ClaimStatus::Supported);
    let unsupported = count(&|claim| live(claim) && claim.status == ClaimStatus::Unsupported);
    let wide = count(&|claim| live(claim) && !claim.wider.is_empty());
    let superseded = count(&|claim| !live(claim));
    let verdict = if claims.is_empty() {
        Verdict::Incomparable { why: "the ledger holds no claim".to_owned() }
    } else if unsupported + wide > 0 {
        Verdict::Diverged
    } else {
        Verdict::Identical
    };
    let summary = format!(
        "{} claims: {supported} supported, {unsupported} unsupported, {wide} wider than their evidence, {superseded} superseded",
        claims.len()
    );
    ClaimsReport {
        ledger: label.to_owned(),
        claims,
        supported,
        unsupported,
        wider: wide,
        superseded,
        verdict,
        summary,
    }
}
