//! The ledger of claims as the time line of an investigation: what was said, what it covers, and whether it still stands.

use lockstep_diff::claims::{ClaimStatus, ClaimsReport, JudgedClaim};

use super::view::View;
use crate::error::ReportError;

/// Claims from the oldest to the newest, each with its scope beside its verdict.
pub(super) fn timeline(view: &mut View<'_>, ledger: &ClaimsReport) -> Result<(), ReportError> {
    view.element("p", &ledger.ledger);
    view.open_table(
        "Claims by what became of them",
        &["#supported", "#unsupported", "#wider than their evidence", "#superseded"],
    );
    view.raw("<tr>");
    for key in ["supported", "unsupported", "wider", "superseded"] {
        view.figure_cell(&format!("/claims/{key}"))?;
    }
    view.raw("</tr>\n");
    view.close_table();
    view.raw("<ol class=\"plain\">\n");
    for claim in &ledger.claims {
        one(view, claim);
    }
    view.raw("</ol>\n");
    Ok(())
}

fn one(view: &mut View<'_>, claim: &JudgedClaim) {
    let (class, sign, word) = status(claim);
    view.raw("<li><p><span class=\"verdict ");
    view.raw(class);
    view.raw("\"><span aria-hidden=\"true\">");
    view.raw(sign);
    view.raw("</span> ");
    view.raw(word);
    view.raw("</span> <strong>");
    view.text(&claim.id);
    view.raw("</strong> [");
    view.text(&claim.scope_line);
    view.raw("]");
    if let Some(date) = &claim.date {
        view.raw(" ");
        view.text(date);
    }
    view.raw("</p>\n");
    view.element("p", &claim.text);
    let mut lines: Vec<String> = claim.reasons.iter().map(|reason| reason.line()).collect();
    lines.extend(claim.wider.iter().map(|wider| {
        let covered = if wider.covered.is_empty() {
            "none that it names".to_owned()
        } else {
            wider.covered.join(", ")
        };
        format!(
            "claims {} {}; its evidence covers {covered}",
            wider.dimension,
            wider.claimed.join(", ")
        )
    }));
    lines.extend(claim.evidence.iter().map(|state| {
        let verdict = state.found_verdict.as_deref().or(state.cited_verdict.as_deref());
        format!(
            "stands on {} ({}), sha256 {}",
            state.path,
            verdict.unwrap_or("no verdict of its own"),
            state.cited_sha256
        )
    }));
    lines.extend(claim.rests_on.iter().map(|id| format!("rests on {id}")));
    lines.extend(claim.supersedes.iter().map(|id| format!("supersedes {id}")));
    lines.extend(claim.notes.iter().cloned());
    view.lines("plain", &lines);
    view.raw("</li>\n");
}

/// Class, sign and word of a claim's badge.
pub(crate) fn status(claim: &JudgedClaim) -> (&'static str, &'static str, &'static str) {
    match claim.status {
        ClaimStatus::Supported if claim.wider.is_empty() => ("good", "=", "supported"),
        ClaimStatus::Supported => ("bad", "\u{2283}", "wider than its evidence"),
        ClaimStatus::Unsupported if claim.superseded_by.is_some() => {
            ("unsure", "\u{21bb}", "superseded")
        }
        ClaimStatus::Unsupported => ("bad", "\u{2260}", "unsupported"),
    }
}

#[cfg(test)]
mod tests {
    use lockstep_traces::Verdict;
    use lockstep_traces::claims::{ArtifactKind, Cited, Claim, Coverage, Found, Ledger, Scope};

    use crate::Report;

    fn report() -> Report {
        let claim = |id: &str, samples: &[&str]| Claim {
            id: id.to_owned(),
            text: format!("<{id}> & more"),
            scope: Scope {
                samples: samples.iter().map(|s| (*s).to_owned()).collect(),
                ..Scope::default()
            },
            evidence: vec![Cited {
                path: "a.json".to_owned(),
                sha256: "aa".to_owned(),
                kind: ArtifactKind::Answer,
                verdict: None,
            }],
            ..Claim::default()
        };
        let found = |sha256: &str| {
            let covers = Coverage { samples: ["s1".to_owned()].into(), ..Coverage::default() };
            vec![Found { sha256: Some(sha256.to_owned()), covers, ..Found::default() }]
        };
        let claims = [claim("one", &["s1"]), claim("two", &["s1", "s2"]), claim("three", &["s1"])];
        let ledger = Ledger { claims: claims.into_iter().map(Claim::sealed).collect() };
        let mut report = Report::new("t", "", Verdict::Identical);
        report.claims = Some(lockstep_diff::claims::judge(
            "claims.toml",
            &ledger,
            &vec![found("aa"), found("aa"), found("bb")],
        ));
        report
    }

    #[test]
    fn the_page_shows_each_claim_with_its_scope_and_what_became_of_it() {
        let page = crate::html::page(&report()).unwrap();
        let at =
            |part: &str| page.find(part).unwrap_or_else(|| panic!("{part} is not on the page"));
        assert!(
            at("supported</span> <strong>one</strong> [samples s1]")
                < at("<strong>two</strong> [samples s1, s2]")
        );
        at("wider than its evidence</span> <strong>two</strong>");
        at("claims samples s2; its evidence covers s1");
        at("unsupported</span> <strong>three</strong>");
        at("a.json has changed since it was cited");
        at("&lt;one&gt; &amp; more");
        at("<a href=\"#claims\">Claims</a>");
    }

    #[test]
    fn report_json_holds_the_ledger_and_a_report_without_one_does_not_speak_of_it() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["claims"]["claims"][2]["status"], "unsupported");
        assert_eq!(
            (&json["claims"]["supported"], &json["claims"]["wider"]),
            (&2.into(), &1.into())
        );
        let bare = Report::new("t", "", Verdict::Identical);
        assert!(serde_json::to_value(&bare).unwrap().get("claims").is_none());
        assert!(!crate::html::page(&bare).unwrap().contains("claims"));
    }
}
