//! One file of each server.

use super::super::{FoundId, Labels, LogprobImport, LogprobKind};
use super::{made, made_with};
use crate::hash::ids_sha256;
use crate::limits::{TokenIds, Values};
use crate::manifest::ValueEncoding;
use crate::{FinishReason, Phase, Status, UNKNOWN_TOKEN};

const CHAT: &str = r#"{"id":"q1","model":"m","choices":[{"index":0,"finish_reason":"length","message":{"content":"hi!"},"logprobs":{"content":[
    {"token":"hi","bytes":[104,105],"logprob":-0.25,"top_logprobs":[{"token":"hi","bytes":[104,105],"logprob":-0.25},{"token":"ho","bytes":[104,111],"logprob":-2.5}]},
    {"token":"!","bytes":[33],"logprob":-1.5,"top_logprobs":[{"token":".","bytes":[46],"logprob":-0.5},{"token":"!","bytes":[33],"logprob":-1.5}]}]}}],
    "usage":{"prompt_tokens":5,"completion_tokens":2}}"#;

#[test]
fn a_chat_answer_starts_at_the_last_row_of_its_prompt() {
    let made = made(LogprobKind::OpenaiChat, CHAT);
    // Texts in the order in which they are met: the tokens of the completion first ("hi" 0, "!" 1), then "ho" 2, "." 3.
    assert_eq!(
        made.lists(),
        [
            (4, UNKNOWN_TOKEN, Some(0), vec![(0, -0.25), (2, -2.5)]),
            (5, 0, Some(1), vec![(3, -0.5), (1, -1.5)]),
        ]
    );
    assert_eq!([made.rows[0].phase, made.rows[1].phase], [Phase::Prompt, Phase::Decode]);
    assert_eq!((made.rows[0].argmax, made.rows[1].argmax), (0, 3));
    assert_eq!((made.rows[0].top2_margin, made.rows[1].top2_margin), (Some(2.25), Some(1.0)));
    assert!(made.rows.iter().all(|row| row.logsumexp == Some(0.0) && row.finite));
    let sample = &made.samples[0];
    assert_eq!((sample.sample_id.as_str(), sample.prompt_len), ("q1", Some(5)));
    assert_eq!(
        (sample.generated_ids.as_slice(), sample.text.as_deref()),
        (&[0, 1][..], Some("hi!"))
    );
    assert_eq!((sample.finish, sample.prompt_ids_sha256.as_str()), (FinishReason::Length, ""));
    let limits = &made.manifest.limits;
    assert_eq!((limits.values, limits.token_ids), (Values::UnsaidLogprobs, TokenIds::Invented));
    assert_eq!(
        (limits.rows, made.manifest.encoding, limits.decimals),
        (false, ValueEncoding::Decimals, Some(1))
    );
    // -0.25 and -2.5 may have been printed with two significant digits, so one digit behind the point is all that is sure.
    assert_eq!(made.texts.as_ref().unwrap().get(3).unwrap().text, ".");
    made.says("ids number the 4 texts");
    assert_eq!(made.manifest.get("source.model").and_then(|model| model.as_str()), Some("m"));
}

#[test]
fn a_tokenizer_gives_the_ids_and_the_caller_the_values() {
    let lookup = |token: &super::super::super::TokenName| match token.text.as_deref() {
        Some("hi") => FoundId::One(50),
        Some("!") => FoundId::Several(7),
        Some("ho") => FoundId::One(51),
        _ => FoundId::Nothing,
    };
    let options = LogprobImport {
        lookup: Some(&lookup),
        values: Some(Values::Logprobs),
        prompt_ids: Some(&[9, 9, 9, 9, 8]),
        ..LogprobImport::default()
    };
    let made = made_with(LogprobKind::OpenaiChat, CHAT, &options);
    assert_eq!(
        made.lists(),
        [
            (4, 8, Some(50), vec![(50, -0.25), (51, -2.5)]),
            (5, 50, Some(7), vec![(UNKNOWN_TOKEN, -0.5), (7, -1.5)]),
        ]
    );
    assert_eq!(made.rows[1].argmax, UNKNOWN_TOKEN);
    assert_eq!(made.manifest.limits.token_ids, TokenIds::Tokenizer);
    assert_eq!(made.manifest.limits.values, Values::Logprobs);
    assert_eq!(made.samples[0].prompt_ids_sha256, ids_sha256(&[9, 9, 9, 9, 8]));
    made.says("2 tokens read like several");
    made.says("1 tokens and candidates could not be given an id");
    assert!(made.texts.is_none());
}

