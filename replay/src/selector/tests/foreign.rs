//! Dumps of another make: missing parts and lies.

use lockstep_traces::store::{RunReader, write_dump};
use lockstep_traces::{CheckReport, Dump, DumpId, Tensor, Verdict};

use super::producer::{Recipe, record};
use crate::selector::{SelectorError, SelectorOptions, check};

/// Replaces the dump of compaction 1 of one and checks the run.
fn with_dump(change: impl Fn(&mut Dump)) -> Result<CheckReport, SelectorError> {
    altered(Recipe { compactions: 1, ..Recipe::clean() }, change)
}

/// Replaces the dump of the last compaction and checks the run.
fn altered(recipe: Recipe, change: impl Fn(&mut Dump)) -> Result<CheckReport, SelectorError> {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), recipe);
    let reader = RunReader::open(&run).unwrap();
    let id = DumpId::Compaction { sample_id: "one".to_owned(), ordinal: recipe.compactions };
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
        dump.tensors.retain(|t| !t.name.starts_with("pre.k"));
        let positions = dump.tensors.iter_mut().find(|t| t.name == "positions.pre").unwrap();
        positions.shape = vec![2, 47];
        positions.data.truncate(2 * 47 * 4);
    })
    .unwrap_err();
    assert!(error.to_string().contains("rows_before is 48"), "{error}");
}

fn why(report: &CheckReport) -> &str {
    match &report.verdict {
        Verdict::Incomparable { why } => why,
        other => panic!("{other:?}: {report:#?}"),
    }
}

#[test]
fn what_a_dump_lacks_is_skipped_and_never_a_pass() {
    let without = |part: &'static str| {
        altered(Recipe::clean(), |dump| dump.tensors.retain(|t| !t.name.starts_with(part))).unwrap()
    };
    let report = without("keep");
    assert!(why(&report).contains("`keep`"), "{report:#?}");
    assert_eq!((report.compared, report.skipped), (2, 2));
    let report = without("pre.k.layer01");
    assert!(why(&report).contains("`pre.k.layer01`"), "{report:#?}");
    let alone = with_dump(|dump| dump.tensors.retain(|t| t.name != "keep")).unwrap();
    assert!(why(&alone).contains("`keep`"), "{alone:#?}");
    assert_eq!((alone.compared, alone.skipped), (0, 2));
    // Scores without keys, however, need none.
    let report = without("pre.k.");
    assert_eq!((report.verdict, report.skipped), (Verdict::WithinNoise, 0));
}

#[test]
fn a_dump_that_an_event_names_and_that_is_not_there_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let (run, stats) = record(dir.path(), Recipe::clean());
    std::fs::remove_file(run.join("tensors/one/compaction_0002.safetensors")).unwrap();
    let mut options = SelectorOptions { stats: Some(stats), ..SelectorOptions::default() };
    let reader = RunReader::open(&run).unwrap();
    let report = check(&reader, &options).unwrap();
    assert!(why(&report).contains("compaction_0002.safetensors"), "{report:#?}");
    assert_eq!((report.compared, report.skipped), (2, 1));
    options.ordinals = Some(lockstep_traces::Choice::These(vec![1]));
    let report = check(&reader, &options).unwrap();
    assert_eq!((report.verdict, report.skipped), (Verdict::WithinNoise, 0));
}

#[test]
fn metadata_against_name_event_and_manifest_are_findings_without_cause() {
    let lies = [
        ("sample_id", "two", "dump of another compaction"),
        ("ordinal", "1", "dump of another compaction"),
        ("rows_before", "47", "dump of another compaction"),
        ("absolute_position", "48", "dump metadata `absolute_position`"),
        ("rule_set", "vllm", "dump metadata `rule_set`"),
    ];
    for (key, value, title) in lies {
        let report = altered(Recipe::clean(), |dump| {
            dump.metadata.insert(key.to_owned(), value.to_owned());
        })
        .unwrap();
        assert_eq!(report.verdict, Verdict::Diverged, "{key}");
        assert_eq!(report.findings.len(), 1, "{key}: {:#?}", report.findings);
        let finding = &report.findings[0];
        assert_eq!((finding.cause, finding.location.ordinal), (None, Some(2)), "{key}");
        assert!(finding.title.contains(title) && finding.title.contains(key), "{}", finding.title);
        assert_eq!(report.different, 0, "{key}");
    }
}
