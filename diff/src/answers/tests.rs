//! Whole files: the public cases with what they must give, and planted faults beside clean files.

use lockstep_traces::answers::{Fields, read_answers};

use super::{Normalise, Outcome, Rule, ScoreOptions, ScoreReport, Scorer, versus};
use crate::stats::{Bootstrap, Shown};

fn options(rule: Option<Rule>, normalise: &str) -> ScoreOptions {
    ScoreOptions { rule, normalise: normalise.parse().unwrap() }
}

fn score(path: &std::path::Path, options: ScoreOptions) -> ScoreReport {
    let mut scorer = Scorer::new(options);
    let source = read_answers(path, &Fields::default(), |row| scorer.push(row)).unwrap();
    scorer.finish("file", &source)
}

fn case(name: &str, rule: Option<Rule>, normalise: &str) -> ScoreReport {
    score(&lockstep_testkit::data().join("cases").join(name), options(rule, normalise))
}

fn text(rows: &str, rule: Option<Rule>) -> ScoreReport {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, rows).unwrap();
    score(&path, options(rule, "number"))
}

/// Filter, hits, cases.
fn scores(report: &ScoreReport) -> Vec<(&str, u64, u64)> {
    report.filters.iter().map(|one| (one.filter.as_str(), one.score.hits, one.score.n)).collect()
}

fn outcomes(report: &ScoreReport) -> Vec<(&str, Outcome)> {
    report.entries.iter().map(|one| (one.id.as_str(), one.outcome)).collect()
}

#[test]
fn one_row_per_filter_is_no_duplicate() {
    let report = case("61/samples_new.jsonl", None, "number");
    assert_eq!((report.rows, report.documents), (6, 3));
    assert_eq!(scores(&report), [("strict-match", 1, 3), ("flexible-extract", 2, 3)]);
    assert!(report.duplicates.is_empty() && report.conflicts.is_empty() && report.passes.is_none());
    let strict = &report.filters[0];
    assert_eq!((strict.outcomes[&Outcome::NoAnswer], strict.outcomes[&Outcome::Wrong]), (1, 1));
    let recorded = strict.recorded.as_ref().unwrap();
    assert_eq!(
        (recorded.by.as_str(), recorded.score.hits, recorded.changes.len()),
        ("exact_match", 1, 0)
    );
}

#[test]
fn rows_without_a_filter_are_scored_by_pass() {
    let report = case("61/samples_old.jsonl", None, "number");
    assert_eq!((report.rows, report.documents, report.passes), (6, 3, Some(2)));
    assert_eq!(scores(&report), [("pass 1", 1, 3), ("pass 2", 2, 3)]);
    assert!(report.duplicates.is_empty() && report.conflicts.is_empty());
    assert_eq!(
        report.remarks,
        [
            "2 rows per document, filter unknown: scored by pass, in the order of the file",
            "document 1 shows that the passes are not copies"
        ]
    );
}

#[test]
fn an_equal_row_of_a_resumed_file_is_a_duplicate() {
    let report = case("61/samples_resumed.jsonl", None, "number");
    assert_eq!((report.rows, report.documents), (4, 3));
    assert_eq!(scores(&report), [("strict-match", 1, 3)]);
    let [one] = report.duplicates.as_slice() else { panic!("{:?}", report.duplicates) };
    assert_eq!(
        (one.id.as_str(), one.filter.as_deref(), one.lines.as_slice()),
        ("1", Some("strict-match"), &[2, 3][..])
    );
}

fn sample(doc: u32, said: &str, filter: Option<&str>) -> String {
    let filter = filter.map_or_else(String::new, |name| format!(", \"filter\": \"{name}\""));
    format!(
        "{{\"doc_id\": {doc}, \"target\": \"5\", \"resps\": [[\"x\"]], \"filtered_resps\": [\"{said}\"]{filter}}}\n"
    )
}

#[test]
fn rows_that_contradict_each_other_are_a_conflict_and_the_first_counts() {
    let rows =
        [sample(0, "5", Some("f")), sample(0, "6", Some("f")), sample(0, "5", Some("f"))].concat();
    let report = text(&rows, None);
    assert_eq!(scores(&report), [("f", 1, 1)]);
    assert_eq!(report.conflicts[0].lines, [1, 2]);
    assert_eq!(report.duplicates[0].lines, [1, 3]);
}

