//! Files with one hazard each.

use std::fmt::Write as _;

use super::super::{LogprobImport, LogprobKind};
use super::{made, made_with, of_path, refused};
use crate::manifest::ValueEncoding;
use crate::{Status, UNKNOWN_TOKEN};

/// A SGLang record of one chosen token, id 4, with these candidates.
fn record(own: &str, candidates: &str) -> String {
    format!(
        "{{\"meta_info\":{{\"prompt_tokens\":1,\"output_token_logprobs\":[[{own},4,null]],\"output_top_logprobs\":[[{candidates}]]}}}}"
    )
}

#[test]
fn what_was_not_measured_is_no_value_of_a_list() {
    let text = record(
        "-0.5",
        "[-0.5,4,null],[-9999.0,5,null],[null,6,null],[-Infinity,7,null],[-1.5,8,null]",
    );
    let made = made(LogprobKind::Sglang, &text);
    assert_eq!(made.lists()[0].3, [(4, -0.5), (8, -1.5)]);
    assert!(made.rows[0].finite, "a token that cannot come is no fault of the numbers");
    made.says("3 values stand for an impossible token");
    let nan = super::made(LogprobKind::Sglang, &record("-0.5", "[-0.5,4,null],[NaN,5,null]"));
    assert_eq!((nan.lists()[0].3.as_slice(), nan.rows[0].finite), (&[(4, -0.5)][..], false));
    nan.says("no JSON by the letter");
}

#[test]
fn a_chosen_token_outside_its_list_stays_outside() {
    let made = made(LogprobKind::Sglang, &record("-7.5", "[-0.5,5,null],[-1.5,6,null]"));
    assert_eq!(made.lists()[0].2, Some(4));
    assert_eq!(made.lists()[0].3, [(5, -0.5), (6, -1.5)]);
    made.says("1 chosen tokens stand outside the list");
    let other = super::made(LogprobKind::Sglang, &record("-0.25", "[-0.5,4,null],[-1.5,6,null]"));
    assert_eq!(other.lists()[0].3, [(4, -0.5), (6, -1.5)]);
    other.says("1 chosen tokens have another value");
}

#[test]
fn ties_are_by_id_and_an_id_that_stands_twice_loses_its_name() {
    let made =
        made(LogprobKind::Sglang, &record("-0.5", "[-0.5,9,null],[-0.5,4,null],[-0.75,3,null]"));
    assert_eq!(made.lists()[0].3, [(4, -0.5), (9, -0.5), (3, -0.75)]);
    let twice = super::made(
        LogprobKind::Sglang,
        &record("-0.5", "[-0.5,4,null],[-0.75,4,null],[-1.0,5,null]"),
    );
    assert_eq!(twice.lists()[0].3, [(4, -0.5), (UNKNOWN_TOKEN, -0.75), (5, -1.0)]);
    twice.says("1 candidates cannot be told from another one");
    let texts = r#"{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-0.5],"top_logprobs":[{"a":-0.5,"b":-1.5,"a":-2.5}]}}]}"#;
    let texts = super::made(LogprobKind::OpenaiCompletions, texts);
    assert_eq!(texts.lists()[0].3, [(0, -0.5), (1, -1.5), (UNKNOWN_TOKEN, -2.5)]);
}

#[test]
fn parts_of_characters_are_told_by_their_bytes_or_not_at_all() {
    let text = r#"{"choices":[{"logprobs":{"content":[
        {"token":"\ufffd","bytes":[226],"logprob":-0.5,"top_logprobs":[{"token":"\ufffd","bytes":[226],"logprob":-0.5},{"token":"\ufffd","bytes":[128],"logprob":-1.5},{"token":"\ufffd","logprob":-2.5}]}]}}]}"#;
    let made = made(LogprobKind::OpenaiChat, text);
    assert_eq!(made.lists()[0].3, [(0, -0.5), (1, -1.5), (UNKNOWN_TOKEN, -2.5)]);
    made.says("1 tokens and candidates could not be given an id");
}

#[test]
fn many_lines_are_many_samples_and_a_cut_tail_is_an_incomplete_run() {
    let mut text = String::new();
    for sample in 0..200 {
        let _ = writeln!(
            text,
            "{{\"custom_id\":\"s{sample}\",\"response\":{{\"body\":{}}}}}",
            record("-0.5", "[-0.5,4,null]")
        );
    }
    let whole = made(LogprobKind::Sglang, &text);
    assert_eq!(
        (whole.samples.len(), whole.rows.len(), whole.manifest.status),
        (200, 200, Status::Complete)
    );
    assert_eq!(whole.samples[17].sample_id, "s17");
    let cut = made(LogprobKind::Sglang, &text[..text.len() - 30]);
    assert_eq!((cut.samples.len(), cut.manifest.status), (199, Status::Incomplete));
    cut.says("the last record is cut");
    let damaged = text.replacen("\"prompt_tokens\":1,", "\"prompt_tokens\":tru3,", 3);
    assert!(
        refused(LogprobKind::Sglang, &damaged, &LogprobImport::default())
            .contains("file:1: an unknown word")
    );
}

