//! Files of evidence: both forms, and what is refused.

use crate::sampler::read_file;

fn refused(name: &str, text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    read_file(&path, None).unwrap_err().to_string()
}

#[test]
fn lines_of_rows_make_streams_by_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.jsonl");
    let text = "\u{feff}{\"seed\": 5, \"temperature\": 0.5, \"top_k\": 2, \"vocab\": 9, \"filters\": \"hf\"}\r\n\
        {\"sample_id\": \"a\", \"token\": 3, \"position\": 17, \"top\": [[3, 1.5], [8, 1.0], [1, null]]}\n\n\
        {\"sample_id\": \"b\", \"token\": 8, \"seed_index\": 4, \"top\": [[3, 1.5], [8, 1.0], [1, -2]], \"rng_offset\": 8}\n\
        {\"sample_id\": \"a\", \"token\": 8, \"top\": [[3, 1.5], [8, 1.0], [1, -2]]}\n";
    std::fs::write(&path, text).unwrap();
    let file = read_file(&path, None).unwrap();
    let evidence = &file.lists[0].evidence;
    assert_eq!((evidence.vocab, evidence.len(), evidence.streams.len()), (9, 3, 2));
    assert_eq!(evidence.filters.top_k, Some(2));
    let [a, b] = &evidence.streams[..] else { panic!("two samples") };
    assert_eq!((a.sample_id.as_str(), a.base_seed, a.seed_index), ("a", Some(5), 0));
    assert_eq!((a.steps[0].position, a.steps[1].position), (17, 1));
    assert_eq!((b.seed_index, b.steps[0].offset), (4, Some(8)));
    assert_eq!(a.steps[0].row.unlisted, 6);
    let gone = a.steps[0].row.listed[2].1;
    assert!(gone.is_infinite() && gone < 0.0);
}

#[test]
fn what_is_no_evidence_is_refused_with_its_place() {
    for (text, part) in [
        ("", "EOF"),
        ("[1, 2]", "no object"),
        ("{\"tokens\": [1]}", "no rows"),
        ("{\"logits\": [[1, 2]]}", "no `tokens`"),
        ("{\"logits\": [[1, 2]], \"tokens\": [0, 1]}", "2 tokens and there are 1 rows"),
        ("{\"logits\": [[1, 2]], \"probabilities\": [[1, 0]], \"tokens\": [0]}", "two kinds"),
        ("{\"probabilities\": [[0.5, 0.2]], \"tokens\": [0]}", "sums to"),
        ("{\"probabilities\": [[1.5, -0.5]], \"tokens\": [0]}", "no probability"),
        ("{\"logits\": [[1, \"x\"]], \"tokens\": [0]}", "row 0"),
        ("{\"logits\": [[]], \"tokens\": [0]}", "is empty"),
        ("{\"top\": [[[1, 2.0]]], \"tokens\": [1]}", "`vocab`"),
        ("{\"top\": [[[7, 2.0]]], \"tokens\": [1], \"vocab\": 3}", "id 7"),
        ("{\"logits\": [[1, 2]], \"tokens\": [\"a\"]}", "no list of token ids"),
        ("{\"logits\": [[1, 2]], \"tokens\": [0], \"temperature\": 0}", "temperature"),
        ("{\"logits\": [[1, 2]], \"tokens\": [0], \"filters\": \"x\"}", "filters"),
        ("{\"logits\": [[1, 2]], \"tokens\": [0], \"top_p\": \"x\"}", "top_p"),
    ] {
        let error = refused("evidence.json", text);
        assert!(error.contains(part) && error.contains("evidence.json"), "{text}: {error}");
    }
    for (text, part) in [
        ("{\"seed\": 1}\n{\"seed\": 2}\n", "no row"),
        ("{\"seed\": 1}\n{\"token\": 1}\n", ":2: a row needs"),
        ("{\"token\": 1, \"logits\": [1, 2]}\n{\"token\": 1, \"log\n", ":2"),
        ("{\"token\": 1, \"logits\": [1, 2]}\n{\"token\": -1, \"logits\": [1]}\n", "no token id"),
        (
            "{\"token\": 1, \"logits\": [1, 2]}\n{\"token\": 1, \"probabilities\": [1]}\n",
            "two kinds",
        ),
    ] {
        let error = refused("evidence.jsonl", text);
        assert!(error.contains(part), "{text}: {error}");
    }
}
