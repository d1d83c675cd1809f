use std::io::Write as _;

use super::{LogprobFile, Part, Said, Source, State, looks_like, read};
use crate::TraceError;

fn try_read(bytes: &[u8]) -> Result<LogprobFile, TraceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.json");
    std::fs::write(&path, bytes).unwrap();
    let found = read(&path);
    assert!(looks_like(&path) || found.is_err(), "what can be read is recognised");
    found
}

fn file(text: &str) -> LogprobFile {
    try_read(text.as_bytes()).unwrap()
}

#[test]
fn a_chat_answer_has_tokens_bytes_and_candidates() {
    let file = file(
        r#"{"choices":[{"index":3,"message":{"content":"hi!"},"logprobs":{"content":[
        {"token":"hi","bytes":[104,105],"logprob":-0.25,"top_logprobs":[{"token":"hi","bytes":[104,105],"logprob":-0.25},{"token":"ho","logprob":-2}]},
        {"id":7,"token":"!","bytes":null,"logprob":-1.5,"top_logprobs":[]}]}}],
        "usage":{"prompt_tokens":5,"completion_tokens":2},"request":{"top_logprobs":2}}"#,
    );
    let only = &file.sequences[0];
    assert_eq!(
        (file.source, only.choice, only.part, only.asked),
        (Source::OpenaiChat, 3, Part::Completion, Some(2))
    );
    assert_eq!((only.text.as_deref(), only.usage_tokens), (Some("hi!"), Some(2)));
    assert_eq!(only.entries[0].token.bytes.as_deref(), Some(&b"hi"[..]));
    assert_eq!(only.entries[0].candidates[1].logprob.value(), Some(-2.0));
    assert_eq!((only.entries[1].token.id, only.entries[1].logprob.value()), (Some(7), Some(-1.5)));
}

#[test]
fn every_spelling_of_impossible_is_marked_and_never_a_value() {
    let entry = |value: &str| {
        let text = format!(
            r#"{{"choices":[{{"logprobs":{{"content":[{{"token":"a","logprob":-0.5,"top_logprobs":[{{"token":"b","logprob":{value}}}]}}]}}}}]}}"#
        );
        file(&text).sequences[0].entries[0].candidates[0].logprob
    };
    for (value, sentinel, written) in [
        ("null", false, "null"),
        ("-Infinity", false, "-Infinity"),
        ("-9999.0", true, "-9999"),
        ("-1000", true, "-1000"),
        ("-1e2", true, "-100"),
        ("-3.4028235e38", true, ""),
    ] {
        let logprob = entry(value);
        assert_eq!(
            (logprob.state, logprob.sentinel, logprob.value()),
            (State::Impossible, sentinel, None),
            "{value}"
        );
        assert!(logprob.spelled().unwrap().starts_with(written), "{value}");
    }
    assert_eq!((entry("NaN").state, entry("NaN").value()), (State::Nan, None));
    for plain in ["-99.9", "-100.5", "-9998", "0", "-999.75"] {
        assert_eq!(entry(plain).value(), Some(plain.parse().unwrap()), "an ordinary value");
    }
}

#[test]
fn completions_keep_every_pair_of_a_map() {
    let file = file(
        r#"{"choices":[{"text":"t","logprobs":{"tokens":["t","token_id:5"],"token_logprobs":[-0.6,null],
        "top_logprobs":[{"t":-0.6,"u":-2.0,"t":-6.0},null],"text_offset":[4,5]}}]}"#,
    );
    let entries = &file.sequences[0].entries;
    let values: Vec<_> = entries[0].candidates.iter().map(|c| c.logprob.value().unwrap()).collect();
    assert_eq!(
        (file.source, values, entries[1].text_offset),
        (Source::OpenaiCompletions, vec![-0.6, -2.0, -6.0], Some(5))
    );
    assert_eq!((entries[1].token.id, entries[1].token.text.as_ref()), (Some(5), None));
    assert_eq!(entries[1].logprob.state, State::Absent, "a token's own null is no value");
    let uneven = r#"{"choices":[{"logprobs":{"tokens":["a","b"],"token_logprobs":[-1]}}]}"#;
    assert!(
        try_read(uneven.as_bytes()).unwrap_err().to_string().contains("2 tokens stand beside 1")
    );
}

