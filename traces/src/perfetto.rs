//! A run's timeline as Chrome trace events, which ui.perfetto.dev opens.
//!
//! Each sample is a process with a track of phases (prefill, decode), a track of compactions with their stages, and counters of live
//! cache rows and of the margin between the two largest logits. A run records seconds of prefill and decode for each sample and
//! seconds by stage for each compaction, and no time of any step: `otherData` says how steps are laid out. Nothing is drawn that
//! was not recorded.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::limits::Values;
use crate::store::fail::{io, malformed};
use crate::store::{RunReader, StepColumns, StepQuery, replace_file};
use crate::{EventRow, Phase, SampleRow, TraceError};

/// Microseconds in a second.
const MICROS: f64 = 1e6;
/// Microseconds between samples on the common axis.
const GAP: f64 = 1.0;
/// Microseconds that a row takes where the run has no times.
const ROW: f64 = 1.0;
/// Tracks of a sample.
const PHASES: u32 = 1;
const COMPACTIONS: u32 = 2;

/// Writes the timeline of `run` to `path`; what could not be drawn comes back, one line each.
///
/// Samples follow one another in the order of the run. `ts` and `dur` are microseconds from the start of the first.
///
/// # Errors
/// [`TraceError::Malformed`] for a run that has neither steps nor times; [`TraceError`] where a table is damaged.
pub fn export_timeline(run: &RunReader, path: &Path) -> Result<Vec<String>, TraceError> {
    let steps = run.steps(&StepQuery::default())?;
    let (samples, events) = (run.samples()?, run.events(None)?);
    let timed = samples.iter().any(|one| one.prefill_seconds > 0.0 || one.decode_seconds > 0.0);
    if steps.len == 0 && !timed {
        return Err(malformed(run.dir(), "has no steps and no times: there is no timeline"));
    }
    let limits = &run.manifest().limits;
    let shown = Shown {
        rows: limits.rows,
        margins: matches!(
            limits.values,
            Values::Logits | Values::Logprobs | Values::UnsaidLogprobs
        ),
    };
    let mut out = Timeline { shown, ..Timeline::default() };
    for id in run.sample_ids()? {
        let sample = samples.iter().find(|row| row.sample_id == id);
        let own: Vec<&EventRow> = events.iter().filter(|event| event.sample_id == id).collect();
        out.sample(&id, sample, &steps, &own);
    }
    let remarks = out.remarks(limits.rows);
    let document = json!({
        "traceEvents": out.events,
        "displayTimeUnit": "ms",
        "otherData": {
            "producer": run.manifest().producer.name,
            "time": out.layout(),
            "complete": run.is_complete(),
            "notes": remarks,
        },
    });
    replace_file(path, |file| {
        let mut to = std::io::BufWriter::new(file);
        serde_json::to_writer(&mut to, &document)
            .map_err(std::io::Error::from)
            .and_then(|()| to.flush())
            .map_err(io(path))
    })?;
    Ok(remarks)
}

#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    rows: bool,
    margins: bool,
}

#[derive(Debug, Default)]
struct Timeline {
    shown: Shown,
    events: Vec<Value>,
    /// Start of the next sample.
    at: f64,
    process: u32,
    by_time: u64,
    by_row: u64,
    moved: u64,
    untimed_compactions: u64,
}

/// Where the rows of one sample lie.
struct Spans {
    start: f64,
    prefill: f64,
    decode: f64,
    prompt_rows: usize,
    decode_rows: usize,
}

impl Spans {
    /// End of the `nth` row of a phase: the rows of a phase share its time evenly.
    fn end_of(&self, phase: Phase, nth: usize) -> f64 {
        let (start, length, rows) = match phase {
            Phase::Prompt => (self.start, self.prefill, self.prompt_rows),
            Phase::Decode => (self.start + self.prefill, self.decode, self.decode_rows),
        };
        start + length * (nth + 1) as f64 / rows.max(1) as f64
    }
}

