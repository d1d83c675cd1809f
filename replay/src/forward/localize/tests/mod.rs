//! Every mistake of an engine, recorded by a plain engine of these tests, must be found and named; a sound recording must
//! not.

mod engine;

use std::path::PathBuf;

use lockstep_testkit::data;
use lockstep_traces::manifest::Producer;
use lockstep_traces::store::{RunReader, RunWriter};
use lockstep_traces::{
    Cause, CheckReport, DType, Manifest, MemorySink, RecordPlan, TraceSink, Verdict,
};
use tempfile::TempDir;

use self::engine::{Engine, Event, Fault, Script, record};
use super::{LocalizeOptions, localize};

const HIDDEN: [usize; 6] = [0, 9, 25, 31, 37, 44];

/// Qwen3, two layers, four heads over two KV heads, base 1e6.
fn tiny() -> PathBuf {
    data().join("models").join("qwen3_theta_sharded")
}

fn ids() -> Vec<u32> {
    (0..48u32).map(|i| (i * 37 + 11) % 96).collect()
}

/// Rows of which each head drops others; the second compaction works on the first one's rows.
fn events() -> Vec<Event> {
    let keep = |rows: usize, drop: [usize; 2]| {
        drop.iter()
            .map(|every| (0..rows).filter(|row| row % every != 3).take(22).collect::<Vec<_>>())
            .collect()
    };
    vec![Event { n: 30, keep: keep(30, [5, 4]) }, Event { n: 40, keep: keep(32, [4, 5]) }]
}

fn recorded(fault: Option<Fault>, caches: bool, hidden: &[usize]) -> (TempDir, RunReader) {
    written(sunk(fault, caches, hidden), DType::F32)
}

fn sunk(fault: Option<Fault>, caches: bool, hidden: &[usize]) -> MemorySink {
    let ids = ids();
    let events = events();
    let script = Script { ids: &ids, prompt: 20, events: &events, hidden, caches };
    record(&mut Engine::new(&tiny(), fault), &script)
}

fn written(sink: MemorySink, dtype: DType) -> (TempDir, RunReader) {
    let dir = tempfile::tempdir().unwrap();
    let mut manifest = Manifest::new(Producer::default(), "test");
    manifest.dtype = Some(dtype);
    let mut writer = RunWriter::create(dir.path(), manifest, RecordPlan::default()).unwrap();
    sink.steps.into_iter().for_each(|row| writer.step(row).unwrap());
    sink.events.into_iter().for_each(|row| writer.event(row).unwrap());
    sink.dumps.into_iter().for_each(|dump| writer.dump(dump).unwrap());
    sink.samples.into_iter().for_each(|row| writer.sample(row).unwrap());
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    (dir, run)
}

fn located(fault: Option<Fault>, caches: bool) -> CheckReport {
    let (_dir, run) = recorded(fault, caches, &HIDDEN);
    localize(&run, &tiny(), &LocalizeOptions::default()).unwrap()
}

#[test]
fn a_sound_recording_has_no_findings() {
    let report = located(None, true);
    assert_eq!(report.verdict, Verdict::WithinNoise, "{:#?}", report.findings);
    // Six rows, and K and V of two layers before each of two compactions.
    assert_eq!(report.compared, 6 * (1 + 2 * 13) + 2 * 2 * 2);
    assert_eq!((report.different, report.skipped), (0, 0));
    assert!(report.detail["gathered_rows_compared"].as_u64() > Some(0));
}

#[test]
fn each_mistake_is_found_at_its_stage_and_named() {
    let table = [
        (Fault::Base(10_000.0), Cause::RotaryBase, 9, "q_rope"),
        (Fault::NormSkipped, Cause::QkNormSkipped, 0, "q_norm"),
        (Fault::Epsilon(1e-5), Cause::NormEpsilon, 0, "input_norm"),
        (Fault::SelfUnseen, Cause::CausalMask, 9, "attn_heads"),
        (Fault::NextSeen, Cause::CausalMask, 0, "attn_heads"),
        (Fault::Tiled, Cause::GqaTile, 0, "attn_heads"),
        (Fault::Physical, Cause::PhysicalPositions, 31, "q_rope"),
        (Fault::ValueLeft, Cause::ValueNotGathered, 31, "attn_heads"),
        (Fault::Stale, Cause::StaleRow, 31, "attn_heads"),
    ];
    for (fault, cause, position, stage) in table {
        let report = located(Some(fault), false);
        assert_eq!(report.verdict, Verdict::Diverged, "{fault:?}");
        let finding = &report.findings[0];
        let at = &finding.location;
        assert_eq!(finding.cause, Some(cause), "{fault:?}: {finding:#?}");
        assert_eq!((at.position, at.layer), (Some(position), Some(0)), "{fault:?}");
        assert_eq!(at.stage.as_deref(), Some(stage), "{fault:?}");
    }
}

