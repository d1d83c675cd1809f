//! Small vocabularies by hand; the real one is in the engine's golden tests.

use lockstep_testkit::gguf::{Gguf, Value as Kv};

use super::*;

/// Tokens 0.. of a tiny vocabulary: digits that merge, a word with a blank in front, and two special tokens.
fn file(pre: &str, edit: impl FnOnce(&mut Gguf)) -> Result<Found, RuntimeError> {
    let tokens =
        ["1", "2", "3", "4", "12", "123", "1234", "Ġ", "a", "Ġa", "<bos>", "<user>", "<eos>"];
    let texts = |list: &[&str]| Kv::Texts(list.iter().map(|&text| text.to_owned()).collect());
    let mut gguf = Gguf::default();
    gguf.value("tokenizer.ggml.model", Kv::Text("gpt2".into()))
        .value("tokenizer.ggml.pre", Kv::Text(pre.into()))
        .value("tokenizer.ggml.tokens", texts(&tokens))
        .value("tokenizer.ggml.token_type", Kv::I32s(vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3, 4, 3]))
        .value("tokenizer.ggml.merges", texts(&["1 2", "12 3", "123 4", "Ġ a"]))
        .value("tokenizer.ggml.bos_token_id", Kv::U32(10))
        .value("tokenizer.ggml.eos_token_id", Kv::U32(12));
    edit(&mut gguf);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.gguf");
    gguf.write(&path);
    read(&path)
}

fn ids(pre: &str, text: &str, edit: impl FnOnce(&mut Gguf)) -> Vec<u32> {
    match file(pre, edit).unwrap() {
        Found::Tokenizer(tokenizer) => tokenizer.encode(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_pre_tokenizer_decides_which_digits_merge() {
    assert_eq!(ids("gpt-2", "a 1234", |_| {}), [8, 7, 6]);
    assert_eq!(ids("smollm", "1234 a", |_| {}), [0, 1, 2, 3, 9]);
    assert_eq!(ids("qwen2", "1234 a", |_| {}), [0, 1, 2, 3, 9]);
    // Three digits at a time, and no token in front where the file says so.
    let plain = |gguf: &mut Gguf| {
        gguf.value("tokenizer.ggml.add_bos_token", Kv::Bool(false));
    };
    assert_eq!(ids("llama-bpe", "1234 a", plain), [5, 3, 9]);
}

#[test]
fn special_tokens_are_found_in_text_and_put_around_it() {
    assert_eq!(ids("gpt-2", "a<user>a<eos>", |_| {}), [8, 11, 8, 12]);
    let both = |gguf: &mut Gguf| {
        gguf.value("tokenizer.ggml.add_bos_token", Kv::Bool(true));
        gguf.value("tokenizer.ggml.add_eos_token", Kv::Bool(true));
    };
    assert_eq!(ids("gpt-2", "a", both), [10, 8, 12]);
    assert_eq!(ids("llama-bpe", "a", |_| {}), [10, 8]);
}

#[test]
fn other_kinds_are_unsupported_and_damage_is_an_error() {
    let set = |key: &'static str, value: Kv| {
        move |gguf: &mut Gguf| {
            gguf.values.retain(|(known, _)| known != key);
            gguf.value(key, value);
        }
    };
    let kinds = [
        file("gpt-2", set("tokenizer.ggml.model", Kv::Text("llama".into()))),
        file("who-knows", |_| {}),
        file("gpt-2", set("tokenizer.ggml.add_space_prefix", Kv::Bool(true))),
    ];
    for found in kinds {
        assert!(matches!(found, Ok(Found::Unsupported(_))), "{found:?}");
    }
    let nothing = file("gpt-2", |gguf| gguf.values.clear());
    assert!(matches!(nothing, Ok(Found::Nothing)));
    let texts = |list: &[&str]| Kv::Texts(list.iter().map(|&text| text.to_owned()).collect());
    for (key, value, part) in [
        ("tokenizer.ggml.tokens", Kv::U32(3), "a list is expected"),
        ("tokenizer.ggml.tokens", texts(&["a", "a"]), "token 1"),
        ("tokenizer.ggml.merges", texts(&["1 2", "12"]), "merge 1"),
        ("tokenizer.ggml.merges", texts(&["1 4"]), "merge 0"),
        ("tokenizer.ggml.token_type", Kv::I32s(vec![1]), "1 entries"),
    ] {
        let text = file("gpt-2", set(key, value)).unwrap_err().to_string();
        assert!(text.contains("t.gguf") && text.contains(part), "{text}");
    }
    let bos = |gguf: &mut Gguf| {
        gguf.values.retain(|(key, _)| key != "tokenizer.ggml.bos_token_id");
        gguf.value("tokenizer.ggml.bos_token_id", Kv::U32(99));
        gguf.value("tokenizer.ggml.add_bos_token", Kv::Bool(true));
    };
    assert!(file("gpt-2", bos).unwrap_err().to_string().contains("bos_token_id"));
}