#[test]
fn an_echoed_prompt_becomes_prompt_rows() {
    let made = made(
        LogprobKind::OpenaiCompletions,
        r#"{"choices":[{"text":"a b c d","logprobs":{"tokens":["a"," b"," c"," d"],"token_logprobs":[null,-1.5,-2.25,-0.125],
        "top_logprobs":[null,{" b":-1.5," x":-0.75},{" c":-2.25," y":-3.0},{" d":-0.125," e":-3.5}],"text_offset":[0,1,3,5]}}],
        "usage":{"prompt_tokens":2,"completion_tokens":2}}"#,
    );
    // Ids: a 0, b 1, c 2, d 3, x 4, y 5, e 6. The row of "a" gave " b", which is prompt; the row of " b" chose " c".
    assert_eq!(
        made.lists(),
        [
            (0, 0, None, vec![(4, -0.75), (1, -1.5)]),
            (1, 1, Some(2), vec![(2, -2.25), (5, -3.0)]),
            (2, 2, Some(3), vec![(3, -0.125), (6, -3.5)]),
        ]
    );
    let phases: Vec<_> = made.rows.iter().map(|row| row.phase).collect();
    assert_eq!(phases, [Phase::Prompt, Phase::Prompt, Phase::Decode]);
    let sample = &made.samples[0];
    assert_eq!(
        (sample.prompt_ids.as_slice(), sample.generated_ids.as_slice()),
        (&[0, 1][..], &[2, 3][..])
    );
    assert_eq!(sample.text.as_deref(), Some(" c d"));
    assert!(made.manifest.includes_prompt);
    // One list stood as [-1.5, -0.75].
    made.says("1 lists were brought to the order");
}

#[test]
fn a_completion_without_counts_starts_at_row_0_and_says_so() {
    let made = made(
        LogprobKind::OpenaiCompletions,
        r#"{"choices":[{"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-0.5,-0.25]}}]}"#,
    );
    assert_eq!(
        made.lists(),
        [(0, UNKNOWN_TOKEN, Some(0), vec![(0, -0.5)]), (1, 0, Some(1), vec![(1, -0.25)])]
    );
    assert!(made.rows.iter().all(|row| row.argmax == UNKNOWN_TOKEN && row.phase == Phase::Decode));
    made.says("their first row is called 0");
    made.says("2 rows know the chosen token's value only");
    made.says("ids are invented");
    assert_eq!(made.samples[0].sample_id, "record_0_choice_0");
}

#[test]
fn vllm_maps_are_rows_by_id() {
    let text = r#"{"id":"s","choices":[{"prompt_logprobs":[null,{"11":{"logprob":-3.5,"rank":9},"12":{"logprob":-0.5,"rank":1},"13":{"logprob":-0.75,"rank":2}},
        {"14":{"logprob":-0.25,"rank":1},"12":{"logprob":-1.75,"rank":2}}],"prompt_token_ids":[10,11,14],"token_ids":[15,16],"finish_reason":"stop","stop_reason":null,
        "logprobs":{"tokens":["token_id:15","token_id:16"],"token_logprobs":[-0.5,-1.0],"top_logprobs":[{"token_id:15":-0.5},{"token_id:17":-0.5,"token_id:16":-1.0}]}}],
        "usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let made = made(LogprobKind::Vllm, text);
    assert_eq!(
        made.lists(),
        [
            // Rank 9 of three candidates: 11 lies outside the list of the largest two.
            (0, 10, None, vec![(12, -0.5), (13, -0.75)]),
            (1, 11, None, vec![(14, -0.25), (12, -1.75)]),
            (2, 14, Some(15), vec![(15, -0.5)]),
            // One candidate more than the other list has, and the chosen one is last: it was added.
            (3, 15, Some(16), vec![(17, -0.5)]),
        ]
    );
    let sample = &made.samples[0];
    assert_eq!(sample.prompt_ids_sha256, ids_sha256(&[10, 11, 14]));
    assert_eq!(
        (sample.generated_ids.as_slice(), sample.finish),
        (&[15, 16][..], FinishReason::Eos)
    );
    assert_eq!(made.manifest.limits.token_ids, TokenIds::Given);
    made.says("2 chosen tokens stand outside the list");
}

