//! Dumps written by hand, clean and with each fault planted.

use std::collections::BTreeMap;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{Cause, DType, Dump, Manifest, RecordPlan, Tensor, TraceSink};

use super::*;
use crate::testing::event;

const LAYERS: usize = 2;
const HEADS: usize = 2;
const ROWS: usize = 20;
const WIDTH: usize = 4;

/// Value of one element: distinct for every row of every head, layer and kind.
fn value(kind: usize, layer: usize, head: usize, row: usize, at: usize) -> f32 {
    (kind * 10_000 + layer * 4000 + head * 1000 + row * 10 + at) as f32
}

struct Plan {
    tensors: BTreeMap<String, Tensor>,
    keep: Vec<Vec<i32>>,
}

impl Plan {
    fn clean() -> Self {
        let keep: Vec<Vec<i32>> =
            vec![vec![0, 1, 2, 5, 6, 9, 11, 13, 17, 19], vec![0, 1, 3, 4, 8, 10, 12, 14, 18, 19]];
        let mut tensors = BTreeMap::new();
        for (kind, letter) in ["k", "v"].into_iter().enumerate() {
            for layer in 0..LAYERS {
                let (mut pre, mut post) = (Vec::new(), Vec::new());
                for (head, rows) in keep.iter().enumerate() {
                    let row =
                        |row: usize| (0..WIDTH).map(move |at| value(kind, layer, head, row, at));
                    pre.extend((0..ROWS).flat_map(row));
                    post.extend(rows.iter().flat_map(|kept| row(usize::try_from(*kept).unwrap())));
                }
                let name = format!("pre.{letter}.layer{layer:02}");
                tensors
                    .insert(name.clone(), Tensor::from_f32(name, vec![HEADS, ROWS, WIDTH], &pre));
                let name = format!("post.{letter}.layer{layer:02}");
                let shape = vec![HEADS, keep[0].len(), WIDTH];
                tensors.insert(name.clone(), Tensor::from_f32(name, shape, &post));
            }
        }
        let mut plan = Self { tensors, keep };
        plan.set_keep();
        plan
    }

    fn set_keep(&mut self) {
        let flat: Vec<i32> = self.keep.concat();
        let shape = vec![HEADS, self.keep[0].len()];
        self.tensors.insert("keep".to_owned(), Tensor::from_i32("keep", shape, &flat));
    }

    /// Overwrites row `row` of head `head` in a tensor after the gather by row `from` before.
    fn overwrite(&mut self, letter: &str, layer: usize, head: usize, row: usize, from: usize) {
        let bytes = WIDTH * 4;
        let pre = self.tensors[&format!("pre.{letter}.layer{layer:02}")].data.clone();
        let post = self.tensors.get_mut(&format!("post.{letter}.layer{layer:02}")).unwrap();
        let target = (head * self.keep[0].len() + row) * bytes;
        let source = (head * ROWS + from) * bytes;
        post.data[target..target + bytes].copy_from_slice(&pre[source..source + bytes]);
    }

    fn check(self) -> Result<CheckReport, TraceError> {
        self.check_with(&[], &[])
    }

    /// As [`Plan::check`], with metadata (compaction 2) and rows of the event table.
    fn check_with(
        self,
        metadata: &[(&str, &str)],
        events: &[EventRow],
    ) -> Result<CheckReport, TraceError> {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("run");
        let manifest = Manifest::new(Producer::default(), "cpu");
        let mut writer = RunWriter::create(&dir, manifest, RecordPlan::default()).unwrap();
        let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal: 2 };
        let tensors = self.tensors.into_values().collect();
        let metadata =
            metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        writer.dump(Dump { id, metadata, tensors }).unwrap();
        for event in events {
            writer.event(event.clone()).unwrap();
        }
        writer.finish().unwrap();
        check(&RunReader::open(&dir).unwrap(), &GatherOptions::default())
    }
}

#[test]
fn a_clean_gather_is_identical_and_counts_what_it_covered() {
    let report = Plan::clean().check().unwrap();
    assert_eq!(report.verdict, Verdict::Identical);
    assert_eq!((report.compared, report.different, report.skipped), (8, 0, 0));
    assert_eq!(report.detail["rows"], 80);
    assert_eq!(report.detail["bytes"], 2 * 80 * 16);
    assert!(report.findings.is_empty() && report.limits.is_empty());
}

#[test]
fn values_left_in_place_are_named_though_k_is_exact() {
    let mut plan = Plan::clean();
    for layer in 0..LAYERS {
        for head in 0..HEADS {
            for row in 0..10 {
                plan.overwrite("v", layer, head, row, row);
            }
        }
    }
    let report = plan.check().unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!((report.compared, report.different), (8, 4));
    assert_eq!(report.findings.len(), 1);
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Some(Cause::ValueNotGathered));
    assert_eq!(finding.location.ordinal, Some(2));
    assert_eq!(finding.location.stage.as_deref(), Some("gather.v"));
}