#[test]
fn estimates_are_close_to_what_was_planted() {
    let figure = |fault, name: &str| {
        let report = located(Some(fault), false);
        let evidence = &report.findings[0].evidence;
        evidence.iter().find(|e| e.name == name).unwrap().value.as_f64().unwrap()
    };
    let theta = figure(Fault::Base(10_000.0), "theta_estimated");
    assert!((theta / 10_000.0 - 1.0).abs() < 1e-4, "{theta}");
    let eps = figure(Fault::Epsilon(1e-5), "epsilon_estimated");
    assert!((eps / 1e-5 - 1.0).abs() < 0.05, "{eps}");
    let index = figure(Fault::Physical, "index_estimated");
    assert!((index - 23.0).abs() < 0.5, "row 31 stands behind 22 kept rows and one more: {index}");
}

#[test]
fn a_stale_row_is_located_to_head_and_row() {
    let report = located(Some(Fault::Stale), false);
    let at = &report.findings[0].location;
    assert_eq!((at.head, at.row), (Some(1), Some(20)));
}

#[test]
fn dumped_caches_show_a_wrong_gather_before_any_row_reads_it() {
    for (fault, cause, stage) in [
        (Fault::ValueLeft, Cause::ValueNotGathered, "gather.v"),
        (Fault::Stale, Cause::StaleRow, "gather.k"),
    ] {
        let report = located(Some(fault), true);
        let finding = &report.findings[0];
        assert_eq!(finding.cause, Some(cause), "{finding:#?}");
        assert_eq!(finding.location.stage.as_deref(), Some(stage));
        assert_eq!((finding.location.ordinal, finding.location.position), (Some(1), Some(29)));
    }
}

#[test]
fn a_mistake_before_the_first_compaction_is_invisible_where_it_cannot_be() {
    let (_dir, run) = recorded(Some(Fault::Physical), false, &[0, 9, 25]);
    let report = localize(&run, &tiny(), &LocalizeOptions::default()).unwrap();
    assert_eq!(report.verdict, Verdict::WithinNoise);
    assert!(
        report.limits.iter().any(|limit| limit.contains("3 of 48 rows")),
        "{:?}",
        report.limits
    );
}

#[test]
fn nothing_recorded_is_incomparable() {
    let (_dir, run) = recorded(None, false, &[]);
    let report = localize(&run, &tiny(), &LocalizeOptions::default()).unwrap();
    assert!(matches!(report.verdict, Verdict::Incomparable { .. }));
    let (_dir, run) = recorded(None, false, &HIDDEN);
    let options = LocalizeOptions { positions: Some(vec![10]), ..LocalizeOptions::default() };
    let report = localize(&run, &tiny(), &options).unwrap();
    assert!(matches!(report.verdict, Verdict::Incomparable { .. }));
}

#[test]
fn caches_alone_show_how_their_keys_were_turned() {
    for (fault, cause, ordinal) in [
        (Fault::Base(10_000.0), Cause::RotaryBase, 1),
        // The first compaction comes before any row can be turned wrongly.
        (Fault::Physical, Cause::PhysicalPositions, 2),
    ] {
        let (_dir, run) = recorded(Some(fault), true, &[]);
        let report = localize(&run, &tiny(), &LocalizeOptions::default()).unwrap();
        let finding = &report.findings[0];
        assert_eq!(finding.cause, Some(cause), "{finding:#?}");
        let at = &finding.location;
        assert_eq!(
            (at.ordinal, at.layer, at.stage.as_deref()),
            (Some(ordinal), Some(0), Some("pre.k"))
        );
    }
}

#[test]
fn what_was_not_recorded_is_said_to_be_unseen() {
    let (_dir, run) = recorded(Some(Fault::Tiled), false, &[9]);
    let whole = localize(&run, &tiny(), &LocalizeOptions::default()).unwrap();
    assert!(
        !whole.limits.iter().any(|limit| limit.contains("may begin there")),
        "{:?}",
        whole.limits
    );
}

/// Localizes after a change to what was recorded.
fn after(hidden: &[usize], change: impl Fn(&mut MemorySink)) -> CheckReport {
    let mut sink = sunk(None, false, hidden);
    let next: Vec<u32> = sink.steps.iter().skip(1).map(|row| row.token_id).collect();
    for (row, next) in sink.steps.iter_mut().zip(next) {
        row.next_token = (row.position >= 19).then_some(next);
        row.rope_index = Some(row.position);
    }
    change(&mut sink);
    let (_dir, run) = written(sink, DType::F32);
    localize(&run, &tiny(), &LocalizeOptions::default()).unwrap()
}