/// `LLM.generate` with `logprobs=1, prompt_logprobs=1`, each `RequestOutput` written by `json.dumps(dataclasses.asdict(..))`.
#[test]
fn outputs_of_vllm_without_a_server_are_rows_by_id() {
    let text = r#"{"request_id":"0","prompt":"ab","prompt_token_ids":[10,11],"prompt_logprobs":[null,{"11":{"logprob":-3.5,"rank":9,"decoded_token":"b"},"12":{"logprob":-0.5,"rank":1,"decoded_token":"c"}}],
        "outputs":[{"index":0,"text":"de","token_ids":[15,16],"cumulative_logprob":-1.5,"logprobs":[{"15":{"logprob":-0.5,"rank":1,"decoded_token":"d"}},{"16":{"logprob":-1.0,"rank":2,"decoded_token":"e"},"17":{"logprob":-0.5,"rank":1,"decoded_token":"f"}}],"finish_reason":"length","stop_reason":null}],"finished":true}"#;
    let made = made(LogprobKind::Vllm, text);
    assert_eq!(
        made.lists(),
        [
            (0, 10, None, vec![(12, -0.5)]),
            (1, 11, Some(15), vec![(15, -0.5)]),
            // Ranks 1 and 2 are both there: nothing lies between them.
            (2, 15, Some(16), vec![(17, -0.5), (16, -1.0)]),
        ]
    );
    let sample = &made.samples[0];
    assert_eq!((sample.prompt_len, sample.finish), (Some(2), FinishReason::Length));
    assert_eq!(
        (sample.generated_ids.as_slice(), sample.text.as_deref()),
        (&[15, 16][..], Some("de"))
    );
}

#[test]
fn a_scored_text_is_parted_where_the_caller_says() {
    let text = r#"{"prompt_logprobs":[null,{"2":{"logprob":-1.5}},{"3":{"logprob":-2.5}},{"4":{"logprob":-0.5}}],"prompt_token_ids":[1,2,3,4]}"#;
    let options = LogprobImport { prompt_len: Some(2), ..LogprobImport::default() };
    let made = made_with(LogprobKind::Vllm, text, &options);
    let rows: Vec<_> =
        made.rows.iter().map(|row| (row.position, row.phase, row.next_token)).collect();
    assert_eq!(
        rows,
        [(0, Phase::Prompt, None), (1, Phase::Prompt, Some(3)), (2, Phase::Decode, Some(4))]
    );
    assert_eq!(made.samples[0].prompt_ids, [1, 2]);
    assert_eq!(made.samples[0].generated_ids, [3, 4]);
    let whole = super::made(LogprobKind::Vllm, text);
    assert!(whole.rows.iter().all(|row| row.phase == Phase::Prompt && row.next_token.is_none()));
    assert_eq!(whole.samples[0].prompt_len, Some(4));
}

#[test]
fn sglang_counts_the_front_of_the_prompt_that_it_left_out() {
    let made = made(
        LogprobKind::Sglang,
        r#"[{"text":" b","meta_info":{"id":"0123456789abcdef0123456789abcdef","prompt_tokens":4,"completion_tokens":1,"finish_reason":{"type":"stop","matched":10},
        "input_token_logprobs":[[null,1,null],[-2.5,9,"a"]],"input_top_logprobs":[null,[[-0.5,7,null],[-2.5,9,null]]],
        "output_token_logprobs":[[-0.125,10," b"]],"output_top_logprobs":[[[-0.125,10," b"],[-3.0,11,null]]]}}]"#,
    );
    // Two of four prompt tokens are written: 1 at position 2, 9 at position 3.
    assert_eq!(
        made.lists(),
        [
            (2, 1, None, vec![(7, -0.5), (9, -2.5)]),
            (3, 9, Some(10), vec![(10, -0.125), (11, -3.0)])
        ]
    );
    let sample = &made.samples[0];
    assert_eq!((sample.prompt_len, sample.prompt_ids.len()), (Some(4), 0));
    assert_eq!((sample.generated_ids.as_slice(), sample.finish), (&[10][..], FinishReason::Eos));
    assert_eq!(
        sample.sample_id, "record_0_choice_0",
        "an id that the server made up names no sample"
    );
    assert!(!made.manifest.includes_prompt);
}