#[test]
fn a_stale_row_is_named_with_the_row_whose_bytes_it_holds() {
    let mut plan = Plan::clean();
    plan.overwrite("k", 1, 1, 4, 7);
    let report = plan.check().unwrap();
    assert_eq!((report.different, report.findings.len()), (1, 1));
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Some(Cause::StaleRow));
    let location = &finding.location;
    assert_eq!((location.layer, location.head, location.row), (Some(1), Some(1), Some(4)));
    assert_eq!(location.stage.as_deref(), Some("gather.k"));
    let equals = finding.evidence.iter().find(|evidence| evidence.name == "equals_row").unwrap();
    assert_eq!(equals.value, 7);
}

#[test]
fn one_flipped_bit_is_a_difference_without_a_name() {
    let mut plan = Plan::clean();
    plan.tensors.get_mut("post.v.layer00").unwrap().data[100] ^= 1;
    let report = plan.check().unwrap();
    assert_eq!(report.different, 1);
    assert_eq!(report.findings[0].cause, None);
    assert!(report.findings[0].title.contains("bytes of no row before"));
}

#[test]
fn another_keep_set_and_another_compaction_are_told_apart() {
    let mut plan = Plan::clean();
    plan.keep =
        vec![vec![1, 2, 3, 4, 7, 8, 10, 12, 14, 15], vec![0, 2, 5, 6, 7, 9, 11, 13, 15, 16]];
    plan.set_keep();
    let report = plan.check().unwrap();
    assert_eq!(report.verdict, Verdict::Diverged);
    assert!(
        report.findings.iter().all(|finding| finding.title.contains("another keep-set")),
        "{:?}",
        report.findings
    );
    let mut plan = Plan::clean();
    for (name, tensor) in &mut plan.tensors {
        if name.starts_with("post.") {
            let shape = tensor.shape.clone();
            let values: Vec<f32> =
                (0..shape.iter().product::<usize>()).map(|at| -1.0 - at as f32).collect();
            *tensor = Tensor::from_f32(name.clone(), shape, &values);
        }
    }
    let report = plan.check().unwrap();
    assert_eq!(report.different, 8);
    assert!(
        report
            .findings
            .iter()
            .all(|finding| finding.title.contains("bins from another compaction"))
    );
}

#[test]
fn missing_tensors_are_skipped_and_never_equal() {
    let mut plan = Plan::clean();
    plan.tensors.remove("post.v.layer01");
    let report = plan.check().unwrap();
    assert_eq!((report.compared, report.skipped), (6, 2));
    assert_eq!(report.verdict.exit_code(), 4);
    assert!(report.limits[0].contains("post.v.layer01"), "{:?}", report.limits);
    let mut plan = Plan::clean();
    for layer in 0..LAYERS {
        plan.tensors.remove(&format!("pre.v.layer{layer:02}"));
        plan.tensors.remove(&format!("post.v.layer{layer:02}"));
    }
    assert_eq!(plan.check().unwrap().skipped, 4);
    let mut plan = Plan::clean();
    plan.tensors.remove("keep");
    let report = plan.check().unwrap();
    assert_eq!((report.compared, report.skipped, report.verdict.exit_code()), (0, 8, 4));
}

#[test]
fn a_run_without_cache_dumps_is_incomparable() {
    let mut plan = Plan::clean();
    plan.tensors.retain(|name, _| name == "keep");
    let report = plan.check().unwrap();
    assert_eq!((report.compared, report.verdict.exit_code()), (0, 4));
    assert!(report.limits[0].contains("hold no K or V"));
}

#[test]
fn an_index_beyond_the_rows_is_found_and_sizes_that_disagree_are_an_error() {
    let mut plan = Plan::clean();
    plan.keep[0][9] = 99;
    plan.set_keep();
    let report = plan.check().unwrap();
    assert!(report.findings[0].title.contains("row 99"), "{:?}", report.findings);
    let mut plan = Plan::clean();
    plan.keep = vec![vec![0, 1], vec![0, 1]];
    plan.set_keep();
    assert!(
        matches!(plan.check(), Err(TraceError::Tensor { tensor, .. }) if tensor.starts_with("post."))
    );
    let mut plan = Plan::clean();
    plan.tensors.get_mut("post.k.layer00").unwrap().dtype = DType::I32;
    assert!(matches!(plan.check(), Err(TraceError::Tensor { .. })));
    let mut plan = Plan::clean();
    plan.keep[0][3] = -1;
    plan.set_keep();
    assert!(matches!(plan.check(), Err(TraceError::Tensor { tensor, .. }) if tensor == "keep"));
}

