use lockstep_traces::claims::{ArtifactKind, Cited, Claim, Coverage, Found, Ledger, Scope, Window};

use super::{ClaimStatus, ClaimsReport, Reason, judge};

fn cited(path: &str) -> Cited {
    Cited {
        path: path.to_owned(),
        sha256: "aa".to_owned(),
        kind: ArtifactKind::Answer,
        verdict: None,
    }
}

fn found() -> Found {
    let covers = Coverage {
        samples: ["s1".to_owned()].into(),
        ordinals: [1, 2].into(),
        windows: [Window { first: 0, last: 50 }, Window { first: 51, last: 90 }].into(),
        modes: ["greedy".to_owned(), "cpu".to_owned()].into(),
    };
    Found {
        sha256: Some("aa".to_owned()),
        verdict: Some("identical".to_owned()),
        covers,
        ..Found::default()
    }
}

fn claim(id: &str, scope: Scope) -> Claim {
    Claim {
        id: id.to_owned(),
        text: id.to_owned(),
        scope,
        evidence: vec![cited("a.json")],
        ..Claim::default()
    }
}

fn samples(ids: &[&str]) -> Scope {
    Scope { samples: ids.iter().map(|id| (*id).to_owned()).collect(), ..Scope::default() }
}

fn judged(claims: Vec<Claim>, found: Found) -> ClaimsReport {
    let found = claims.iter().map(|claim| vec![found.clone(); claim.evidence.len()]).collect();
    let claims = claims.into_iter().map(Claim::sealed).collect();
    judge("claims.toml", &Ledger { claims }, &found)
}

fn path() -> String {
    "a.json".to_owned()
}

#[test]
fn a_claim_within_its_evidence_stands() {
    let scope = Scope {
        ordinals: vec![2],
        windows: vec![Window { first: 40, last: 60 }],
        modes: vec!["greedy".to_owned(), "thinking".to_owned()],
        ..samples(&["s1"])
    };
    let report = judged(vec![claim("c", scope)], found());
    assert_eq!((report.supported, report.unsupported, report.wider), (1, 0, 0), "{report:#?}");
    assert_eq!(report.verdict.exit_code(), 0);
    assert_eq!(
        report.claims[0].scope_line,
        "samples s1; ordinals 2; windows 40-60; modes greedy, thinking"
    );
    assert_eq!(report.claims[0].notes, ["no cited artifact states the mode `thinking`"]);
}

#[test]
fn each_fault_of_an_artifact_is_named() {
    let faults = [
        (
            Found { sha256: Some("bb".to_owned()), ..found() },
            Reason::Changed { path: path(), sha256: "bb".to_owned() },
        ),
        (Found::default(), Reason::Missing { path: path() }),
        (
            Found { problem: Some("cut".to_owned()), ..found() },
            Reason::Unreadable { path: path(), why: "cut".to_owned() },
        ),
        (
            Found { voids: vec!["11".to_owned()], ..found() },
            Reason::Void { path: path(), parts: vec!["11".to_owned()] },
        ),
        (
            Found { proves_nothing: true, verdict: Some("no_evidence".to_owned()), ..found() },
            Reason::ProvesNothing { path: path(), verdict: "no_evidence".to_owned() },
        ),
    ];
    for (found, reason) in faults {
        let report = judged(vec![claim("c", samples(&["s1"]))], found);
        assert_eq!(report.claims[0].status, ClaimStatus::Unsupported);
        assert_eq!(report.claims[0].reasons, [reason]);
        assert_eq!(report.verdict.exit_code(), 1);
    }
}

#[test]
fn a_claim_wider_than_its_evidence_is_flagged_by_dimension() {
    let scope = Scope {
        ordinals: vec![1, 3],
        windows: vec![Window { first: 80, last: 91 }],
        modes: vec!["sampled".to_owned()],
        ..samples(&["s1", "s2"])
    };
    let report = judged(vec![claim("c", scope)], found());
    let wider: Vec<_> = report.claims[0]
        .wider
        .iter()
        .map(|w| (w.dimension.as_str(), w.claimed.join(",")))
        .collect();
    assert_eq!(
        wider,
        [
            ("samples", "s2".to_owned()),
            ("ordinals", "3".to_owned()),
            ("windows", "80-91".to_owned()),
            ("modes", "sampled".to_owned())
        ]
    );
    assert_eq!(report.claims[0].wider[2].covered, ["0-90"], "windows that touch are one");
    assert_eq!((report.claims[0].status, report.verdict.exit_code()), (ClaimStatus::Supported, 1));
    let silent = judged(
        vec![claim("c", samples(&["s1"]))],
        Found { covers: Coverage::default(), ..found() },
    );
    assert_eq!(silent.wider, 1, "evidence that names no sample covers none");
}

#[test]
fn a_superseded_claim_and_what_rests_on_it_do_not_stand() {
    let rests = Claim {
        rests_on: vec!["a".to_owned()],
        evidence: Vec::new(),
        ..claim("b", Scope::default())
    };
    let deeper = Claim {
        rests_on: vec!["b".to_owned()],
        evidence: Vec::new(),
        ..claim("c", Scope::default())
    };
    let better = Claim { supersedes: vec!["a".to_owned()], ..claim("d", samples(&["s1"])) };
    let report =
        judged(vec![claim("a", samples(&["s1"])), rests.clone(), deeper, better.clone()], found());
    let reasons: Vec<_> = report.claims.iter().map(|claim| claim.reasons.clone()).collect();
    assert_eq!(reasons[0], [Reason::Superseded { by: "d".to_owned() }]);
    assert_eq!(reasons[1], [Reason::RestsOnUnsupported { claim: "a".to_owned() }]);
    assert_eq!(reasons[2], [Reason::RestsOnUnsupported { claim: "b".to_owned() }]);
    assert!(reasons[3].is_empty());
    assert_eq!((report.superseded, report.unsupported), (1, 2));
    let retracted = judged(vec![claim("a", samples(&["s1"])), better], found());
    assert_eq!(retracted.verdict.exit_code(), 0, "a claim that was retracted is no open fault");
}

#[test]
fn an_edited_record_an_empty_one_and_an_empty_ledger_are_told() {
    let mut ledger = Ledger { claims: vec![claim("a", samples(&["s1"])).sealed()] };
    ledger.claims[0].text.push('!');
    let report = judge("l", &ledger, &vec![vec![found()]]);
    assert_eq!(report.claims[0].reasons, [Reason::Edited]);
    let bare = Claim { evidence: Vec::new(), ..claim("a", Scope::default()) };
    assert_eq!(judged(vec![bare], found()).claims[0].reasons, [Reason::NoEvidence]);
    assert_eq!(judge("l", &Ledger::default(), &Vec::new()).verdict.exit_code(), 4);
}
