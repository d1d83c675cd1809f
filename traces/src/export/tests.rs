//! Files written by hand-made runs: their text, and what reads back.

use std::path::{Path, PathBuf};

use super::{Selection, csv, neutral, openai_chat, openai_completions, vllm};
use crate::limits::Values;
use crate::logprobs::{LogprobImport, LogprobKind, import};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::{
    FinishReason, Manifest, Phase, RecordPlan, RunReader, SampleRow, StepQuery, StepRow,
    TraceError, TraceSink as _, UNKNOWN_TOKEN,
};

fn row(position: u32, fed: u32, next: Option<u32>, list: &[(u32, f32)], sum: f64) -> StepRow {
    StepRow {
        sample_id: "q,1".to_owned(),
        position,
        phase: if position < 2 { Phase::Prompt } else { Phase::Decode },
        token_id: fed,
        next_token: next,
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: None,
        argmax: list[0].0,
        top_ids: list.iter().map(|(id, _)| *id).collect(),
        top_logits: list.iter().map(|(_, logit)| *logit).collect(),
        logsumexp: Some(sum),
        top2_margin: Some(list[0].1 - list[1].1),
        finite: true,
        logits_hash: Some([1, 2]),
        rng_offset: None,
        uniform: Some(0.25),
    }
}

/// Prompt 10, 11; completion 12, 13. Every logit less its logsumexp is exact in binary.
fn rows() -> Vec<StepRow> {
    vec![
        row(0, 10, None, &[(11, 2.0), (12, 1.0)], 2.5),
        row(1, 11, Some(12), &[(12, 3.0), (13, 2.5)], 3.25),
        row(2, 12, Some(13), &[(14, 1.0), (13, 0.5)], 2.0),
    ]
}

fn run_of(dir: &Path, rows: Vec<StepRow>, change: impl FnOnce(&mut Manifest)) -> RunReader {
    let out = dir.join("run");
    let mut manifest =
        Manifest::new(Producer { name: "made".to_owned(), ..Producer::default() }, "cpu");
    change(&mut manifest);
    let mut writer = RunWriter::create(&out, manifest, RecordPlan::default()).unwrap();
    for row in rows {
        writer.step(row).unwrap();
    }
    let sample = SampleRow {
        prompt_ids: vec![10, 11],
        prompt_len: Some(2),
        generated_ids: vec![12, 13],
        finish: FinishReason::Eos,
        ..SampleRow::bare("q,1")
    };
    writer.sample(sample).unwrap();
    writer.finish().unwrap();
    RunReader::open(&out).unwrap()
}

fn text_of(id: u32) -> Option<Vec<u8>> {
    let known: [&[u8]; 5] = [b"a", b" b", b" c", &[0xE2, 0x80], b"\""];
    known.get(usize::try_from(id.checked_sub(10)?).unwrap()).map(|bytes| bytes.to_vec())
}

fn written(
    dir: &Path,
    write: impl FnOnce(&Path) -> Result<Vec<String>, TraceError>,
) -> (PathBuf, String, Vec<String>) {
    let path = dir.join("out");
    let remarks = write(&path).unwrap();
    (path.clone(), std::fs::read_to_string(path).unwrap(), remarks)
}

/// Rows of the run that an import of `path` makes: position, fed, chosen, list.
fn back(path: &Path, kind: LogprobKind, dir: &Path) -> (Vec<StepRow>, SampleRow) {
    let out = dir.join("back");
    assert_eq!(LogprobKind::of(path), Some(kind));
    let lookup = |token: &crate::logprobs::TokenName| {
        let bytes = token.bytes.clone().or_else(|| token.text.clone().map(String::into_bytes));
        let id = (10..15).find(|id| text_of(*id) == bytes);
        id.map_or(crate::logprobs::FoundId::Nothing, crate::logprobs::FoundId::One)
    };
    let options = LogprobImport { lookup: Some(&lookup), ..LogprobImport::default() };
    import(path, kind, &options, &out).unwrap();
    let run = RunReader::open(&out).unwrap();
    let steps = run.steps(&StepQuery::default()).unwrap();
    let rows = (0..steps.len).filter_map(|row| steps.row(row)).collect();
    (rows, run.samples().unwrap().remove(0))
}

