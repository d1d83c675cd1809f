//! Each form read, each kind of damage refused with its line.

use std::io::Write as _;

use super::*;

fn read(text: &str) -> Result<Dataset, TraceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl");
    std::fs::write(&path, text).unwrap();
    Dataset::read(&path)
}

/// Line and words of a refusal.
fn refused(text: &str) -> (usize, String) {
    match read(text) {
        Err(TraceError::Line { line, what, .. }) => (line, what),
        other => panic!("{other:?}"),
    }
}

fn question(text: &str) -> Prompt {
    Prompt::Question(text.to_owned())
}

#[test]
fn each_public_form_is_known_by_its_keys() {
    let cases: [(&str, Form, &str, Prompt, Option<&str>); 9] = [
        (
            r#"{"sample_id":"aime25_0","answer":"70","prompt":"Find","question":"q","dataset_index":0}"#,
            Form::ModelConnect,
            "aime25_0",
            Prompt::Text("Find".into()),
            Some("70"),
        ),
        (
            r#"{"question":"How many?","answer":"6 * 200 = 1200\n#### 1,200"}"#,
            Form::Gsm8k,
            "row_0",
            question("How many?"),
            Some("1200"),
        ),
        (
            r#"{"question":"q","answer":"70","id":3}"#,
            Form::Question,
            "3",
            question("q"),
            Some("70"),
        ),
        (
            r#"{"id":"60","problem":"p","answer":204}"#,
            Form::Problem,
            "60",
            question("p"),
            Some("204"),
        ),
        (
            r#"{"ID":"2024-I-1","Problem":"p","Answer":33,"Solution":"s"}"#,
            Form::Problem,
            "2024-I-1",
            question("p"),
            Some("33"),
        ),
        (
            r#####"{"doc_id":4,"doc":{"question":"q","answer":"#### 5"},"target":"so #### 5","arguments":[["Q: q\nA:",{"until":["\n"]}]]}"#####,
            Form::LmEval,
            "4",
            Prompt::Text("Q: q\nA:".into()),
            Some("5"),
        ),
        (
            r#"{"doc_id":4,"doc":{"problem":"q"},"target":"7","arguments":{"gen_args_0":{"arg_0":"ctx","arg_1":{}}}}"#,
            Form::LmEval,
            "4",
            Prompt::Text("ctx".into()),
            Some("7"),
        ),
        (
            r#"{"custom_id":"r-1","body":{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}}"#,
            Form::Messages,
            "r-1",
            Prompt::Messages(vec![Message { role: "user".into(), content: "ab".into() }]),
            None,
        ),
        (
            r#"{"prompt":"x","prompt_ids":[1,2]}"#,
            Form::Plain,
            "row_0",
            Prompt::Ids { ids: vec![1, 2], text: Some("x".into()) },
            None,
        ),
    ];
    for (line, form, id, prompt, gold) in cases {
        let set = read(line).unwrap();
        assert_eq!(set.form, form, "{line}");
        let row = &set.rows[0];
        assert_eq!((row.sample_id.as_str(), row.gold.as_deref()), (id, gold), "{line}");
        assert_eq!(row.prompt, prompt, "{line}");
    }
}

#[test]
fn the_ledger_problems_are_forty_rows_with_their_ids() {
    let path = lockstep_testkit::data().join("golden/traces/tasks.jsonl");
    let set = Dataset::read(&path).unwrap();
    assert_eq!((set.form, set.rows.len()), (Form::ModelConnect, 40));
    let task = lockstep_testkit::task("ledger_17");
    let row = &set.rows[16];
    assert_eq!((row.sample_id.as_str(), row.index, row.line), ("ledger_17", 16, 17));
    assert_eq!(row.gold, Some(task.answer));
    assert_eq!(row.prompt, Prompt::Ids { ids: task.prompt_ids, text: Some(task.prompt) });
    assert_eq!(set.sha256, sha256_file(&path).unwrap());
}

#[test]
fn progress_text_before_or_between_rows_is_refused_with_its_line() {
    let row = r#"{"sample_id":"a","answer":"1","prompt":"p"}"#;
    let (line, what) = refused(&format!("Loading weights:  50%|#####     | 3/6\n{row}\n"));
    assert!(line == 1 && what.contains("Loading weights") && what.contains("remove"), "{what}");
    let (line, what) = refused(&format!("{row}\n\n[1, 2]\n"));
    assert!(line == 3 && what.contains("no object"), "{line} {what}");
    let (line, _) = refused(&format!("{row}\n{}", &row[..20]));
    assert_eq!(line, 2, "a cut last line is no row");
}

