//! Runs written by hand: clean, and with each fault planted.

use std::collections::BTreeMap;

use lockstep_traces::manifest::Producer;
use lockstep_traces::store::RunWriter;
use lockstep_traces::{
    Cause, Dump, DumpId, EventRow, Manifest, Phase, RecordPlan, SampleRow, StepRow, Tensor,
    TraceSink,
};

use super::*;
use crate::testing::{event, row, sample};

const PROMPT: u32 = 4;
const BUDGET: u32 = 12;
const DIVIDE: u32 = 4;
const WINDOW: u32 = 3;

/// N, keep-set, positions before and positions after, the last three by head.
type Dumped = (u32, Vec<Vec<u32>>, Vec<Vec<u32>>, Vec<Vec<u32>>);

struct Run {
    manifest: Manifest,
    steps: Vec<StepRow>,
    events: Vec<EventRow>,
    dumps: Vec<Dumped>,
    sample: SampleRow,
}

/// A `trt` run: prompt 4, budget 12, divide 4, window 3, two KV heads that keep other rows. Compactions at positions 15,
/// 19, 23, ...: rows reach 16 and fall to 12.
fn clean(length: u32) -> Run {
    let mut manifest = Manifest::new(Producer::default(), "cpu");
    for (key, value) in
        [("kv_budget", BUDGET), ("divide_length", DIVIDE), ("recent_window", WINDOW)]
    {
        manifest.set(&format!("policy.{key}"), value, "flag");
    }
    manifest.set("policy.kind", "triattention", "flag");
    manifest.set("policy.rule_set", "trt", "default");
    manifest.set("policy.protect_prefill", true, "default");
    manifest.set("policy.count_prompt_tokens", true, "default");
    let mut run = Run {
        manifest,
        steps: Vec::new(),
        events: Vec::new(),
        dumps: Vec::new(),
        sample: sample(PROMPT),
    };
    let mut held: Vec<Vec<u32>> = vec![Vec::new(); 2];
    for position in 0..length {
        let mut step = row(position, 100 + position, 101 + position, &[(1, 2.0), (2, 1.0)]);
        if position < PROMPT {
            step.phase = Phase::Prompt;
        }
        let before = u32::try_from(held[0].len()).unwrap();
        held.iter_mut().for_each(|rows| rows.push(position));
        let rows = before + 1;
        step.rows_before = before;
        step.rows_after = rows;
        if rows == BUDGET + DIVIDE {
            let ordinal = u32::try_from(run.events.len()).unwrap() + 1;
            step.compaction = Some(ordinal);
            step.rows_after = BUDGET;
            run.events.push(event(ordinal, position + 1, rows, BUDGET));
            // Prompt 0..4 and window 13..16 stay; of the nine others head 0 keeps the first five, head 1 the last five.
            let keep: Vec<Vec<u32>> =
                vec![(0..9).chain(13..16).collect(), (0..4).chain(8..13).chain(13..16).collect()];
            let after: Vec<Vec<u32>> = keep
                .iter()
                .zip(&held)
                .map(|(keep, rows)| keep.iter().map(|row| rows[*row as usize]).collect())
                .collect();
            run.dumps.push((position + 1, keep, held.clone(), after.clone()));
            held = after;
        }
        run.steps.push(step);
    }
    run
}

fn tensor(name: &str, rows: &[Vec<u32>]) -> Tensor {
    let flat: Vec<i32> =
        rows.concat().into_iter().map(|value| i32::try_from(value).unwrap()).collect();
    Tensor::from_i32(name, vec![rows.len(), rows[0].len()], &flat)
}

impl Run {
    fn check(self) -> CheckReport {
        self.check_with(|_, _| {})
    }

    /// As [`Run::check`], with a change to each dump before it is written.
    fn check_with(
        self,
        change: impl Fn(&mut BTreeMap<String, String>, &mut Vec<Tensor>),
    ) -> CheckReport {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("run");
        let mut writer = RunWriter::create(&dir, self.manifest, RecordPlan::default()).unwrap();
        for step in self.steps {
            writer.step(step).unwrap();
        }
        for event in self.events {
            writer.event(event).unwrap();
        }
        for (ordinal, (next, keep, before, after)) in (1_u32..).zip(self.dumps) {
            let mut metadata = BTreeMap::from([
                ("absolute_position".to_owned(), next.to_string()),
                ("prompt_len".to_owned(), PROMPT.to_string()),
            ]);
            let mut tensors = vec![
                tensor("keep", &keep),
                tensor("positions.pre", &before),
                tensor("positions.post", &after),
            ];
            change(&mut metadata, &mut tensors);
            let id = DumpId::Compaction { sample_id: "s".to_owned(), ordinal };
            writer.dump(Dump { id, metadata, tensors }).unwrap();
        }
        writer.sample(self.sample).unwrap();
        writer.finish().unwrap();
        check(&RunReader::open(&dir).unwrap()).unwrap()
    }
}