#[test]
fn passes_of_a_resumed_file_are_told_from_copies() {
    // Two passes over three documents; the second row of document 1 stands there twice.
    let rows = ["5", "4", "5", "6", "4", "4", "6"];
    let docs = [0, 1, 2, 0, 1, 1, 2];
    let file: String = docs.iter().zip(rows).map(|(doc, said)| sample(*doc, said, None)).collect();
    let report = text(&file, None);
    assert_eq!(
        (report.passes, scores(&report)),
        (Some(2), vec![("pass 1", 2, 3), ("pass 2", 0, 3)])
    );
    assert_eq!(report.duplicates.len(), 1);
    assert_eq!(report.duplicates[0].lines, [2, 6]);
    // Copies alone are one pass.
    let file: String = [0, 1, 0, 1].iter().map(|doc| sample(*doc, "5", None)).collect();
    let report = text(&file, None);
    assert_eq!(
        (report.passes, scores(&report), report.duplicates.len()),
        (None, vec![("all rows", 2, 2)], 2)
    );
    // A third, different row beyond the two of the others cannot be placed.
    let rows = [(0, "5"), (0, "6"), (1, "5"), (1, "6"), (2, "1"), (2, "2"), (2, "3")];
    let file: String = rows.iter().map(|(doc, said)| sample(*doc, said, None)).collect();
    let report = text(&file, None);
    assert_eq!((report.passes, report.conflicts[0].lines.as_slice()), (Some(2), &[5, 6, 7][..]));
}

#[test]
fn leading_zeros_do_not_lose_answers() {
    let report = case("63/answers.jsonl", None, "integer:0..999");
    assert_eq!((report.rule, report.rule_source.as_str()), (Rule::Recorded, "default for plain"));
    let right: Vec<&str> = outcomes(&report)
        .into_iter()
        .filter(|one| one.1 == Outcome::Correct)
        .map(|one| one.0)
        .collect();
    assert_eq!(right, ["1", "2", "3", "8"]);
    assert_eq!(report.filters[0].same_text, 1);
    let note =
        |id: &str| report.entries.iter().find(|one| one.id == id).and_then(|one| one.note.clone());
    for id in ["6", "7"] {
        assert!(note(id).unwrap().starts_with("equal as numbers, not by `integer:0..999`"), "{id}");
    }
    assert_eq!((note("4"), note("5").as_deref()), (None, Some("-7 is outside of 0..999")));
    assert_eq!(scores(&case("63/answers.jsonl", None, "number")), [("all rows", 6, 8)]);
    assert_eq!(scores(&case("63/answers.jsonl", None, "text")), [("all rows", 1, 8)]);
}

#[test]
fn boxes_are_read_as_they_stand() {
    use Outcome::{Correct, CutOff, Empty, NoAnswer};
    let report = case("64/responses.jsonl", None, "number");
    assert_eq!(report.rule, Rule::StrictBoxed);
    let found: Vec<Outcome> = report.entries.iter().map(|one| one.outcome).collect();
    assert_eq!(
        found,
        [Correct, Correct, Correct, CutOff, NoAnswer, NoAnswer, NoAnswer, Correct, Empty]
    );
    let answers: Vec<Option<&str>> =
        report.entries.iter().map(|one| one.answer.as_deref()).collect();
    assert_eq!(
        answers,
        [
            Some(r"\frac{1}{2}"),
            Some("5"),
            Some(r"\text{062}"),
            None,
            None,
            None,
            None,
            Some(r"\{1,2\}"),
            None
        ]
    );
    assert!(report.entries[8].note.as_ref().unwrap().contains("an earlier box holds `4`"));
    let declared = case("64/responses.jsonl", Some(Rule::StrictBoxedFbox), "number");
    assert_eq!((declared.entries[5].outcome, declared.rule_source.as_str()), (Correct, "declared"));
    // The other runtime's rule: the first box, cut at its first brace; bare numbers by its last step.
    let theirs = case("64/responses.jsonl", Some(Rule::TrtmcCpp), "number");
    // Row 9: `\boxed {4}` is no box to it and `\boxed{}` holds no integer, so the last integer of the text counts.
    let answers: Vec<&str> =
        theirs.entries.iter().filter_map(|one| one.answer.as_deref()).collect();
    assert_eq!(answers, ["1", "3", "062", "7", "8", "9", "5", "12", "4"]);
    assert_eq!(theirs.filters[0].by_fallback, 5);
}