fn same(back: &[StepRow], wanted: &[StepRow]) {
    assert_eq!(back.len(), wanted.len());
    for (found, row) in back.iter().zip(wanted) {
        assert_eq!((found.position, found.phase), (row.position, row.phase));
        assert_eq!((found.next_token, found.argmax), (row.next_token, row.argmax));
        assert_eq!(found.top_ids, row.top_ids);
        let sum = row.logsumexp.unwrap();
        for (value, logit) in found.top_logits.iter().zip(&row.top_logits) {
            assert_eq!(f64::from(*value).to_bits(), (f64::from(*logit) - sum).to_bits());
        }
    }
}

#[test]
fn chat_responses_hold_the_completion() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_of(dir.path(), rows(), |_| ());
    let selection = Selection { run: &run, sample: None };
    let (path, text, remarks) = written(dir.path(), |path| openai_chat(selection, path, &text_of));
    assert_eq!(
        text,
        concat!(
            r#"{"id":"q,1","object":"chat.completion","created":0,"model":"made","choices":[{"index":0,"logprobs":{"content":["#,
            r#"{"token":" c","bytes":[32,99],"logprob":-0.25,"top_logprobs":[{"token":" c","bytes":[32,99],"logprob":-0.25},{"token":"�","bytes":[226,128],"logprob":-0.75}]},"#,
            r#"{"token":"�","bytes":[226,128],"logprob":-1.5,"top_logprobs":[{"token":"\"","bytes":[34],"logprob":-1.0},{"token":"�","bytes":[226,128],"logprob":-1.5}]}"#,
            r#"]},"message":{"role":"assistant","content":" c�"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}"#,
            "\n"
        )
    );
    assert_eq!(remarks, ["1 rows of prompts have no place in this layout, and are left out"]);
    let (found, sample) = back(&path, LogprobKind::OpenaiChat, dir.path());
    same(&found, &rows()[1..]);
    assert_eq!(found[0].token_id, UNKNOWN_TOKEN, "the prompt is not in the file");
    assert_eq!((sample.sample_id.as_str(), sample.prompt_len), ("q,1", Some(2)));
    assert_eq!(sample.generated_ids, [12, 13]);
}

#[test]
fn completions_echo_the_prompt_and_read_back_to_every_row() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_of(dir.path(), rows(), |_| ());
    let selection = Selection { run: &run, sample: None };
    let (path, text, _) = written(dir.path(), |path| openai_completions(selection, path, &text_of));
    for part in [
        r#""tokens":["a"," b"," c","bytes:\\xe2\\x80"],"token_logprobs":[null,-0.5,-0.25,-1.5]"#,
        r#""top_logprobs":[null,{" b":-0.5," c":-1.5},{" c":-0.25,"bytes:\\xe2\\x80":-0.75},"#,
        r#""text_offset":[0,1,3,5]"#,
        r#""usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}"#,
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (found, sample) = back(&path, LogprobKind::OpenaiCompletions, dir.path());
    same(&found, &rows());
    assert_eq!(found.iter().map(|row| row.token_id).collect::<Vec<_>>(), [10, 11, 12]);
    assert_eq!((sample.prompt_ids, sample.generated_ids), (vec![10, 11], vec![12, 13]));
}

#[test]
fn vllm_responses_need_no_texts() {
    let dir = tempfile::tempdir().unwrap();
    let run = run_of(dir.path(), rows(), |_| ());
    let selection = Selection { run: &run, sample: None };
    let (path, text, _) = written(dir.path(), |path| vllm(selection, path));
    for part in [
        r#""tokens":["token_id:12","token_id:13"],"token_logprobs":[-0.25,-1.5]"#,
        r#""token_ids":[12,13],"prompt_logprobs":[null,{"11":{"rank":1,"decoded_token":null,"logprob":-0.5},"12":{"rank":2,"decoded_token":null,"logprob":-1.5}}]"#,
        r#""prompt_token_ids":[10, 11],"finish_reason":"stop","stop_reason":null"#,
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let (found, sample) = back(&path, LogprobKind::Vllm, dir.path());
    same(&found, &rows());
    assert_eq!((sample.prompt_ids, sample.finish), (vec![10, 11], FinishReason::Eos));
}

#[test]
fn a_neutral_trace_reads_back_to_the_same_rows() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = rows();
    rows[2].top_logits = vec![0.333_333_34, -1.1];
    rows[2].rows_after = 2;
    let run = run_of(dir.path(), rows.clone(), |_| ());
    let selection = Selection { run: &run, sample: None };
    let (path, text, _) = written(dir.path(), |path| neutral(selection, path));
    assert_eq!(
        text.lines().next(),
        Some(
            r#"{"position":0,"token_id":11,"rows_before":1,"rows_after":1,"top":[[11,2],[12,1]]}"#
        )
    );
    let loaded = crate::load_with(&path, &crate::ForeignOptions { prompt_len: Some(2) }).unwrap();
    for (found, row) in (0..3).filter_map(|row| loaded.steps.row(row)).zip(&rows) {
        assert_eq!(
            (found.position, found.next_token, found.phase),
            (row.position, row.next_token, row.phase)
        );
        assert_eq!((found.rows_before, found.rows_after), (row.rows_before, row.rows_after));
        let bits =
            |row: &StepRow| row.top_logits.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!((&found.top_ids, bits(&found)), (&row.top_ids, bits(row)));
    }
    assert!(loaded.manifest.encoding.exact());
    rows[1].position = 7;
    rows[2].position = 8;
    let gap = run_of(&dir.path().join("gap"), rows, |_| ());
    let error = neutral(Selection { run: &gap, sample: None }, &path).unwrap_err().to_string();
    assert!(error.contains("sample `q,1`, position 0: no token is known"), "{error}");
}