fn causes(report: &CheckReport) -> Vec<Option<Cause>> {
    report.findings.iter().map(|finding| finding.cause).collect()
}

#[test]
fn a_clean_run_passes_and_says_what_it_covered() {
    let report = clean(30).check();
    assert_eq!(report.verdict, Verdict::Identical, "{:?}", report.findings);
    assert_eq!((report.compared, report.different, report.skipped), (30 + 8, 0, 0));
    assert_eq!(report.detail["trigger_checked"], true);
    // The first compaction comes when as many rows are held as were fed.
    assert_eq!(report.limits.len(), 1, "{:?}", report.limits);
    assert!(report.limits[0].starts_with("1 compactions hold as many rows as N"));
}

#[test]
fn rope_by_physical_rows_is_named_with_the_first_row_after_the_compaction() {
    let mut run = clean(30);
    for step in &mut run.steps {
        step.rope_index = Some(step.rows_before);
    }
    let report = run.check();
    assert_eq!(causes(&report), [Some(Cause::PhysicalPositions)]);
    let location = &report.findings[0].location;
    assert_eq!((location.position, location.ordinal), (Some(16), Some(1)));
    assert_eq!(report.different, 14);
}

#[test]
fn another_rope_offset_has_a_number_and_no_name() {
    let mut run = clean(10);
    for step in &mut run.steps {
        step.rope_index = Some(step.position + 3);
    }
    let report = run.check();
    assert_eq!(causes(&report), [None]);
    assert!(report.findings[0].title.contains("offset 3"));
}

#[test]
fn a_lost_newest_row_of_the_window_is_named_by_head() {
    let mut run = clean(18);
    let (_, keep, before, after) = &mut run.dumps[0];
    keep[1] = vec![0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14];
    after[1] = keep[1].iter().map(|row| before[1][*row as usize]).collect();
    let report = run.check();
    assert_eq!(causes(&report), [Some(Cause::WindowRowLost)]);
    let location = &report.findings[0].location;
    assert_eq!((location.head, location.row, location.position), (Some(1), Some(15), Some(15)));
}

#[test]
fn a_dropped_prompt_row_is_found() {
    let mut run = clean(18);
    let (_, keep, before, after) = &mut run.dumps[0];
    keep[0] = vec![0, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15];
    after[0] = keep[0].iter().map(|row| before[0][*row as usize]).collect();
    let report = run.check();
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].title.contains("prompt row 1 is not kept"));
}

#[test]
fn positions_not_gathered_by_the_keep_set_are_found() {
    let mut run = clean(18);
    run.dumps[0].3[0][5] += 1;
    let report = run.check();
    assert_eq!(causes(&report), [None]);
    assert!(report.findings[0].title.contains("row 5 after has position 6"));
    let mut run = clean(18);
    run.dumps[0].3[1] = (0..BUDGET).collect();
    assert_eq!(causes(&run.check()), [Some(Cause::PhysicalPositions)]);
}

#[test]
fn rows_before_that_do_not_follow_from_the_compaction_before_are_found() {
    let mut run = clean(24);
    let (_, keep, before, after) = &mut run.dumps[1];
    before[0].swap(6, 7);
    after[0] = keep[0].iter().map(|row| before[0][*row as usize]).collect();
    let report = run.check();
    assert!(
        report.findings[0].title.contains("row 6 before has position 7"),
        "{:?}",
        report.findings
    );
    assert_eq!(report.findings[0].location.ordinal, Some(2));
}

#[test]
fn indices_twice_out_of_range_or_falling_are_found() {
    for (bad, words) in [(0, "distinct"), (77, "names row 77")] {
        let mut run = clean(18);
        run.dumps[0].1[0][5] = bad;
        let report = run.check();
        assert!(report.findings[0].title.contains(words), "{:?}", report.findings);
    }
    let mut run = clean(18);
    run.dumps[0].1[0].swap(4, 5);
    run.dumps[0].3[0].swap(4, 5);
    assert!(run.check().findings[0].title.contains("not ascending"));
}

