use lockstep_traces::store::StepColumns;
use lockstep_traces::{Phase, StepRow, UNKNOWN_TOKEN};

use super::{Sizes, TokenDiff, TokenSide, check_ids, compare, doubled_start};

fn ids(ids: &[u32]) -> TokenSide {
    TokenSide { ids: Some(ids.to_vec()), ..TokenSide::default() }
}

fn pieces(pieces: &[&str]) -> TokenSide {
    let pieces = pieces.iter().map(|piece| piece.as_bytes().to_vec()).collect();
    TokenSide { pieces: Some(pieces), ..TokenSide::default() }
}

fn text(text: &str) -> TokenSide {
    TokenSide { label: text.to_owned(), text: Some(text.to_owned()), ..TokenSide::default() }
}

fn names(diff: &TokenDiff) -> Vec<&str> {
    diff.findings.iter().map(|finding| finding.name.as_str()).collect()
}

#[test]
fn a_start_token_that_stands_once_more_is_named_with_its_shift() {
    for (left, right, side) in [
        (&[1, 450, 7483, 310][..], &[1, 1, 450, 7483, 310][..], "right"),
        (&[1, 1, 450, 7483, 310][..], &[1, 450, 7483, 310][..], "left"),
    ] {
        let diff = compare(&ids(left), &ids(right), Some(1), None);
        let inserted = diff.inserted.as_ref().unwrap();
        assert_eq!((inserted.side.as_str(), inserted.ids.as_slice()), (side, &[1][..]));
        assert!(inserted.index <= 1 && inserted.doubled_start, "{inserted:?}");
        assert_eq!((inserted.equal, inserted.shift), (4, 1));
        assert_eq!((names(&diff), diff.verdict.exit_code()), (vec!["doubled_start"], 1));
    }
    let twice = compare(&ids(&[9, 9, 9, 4]), &ids(&[9, 4]), None, None);
    assert_eq!(
        twice.inserted.map(|inserted| (inserted.shift, inserted.doubled_start)),
        Some((2, true))
    );
}

#[test]
fn two_different_special_tokens_are_no_doubling() {
    assert!(doubled_start(&[90, 91, 5, 6], None).is_none());
    assert!(doubled_start(&[90, 91, 5, 6], Some(90)).is_none());
    assert!(doubled_start(&[5, 5, 6], Some(1)).is_none(), "an ordinary token may repeat");
    assert!(doubled_start(&[], None).is_none());
    let same = compare(&ids(&[90, 91, 5]), &ids(&[90, 91, 5]), Some(90), None);
    assert_eq!((names(&same), same.verdict.exit_code()), (vec![], 0));
    let both = compare(&ids(&[1, 1, 5]), &ids(&[1, 1, 5]), Some(1), None);
    assert_eq!(names(&both), ["doubled_start"], "equal prompts may both be wrong");
}

#[test]
fn other_insertions_and_replacements_are_told_apart() {
    let inner = compare(&ids(&[1, 5, 6]), &ids(&[1, 5, 7, 8, 6]), Some(1), None);
    assert_eq!(names(&inner), ["inserted"]);
    assert_eq!(
        inner.inserted.map(|i| (i.index, i.ids, i.doubled_start)),
        Some((2, vec![7, 8], false))
    );
    let replaced = compare(&ids(&[1, 5, 6]), &ids(&[1, 9, 6]), Some(1), None);
    assert_eq!((names(&replaced), replaced.first_token), (vec!["ids_differ"], Some(1)));
    let nothing = compare(&ids(&[1, 2]), &ids(&[8, 9]), None, None);
    assert!(nothing.inserted.is_none());
}

#[test]
fn one_text_in_other_tokens_is_aligned_by_character() {
    // Characters: x0 -1 >2 y3 blank4 (5 1_6 2_7 3_8 4_9 )10.
    let left = pieces(&["x", "->", "y", " ", "(", "1", "2", "3", "4", ")"]);
    let right = pieces(&["x", "-", ">", "y", " ", "(", "123", "4", ")"]);
    let diff = compare(&left, &right, None, None);
    let found: Vec<_> = diff
        .regions
        .iter()
        .map(|r| (r.first_char, r.last_char, r.left.clone(), r.right.clone()))
        .collect();
    assert_eq!(found, [(1, 2, 1..2, 1..3), (6, 8, 5..8, 6..7)]);
    assert_eq!((diff.first_token, diff.first_char), (Some(1), Some(1)));
    assert_eq!((diff.tokens, diff.characters.0), ((Some(10), Some(9)), Some(11)));
    assert_eq!((diff.per_token_comparable, diff.total_comparable), (false, true));
    assert_eq!((names(&diff), diff.verdict.exit_code()), (vec!["same_text_other_ids"], 1));
    let same = compare(&left, &left, None, None);
    assert_eq!(
        (same.per_token_comparable, same.regions.len(), same.verdict.exit_code()),
        (true, 0, 0)
    );
}