#[test]
fn rows_of_log_probabilities_are_scored_by_their_metric() {
    let row = |doc: u32, acc: &str| {
        format!(
            "{{\"doc_id\": {doc}, \"target\": 2, \"resps\": [[[-1.5, false]]], \"filtered_resps\": [[-1.5, false]], \"filter\": \"none\", \"acc\": {acc}}}\n"
        )
    };
    let report = text(&[row(0, "1.0"), row(1, "0.0"), row(2, "0.5")].concat(), None);
    assert_eq!(scores(&report), [("none", 1, 2)]);
    assert_eq!(report.entries[2].outcome, Outcome::Unscored);
    assert!(report.remarks.iter().any(|line| line.contains("neither 0 nor 1")));
}

/// Rows of TensorRT-Model-Connect's benchmark: gold, prediction, text.
fn trtmc(rows: &[(&str, &str, &str)]) -> String {
    rows.iter()
        .enumerate()
        .map(|(at, (gold, pred, text))| {
            let text = serde_json::to_string(text).unwrap();
            format!(
                "{{\"sample_id\":\"s{at}\",\"gold_answer\":\"{gold}\",\"pred_answer\":\"{pred}\",\"generated_tokens\":4,\"prefill_ms\":1.0,\"decode_ms\":1.0,\"wall_ms\":2.0,\"tokens_per_sec\":1.0,\"text\":{text}}}\n"
            )
        })
        .collect()
}

#[test]
fn predictions_that_are_the_gold_answers_are_found_out_by_the_text() {
    let loops = format!("so {}", "Let me. ".repeat(400));
    let planted = text(&trtmc(&[("588", "588", &loops), ("16", "16", r"\boxed{16}")]), None);
    let echo = planted.gold_echo.as_ref().unwrap();
    assert_eq!((echo.rows, echo.contradicted.as_slice()), (2, &["s0".to_owned()][..]));
    assert_eq!(outcomes(&planted), [("s0", Outcome::Degenerate), ("s1", Outcome::Correct)]);
    assert_eq!(planted.entries[0].degenerate.as_ref().unwrap().start, Some(1));
    // All right and all boxed, or one prediction of its own: no echo.
    assert!(text(&trtmc(&[("588", "588", r"\boxed{588}")]), None).gold_echo.is_none());
    assert!(
        text(&trtmc(&[("588", "588", r"\boxed{588} or \boxed{"), ("3", "3", "so 3")]), None)
            .gold_echo
            .is_none()
    );
    assert!(text(&trtmc(&[("588", "588", "x"), ("16", "4", "4")]), None).gold_echo.is_none());
    // The first rows of that benchmark have no prediction; `recorded` finds none and does not take gold for one.
    let row = r#"{"sample_id":"a","answer":"588","generated_tokens":2,"prefill_ms":1.0,"decode_ms":1.0,"wall_ms":2.0,"tokens_per_sec":1.0,"text":"Let me."}"#;
    let report = text(row, Some(Rule::Recorded));
    assert_eq!(outcomes(&report), [("a", Outcome::NoAnswer)]);
    assert!(
        report
            .remarks
            .iter()
            .any(|line| line.contains("`answer` in these rows is the gold answer"))
    );
}

#[test]
fn a_recount_names_the_rows_on_which_it_changes_the_verdict() {
    let rows = trtmc(&[
        ("62", "062", r"\boxed{062}"),
        ("5", "3", r"\boxed{3} no, \boxed{5}"),
        ("7", "7", "7 is the last number"),
    ]);
    let report = text(&rows, None);
    let one = &report.filters[0];
    assert_eq!((one.score.hits, one.score.n), (2, 3));
    let recorded = one.recorded.as_ref().unwrap();
    assert_eq!((recorded.by.as_str(), recorded.score.hits), ("prediction", 2));
    assert_eq!(recorded.changes, ["s1", "s2"]);
}

#[test]
fn long_answers_are_judged_whole_and_kept_short() {
    let (one, other) = ("x".repeat(5000), format!("{}y", "x".repeat(4999)));
    let rows = format!(
        "{{\"id\":1,\"gold\":\"{one}\",\"pred\":\"{one}\"}}\n{{\"id\":2,\"gold\":\"{one}\",\"pred\":\"{other}\"}}"
    );
    let report = text(&rows, None);
    assert_eq!(outcomes(&report), [("1", Outcome::Correct), ("2", Outcome::Wrong)]);
    let kept = report.entries[1].answer.as_ref().unwrap();
    assert!(kept.len() < 2100 && kept.contains("... (sha256 "), "{}", kept.len());
    assert_ne!(Some(kept), report.entries[1].gold.as_ref());
}