#[test]
fn a_constant_shift_of_the_prompt_is_the_prompt_fed_twice_and_others_are_offsets() {
    for (shift, cause) in [(PROMPT, Some(Cause::PromptFedTwice)), (2, None)] {
        let mut run = clean(12);
        for step in &mut run.steps {
            step.rows_before += shift;
            step.rows_after += shift;
        }
        run.manifest.set("policy.kind", "dense", "flag");
        let report = run.check();
        assert_eq!(causes(&report), [cause]);
        assert_eq!(report.findings[0].evidence[0].value, shift);
    }
}

#[test]
fn the_last_prompt_row_fed_again_is_named_by_position_or_by_rows() {
    let mut run = clean(12);
    for step in run.steps.iter_mut().filter(|step| step.position >= PROMPT) {
        step.rows_before += 1;
        step.rows_after += 1;
    }
    assert!(causes(&run.check()).contains(&Some(Cause::LastPromptRowFedAgain)));
}

#[test]
fn a_hole_in_the_positions_and_a_row_count_that_jumps_are_found() {
    let mut run = clean(12);
    run.steps.remove(7);
    let report = run.check();
    assert!(report.findings[0].title.contains("position 8 follows 6"));
    let mut run = clean(12);
    run.steps[9].rows_after = 14;
    let report = run.check();
    assert!(
        report.findings.iter().any(|finding| finding.title.contains("no compaction is recorded"))
    );
}

#[test]
fn a_compaction_late_early_or_in_the_prompt_breaks_the_trigger() {
    let mut run = clean(30);
    run.manifest.set("policy.divide_length", 5, "flag");
    let report = run.check();
    assert!(report.findings[0].title.contains("not due at position 15"), "{:?}", report.findings);
    let mut run = clean(30);
    run.manifest.set("policy.divide_length", 3, "flag");
    let report = run.check();
    assert!(report.findings[0].title.contains("due and none happened at position 14"));
    let mut run = clean(30);
    for step in &mut run.steps {
        step.phase = Phase::Prompt;
    }
    assert!(run.check().findings[0].title.contains("while the prompt"));
}

#[test]
fn an_event_table_that_disagrees_with_the_steps_is_found() {
    let mut run = clean(30);
    run.events[1].absolute_position += 1;
    assert!(run.check().findings[0].title.contains("counted N = 21"));
    let mut run = clean(30);
    run.events.remove(2);
    assert!(run.check().findings[0].title.contains("not in the event table"));
}

#[test]
fn the_vllm_period_is_one_less_and_its_compaction_comes_first() {
    let mut run = clean(1);
    run.steps.clear();
    run.manifest.set("policy.rule_set", "vllm", "flag");
    run.manifest.set("policy.include_prefill_in_budget", true, "default");
    let mut rows = 0;
    let mut compacted = Vec::new();
    for position in 0..40 {
        let mut step = row(position, 100 + position, 101 + position, &[(1, 2.0), (2, 1.0)]);
        if position < PROMPT {
            step.phase = Phase::Prompt;
        }
        step.rows_before = rows;
        if rows + 1 >= BUDGET + DIVIDE {
            let ordinal = u32::try_from(run.events.len()).unwrap() + 1;
            run.events.push(event(ordinal, position, rows, BUDGET));
            step.compaction = Some(ordinal);
            compacted.push(position);
            rows = BUDGET;
        }
        rows += 1;
        step.rows_after = rows;
        run.steps.push(step);
    }
    assert_eq!(compacted[..3], [15, 18, 21]);
    let report = run.check();
    assert_eq!(report.verdict, Verdict::Identical, "{:?}", report.findings);
}

#[test]
fn what_the_manifest_does_not_say_is_a_limit_and_not_a_pass() {
    let mut run = clean(30);
    run.manifest.config.clear();
    run.dumps.clear();
    for step in &mut run.steps {
        step.rope_index = None;
    }
    let report = run.check();
    assert_eq!(report.limits.len(), 3, "{:?}", report.limits);
    assert_eq!(report.detail["trigger_checked"], false);
    let mut run = clean(30);
    run.steps.clear();
    run.events.clear();
    run.dumps.clear();
    assert_eq!(run.check().verdict.exit_code(), 4);
}

mod tables;