#[test]
fn offsets_count_characters_where_tokens_cut_inside_them() {
    // The euro sign is E2 82 AC: one token on the left, two parts on the right.
    let left = pieces(&["é", "€", "z"]);
    let mut right = pieces(&["é", "", "", "z"]);
    right.pieces = Some(vec!["é".into(), vec![0xE2, 0x82], vec![0xAC], "z".into()]);
    let diff = compare(&left, &right, None, None);
    let found: Vec<_> =
        diff.regions.iter().map(|r| (r.first_char, r.last_char, r.text.as_str())).collect();
    assert_eq!(found, [(1, 1, "€")]);
}

#[test]
fn equal_pieces_of_other_ids_are_no_equality() {
    let side = |ids: &[u32]| TokenSide { ids: Some(ids.to_vec()), ..pieces(&["a", "b"]) };
    let diff = compare(&side(&[1, 2]), &side(&[1, 3]), None, None);
    assert_eq!(diff.regions.len(), 1);
    assert_eq!((names(&diff), diff.per_token_comparable), (vec!["same_text_other_ids"], false));
    let open = compare(&ids(&[1]), &text("a"), None, None);
    assert_eq!(open.verdict.exit_code(), 4, "ids against a text: nothing was compared");
}

#[test]
fn exactly_one_synthetic_blank_may_be_taken_from_a_text() {
    let origin = TokenSide { synthetic_blank: true, ..pieces(&[" ", " lead", "ing", " x"]) };
    let right = compare(&origin, &text(" leading x"), None, None);
    assert_eq!((right.verdict.exit_code(), right.rebuilt[0].stripped), (0, Some(1)));
    let wrong = compare(&origin, &text("leading x"), None, None);
    assert_eq!((names(&wrong), wrong.rebuilt[0].stripped), (vec!["leading_blanks"], Some(2)));
    assert_eq!(wrong.rebuilt[0].expected, " leading x");
    let both = compare(&text(" leading x"), &text("leading x"), None, Some(&origin));
    assert_eq!(both.rebuilt.iter().map(|check| check.right).collect::<Vec<_>>(), [true, false]);
    assert!(both.summary.contains("no model difference"), "{}", both.summary);
    let plain = compare(&pieces(&[" a"]), &text("a"), None, None);
    assert_eq!(
        (plain.rebuilt[0].stripped, plain.verdict.exit_code()),
        (Some(1), 1),
        "no synthetic blank here"
    );
    let other = compare(&origin, &text(" leading y"), None, None);
    assert_eq!((names(&other), other.rebuilt[0].first_char), (vec!["text_differs"], Some(9)));
}

fn row(position: u32, token_id: u32, next: u32, top_ids: &[u32]) -> StepRow {
    StepRow {
        sample_id: "s".into(),
        position,
        phase: Phase::Decode,
        token_id,
        next_token: Some(next),
        rows_before: position,
        rows_after: position + 1,
        rows_bucketed: None,
        compaction: None,
        rope_index: None,
        argmax: top_ids[0],
        top_ids: top_ids.to_vec(),
        top_logits: vec![1.0; top_ids.len()],
        logsumexp: None,
        top2_margin: None,
        finite: true,
        logits_hash: None,
        rng_offset: None,
        uniform: None,
    }
}

#[test]
fn a_drawn_padded_row_is_found_and_a_listed_one_only_shown() {
    let rows = [
        row(3, UNKNOWN_TOKEN, 17, &[17, 260]),
        row(4, 17, 260, &[17, 260]),
        row(5, 260, 5, &[5, 263]),
    ];
    let known = |id: u32| id < 256;
    let check = |logits| {
        check_ids(
            &StepColumns::from_rows(&rows),
            &Sizes { known: &known, tokenizer: Some(256), logits: Some(logits) },
        )
    };
    let found = check(264);
    assert_eq!(
        (found.chosen_outside.len(), found.chosen_outside[0].id, found.chosen_outside[0].position),
        (1, 260, 4)
    );
    let listed: Vec<_> = found.listed_outside.iter().map(|o| (o.id, o.rows)).collect();
    assert_eq!((listed, found.verdict.exit_code()), (vec![(260, 2), (263, 1)], 1));
    assert!(found.beyond_logits.is_empty());
    assert_eq!(
        check(263).beyond_logits.iter().map(|o| (o.id, o.position)).collect::<Vec<_>>(),
        [(263, 5)]
    );
    let all = |_: u32| true;
    let clean = check_ids(
        &StepColumns::from_rows(&rows),
        &Sizes { known: &all, tokenizer: None, logits: None },
    );
    assert_eq!((clean.chosen, clean.verdict.exit_code()), (3, 0));
    let nothing =
        check_ids(&StepColumns::default(), &Sizes { known: &all, tokenizer: None, logits: None });
    assert_eq!(nothing.verdict.exit_code(), 4);
}
