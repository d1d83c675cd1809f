//! Traces and keep dumps of other engines.

use lockstep_traces::trtmc::{
    Bins, DumpExport, DumpImport, KeepDump, TraceExport, export_dump, export_trace, gather_faults,
    import_dump, import_trace, true_ordinal,
};
use lockstep_traces::{ForeignOptions, Loaded, RunReader, StepQuery, load, load_with};

use super::{place, same};

/// A prompt length that the seeds' positions pass.
const PROMPT: u32 = 3;

/// A step trace, position trace, replay rows or neutral trace; plain or gzip.
pub(super) fn trace(data: &[u8]) {
    place::file("trace.jsonl", data, |path| {
        if let Ok(loaded) = load(path) {
            every_row(&loaded);
        }
        let known = ForeignOptions { prompt_len: Some(PROMPT) };
        if let Ok(loaded) = load_with(path, &known) {
            every_row(&loaded);
        }
    });
}

fn every_row(loaded: &Loaded) {
    let steps = &loaded.steps;
    assert!(!steps.is_empty(), "a trace has at least one row");
    for row in 0..steps.len {
        assert!(steps.row(row).is_some(), "row {row} of {} is not whole", steps.len);
        assert_eq!(steps.ids_of(row).len(), steps.logits_of(row).len());
        assert!(
            steps.sample_id(row).is_some_and(|name| loaded.samples.iter().any(|id| id == name))
        );
    }
    assert!(steps.row(steps.len).is_none());
}

/// The same, made a run: the run's rows are the file's, and written as a step trace they are read again.
pub(super) fn trace_import(data: &[u8]) {
    place::file("trace.jsonl", data, |path| {
        let Ok(loaded) = load(path) else { return };
        let home = path.with_file_name("run");
        if import_trace(path, None, &home).is_err() {
            return;
        }
        let run = RunReader::open(&home).expect("an imported run opens");
        let steps = run.steps(&StepQuery::default()).expect("its steps are read");
        assert_eq!(steps.len, loaded.steps.len, "rows of the run and of the file");
        for row in 0..steps.len {
            assert!(
                same(&steps.row(row), &loaded.steps.row(row)),
                "row {row} changed in the store"
            );
        }
        let events = run.events(None).expect("its events are read");
        assert!(same(&events, &loaded.events), "{events:?} are not {:?}", loaded.events);
        let again = path.with_file_name("again.jsonl");
        let options = TraceExport { digits: 9, bucket_rows: None };
        if export_trace(&run, &again, options).is_ok() {
            let back = load(&again).expect("an exported trace is read");
            assert_eq!(back.steps.position, steps.position);
            assert_eq!(back.steps.top_ids, steps.top_ids);
            assert!(same(&back.steps.top_logits, &steps.top_logits));
        }
    });
}

/// The JSON of a keep dump; written again it says the same.
pub(super) fn keep_dump(data: &[u8]) {
    place::file("keep_000001.json", data, |path| {
        let Ok(dump) = KeepDump::read(path) else { return };
        for divide in [None, Some(0), Some(1), Some(4), Some(u32::MAX)] {
            let _ = true_ordinal(&dump, divide);
        }
        let again = path.with_file_name("again.json");
        dump.write(&again).expect("a dump that was read is written");
        let back = KeepDump::read(&again).expect("a dump that was written is read");
        assert!(same(&back, &dump), "{back:?} is not {dump:?}");
    });
}

/// A keep dump `keep.json` with its binary files, made a run and written out again.
pub(super) fn keep_dump_import(data: &[u8]) {
    place::tree(data, |dir| {
        let json = dir.join("keep.json");
        let Ok(dump) = KeepDump::read(&json) else { return };
        if let Ok(bins) = Bins::open(&dump, &json) {
            let _ = gather_faults(&dump, &bins);
        }
        let home = place::folder();
        let run = home.path().join("run");
        for divide_length in [None, Some(4)] {
            let options = DumpImport { divide_length, sample_id: None };
            if import_dump(&json, &options, &run).is_err() {
                continue;
            }
            let reader = RunReader::open(&run).expect("an imported run opens");
            let events = reader.events(None).expect("its events are read");
            for id in reader.dumps().expect("its dumps are listed") {
                let file = reader.dump(&id).expect("its dump opens").expect("its dump is there");
                for name in file.names() {
                    assert!(file.get(name).is_ok(), "{name}");
                }
            }
            for event in events {
                let out = home.path().join("out.json");
                let written = export_dump(
                    &reader,
                    &event.sample_id,
                    event.ordinal,
                    &out,
                    DumpExport::default(),
                );
                if written.is_ok() {
                    let back = KeepDump::read(&out).expect("an exported dump is read");
                    assert_eq!(back.keep_indices_by_head, dump.keep_indices_by_head);
                }
            }
            std::fs::remove_dir_all(&run).expect("the run is removed");
        }
    });
}
