//! Files of answers as their writers leave them.

use super::{AnswerRow, AnswerSource, Fields, Schema, read_answers};
use crate::TraceError;

fn read_with(text: &[u8], fields: &Fields) -> Result<(Vec<AnswerRow>, AnswerSource), TraceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows");
    std::fs::write(&path, text).unwrap();
    let mut rows = Vec::new();
    let source = read_answers(&path, fields, |row| rows.push(row))?;
    Ok((rows, source))
}

fn read(text: &str) -> (Vec<AnswerRow>, AnswerSource) {
    read_with(text.as_bytes(), &Fields::default()).unwrap()
}

fn refused(text: &str) -> String {
    read_with(text.as_bytes(), &Fields::default()).unwrap_err().to_string()
}

const HEAD: &str = r#"{"sample_id":"toy_4","gold_answer":"12","pred_answer":"012","generated_tokens":3,"generated_token_ids":[785,1156,2613],"setup_ms":1.2,"prefill_ms":36.1,"decode_ms":50.2,"wall_ms":89.0,"tokens_per_sec":79.9,"text":"so\n\\boxed{12}"}"#;

#[test]
fn generations_of_the_benchmark_row_are_told_by_their_keys() {
    let first = r#"{"sample_id":"a","answer":"588","generated_tokens":2,"prefill_ms":1.0,"decode_ms":1.0,"wall_ms":2.0,"tokens_per_sec":1.0,"text":"Let me."}"#;
    let (rows, source) = read(first);
    assert_eq!(source.schema, Schema::TrtmcGoldEcho);
    assert_eq!((rows[0].gold.as_deref(), rows[0].answer.as_deref()), (Some("588"), None));
    let second = r#"{"sample_id":"a","gold_answer":"588","pred_answer":"","generated_tokens":2,"prefill_ms":1.0,"decode_ms":1.0,"wall_ms":2.0,"tokens_per_sec":1.0,"text":"Let me."}"#;
    let (rows, source) = read(second);
    assert_eq!((source.schema, rows[0].answer.as_deref()), (Schema::Trtmc, Some("")));
    let (rows, source) = read(HEAD);
    assert_eq!(source.schema, Schema::TrtmcTokenIds);
    assert_eq!(rows[0].tokens, Some(vec![785, 1156, 2613]));
    assert_eq!((rows[0].gold.as_deref(), rows[0].answer.as_deref()), (Some("12"), Some("012")));
    assert_eq!(rows[0].text.as_deref(), Some("so\n\\boxed{12}"));
    let hf = r#"{"sample_id":"a","gold_answer":"588","pred_answer":null,"generated_tokens":2,"wall_ms":2.0,"tokens_per_sec":1.0,"text":"Let me."}"#;
    let (rows, source) = read(hf);
    assert_eq!((source.schema, rows[0].answer.as_deref()), (Schema::TrtmcHf, None));
    assert!(
        refused(&format!("{HEAD}\n{first}"))
            .contains("rows:2: a row of trtmc-gold-echo among rows of trtmc-token-ids")
    );
}

#[test]
fn samples_of_lm_eval_have_a_filter_a_target_and_a_metric() {
    let row = r#"{"doc_id": 7, "doc": {}, "target": "Half of 36 is 18.\n#### 18", "arguments": {}, "resps": [["it is\n#### 18"]], "filtered_resps": ["18"], "filter": "strict-match", "metrics": ["exact_match"], "doc_hash": "d", "prompt_hash": "p", "target_hash": "t", "exact_match": 1.0}"#;
    let (rows, source) = read(row);
    assert_eq!(source.schema, Schema::LmEval);
    let one = &rows[0];
    assert_eq!((one.id.as_str(), one.filter.as_deref()), ("7", Some("strict-match")));
    assert_eq!((one.gold.as_deref(), one.answer.as_deref()), (Some("18"), Some("18")));
    assert_eq!(
        (one.text.as_deref(), &one.metric),
        (Some("it is\n#### 18"), &Some(("exact_match".to_owned(), 1.0)))
    );
    assert_eq!(one.hashes["prompt_hash"], "p");
    let likelihood = r#"{"doc_id": 0, "target": 2, "resps": [[[-1.5, false]], [[-0.5, true]]], "filtered_resps": [[-1.5, false]], "filter": "none", "acc": 0.0, "acc_norm": NaN}"#;
    let (rows, _) = read(likelihood);
    assert_eq!((rows[0].answer.as_deref(), rows[0].gold.as_deref()), (None, Some("2")));
    assert_eq!(rows[0].metric, Some(("acc".to_owned(), 0.0)));
    assert_eq!(rows[0].likelihoods, Some(vec![(-1.5, false), (-0.5, true)]));
    let logged = r#"{"doc_id": 0, "target": "1", "arguments": {"gen_args_0": {"arg_0": "The sky is", "arg_1": " green"}}, "resps": [[["-4.5", "False"]], [["-0.25", "True"]]], "filtered_resps": [["-4.5", "False"], ["-0.25", "True"]], "filter": "none", "metrics": ["acc"], "acc": 1.0}"#;
    let (rows, _) = read(logged);
    assert_eq!((&rows[0].text, &rows[0].answer), (&None, &None));
    assert_eq!(rows[0].likelihoods, Some(vec![(-4.5, false), (-0.25, true)]));
    assert_eq!(rows[0].prompt.as_deref(), Some("The sky is"));
}