#[test]
fn keys_of_the_form_are_required_in_every_row() {
    let cases = [
        (
            "{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\"}\n{\"sample_id\":\"b\",\"prompt\":\"p\"}",
            2,
            "`answer` is missing",
        ),
        (
            "{\"sample_id\":\"a\",\"answer\":\"1\",\"prompt\":\"p\"}\n{\"answer\":\"1\",\"prompt\":\"p\"}",
            2,
            "`sample_id` is missing",
        ),
        (
            "{\"question\":\"q\",\"answer\":\"#### 1\"}\n{\"question\":\"q\",\"answer\":\"2\"}",
            2,
            "`####`",
        ),
        ("{\"question\":\"q\",\"answer\":\"a #### \"}", 1, "nothing follows"),
        ("{\"problem\":\"\",\"answer\":1}", 1, "`problem` is empty"),
        ("{\"problem\":\"p\",\"answer\":[1]}", 1, "`answer` is neither"),
        ("{\"doc\":{},\"target\":\"1\"}", 1, "neither `arguments`"),
        ("{\"messages\":[]}", 1, "is empty"),
        (
            "{\"messages\":[{\"role\":\"assistant\",\"content\":\"42\"}]}",
            1,
            "ends with an assistant",
        ),
        ("{\"prompt_ids\":[1,-2]}", 1, "no list of token ids"),
        ("{\"prompt_ids\":[]}", 1, "no list of token ids"),
        ("{\"prompt\":\"p\",\"seed_index\":-1}", 1, "`seed_index`"),
        ("{\"text\":\"p\",\"label\":1}", 1, "`label`, `text`"),
        ("{\"prompt\":\"p\",\"answer\":1}\n{\"prompt\":\"q\"}", 2, "line 1 has one"),
    ];
    for (text, expected, words) in cases {
        let (line, what) = refused(text);
        assert!(line == expected && what.contains(words), "{text}: {line} {what}");
    }
}

#[test]
fn an_id_that_comes_twice_is_refused_with_both_lines() {
    let (line, what) = refused(
        "{\"prompt\":\"a\",\"id\":7}\n{\"prompt\":\"b\",\"id\":8}\n{\"prompt\":\"c\",\"id\":\"7\"}",
    );
    assert!(line == 3 && what.contains("`7`") && what.contains("line 1"), "{line} {what}");
}

#[test]
fn nothing_and_a_cut_file_are_refused() {
    assert!(read("\n \n").unwrap_err().to_string().contains("no rows"));
    let text: String =
        (0..3000).map(|n| format!("{{\"prompt\":\"number {}\"}}\n", n * 7919 % 1013)).collect();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rows.jsonl.gz");
    std::fs::write(&path, &packed).unwrap();
    assert_eq!(Dataset::read(&path).unwrap().rows.len(), 3000);
    std::fs::write(&path, &packed[..packed.len() / 2]).unwrap();
    // The stream may end within a row or between two.
    assert!(Dataset::read(&path).is_err());
}

#[test]
fn the_index_is_that_of_the_row_in_the_file_whatever_is_taken() {
    let text: String = (0..10)
        .map(|n| match n {
            4 => "{\"prompt\":\"p4\",\"seed_index\":100}\n\n".to_owned(),
            n => format!("{{\"prompt\":\"p{n}\"}}\n"),
        })
        .collect();
    let set = read(&text).unwrap();
    let selection = |select: Option<&str>, limit, shard: Option<&str>| Selection {
        select: select.map(str::to_owned),
        limit,
        shard: shard.map(|text| text.parse().unwrap()),
    };
    let indexes = |selection: &Selection| -> Vec<u64> {
        let taken = set.take(selection).unwrap();
        taken.rows.iter().map(|place| set.rows[*place].effective_index()).collect()
    };
    assert_eq!(indexes(&selection(Some("3-6"), None, None)), [3, 100, 5, 6]);
    assert_eq!(indexes(&selection(Some("row_9,row_2"), None, None)), [2, 9]);
    assert_eq!(indexes(&selection(None, None, Some("1/3"))), [1, 100, 7]);
    // The limit comes before the shard, so that shards of a limited run add up to it.
    assert_eq!(indexes(&selection(None, Some(5), Some("1/3"))), [1, 100]);
    let taken = set.take(&selection(None, Some(5), Some("1/3"))).unwrap();
    assert_eq!((taken.expected, taken.rows), (vec![0, 1, 2, 3, 4], vec![1, 4]));
}

#[test]
fn a_selection_of_nothing_is_refused() {
    let set = read("{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}").unwrap();
    let take = |select: Option<&str>, limit, shard: Option<&str>| {
        let shard = shard.map(|text| text.parse().unwrap());
        set.take(&Selection { select: select.map(str::to_owned), limit, shard })
            .unwrap_err()
            .to_string()
    };
    assert!(take(Some("7"), None, None).contains("--select 7"));
    assert!(take(Some("row_7"), None, None).contains("`row_7`"));
    assert!(take(Some("row_1,row_1"), None, None).contains("twice"));
    assert!(take(None, Some(0), None).contains("--limit 0"));
    assert!(take(None, None, Some("4/5")).contains("--shard 4/5"));
    for bad in ["4/4", "1", "a/b", "-1/2"] {
        assert!(bad.parse::<Shard>().is_err(), "{bad}");
    }
}