#[test]
fn llama_server_says_where_its_prompt_ends_and_what_it_sampled_from() {
    let made = made(
        LogprobKind::LlamaServer,
        r#"{"content":"xy","tokens_evaluated":3,"tokens_predicted":2,"stop_type":"limit","completion_probabilities":[
        {"id":5,"token":"x","bytes":[120],"logprob":-0.5,"top_logprobs":[{"id":5,"token":"x","logprob":-0.5},{"id":6,"token":"y","logprob":-1.0}]},
        {"id":6,"token":"y","bytes":[121],"logprob":-0.75,"top_logprobs":[{"id":6,"token":"y","logprob":-0.75},{"id":5,"token":"x","logprob":-3.4028234663852886e38}]}]}"#,
    );
    assert_eq!(
        made.lists(),
        [
            (2, UNKNOWN_TOKEN, Some(5), vec![(5, -0.5), (6, -1.0)]),
            (3, 5, Some(6), vec![(6, -0.75)])
        ]
    );
    assert_eq!(made.manifest.limits.values, Values::UnsaidLogprobs);
    assert_eq!(made.samples[0].finish, FinishReason::Length);
    made.says("1 values stand for an impossible token");
    let sampled = super::made(
        LogprobKind::LlamaServer,
        r#"{"content":"x","completion_probabilities":[{"id":5,"token":"x","prob":0.5,"top_probs":[{"id":5,"token":"x","prob":0.5},{"id":6,"token":"y","prob":0.25},{"id":7,"token":"z","prob":0.0}]}]}"#,
    );
    // ln 0.5 and ln 0.25 = 2 ln 0.5, rounded to f32.
    assert_eq!(
        sampled.rows[0].top_logits,
        [-std::f32::consts::LN_2, -2.0 * std::f32::consts::LN_2]
    );
    assert_eq!(sampled.manifest.limits.values, Values::ProcessedLogprobs);
    // Half a hundredth of 0.25 is 0.02 nats: one digit holds (0.05), two do not (0.005).
    assert_eq!(sampled.manifest.encoding, ValueEncoding::Decimals);
    assert_eq!(sampled.manifest.limits.decimals, Some(1));
}

#[test]
fn rank_files_are_merged_by_position() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("ranks");
    std::fs::create_dir(&folder).unwrap();
    let entry = |position: u32, token: i32, value: f64, valid: bool| {
        format!(
            "{{\"global_position\":{position},\"token_id\":{token},\"logprob\":{value:?},\"is_valid\":{valid}}}"
        )
    };
    let file = |rank: u32, entries: &[String]| {
        let text = format!(
            "{{\"rank\":{rank},\"tp_size\":1,\"cp_size\":2,\"pp_size\":1,\n\"logprob_entries\":[[{}]]}}",
            entries.join(",")
        );
        std::fs::write(folder.join(format!("rank_{rank}.json")), text).unwrap();
    };
    file(0, &[entry(0, 5, -1.5, true), entry(3, -1, 0.0, false)]);
    file(1, &[entry(1, 6, -2.5, true), entry(2, 7, -0.5, true), entry(0, 5, -1.25, true)]);
    assert_eq!(LogprobKind::of(&folder), Some(LogprobKind::Miles));
    let options = LogprobImport { labels: Labels::Fed, ..LogprobImport::default() };
    let made = super::of_path(LogprobKind::Miles, &folder, &options, dir).unwrap();
    assert_eq!(
        made.lists(),
        [
            (0, 5, Some(6), vec![(5, -1.5)]),
            (1, 6, Some(7), vec![(6, -2.5)]),
            (2, 7, None, vec![(7, -0.5)]),
        ]
    );
    assert_eq!(made.manifest.limits.values, Values::Logprobs);
    for remark in [
        "1 entries are marked as not valid",
        "1 entries stand in several",
        "1 of them with another value",
    ] {
        made.says(remark);
    }
    assert_eq!(made.manifest.status, Status::Complete);
    let next = Labels::Next;
    let text = format!(
        "{{\"logprob_entries\":[[{},{}]]}}",
        entry(0, 5, -1.5, true),
        entry(1, 6, -2.5, true)
    );
    let shifted = made_with(LogprobKind::Miles, &text, &LogprobImport { labels: next, ..options });
    assert_eq!(
        shifted.lists(),
        [(0, UNKNOWN_TOKEN, Some(5), vec![(5, -1.5)]), (1, 5, Some(6), vec![(6, -2.5)])]
    );
    super::made(LogprobKind::Miles, &text).says("give --labels");
}