#[test]
fn a_fed_token_that_was_not_chosen_comes_before_every_stage() {
    let clean = after(&HIDDEN, |_| ());
    assert_eq!((clean.verdict, clean.findings.len()), (Verdict::WithinNoise, 0));
    for hidden in [&HIDDEN[..], &[]] {
        let report = after(hidden, |sink| sink.steps[32].next_token = Some(95));
        assert_eq!(report.verdict, Verdict::Diverged);
        let finding = &report.findings[0];
        assert!(finding.title.contains("not the one chosen"), "{finding:#?}");
        assert_eq!((finding.cause, finding.location.position), (None, Some(33)));
    }
    let forced = after(&HIDDEN, |sink| {
        sink.steps[32].next_token = Some(95);
        sink.samples[0].finish = lockstep_traces::FinishReason::Forced;
    });
    assert_eq!(forced.verdict, Verdict::WithinNoise, "given tokens were not chosen");
}

#[test]
fn a_rotary_index_of_physical_rows_is_named_from_the_rows_alone() {
    let physical = |sink: &mut MemorySink| {
        for row in &mut sink.steps {
            row.rope_index = Some(row.rows_before);
        }
    };
    let report = after(&[], physical);
    assert_eq!(report.verdict, Verdict::Diverged, "{report:#?}");
    let finding = &report.findings[0];
    assert_eq!(finding.cause, Some(Cause::PhysicalPositions));
    assert_eq!(finding.location.position, Some(30), "the first row after a compaction");
    let other = after(&[], |sink| sink.steps[40].rope_index = Some(7));
    assert_eq!((other.findings[0].cause, other.findings[0].location.position), (None, Some(40)));
}

#[test]
fn a_stage_missing_from_a_row_is_skipped_and_named() {
    let report = after(&HIDDEN, |sink| {
        let id = lockstep_traces::DumpId::Step { sample_id: "s".to_owned(), position: 31 };
        let dump = sink.dumps.iter_mut().find(|dump| dump.id == id).unwrap();
        dump.tensors.retain(|tensor| tensor.name != "hidden.layer01.q_rope");
    });
    assert_eq!(report.skipped, 1);
    let named = "hidden.layer01.q_rope at position 31 is not recorded";
    assert!(report.limits.iter().any(|line| line == named), "{:?}", report.limits);
}

#[test]
fn a_projection_that_nothing_explains_points_at_its_weights() {
    let report = after(&HIDDEN, |sink| {
        for dump in &mut sink.dumps {
            for tensor in &mut dump.tensors {
                if tensor.name == "hidden.layer01.v_proj" {
                    tensor.data[..4].copy_from_slice(&9.0f32.to_le_bytes());
                }
            }
        }
    });
    let finding = &report.findings[0];
    assert_eq!((finding.cause, finding.location.stage.as_deref()), (None, Some("v_proj")));
    assert!(finding.title.contains("weights"), "{}", finding.title);
    let norm = super::unnamed(super::order::Slot { layer: Some(0), name: "out" });
    assert!(!norm.contains("weights"), "{norm}");
}

#[test]
fn another_epsilon_in_bfloat16_shows_in_the_bits() {
    let ids = ids();
    let hidden: Vec<usize> = (0..48).collect();
    let checked = |fault| {
        let script = Script { ids: &ids, prompt: 20, events: &[], hidden: &hidden, caches: false };
        let sink = record(&mut Engine::new(&tiny(), fault).narrow(), &script);
        let (_dir, run) = written(sink, DType::Bf16);
        localize(&run, &tiny(), &LocalizeOptions::default()).unwrap()
    };
    let clean = checked(None);
    assert_eq!(clean.verdict, Verdict::WithinNoise, "{:#?}", clean.findings);
    assert!(clean.limits.iter().any(|line| line.contains("norm epsilon")), "{:?}", clean.limits);
    let wrong = checked(Some(Fault::Epsilon(1e-5)));
    assert_eq!(wrong.verdict, Verdict::Diverged);
    let finding = &wrong.findings[0];
    assert_eq!(finding.cause, Some(Cause::NormEpsilon), "{finding:#?}");
    assert!(finding.title.contains("1e-5"), "{finding:#?}");
    let wide = located(None, false);
    assert!(!wide.limits.iter().any(|line| line.contains("norm epsilon")), "{:?}", wide.limits);
}
