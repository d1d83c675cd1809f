//! Which verb's answer a JSON document is.

use lockstep_diff::DiffReport;
use lockstep_diff::audits::AuditReport;
use lockstep_diff::settings::SettingsReport;
use lockstep_traces::CheckReport;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Suite;
use super::checks::{of_audit, of_check, of_diff, of_settings};
use super::scores::{Scores, of_scores};

/// A verb whose answer is known here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerKind {
    /// `check` and `replay`: one report or a list of them.
    Checks,
    /// `audit`.
    Audit,
    /// `diff`.
    Diff,
    /// `diff --manifest`.
    Settings,
    /// `bench score`.
    Scores,
}

impl AnswerKind {
    /// By keys.
    fn of(value: &Value) -> Option<Self> {
        let has = |value: &Value, keys: &[&str]| keys.iter().all(|key| value.get(key).is_some());
        let check = |value: &Value| has(value, &["kind", "verdict", "compared", "findings"]);
        match value {
            Value::Array(list) if !list.is_empty() && list.iter().all(check) => Some(Self::Checks),
            one if check(one) => Some(Self::Checks),
            one if has(one, &["subjects", "audits", "findings"]) => Some(Self::Audit),
            one if has(one, &["left", "right", "samples", "splits", "verdict"]) => Some(Self::Diff),
            one if has(one, &["left", "right", "groups", "verdict"]) => Some(Self::Settings),
            one if has(one, &["inputs", "versus", "gates"]) => Some(Self::Scores),
            _ => None,
        }
    }
}

/// The suites of an answer, `--format json`.
///
/// # Errors
/// One line: it is no JSON, or of no verb that is known here.
pub fn of_json(bytes: &[u8]) -> Result<(AnswerKind, Vec<Suite>), String> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| {
        format!("no JSON ({error}); give a run, or the answer of a verb with --format json")
    })?;
    let kind = AnswerKind::of(&value).ok_or_else(|| {
        "no answer of check, audit, diff or bench score with --format json".to_owned()
    })?;
    let suites = match kind {
        AnswerKind::Checks => {
            let list = if value.is_array() { value } else { Value::Array(vec![value]) };
            parsed::<Vec<CheckReport>>(list)?.iter().map(of_check).collect()
        }
        AnswerKind::Audit => vec![of_audit(&parsed::<AuditReport>(value)?)],
        AnswerKind::Diff => of_diff(&parsed::<DiffReport>(value)?),
        AnswerKind::Settings => vec![of_settings(&parsed::<SettingsReport>(value)?)],
        AnswerKind::Scores => of_scores(&parsed::<Scores>(value)?),
    };
    Ok((kind, suites))
}

fn parsed<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("an answer of another build: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Outcome, render};
    use super::*;

    fn check(verdict: &Value, skipped: u64) -> Value {
        json!({
            "kind": "gather", "verdict": verdict, "compared": 64, "different": 1, "skipped": skipped, "unit": "heads",
            "findings": [], "limits": ["no dump of compaction 2"], "detail": null,
        })
    }

    fn outcomes(answer: &Value) -> Vec<(String, Outcome)> {
        let (_, suites) = of_json(answer.to_string().as_bytes()).unwrap();
        roxmltree::Document::parse(&render(suites.clone())).unwrap();
        suites.into_iter().flat_map(|one| one.cases).map(|one| (one.name, one.outcome)).collect()
    }

    #[test]
    fn what_was_not_decided_or_not_compared_never_passes() {
        let identical = check(&json!({"kind": "identical"}), 0);
        assert_eq!(outcomes(&identical), [("verdict".to_owned(), Outcome::Passed)]);
        let diverged = outcomes(&check(&json!({"kind": "diverged"}), 0));
        assert!(matches!(&diverged[0].1, Outcome::Failed { kind, .. } if kind == "diverged"));
        let open = check(&json!({"kind": "incomparable", "why": "no dump"}), 3);
        let list = outcomes(&json!([identical, open]));
        assert!(matches!(&list[1].1, Outcome::Error { message, .. } if message == "no dump"));
        assert!(
            matches!(&list[2].1, Outcome::Skipped { message } if message.starts_with("3 heads"))
        );
    }

    #[test]
    fn findings_of_a_check_fail_where_they_are() {
        let mut answer = check(&json!({"kind": "diverged"}), 0);
        answer["findings"] = json!([{
            "cause": null, "title": "V was not gathered", "location": {"sample_id": "s", "layer": 2, "head": 1},
            "evidence": [{"name": "rows", "value": 7}],
        }]);
        let (_, suites) = of_json(answer.to_string().as_bytes()).unwrap();
        let case = &suites[0].cases[1];
        assert_eq!(case.name, "V was not gathered (sample s, layer 2, head 1)");
        assert_eq!(case.lines, ["rows: 7"]);
        assert!(matches!(case.outcome, Outcome::Failed { .. }));
    }

    #[test]
    fn audits_flag_void_and_lack_evidence() {
        let line = |number: u8, verdict: &str| json!({"number": number, "slug": format!("s{number}"), "title": "t", "verdict": verdict});
        let finding = |number: u8, verdict: &str| json!({"audit": number, "slug": "s", "title": "t", "verdict": verdict, "subjects": [], "compared": format!("c{number}"), "where": null, "remedy": null});
        let answer = json!({
            "subjects": [],
            "audits": [line(1, "pass"), line(2, "no_evidence"), line(3, "flag"), line(4, "void")],
            "counts": {}, "verdict": "void",
            "findings": [finding(4, "void"), finding(3, "flag"), finding(2, "no_evidence"), finding(1, "pass")],
        });
        let found = outcomes(&answer);
        assert_eq!(found[0], ("1 s1".to_owned(), Outcome::Passed));
        assert_eq!(found[1].1, Outcome::skipped("c2"));
        assert_eq!(found[2].1, Outcome::failed("flag", "c3"));
        assert_eq!(found[3].1, Outcome::error("void", "c4"));
    }

    #[test]
    fn other_documents_are_refused() {
        for (text, part) in
            [("{", "no JSON"), ("{\"a\":1}", "no answer of"), ("[]", "no answer of")]
        {
            assert!(of_json(text.as_bytes()).unwrap_err().contains(part), "{text}");
        }
        let old = json!({"kind": "gather", "verdict": 1, "compared": 1, "findings": []});
        assert!(of_json(old.to_string().as_bytes()).unwrap_err().contains("another build"));
    }
}