#[test]
fn plain_rows_name_gold_and_prediction_in_several_ways() {
    for row in [
        r#"{"id": 8, "gold": 62, "pred": "62"}"#,
        r#"{"sample_id": "8", "target": "62", "answer": "62"}"#,
        r#"{"problem_id": "8", "answer": "62", "prediction": 62}"#,
    ] {
        let (rows, source) = read(row);
        assert_eq!(source.schema, Schema::Plain, "{row}");
        let one = &rows[0];
        assert_eq!(
            (one.id.as_str(), one.gold.as_deref(), one.answer.as_deref()),
            ("8", Some("62"), Some("62")),
            "{row}"
        );
    }
    let (rows, _) = read(r#"{"id": 1, "gold": "5", "response": "\\boxed{5}"}"#);
    assert_eq!((rows[0].text.as_deref(), rows[0].answer.as_deref()), (Some("\\boxed{5}"), None));
    let fields = Fields {
        gold: Some("truth".into()),
        text: Some("said".into()),
        id: Some("n".into()),
        ..Fields::default()
    };
    let row = br#"{"n": 3, "truth": 1.5, "said": "x", "gold": "no"}"#;
    let (rows, _) = read_with(row, &fields).unwrap();
    assert_eq!(
        (rows[0].id.as_str(), rows[0].gold.as_deref(), rows[0].text.as_deref()),
        ("3", Some("1.5"), Some("x"))
    );
    let error = read_with(br#"{"n": 3, "said": "x"}"#, &fields).unwrap_err().to_string();
    assert!(error.contains("rows:1: the row has no `truth`"), "{error}");
}

#[test]
fn what_is_no_row_is_refused_with_its_line() {
    assert!(
        refused(&format!("generating: 100%|####| 3/3\n{HEAD}")).contains("rows:1: no JSON object")
    );
    assert!(refused(&format!("{HEAD}\n[1]\n{HEAD}")).contains("rows:2: a row is a JSON object"));
    assert!(
        refused(&format!("{{\"sample_id\": \"a\n{HEAD}")).contains("rows:1: no whole JSON object")
    );
    assert!(refused("").contains("no row of answers"));
    assert!(refused("{\"cut").contains("no row of answers"));
    assert!(refused(r#"{"gold": 1, "pred": 1}"#).contains("rows:1: the row has none of the ids"));
    assert!(refused(r#"{"id": 1, "gold": 1}"#).contains("neither a prediction"));
    let deep = format!("{{\"id\":1,\"pred\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(refused(&deep).contains("no JSON object"));
}

#[test]
fn a_cut_last_row_leaves_a_prefix_and_says_so() {
    let (rows, source) = read(&format!("{HEAD}\n{}", &HEAD[..100]));
    assert_eq!((rows.len(), source.rows, source.cut), (1, 1, true));
    assert_eq!(
        source.remarks,
        ["the file ends inside the row of line 2; the rows before it are a prefix"]
    );
    assert!(!read(HEAD).1.cut);
}

#[test]
fn raw_bytes_in_a_text_are_read_around() {
    let row = HEAD.replace("so\\n", "\x1b[1m");
    let mut bytes = row.into_bytes();
    let at = bytes.iter().position(|byte| *byte == 0x1b).unwrap();
    bytes.insert(at, 0xe2);
    let (rows, source) = read_with(&bytes, &Fields::default()).unwrap();
    assert_eq!(rows[0].text.as_deref(), Some("\u{fffd}\u{1b}[1m\\boxed{12}"));
    assert_eq!(source.remarks.len(), 1);
}

#[test]
fn equal_rows_have_equal_hashes_and_others_do_not() {
    let (rows, _) =
        read("{\"id\":1,\"pred\":\"5\"}\n{\"pred\": \"5\", \"id\": 1}\n{\"id\":1,\"pred\":\"6\"}");
    assert_eq!(rows[0].content, rows[1].content);
    assert_ne!(rows[0].content, rows[2].content);
    assert_eq!(rows[2].line, 3);
}

#[test]
fn samples_of_a_run_are_rows_too() {
    use crate::store::RunWriter;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    let manifest = crate::Manifest::new(crate::manifest::Producer::default(), "cpu");
    let mut writer = RunWriter::create(&path, manifest, crate::RecordPlan::default()).unwrap();
    let mut sample = crate::SampleRow::bare("s1");
    (sample.gold, sample.text, sample.finish) =
        (Some("5".into()), Some("so 5".into()), crate::FinishReason::Length);
    sample.generated_ids = vec![4, 5];
    crate::TraceSink::sample(&mut writer, sample).unwrap();
    writer.finish().unwrap();
    let mut rows = Vec::new();
    let source = read_answers(&path, &Fields::default(), |row| rows.push(row)).unwrap();
    assert_eq!((source.schema, source.rows, source.cut), (Schema::Run, 1, false));
    assert_eq!(
        (rows[0].id.as_str(), rows[0].stopped, rows[0].tokens.as_deref()),
        ("s1", true, Some(&[4, 5][..]))
    );
}
