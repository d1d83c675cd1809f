//! Dumps of another make: missing parts and lies.

use lockstep_traces::store::{RunReader, write_dump};
use lockstep_traces::{Dump, DumpId, Tensor, Verdict};

use super::producer::{Recipe, record};
use crate::selector::{SelectorError, SelectorOptions, check};

/// Replaces the dump of compaction 2 and checks the run.
fn with_dump(change: impl Fn(&mut Dump)) -> Result<lockstep_traces::CheckReport, SelectorError> {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), Recipe { compactions: 1, ..Recipe::clean() });
    let reader = RunReader::open(&run).unwrap();
    let id = DumpId::Compaction { sample_id: "one".to_owned(), ordinal: 1 };
    let file = reader.dump(&id).unwrap().unwrap();
    let tensor = |name: &str| {
        let view = file.get(name).unwrap();
        Tensor {
            name: name.to_owned(),
            dtype: view.dtype,
            shape: view.shape.clone(),
            data: view.bytes.to_vec(),
        }
    };
    let tensors = file.names().map(tensor).collect();
    let mut dump = Dump { id, metadata: file.metadata().clone(), tensors };
    change(&mut dump);
    write_dump(&run, &dump).unwrap();
    let options = SelectorOptions { stats: Some(stats), ..SelectorOptions::default() };
    check(&RunReader::open(&run).unwrap(), &options)
}

#[test]
fn a_dump_without_positions_is_skipped_and_said() {
    let report = with_dump(|dump| dump.tensors.retain(|t| t.name != "positions.pre")).unwrap();
    assert!(matches!(report.verdict, Verdict::Incomparable { .. }), "{report:#?}");
    assert_eq!(report.skipped, 2);
    assert!(report.limits.iter().any(|line| line.contains("positions")), "{:?}", report.limits);
}

#[test]
fn a_dump_that_does_not_say_the_prompts_length_takes_it_from_the_sample() {
    let report = with_dump(|dump| {
        dump.metadata.remove("prompt_len");
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::WithinNoise, "{report:#?}");
}

#[test]
fn an_offset_beyond_the_cache_is_a_finding_and_no_panic() {
    let report = with_dump(|dump| {
        dump.metadata.insert("score_row_offset".to_owned(), usize::MAX.to_string());
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    let note = report.findings[0].evidence.iter().find(|e| e.name == "stage_note").unwrap();
    assert!(note.value.as_str().unwrap().contains("end at row"), "{note:?}");
}

#[test]
fn a_kept_row_outside_the_cache_is_an_error_that_names_the_file() {
    let error = with_dump(|dump| {
        let keep = dump.tensors.iter_mut().find(|t| t.name == "keep").unwrap();
        keep.data[..4].copy_from_slice(&99i32.to_le_bytes());
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("compaction_0001.safetensors") && text.contains("row 99"), "{text}");
}

#[test]
fn rows_that_disagree_with_the_metadata_are_an_error() {
    let error = with_dump(|dump| {
        dump.metadata.insert("rows_before".to_owned(), "47".to_owned());
    })
    .unwrap_err();
    assert!(error.to_string().contains("rows_before is 47"), "{error}");
}

#[test]
fn another_number_of_kept_rows_is_a_finding_about_the_budget() {
    let report = with_dump(|dump| {
        let keep = dump.tensors.iter_mut().find(|t| t.name == "keep").unwrap();
        let rows = keep.data.len() / 8;
        let cut = |bytes: &[u8]| bytes[..rows * 4 - 4].to_vec();
        keep.data = keep.data.chunks(rows * 4).flat_map(cut).collect();
        keep.shape[1] -= 1;
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(
        report.findings[0].evidence.iter().find(|e| e.name == "first_stage").unwrap().value,
        "budget"
    );
}

#[test]
fn a_row_swapped_against_the_recorded_scores_is_found_at_the_choice() {
    let report = with_dump(|dump| {
        let keep = dump.tensors.iter_mut().find(|t| t.name == "keep").unwrap();
        let rows: Vec<i32> =
            keep.data.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        let dropped = (6..44).find(|row| !rows[..32].contains(row)).unwrap();
        let mut first = rows[..32].to_vec();
        first[10] = dropped;
        first.sort_unstable();
        let data: Vec<u8> =
            first.iter().chain(&rows[32..]).flat_map(|row| row.to_le_bytes()).collect();
        keep.data = data;
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.different, 1);
    let finding = &report.findings[0];
    assert_eq!(finding.cause, None);
    assert_eq!((finding.location.head, finding.location.stage.as_deref()), (Some(0), Some("keep")));
}

#[test]
fn descending_rows_are_found_as_another_order() {
    let report = with_dump(|dump| {
        let keep = dump.tensors.iter_mut().find(|t| t.name == "keep").unwrap();
        let half = keep.data.len() / 2;
        let rows: Vec<[u8; 4]> =
            keep.data[..half].as_chunks::<4>().0.iter().rev().copied().collect();
        let data: Vec<u8> =
            rows.into_iter().flatten().chain(keep.data[half..].iter().copied()).collect();
        keep.data = data;
    })
    .unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(
        report.findings[0].evidence.iter().find(|e| e.name == "first_stage").unwrap().value,
        "sort"
    );
}