impl Timeline {
    fn sample(
        &mut self,
        id: &str,
        sample: Option<&SampleRow>,
        steps: &StepColumns,
        events: &[&EventRow],
    ) {
        let rows: Vec<usize> =
            (0..steps.len).filter(|&row| steps.sample_id(row) == Some(id)).collect();
        let of = |wanted: Phase| {
            rows.iter().filter(|&&row| steps.phase.get(row) == Some(&wanted)).count()
        };
        let (prompt_rows, decode_rows) = (of(Phase::Prompt), of(Phase::Decode));
        let seconds = |value: fn(&SampleRow) -> f64| sample.map_or(0.0, value).max(0.0) * MICROS;
        let mut spans = Spans {
            start: self.at,
            prefill: seconds(|row| row.prefill_seconds),
            decode: seconds(|row| row.decode_seconds),
            prompt_rows,
            decode_rows,
        };
        let timed = spans.prefill > 0.0 || spans.decode > 0.0;
        if timed {
            self.by_time += 1;
        } else if rows.is_empty() {
            return;
        } else {
            self.by_row += 1;
            (spans.prefill, spans.decode) = (prompt_rows as f64 * ROW, decode_rows as f64 * ROW);
        }
        self.process += 1;
        self.names(id);
        let tokens = sample.map(|row| row.generated_ids.len()).filter(|count| *count > 0);
        let args = |rows: usize| json!({"rows": rows, "time_recorded": timed});
        if spans.prefill > 0.0 {
            self.slice("prefill", PHASES, spans.start, spans.prefill, args(prompt_rows));
        }
        if spans.decode > 0.0 {
            let mut args = args(decode_rows);
            if let (Some(tokens), Value::Object(map)) = (tokens, &mut args) {
                map.insert("tokens".to_owned(), tokens.into());
            }
            self.slice("decode", PHASES, spans.start + spans.prefill, spans.decode, args);
        }
        let end = self.rows(&rows, steps, &spans, events);
        self.at = end.max(spans.start + spans.prefill + spans.decode) + GAP;
    }