#[test]
fn sets_by_layer_and_head_and_one_set_for_all_are_followed() {
    let mut plan = Plan::clean();
    let flat: Vec<i32> = plan.keep.concat().repeat(LAYERS);
    plan.tensors.insert("keep".into(), Tensor::from_i32("keep", vec![LAYERS, HEADS, 10], &flat));
    assert_eq!(plan.check().unwrap().verdict, Verdict::Identical);
    let mut plan = Plan::clean();
    plan.tensors.insert("keep".into(), Tensor::from_i32("keep", vec![10], &plan.keep[0].clone()));
    let report = plan.check().unwrap();
    assert_eq!((report.compared, report.different), (8, 4));
}

#[test]
fn a_dump_that_was_written_and_is_gone_does_not_pass() {
    let dumped = |ordinal| {
        let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal };
        EventRow { dump: Some(id.relative_path()), ..event(ordinal, 20 * ordinal, 20, 10) }
    };
    let report = Plan::clean().check_with(&[], &[event(1, 20, 20, 10), dumped(2)]).unwrap();
    assert_eq!(report.verdict, Verdict::Identical);
    assert_eq!(report.limits, ["1 compactions of the run were not dumped"]);
    let report = Plan::clean().check_with(&[], &[dumped(1), dumped(2)]).unwrap();
    assert_eq!((report.compared, report.skipped), (8, 1));
    let Verdict::Incomparable { why } = &report.verdict else { panic!("{:?}", report.verdict) };
    assert!(why.contains("tensors/s/compaction_0001.safetensors"), "{why}");
}

#[test]
fn a_dump_of_another_compaction_is_told_by_its_metadata() {
    let said = |ordinal, next, before, after| {
        let metadata = [
            ("sample_id", "s"),
            ("ordinal", ordinal),
            ("absolute_position", next),
            ("rows_before", before),
            ("rows_after", after),
        ];
        Plan::clean().check_with(&metadata, &[event(2, 40, 20, 10)]).unwrap()
    };
    assert_eq!(said("2", "40", "20", "10").verdict, Verdict::Identical);
    for wrong in [
        said("3", "40", "20", "10"),
        said("2", "41", "20", "10"),
        said("2", "40", "24", "10"),
        said("2", "40", "20", "x"),
    ] {
        assert_eq!((&wrong.verdict, wrong.findings.len()), (&Verdict::Diverged, 1));
        assert!(wrong.findings[0].title.starts_with("dump of another compaction"));
        assert_eq!(wrong.findings[0].cause, None);
    }
}

#[test]
fn one_wrong_index_of_the_keep_set_is_no_stale_row() {
    let mut plan = Plan::clean();
    // Row 4 of head 1 is named twice: 3 stands for 8, and every tensor holds 8.
    plan.keep[1][4] = 3;
    plan.set_keep();
    let report = plan.check().unwrap();
    assert_eq!((report.different, report.findings.len()), (4, 1));
    let finding = &report.findings[0];
    assert_eq!((finding.cause, finding.location.head), (None, Some(1)));
    assert!(finding.title.starts_with("the keep-set is not the one that was applied"));
    assert!(finding.title.contains("row 4 after holds row 8 before, `keep` names row 3"));
    // The same row stale in all tensors but one, or holding another row in one, stays a stale row.
    for (last, from) in [(1, None), (2, Some(6))] {
        let mut plan = Plan::clean();
        for (at, letter) in ["k", "v"].into_iter().enumerate() {
            plan.overwrite(letter, 0, 1, 4, 7);
            if at < last {
                plan.overwrite(letter, 1, 1, 4, from.filter(|_| at == 1).unwrap_or(7));
            }
        }
        let report = plan.check().unwrap();
        assert!(report.findings.iter().all(|finding| finding.cause == Some(Cause::StaleRow)));
    }
}

#[test]
fn rows_that_are_all_equal_cannot_tell_a_gather() {
    let flat = |only: &str| {
        let mut plan = Plan::clean();
        for (name, tensor) in &mut plan.tensors {
            if name.contains(only) {
                tensor.data.fill(0);
            }
        }
        plan.check().unwrap()
    };
    let all = flat(".layer");
    assert_eq!((all.compared, all.skipped, all.verdict.exit_code()), (0, 8, 4));
    let one = flat(".v.layer01");
    assert_eq!((one.compared, one.skipped), (6, 2));
    let Verdict::Incomparable { why } = &one.verdict else { panic!("{:?}", one.verdict) };
    assert!(why.contains("rows before are all equal, a gather cannot be told"), "{why}");
    assert_eq!(flat("pre.v.layer01").verdict, Verdict::Diverged);
}