#[test]
fn vllm_prompt_maps_are_read_by_id_and_the_prompts_own_token_is_found() {
    let text = r#"{"prompt_logprobs":[null,{"11":{"logprob":-3.5,"rank":9,"decoded_token":" x"},"12":{"logprob":-0.5,"rank":1,"decoded_token":" y"}}]IDS}"#;
    let file = file(&text.replace("IDS", ""));
    let entries = &file.sequences[0].entries;
    assert_eq!((file.source, entries[0].logprob.state), (Source::VllmPrompt, State::Absent));
    assert_eq!((entries[1].token.id, entries[1].logprob.value()), (Some(11), Some(-3.5)));
    assert_eq!(
        (entries[1].candidates[1].rank, entries[1].candidates[1].token.text.as_deref()),
        (Some(1), Some(" y"))
    );
    let file = self::file(&text.replace("IDS", ",\"prompt_token_ids\":[3,12]"));
    assert_eq!(file.sequences[0].entries[1].logprob.value(), Some(-0.5));
    assert_eq!(file.sequences[0].entries[0].token.id, Some(3));
    assert!(try_read(text.replace("IDS", "").replace("\"11\"", "\"x\"").as_bytes()).is_err());
    let beside = format!(
        r#"{{"choices":[{{"prompt_logprobs":{},"token_ids":[4],"logprobs":{{"tokens":["a"],"token_logprobs":[-1.0]}}}}]}}"#,
        r#"[null,{"2":{"logprob":-1.0}}]"#
    );
    let file = self::file(&beside);
    assert_eq!(
        file.sequences.iter().map(|s| s.part).collect::<Vec<_>>(),
        [Part::Prompt, Part::Completion]
    );
    assert_eq!(file.sequences[1].entries[0].token.id, Some(4));
}

#[test]
fn sglang_triples_are_read_for_prompt_and_completion() {
    let file = file(
        r#"[{"text":" b","meta_info":{"prompt_tokens":2,"completion_tokens":1,
        "input_token_logprobs":[[null,1,null],[-2.5,9,"a"]],"output_token_logprobs":[[-0.125,10," b"]],
        "output_top_logprobs":[[[-0.125,10," b"],[-3.0,11,null]]]}}]"#,
    );
    assert_eq!(file.source, Source::SglangNative);
    let [prompt, completion] = file.sequences.as_slice() else { panic!("two parts") };
    assert_eq!(
        (prompt.entries[0].logprob.state, prompt.entries[1].logprob.value()),
        (State::Absent, Some(-2.5))
    );
    assert_eq!((completion.text.as_deref(), completion.usage_tokens), (Some(" b"), Some(1)));
    assert_eq!(
        (completion.entries[0].candidates[1].token.id, completion.entries[0].candidates.len()),
        (Some(11), 2)
    );
}

#[test]
fn llama_server_is_read_in_its_three_forms() {
    let new = file(
        r#"{"content":"x","tokens_predicted":1,"generation_settings":{"n_probs":2},"completion_probabilities":[
        {"id":5,"token":"x","bytes":[120],"logprob":-0.5,"top_logprobs":[{"id":5,"token":"x","bytes":[120],"logprob":-0.5},{"id":6,"token":"y","logprob":-1.0}]}]}"#,
    );
    assert_eq!(
        (new.source, new.said, new.sequences[0].asked),
        (Source::LlamaServer, Said::Unknown, Some(2))
    );
    assert_eq!(new.sequences[0].entries[0].candidates[1].token.id, Some(6));
    let sampled = file(
        r#"{"content":"x","completion_probabilities":[{"id":5,"token":"x","prob":0.5,"top_probs":[{"id":5,"token":"x","prob":0.5},{"id":6,"token":"y","prob":0.0}]}]}"#,
    );
    let entry = &sampled.sequences[0].entries[0];
    assert_eq!(
        (sampled.said, entry.candidates[1].logprob.state),
        (Said::AfterSampling, State::Impossible)
    );
    assert!((entry.logprob.value().unwrap() + std::f64::consts::LN_2).abs() < 1e-12);
    let old = file(
        r#"{"content":"x","completion_probabilities":[{"content":"x","probs":[{"tok_str":"x","prob":1.0}]}]}"#,
    );
    let entry = &old.sequences[0].entries[0];
    assert_eq!(
        (entry.token.text.as_deref(), entry.candidates[0].logprob.value()),
        (Some("x"), Some(0.0))
    );
}

