//! Whole files with one hazard each.

use std::io::Write as _;

use super::{ForeignOptions, Loaded, UNKNOWN_TOKEN, load_with};
use crate::manifest::ValueEncoding;
use crate::{Phase, Status, TraceError};

/// A step trace of `positions`, dense, exact rows, token `100 + position`.
fn dense(positions: std::ops::Range<u32>) -> String {
    positions
        .map(|p| {
            format!(
                "{{\"position_before\":{p},\"token_id\":{},\"decoder_idx\":0,\"rows_before\":{p},\"rows_after\":{},\
                 \"argmax_token\":7,\"argmax_logit\":27.5312,\"top_ids\":[7,3],\"top_logits\":[27.5312,21.0156]}}\n",
                100 + p,
                p + 1
            )
        })
        .collect()
}

fn read(bytes: &[u8]) -> Result<Loaded, TraceError> {
    read_with(bytes, &ForeignOptions::default())
}

fn read_with(bytes: &[u8], options: &ForeignOptions) -> Result<Loaded, TraceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file.bin");
    std::fs::write(&path, bytes).unwrap();
    load_with(&path, options)
}

fn says(loaded: &Loaded, what: &str) -> bool {
    loaded.remarks.iter().any(|remark| remark.contains(what))
}

fn line_of(result: Result<Loaded, TraceError>) -> usize {
    match result {
        Err(TraceError::Line { line, .. }) => line,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clean_step_trace_has_its_tokens_rows_and_exact_values() {
    let loaded = read(dense(0..5).as_bytes()).unwrap();
    let steps = &loaded.steps;
    assert_eq!(loaded.samples, ["sample_0"]);
    assert_eq!(steps.position, [0, 1, 2, 3, 4]);
    assert_eq!(steps.token_id, [100, 101, 102, 103, 104]);
    assert_eq!(steps.next_token, [Some(101), Some(102), Some(103), Some(104), None]);
    assert_eq!(steps.rows_before, [0, 1, 2, 3, 4]);
    assert_eq!(loaded.manifest.encoding, ValueEncoding::SnappedF16);
    assert_eq!(steps.logits_of(2), [27.53125, 21.015_625]);
    assert_eq!(steps.top2_margin[0], Some(6.515_625));
    assert!(loaded.manifest.rows_exact && loaded.manifest.includes_prompt);
    assert_eq!(loaded.manifest.status, Status::Complete);
    assert!(loaded.events.is_empty());
}

#[test]
fn one_value_off_every_grid_leaves_all_values_as_printed() {
    let text = dense(0..5).replacen("21.0156", "21.0157", 1);
    let loaded = read(text.as_bytes()).unwrap();
    assert_eq!(loaded.manifest.encoding, ValueEncoding::Digits6);
    assert_eq!(loaded.steps.logits_of(2), [27.5312, 21.0156]);
    assert!(says(&loaded, "equal text is not equal bits"));
}

#[test]
fn gzip_byte_order_mark_crlf_and_blank_tail_change_nothing_but_the_remarks() {
    let plain = read(dense(0..5).as_bytes()).unwrap();
    let text = format!("\u{feff}{}\r\n", dense(0..5).replace('\n', "\r\n"));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let odd = read(&encoder.finish().unwrap()).unwrap();
    assert_eq!(odd.steps, plain.steps);
    for what in ["gzip", "byte order mark", "CR LF", "blank line 6"] {
        assert!(says(&odd, what), "{what}: {:?}", odd.remarks);
        assert!(!says(&plain, what), "{what}");
    }
    assert_eq!(odd.manifest.status, Status::Complete);
}

#[test]
fn a_cut_last_line_is_an_incomplete_trace_and_a_cut_line_in_the_middle_is_damage() {
    let text = dense(0..4);
    let cut = &text[..text.len() - 40];
    let loaded = read(cut.as_bytes()).unwrap();
    assert_eq!((loaded.steps.len, loaded.manifest.status), (3, Status::Incomplete));
    assert!(says(&loaded, "last line incomplete") && says(&loaded, "at line 4"));
    let followed = format!("{cut}\n\n");
    assert_eq!(read(followed.as_bytes()).unwrap().manifest.status, Status::Incomplete);
    assert_eq!(line_of(read(format!("{cut}\n{}", dense(4..5)).as_bytes())), 4);
}

#[test]
fn nul_bytes_at_the_end_are_said_and_do_not_make_a_complete_trace() {
    let loaded = read(format!("{}\0\0\0\0", dense(0..3)).as_bytes()).unwrap();
    assert_eq!((loaded.steps.len, loaded.manifest.status), (3, Status::Incomplete));
    assert!(says(&loaded, "4 NUL bytes"));
}

#[test]
fn nothing_and_something_else_are_refused() {
    assert!(matches!(read(b""), Err(TraceError::Malformed { .. })));
    assert!(matches!(read(b"\n\n"), Err(TraceError::Malformed { .. })));
    assert_eq!(line_of(read(b"{\"id\": \"q0\", \"model\": \"m-A\"}\n")), 1);
    assert_eq!(line_of(read(b"Loading checkpoint shards: 100%\n{}\n")), 1);
    assert_eq!(line_of(read(b"{\n  \"compaction_index\": 2,\n")), 1);
}

#[test]
fn a_fall_to_zero_starts_the_next_sample() {
    let loaded = read(format!("{}{}", dense(0..3), dense(0..2)).as_bytes()).unwrap();
    assert_eq!(loaded.samples, ["sample_0", "sample_1"]);
    assert_eq!(loaded.steps.sample, [0, 0, 0, 1, 1]);
    assert_eq!(loaded.steps.next_token, [Some(101), Some(102), None, Some(101), None]);
    assert!(says(&loaded, "2 samples"));
}

#[test]
fn a_fall_to_the_prompts_length_starts_the_next_sample() {
    let first = ForeignOptions::default();
    let text = format!("{}{}", dense(40..45), dense(40..42));
    assert_eq!(read_with(text.as_bytes(), &first).unwrap().samples.len(), 2);
    // The second trace has no prompt rows, the first has: only the caller can tell that 40 is a start.
    let text = format!("{}{}", dense(0..45), dense(40..42));
    assert_eq!(line_of(read_with(text.as_bytes(), &first)), 46);
    let told = ForeignOptions { prompt_len: Some(40) };
    assert_eq!(read_with(text.as_bytes(), &told).unwrap().samples.len(), 2);
}

#[test]
fn other_falls_gaps_and_repeated_positions_are_refused_with_their_line() {
    assert_eq!(line_of(read(format!("{}{}", dense(0..5), dense(3..6)).as_bytes())), 6);
    assert_eq!(line_of(read(format!("{}{}", dense(0..5), dense(7..9)).as_bytes())), 6);
    assert_eq!(line_of(read(format!("{}{}", dense(0..5), dense(4..6)).as_bytes())), 6);
    assert_eq!(read(dense(7150..7160).as_bytes()).unwrap().steps.position[0], 7150);
}

#[test]
fn the_prompt_length_parts_prompt_from_decode() {
    let told = ForeignOptions { prompt_len: Some(3) };
    let loaded = read_with(dense(0..5).as_bytes(), &told).unwrap();
    use Phase::{Decode, Prompt};
    assert_eq!(loaded.steps.phase, [Prompt, Prompt, Prompt, Decode, Decode]);
    assert_eq!(loaded.steps.next_token, [None, None, Some(103), Some(104), None]);
    let untold = read(dense(0..5).as_bytes()).unwrap();
    assert!(untold.steps.phase.iter().all(|&phase| phase == Decode));
    assert!(says(&untold, "where the prompt ends") && !says(&loaded, "where the prompt ends"));
}

#[test]
fn bucketed_rows_are_kept_raw_and_their_compaction_is_seen() {
    let text = concat!(
        r#"{"position_before":318,"token_id":374,"decoder_idx":0,"rows_before":320,"rows_after":320,"argmax_token":220,"argmax_logit":21.4531,"top_ids":[220,279,264,4285],"top_logits":[21.4531,20.9062,20.9062,18.25]}"#,
        "\n",
        r#"{"position_before":319,"token_id":220,"decoder_idx":0,"rows_before":320,"rows_after":256,"argmax_token":16,"argmax_logit":24.1094,"top_ids":[16,17,18,20],"top_logits":[24.1094,23.4375,21.125,20.7812]}"#,
        "\n",
        r#"{"position_before":320,"token_id":16,"decoder_idx":0,"rows_before":256,"rows_after":288,"argmax_token":21,"argmax_logit":22.7188,"top_ids":[21,17,24,13],"top_logits":[22.7188,22.7031,20.0625,19.875]}"#,
        "\n",
    );
    let loaded = read(text.as_bytes()).unwrap();
    assert!(!loaded.manifest.rows_exact);
    assert_eq!(loaded.steps.rows_bucketed, [Some(320), Some(320), Some(256)]);
    assert_eq!(loaded.steps.compaction, [None, Some(1), None]);
    let event = &loaded.events[0];
    assert_eq!((event.ordinal, event.absolute_position), (1, 320));
    assert_eq!((event.rows_before, event.rows_after), (320, 256));
    assert_eq!(loaded.manifest.encoding, ValueEncoding::SnappedF16);
    // 20.9062 twice is an exact tie now: 20.90625.
    assert_eq!(loaded.steps.logits_of(0)[1..3], [20.90625, 20.90625]);
    assert_eq!(loaded.steps.ids_of(0)[1..3], [264, 279]);
}

#[test]
fn values_that_are_not_json_are_not_finite() {
    let text = dense(0..2).replacen("[27.5312,21.0156]", "[nan,-inf]", 1);
    let loaded = read(text.replacen("27.5312", "nan", 1).as_bytes()).unwrap();
    assert_eq!(loaded.steps.finite, [false, true]);
    assert!(loaded.steps.logits_of(0)[0].is_nan());
    assert_eq!(loaded.steps.top2_margin, [None, Some(6.515_625)]);
    assert!(says(&loaded, "1 rows have logits that are not finite"));
}

#[test]
fn a_contradiction_between_argmax_and_the_list_is_said() {
    let text = dense(0..3).replacen("\"argmax_token\":7", "\"argmax_token\":3", 1);
    let loaded = read(text.as_bytes()).unwrap();
    assert_eq!(loaded.steps.argmax, [3, 7, 7]);
    assert!(says(&loaded, "argmax_token is not the first"));
    let text = dense(0..3).replacen("\"argmax_logit\":27.5312", "\"argmax_logit\":27.5", 1);
    assert!(says(&read(text.as_bytes()).unwrap(), "argmax_logit is not the largest"));
    assert!(!says(&read(dense(0..3).as_bytes()).unwrap(), "argmax_logit"));
}

#[test]
fn six_digits_keep_the_writers_order_of_equal_text() {
    let tie = "\"top_ids\":[9,3,5],\"top_logits\":[20.0001,20.0001,1]";
    let text = dense(0..2).replace("\"top_ids\":[7,3],\"top_logits\":[27.5312,21.0156]", tie);
    let loaded = read(text.as_bytes()).unwrap();
    assert_eq!(loaded.manifest.encoding, ValueEncoding::Digits6);
    assert_eq!(loaded.steps.ids_of(0), [9, 3, 5]);
    assert_eq!(loaded.steps.argmax, [7, 7]);
}

const NEUTRAL: &str = concat!(
    "{\"position\":14,\"token_id\":54,\"rows_before\":15,\"rows_after\":15,\"top\":[[54,15.0],[3,11.0]]}\n",
    "{\"position\":15,\"token_id\":50,\"rows_before\":16,\"rows_after\":8,\"top\":[[50,15.0],[3,11.0]]}\n",
    "{\"position\":16,\"token_id\":51,\"rows_before\":9,\"rows_after\":9,\"top\":[[51,15.03125],[3,10.96875]]}\n",
);

#[test]
fn a_neutral_trace_names_chosen_tokens_and_counts_its_own_row() {
    let loaded = read(NEUTRAL.as_bytes()).unwrap();
    let steps = &loaded.steps;
    assert_eq!(steps.token_id, [UNKNOWN_TOKEN, 54, 50]);
    assert_eq!(steps.next_token, [Some(54), Some(50), Some(51)]);
    assert_eq!(steps.rows_before, [14, 15, 8]);
    assert_eq!(steps.rows_after, [15, 8, 9]);
    assert_eq!(steps.compaction, [None, Some(1), None]);
    assert_eq!((loaded.events[0].rows_before, loaded.events[0].absolute_position), (16, 16));
    assert_eq!(loaded.manifest.encoding, ValueEncoding::SnappedF16);
    assert!(!loaded.manifest.includes_prompt);
}

#[test]
fn rows_that_vanish_between_two_steps_are_said() {
    let before = NEUTRAL
        .replace("\"rows_before\":16,\"rows_after\":8", "\"rows_before\":8,\"rows_after\":8");
    let loaded = read(before.as_bytes()).unwrap();
    assert_eq!(loaded.steps.rows_before, [14, 7, 8]);
    assert!(
        says(&loaded, "rows fall from 15 to 7 between positions 14 and 15"),
        "{:?}",
        loaded.remarks
    );
    assert!(!says(&read(NEUTRAL.as_bytes()).unwrap(), "rows fall"));
}

#[test]
fn null_and_nan_rows_of_a_neutral_trace_load_alike_and_are_not_finite() {
    let nan = "{\"position\":4,\"token_id\":0,\"rows_before\":5,\"rows_after\":5,\"top\":[[0,NaN],[1,NaN],[2,NaN]]}\n";
    for text in [nan.to_owned(), nan.replace("NaN", "null")] {
        let loaded = read(text.as_bytes()).unwrap();
        assert_eq!(loaded.steps.finite, [false]);
        assert_eq!(loaded.steps.next_token, [Some(0)]);
        assert!(loaded.steps.logits_of(0).iter().all(|logit| logit.is_nan()));
        assert_eq!(loaded.steps.top2_margin, [None]);
    }
}

#[test]
fn a_tie_in_either_order_is_the_same_list_and_another_token() {
    let first = "{\"position\":4,\"token_id\":5,\"rows_before\":5,\"rows_after\":5,\"top\":[[5,21.375],[7,21.375],[1,3.0]]}\n";
    let last = first
        .replace("[5,21.375],[7,21.375]", "[7,21.375],[5,21.375]")
        .replace("\"token_id\":5", "\"token_id\":7");
    let (a, b) = (read(first.as_bytes()).unwrap(), read(last.as_bytes()).unwrap());
    assert_eq!((a.steps.ids_of(0), a.steps.argmax[0]), (b.steps.ids_of(0), b.steps.argmax[0]));
    assert_eq!((a.steps.next_token[0], b.steps.next_token[0]), (Some(5), Some(7)));
    assert!(says(&b, "brought to the order") && !says(&a, "brought to the order"));
}

#[test]
fn rows_that_cannot_be_are_refused() {
    let zero = NEUTRAL.replacen("\"rows_before\":15", "\"rows_before\":0", 1);
    assert!(matches!(read(zero.as_bytes()), Err(TraceError::Malformed { .. })));
    let grows = NEUTRAL.replacen("\"rows_after\":15", "\"rows_after\":17", 1);
    assert!(matches!(read(grows.as_bytes()), Err(TraceError::Malformed { .. })));
    let lost = dense(0..3).replace("\"decoder_idx\":0,", "").replacen("\"argmax_token\":7,", "", 1);
    assert_eq!(line_of(read(lost.as_bytes())), 1);
}

#[test]
fn uneven_lists_are_padded_and_said() {
    let text = dense(0..2).replacen(
        "[7,3],\"top_logits\":[27.5312,21.0156]",
        "[7],\"top_logits\":[27.5312]",
        1,
    );
    let loaded = read(text.as_bytes()).unwrap();
    assert_eq!((loaded.steps.ids_of(0), loaded.steps.ids_of(1)), (&[7][..], &[7, 3][..]));
    assert!(says(&loaded, "1 to 2 logits"));
    assert!(loaded.steps.row(0).is_some_and(|row| row.top_ids == [7]));
}

#[test]
fn replay_rows_carry_their_absolute_position() {
    let text = NEUTRAL_REPLAY.replace('|', "\n");
    let loaded = read(text.as_bytes()).unwrap();
    assert_eq!(loaded.manifest.encoding, ValueEncoding::Digits9);
    assert_eq!((loaded.events[0].absolute_position, loaded.events[0].rows_before), (477, 320));
    assert!(says(&loaded, "comp_after.absolute_position is not position + 1 in 1 rows"));
}

/// Position 319 compacts; the replay believes to be at 477, which is the prompt counted twice.
const NEUTRAL_REPLAY: &str = concat!(
    r#"{"position_before":318,"token_id":3,"rows_before":318,"rows_after":319,"argmax_token":220,"argmax_logit":21.4531309,"top_ids":[220],"top_logits":[21.4531309],"comp_before":{"absolute_position":318},"comp_after":{"absolute_position":319,"cache_positions_len":319,"prefix_length":41}}|"#,
    r#"{"position_before":319,"token_id":3,"rows_before":319,"rows_after":256,"argmax_token":220,"argmax_logit":21.4531309,"top_ids":[220],"top_logits":[21.4531309],"comp_before":{"absolute_position":319},"comp_after":{"absolute_position":477,"cache_positions_len":256,"prefix_length":41}}|"#,
);
