use super::*;

fn one(text: &str) -> Result<Node, JsonFault> {
    let mut reader = Reader::new(text.as_bytes());
    reader.document().map(|node| node.expect("a document"))
}

#[test]
fn equal_keys_are_all_kept_in_order() {
    let node = one(r#"{"t":-0.6,"u":-2,"t":-6.0}"#).unwrap();
    let keys: Vec<&str> = node.members().unwrap().iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["t", "u", "t"]);
    assert_eq!(node.get("t").and_then(Node::number), Some(Number { value: -6.0, decimals: 1 }));
}

#[test]
fn words_outside_json_are_read_and_told_with_offset_and_path() {
    let text = r#"{"a":[1,{"b":-Infinity}],"c":NaN}"#;
    let mut reader = Reader::new(text.as_bytes());
    let node = reader.document().unwrap().unwrap();
    assert_eq!(
        node.pointer("/a/1/b").and_then(Node::number).map(|n| n.value),
        Some(f64::NEG_INFINITY)
    );
    let (odd, count) = reader.oddities();
    let seen: Vec<_> = odd.iter().map(|o| (o.offset, o.path.as_str())).collect();
    assert_eq!((seen, count), (vec![(13, "a[1].b"), (29, "c")], 2));
}

#[test]
fn strings_are_unescaped_and_broken_ones_replaced_and_told() {
    assert_eq!(one(r#""\ud83d\ude00 \u00e9\n\/""#).unwrap(), Node::Text("😀 é\n/".to_owned()));
    let mut reader = Reader::new(b"[\"\\ud83d\", \"\\ud83d\\u0041\", \"\xff\"]");
    let node = reader.document().unwrap().unwrap();
    let texts: Vec<_> =
        node.list().unwrap().iter().filter_map(Node::text).map(str::to_owned).collect();
    assert_eq!(texts, ["\u{FFFD}", "\u{FFFD}A", "\u{FFFD}"]);
    assert_eq!(reader.oddities().1, 3);
}

#[test]
fn every_proper_prefix_is_cut_and_never_bad() {
    let text = r#"{"a":-1.5e-3,"b":[true,[null,{"x":"q\"\u00e9"}]],"c":-Infinity}"#;
    for end in 1..text.len() {
        assert_eq!(one(&text[..end]).unwrap_err(), JsonFault::Cut, "{}", &text[..end]);
    }
}

#[test]
fn what_is_no_json_is_refused_at_its_byte_and_depth_is_bounded() {
    for (text, at) in
        [("{\"a\" 1}", 5), ("[1 2]", 3), ("{a:1}", 1), ("[1.]", 1), ("[-]", 1), ("[\"\\x\"]", 4)]
    {
        assert!(
            matches!(one(text), Err(JsonFault::Bad(found, _)) if found == at),
            "{text}: {:?}",
            one(text)
        );
    }
    assert!(matches!(one(&"[".repeat(100_000)), Err(JsonFault::Bad(..))));
}

#[test]
fn digits_behind_the_point_are_counted_with_the_exponent() {
    for (text, count) in [("-0.44019", 5), ("-1000", 0), ("1.5e-3", 4), ("1.50", 2), ("2.5e3", 0)] {
        assert_eq!(one(text).unwrap().number().unwrap().decimals, count, "{text}");
    }
}