#[test]
fn lists_stand_beside_their_logits() {
    let text = r#"{"logits":[3.0,2.0],"temperature":0.5,"top_p":0.9,"reported":{"w":[-0.3,-1.3],"y":[0.0,null]}}"#;
    let file = file(text);
    assert_eq!(
        (file.source, file.logits.as_slice(), file.settings.top_p),
        (Source::Lists, &[3.0, 2.0][..], Some(0.9))
    );
    assert_eq!(file.sequences[1].name.as_deref(), Some("y"));
    assert_eq!(file.sequences[1].entries[0].candidates[1].logprob.state, State::Impossible);
    assert!(
        try_read(text.replace("[0.0,null]", "[0.0]").as_bytes())
            .unwrap_err()
            .to_string()
            .contains("`y` has 1")
    );
}

#[test]
fn envelopes_lines_gzip_streams_and_cut_tails_are_read_through() {
    let one = r#"{"choices":[{"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-1.0]}}]}"#;
    let batch =
        format!("{{\"custom_id\":\"q\",\"response\":{{\"status_code\":200,\"body\":{one}}}}}");
    assert_eq!(file(&batch).entries(), 1);
    let lines = file(&format!("{one}\r\n{one}\n"));
    assert_eq!((lines.entries(), lines.sequences[1].record, lines.complete), (2, 1, true));
    let cut = file(&format!("{one}\n{}", &one[..40]));
    assert_eq!(
        (cut.entries(), cut.complete, cut.remarks.as_slice()),
        (1, false, &["record 2 is cut, and left out".to_owned()][..])
    );
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(format!("\u{feff}{one}").as_bytes()).unwrap();
    assert_eq!(try_read(&gzip.finish().unwrap()).unwrap().remarks.len(), 2);
    let chunk = |token: &str| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"text\":\"{token}\",\"logprobs\":{{\"tokens\":[\"{token}\"],\"token_logprobs\":[-1.0]}}}}]}}\n\n"
        )
    };
    let stream = file(&format!("{}{}data: [DONE]\n\n", chunk("a"), chunk("b")));
    assert_eq!(
        (stream.sequences.len(), stream.sequences[0].text.as_deref(), stream.entries()),
        (1, Some("ab"), 2)
    );
}

#[test]
fn what_holds_no_log_probability_or_is_damaged_is_refused() {
    for (text, part) in [
        ("", "empty"),
        (r#"{"choices":[{"text":"a","logprobs":null}]}"#, "no log-probability"),
        (r#"{"choices":[{"text":"a","#, "cut after 24 bytes"),
        ("{\"choices\":[\n{\"a\":tru3}]}", "r.json:2: an unknown word"),
        (r#"{"choices":5}"#, "`choices` is no list"),
        (r#"{"something":1}"#, "no log-probability"),
        (r#"{"meta_info":{"output_token_logprobs":[5]}}"#, "no `[logprob, id, text]`"),
    ] {
        let error = try_read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_file_says_what_it_cannot_tell() {
    let file = file(
        r#"{"choices":[{"logprobs":{"tokens":["a"],"token_logprobs":[-1.25],"top_logprobs":[{"a":-1.25}]}}]}"#,
    );
    let cannot = file.cannot().join("\n");
    for part in [
        "ids are missing",
        "before or after temperature",
        "at most 1 candidates",
        "at most 2 digits",
    ] {
        assert!(cannot.contains(part), "{part}: {cannot}");
    }
    let ids = self::file(r#"{"meta_info":{"output_token_logprobs":[[-0.123456789,1,"a"]]}}"#)
        .cannot()
        .join("\n");
    assert!(
        !ids.contains("ids are missing")
            && !ids.contains("digits")
            && ids.contains("no candidates"),
        "{ids}"
    );
}