/// A plain file of `n` answers; those of `wrong` are 0.
fn plain(n: usize, wrong: &[usize]) -> String {
    (0..n)
        .map(|at| {
            format!(
                "{{\"id\": {at}, \"gold\": 5, \"pred\": {}}}\n",
                if wrong.contains(&at) { 0 } else { 5 }
            )
        })
        .collect()
}

#[test]
fn two_files_are_paired_by_question() {
    let left = text(&plain(10, &[0]), None);
    let right = text(&plain(12, &[0, 1, 2, 3, 4, 5, 6]), None);
    let found = versus(&left, &right, Bootstrap::default());
    let [pair] = found.pairs.as_slice() else { panic!("{found:?}") };
    let scores = &pair.scores;
    assert_eq!(
        (scores.n, scores.both, scores.left_only, scores.right_only, scores.neither),
        (10, 3, 6, 0, 1)
    );
    assert_eq!((scores.left_unpaired, scores.right_unpaired, pair.same_wrong), (0, 2, 1));
    assert_eq!(scores.shown(), Shown::Left);
    let equal = versus(&left, &left, Bootstrap::default());
    assert_eq!(equal.pairs[0].scores.shown(), Shown::Equal);
    let nothing =
        versus(&left, &text("{\"id\":99,\"gold\":5,\"pred\":5}", None), Bootstrap::default());
    assert_eq!((nothing.pairs[0].scores.n, nothing.pairs[0].scores.shown()), (0, Shown::Nothing));
}

#[test]
fn questions_with_another_gold_answer_or_prompt_are_not_paired() {
    let left =
        text("{\"id\":1,\"gold\":5,\"pred\":5}\n{\"id\":2,\"gold\":\"06\",\"pred\":5}", None);
    let right = text("{\"id\":1,\"gold\":7,\"pred\":7}\n{\"id\":2,\"gold\":6,\"pred\":5}", None);
    let pair = versus(&left, &right, Bootstrap::default()).pairs.remove(0);
    assert_eq!((pair.scores.n, pair.other_gold.as_slice()), (1, &["1".to_owned()][..]));
    let row = |hash: &str| {
        sample(0, "5", Some("f")).replace("}\n", &format!(", \"prompt_hash\": \"{hash}\"}}\n"))
    };
    let pair = versus(&text(&row("a"), None), &text(&row("b"), None), Bootstrap::default())
        .pairs
        .remove(0);
    assert_eq!((pair.scores.n, pair.other_prompt.len()), (0, 1));
    let pair = versus(&text(&row("a"), None), &text(&row("a"), None), Bootstrap::default())
        .pairs
        .remove(0);
    assert_eq!((pair.scores.n, pair.other_prompt.len()), (1, 0));
}

#[test]
fn filters_pair_by_name_and_the_others_are_listed() {
    let new = case("61/samples_new.jsonl", None, "number");
    let old = case("61/samples_old.jsonl", None, "number");
    let resumed = case("61/samples_resumed.jsonl", None, "number");
    let found = versus(&new, &resumed, Bootstrap::default());
    assert_eq!(
        (found.pairs.len(), found.left_filters.as_slice()),
        (1, &["flexible-extract".to_owned()][..])
    );
    assert_eq!(found.pairs[0].scores.n, 3);
    let found = versus(&new, &old, Bootstrap::default());
    assert!(found.pairs.is_empty());
    assert_eq!((found.left_filters.len(), found.right_filters.len()), (2, 2));
}

#[test]
fn the_answer_reads_back_from_json() {
    let report = case("61/samples_old.jsonl", None, "integer:0..999");
    let json = serde_json::to_string(&report).unwrap();
    // Figures may read back a unit in the last place off.
    let back: ScoreReport = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&back.entries, &back.remarks, back.passes),
        (&report.entries, &report.remarks, report.passes)
    );
    assert_eq!(back.filters[1].outcomes, report.filters[1].outcomes);
    assert_eq!(report.normalise, Normalise::Integer { range: Some((0, 999)) });
}