#[test]
fn csv_has_a_column_for_each_rank() {
    let dir = tempfile::tempdir().unwrap();
    let mut rows = rows();
    rows[2].top_ids.truncate(1);
    rows[2].top_logits = vec![f32::NAN];
    rows[2].finite = false;
    let run = run_of(dir.path(), rows, |_| ());
    let (_, text, _) = written(dir.path(), |path| csv(Selection { run: &run, sample: None }, path));
    assert_eq!(
        text,
        concat!(
            "sample_id,position,phase,token_id,next_token,rows_before,rows_after,rows_bucketed,compaction,rope_index,argmax,",
            "logsumexp,top2_margin,finite,logits_hash,rng_offset,uniform,top1_id,top1_value,top2_id,top2_value,value_kind\r\n",
            "\"q,1\",0,prompt,10,,0,1,,,,11,2.5,1.0,true,00000000000000010000000000000002,,0.25,11,2.0,12,1.0,logit\r\n",
            "\"q,1\",1,prompt,11,12,1,2,,,,12,3.25,0.5,true,00000000000000010000000000000002,,0.25,12,3.0,13,2.5,logit\r\n",
            "\"q,1\",2,decode,12,13,2,3,,,,14,2.0,0.5,false,00000000000000010000000000000002,,0.25,14,NaN,,,logit\r\n",
        )
    );
}

#[test]
fn what_cannot_be_written_is_refused_and_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("x");
    let mut bare = rows();
    bare[1].logsumexp = None;
    let run = run_of(&dir.path().join("a"), bare, |_| ());
    let error = vllm(Selection { run: &run, sample: None }, &out).unwrap_err().to_string();
    assert!(error.contains("position 1 has logits without their logsumexp"), "{error}");
    let run =
        run_of(&dir.path().join("b"), rows(), |manifest| manifest.limits.values = Values::Nothing);
    let error = vllm(Selection { run: &run, sample: None }, &out).unwrap_err().to_string();
    assert!(error.contains("no values, only tokens"), "{error}");
    let run = run_of(&dir.path().join("c"), rows(), |manifest| {
        manifest.limits.token_ids = crate::limits::TokenIds::Invented;
    });
    assert!(vllm(Selection { run: &run, sample: None }, &out).is_err());
    let nameless = |id: u32| text_of(id).filter(|_| id != 13);
    let error = openai_chat(Selection { run: &run, sample: None }, &out, &nameless)
        .unwrap_err()
        .to_string();
    assert!(error.contains("token 13 after position 2 has no text"), "{error}");
    assert!(vllm(Selection { run: &run, sample: Some("none") }, &out).is_err());
    assert!(!out.exists());
}

#[test]
fn more_rows_than_lie_in_memory_at_a_time_are_all_written() {
    let dir = tempfile::tempdir().unwrap();
    let many: Vec<StepRow> = (0..9000)
        .map(|position| row(position, 12, Some(12), &[(12, 3.0), (13, 2.5)], 3.25))
        .collect();
    let run = run_of(dir.path(), many, |_| ());
    let (_, text, _) =
        written(dir.path(), |path| neutral(Selection { run: &run, sample: None }, path));
    let positions: Vec<String> =
        text.lines().filter_map(|line| line.split([':', ',']).nth(1).map(str::to_owned)).collect();
    assert_eq!(positions, (0..9000).map(|position| position.to_string()).collect::<Vec<_>>());
}