    fn names(&mut self, id: &str) {
        let pid = self.process;
        let name = |what: &str, tid: u32, name: &str| json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}});
        self.events.push(name("process_name", 0, id));
        self.events.push(name("thread_name", PHASES, "phases"));
        self.events.push(name("thread_name", COMPACTIONS, "compactions"));
        self.events.push(json!({
            "ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}
        }));
    }

    fn slice(&mut self, name: &str, track: u32, start: f64, length: f64, args: Value) {
        self.events.push(json!({
            "ph": "X", "name": name, "cat": "lockstep", "pid": self.process, "tid": track,
            "ts": start, "dur": length, "args": args,
        }));
    }

    fn counter(&mut self, name: &str, key: &str, at: f64, value: Value) {
        self.events.push(json!({
            "ph": "C", "name": name, "pid": self.process, "tid": 0, "ts": at, "args": {key: value},
        }));
    }

    /// Counters at the end of each row, compactions at the end of the row that made them; the end of the last compaction.
    fn rows(
        &mut self,
        rows: &[usize],
        steps: &StepColumns,
        spans: &Spans,
        events: &[&EventRow],
    ) -> f64 {
        let (mut prompt, mut decode) = (0, 0);
        let mut free = spans.start;
        for &row in rows {
            let Some(&phase) = steps.phase.get(row) else { continue };
            let nth = if phase == Phase::Prompt { &mut prompt } else { &mut decode };
            let end = spans.end_of(phase, *nth);
            *nth += 1;
            if let Some(&live) = steps.rows_after.get(row).filter(|_| self.shown.rows) {
                self.counter("live cache rows", "rows", end, live.into());
            }
            if let Some(Some(margin)) = steps.top2_margin.get(row)
                && self.shown.margins
                && margin.is_finite()
            {
                self.counter("top-2 margin", "margin", end, f64::from(*margin).into());
            }
            let Some(Some(ordinal)) = steps.compaction.get(row) else { continue };
            if let Some(event) = events.iter().find(|event| event.ordinal == *ordinal) {
                free = self.compaction(event, end, free);
            }
        }
        free
    }

    /// Draws one compaction from `wanted` on, or from `free` where the one before lasts longer; gives back its end.
    fn compaction(&mut self, event: &EventRow, wanted: f64, free: f64) -> f64 {
        let stages = [
            ("score", event.score_seconds),
            ("reduce", event.reduce_seconds),
            ("select", event.select_seconds),
            ("gather", event.gather_seconds),
        ];
        let total: f64 = stages.iter().map(|(_, seconds)| seconds.max(0.0) * MICROS).sum();
        let start = wanted.max(free);
        self.moved += u64::from(start > wanted);
        self.untimed_compactions += u64::from(total <= 0.0);
        let args = json!({
            "ordinal": event.ordinal,
            "absolute_position": event.absolute_position,
            "rows_before": event.rows_before,
            "rows_after": event.rows_after,
            "protected": event.protected,
            "candidates": event.candidates,
        });
        self.slice(&format!("compaction {}", event.ordinal), COMPACTIONS, start, total, args);
        let mut at = start;
        for (name, seconds) in stages {
            let length = seconds.max(0.0) * MICROS;
            if length > 0.0 {
                self.slice(name, COMPACTIONS, at, length, json!({"seconds": seconds}));
                at += length;
            }
        }
        start + total
    }

    /// How time is laid out, one line.
    fn layout(&self) -> String {
        let mut said = vec!["samples follow one another".to_owned()];
        if self.by_time > 0 {
            said.push(format!(
                "of {} samples the lengths of prefill and decode are the recorded seconds, and the rows of a phase share its time \
                 evenly, since no time of a step is recorded",
                self.by_time
            ));
        }
        if self.by_row > 0 {
            said.push(format!(
                "of {} samples no time is recorded: each row is drawn as one microsecond, and lengths mean rows",
                self.by_row
            ));
        }
        said.push(
            "a compaction starts at the end of its row and lasts its recorded seconds".to_owned(),
        );
        said.join("; ")
    }

    fn remarks(&self, rows: bool) -> Vec<String> {
        let mut remarks = Vec::new();
        if !rows {
            remarks.push("the source has no row counts: no counter of live cache rows".to_owned());
        }
        if !self.shown.margins {
            remarks.push("the source has no raw values: no counter of the top-2 margin".to_owned());
        }
        if self.by_row > 0 {
            remarks.push(format!(
                "{} samples have no times: one row is drawn as one microsecond",
                self.by_row
            ));
        }
        if self.moved > 0 {
            remarks.push(format!(
                "{} compactions are drawn later than their row, behind the one before",
                self.moved
            ));
        }
        if self.untimed_compactions > 0 {
            remarks.push(format!("{} compactions have no times", self.untimed_compactions));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Manifest, Producer};
    use crate::store::RunWriter;
    use crate::{RecordPlan, StepRow, TraceSink as _};

    fn step(position: u32, phase: Phase, rows_after: u32, margin: Option<f32>) -> StepRow {
        StepRow {
            phase,
            rows_after,
            argmax: 1,
            top_ids: vec![1, 2],
            top_logits: vec![2.0, 1.5],
            top2_margin: margin,
            ..StepRow::bare("a", position, position)
        }
    }

    /// Two prompt rows in 10 ms, four decode rows in 40 ms, a compaction of 1 + 2 + 3 + 4 ms at the second of these.
    fn run(times: bool, manifest: Manifest) -> (tempfile::TempDir, RunReader) {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("run");
        let mut writer = RunWriter::create(&out, manifest, RecordPlan::default()).unwrap();
        for (position, live) in [(0, 1), (1, 2), (2, 3), (3, 2), (4, 3), (5, 4)] {
            let phase = if position < 2 { Phase::Prompt } else { Phase::Decode };
            let margin = (position >= 1).then_some(0.5 * position as f32);
            let mut row = step(position, phase, live, margin);
            row.compaction = (position == 3).then_some(1);
            writer.step(row).unwrap();
        }
        let stage = |seconds: f64| if times { seconds } else { 0.0 };
        writer
            .event(EventRow {
                sample_id: "a".to_owned(),
                ordinal: 1,
                absolute_position: 4,
                round_start: None,
                rows_before: 4,
                rows_after: 2,
                protected: 1,
                candidates: 3,
                score_seconds: stage(0.001),
                reduce_seconds: stage(0.002),
                select_seconds: stage(0.003),
                gather_seconds: stage(0.004),
                dump: None,
            })
            .unwrap();
        let mut sample = SampleRow::bare("a");
        (sample.prefill_seconds, sample.decode_seconds) =
            if times { (0.01, 0.04) } else { (0.0, 0.0) };
        writer.sample(sample).unwrap();
        writer.finish().unwrap();
        (dir, RunReader::open(&out).unwrap())
    }

    fn manifest() -> Manifest {
        Manifest::new(Producer::default(), "cpu")
    }

    fn exported(run: &RunReader, dir: &Path) -> (Value, Vec<String>) {
        let path = dir.join("timeline.json");
        let remarks = export_timeline(run, &path).unwrap();
        (serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap(), remarks)
    }

    fn named<'v>(document: &'v Value, phase: &str, name: &str) -> Vec<&'v Value> {
        let events = document["traceEvents"].as_array().unwrap();
        events.iter().filter(|one| one["ph"] == phase && one["name"] == name).collect()
    }

    fn near(value: &Value, wanted: f64) {
        let found = value.as_f64().unwrap();
        assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
    }

    #[test]
    fn spans_stages_and_counters_have_the_recorded_numbers() {
        let (dir, run) = run(true, manifest());
        let (document, remarks) = exported(&run, dir.path());
        assert_eq!(remarks, Vec::<String>::new());
        let slice = |name: &str, ts: f64, dur: f64| {
            let found = named(&document, "X", name);
            assert_eq!(found.len(), 1, "{name}");
            near(&found[0]["ts"], ts);
            near(&found[0]["dur"], dur);
        };
        slice("prefill", 0.0, 10_000.0);
        slice("decode", 10_000.0, 40_000.0);
        // The second of four decode rows ends at 10 + 20 ms.
        slice("compaction 1", 30_000.0, 10_000.0);
        slice("score", 30_000.0, 1_000.0);
        slice("reduce", 31_000.0, 2_000.0);
        slice("select", 33_000.0, 3_000.0);
        slice("gather", 36_000.0, 4_000.0);
        let live: Vec<(f64, u64)> = named(&document, "C", "live cache rows")
            .iter()
            .map(|one| (one["ts"].as_f64().unwrap().round(), one["args"]["rows"].as_u64().unwrap()))
            .collect();
        assert_eq!(live, [(5e3, 1), (10e3, 2), (20e3, 3), (30e3, 2), (40e3, 3), (50e3, 4)]);
        let margins = named(&document, "C", "top-2 margin");
        assert_eq!(margins.len(), 5);
        near(&margins[4]["args"]["margin"], 2.5);
        assert_eq!(named(&document, "M", "process_name")[0]["args"]["name"], "a");
        let time = document["otherData"]["time"].as_str().unwrap();
        assert!(time.contains("share its time evenly"), "{time}");
    }

    #[test]
    fn without_times_rows_are_the_unit_and_that_is_said() {
        let (dir, run) = run(false, manifest());
        let (document, remarks) = exported(&run, dir.path());
        near(&named(&document, "X", "decode")[0]["dur"], 4.0);
        assert_eq!(named(&document, "X", "decode")[0]["args"]["time_recorded"], false);
        assert!(document["otherData"]["time"].as_str().unwrap().contains("lengths mean rows"));
        assert!(remarks.iter().any(|line| line.contains("1 samples have no times")));
        assert!(named(&document, "X", "score").is_empty());
    }

    #[test]
    fn what_a_source_does_not_have_is_not_drawn() {
        let mut manifest = manifest();
        manifest.limits.rows = false;
        manifest.limits.values = Values::Nothing;
        let (dir, run) = run(true, manifest);
        let (document, remarks) = exported(&run, dir.path());
        assert!(named(&document, "C", "live cache rows").is_empty());
        assert!(named(&document, "C", "top-2 margin").is_empty());
        assert_eq!(remarks.len(), 2);
        let empty = dir.path().join("empty");
        let writer = RunWriter::create(&empty, self::manifest(), RecordPlan::default()).unwrap();
        writer.finish().unwrap();
        let refused = export_timeline(&RunReader::open(&empty).unwrap(), &dir.path().join("x"));
        assert!(refused.unwrap_err().to_string().contains("no steps and no times"));
    }
}