#[test]
fn a_damaged_line_in_the_middle_is_named() {
    let line = record("-0.5", "[-0.5,4,null]");
    let text = format!("{line}\n{}\n{line}\n", &line[..40]);
    assert!(
        refused(LogprobKind::Sglang, &text, &LogprobImport::default())
            .contains("file:2: the line is cut")
    );
    let other = format!(
        "{line}\n{{\"choices\":[{{\"logprobs\":{{\"tokens\":[\"a\"],\"token_logprobs\":[-1.0]}}}}]}}\n"
    );
    let error = refused(LogprobKind::Sglang, &other, &LogprobImport::default());
    assert!(error.contains("file:2: this is no sglang-logprobs"), "{error}");
}

#[test]
fn equal_ids_and_several_choices_are_samples_of_their_own() {
    let choice = |index: u32| {
        format!(
            "{{\"index\":{index},\"logprobs\":{{\"tokens\":[\"a\"],\"token_logprobs\":[-1.0]}}}}"
        )
    };
    let line = format!("{{\"id\":\"q\",\"choices\":[{},{}]}}\n", choice(0), choice(1));
    let made = made(LogprobKind::OpenaiCompletions, &format!("{line}{line}"));
    let ids: Vec<_> = made.samples.iter().map(|sample| sample.sample_id.as_str()).collect();
    assert_eq!(ids, ["q_choice_0", "q_choice_1", "q_choice_0_record_1", "q_choice_1_record_1"]);
    made.says("2 samples bear an id that stands twice");
}

#[test]
fn prompt_ids_are_held_against_the_record() {
    let line = record("-0.5", "[-0.5,4,null]");
    let ids =
        |ids: &'static [u32]| LogprobImport { prompt_ids: Some(ids), ..LogprobImport::default() };
    let made = made_with(LogprobKind::Sglang, &line, &ids(&[3]));
    assert_eq!((made.lists()[0].1, made.samples[0].prompt_ids.as_slice()), (3, &[3][..]));
    assert!(
        refused(LogprobKind::Sglang, &line, &ids(&[3, 4]))
            .contains("its prompt has 1 tokens, and 2")
    );
    assert!(
        refused(LogprobKind::Sglang, &format!("{line}\n{line}\n"), &ids(&[3]))
            .contains("several records")
    );
    let scored = r#"{"prompt_logprobs":[null,{"2":{"logprob":-1.5}}],"prompt_token_ids":[1,2]}"#;
    assert!(
        refused(LogprobKind::Vllm, scored, &ids(&[1, 3]))
            .contains("its token at position 1 is 2, and 3 is given")
    );
}

#[test]
fn streams_and_packed_files_are_read_and_files_without_values_refused() {
    let chunk = |token: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"text\":\"{token}\",\"logprobs\":{{\"tokens\":[\"{token}\"],\"token_logprobs\":[-1.0]}}}}]}}\n\n"
        )
    };
    let made = made(
        LogprobKind::OpenaiCompletions,
        &format!("{}{}data: [DONE]\n\n", chunk("a"), chunk("b")),
    );
    assert_eq!((made.rows.len(), made.samples[0].generated_ids.as_slice()), (2, &[0, 1][..]));
    let bare = r#"{"choices":[{"text":"a","logprobs":null}]}"#;
    assert!(
        refused(LogprobKind::OpenaiChat, bare, &LogprobImport::default())
            .contains("no log-probability is in it")
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gz");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(
        &mut gzip,
        format!("{}\n", record("-0.5", "[-0.5,4,null]")).as_bytes(),
    )
    .unwrap();
    std::fs::write(&path, gzip.finish().unwrap()).unwrap();
    let packed = of_path(LogprobKind::Sglang, &path, &LogprobImport::default(), dir).unwrap();
    packed.says("read through gzip");
}

#[test]
fn values_of_many_digits_are_told_from_short_ones() {
    let f32_printed = f64::from(-0.3_f32);
    let exact = made(
        LogprobKind::Sglang,
        &record(&format!("{f32_printed:?}"), &format!("[{f32_printed:?},4,null]")),
    );
    assert_eq!(exact.rows[0].top_logits[0].to_bits(), (-0.3_f32).to_bits());
    assert_eq!(
        (exact.manifest.encoding, exact.manifest.limits.value_error),
        (ValueEncoding::Digits9, None)
    );
    let short = super::made(LogprobKind::Sglang, &record("-0.30001", "[-0.30001,4,null]"));
    assert_eq!(
        (short.manifest.encoding, short.manifest.limits.decimals),
        (ValueEncoding::Decimals, Some(5))
    );
    short.says("equal text is not equal bits");
}
