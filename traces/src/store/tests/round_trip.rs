//! What is written is read.

use super::*;

#[test]
fn what_is_written_is_read_complete_or_not() {
    for finish in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 100, finish);
        let run = RunReader::open(dir.path()).unwrap();
        assert_eq!(run.is_complete(), finish);
        assert!(run.remarks().is_empty());
        assert_eq!(run.sample_ids().unwrap(), ["b", "a", "c"]);
        let columns = run.steps(&StepQuery::default()).unwrap();
        let rows: Vec<_> = (0..columns.len).map(|row| bits(&columns.row(row).unwrap())).collect();
        assert_eq!(rows, expected(100).iter().map(bits).collect::<Vec<_>>());
        assert_eq!(columns.row(columns.len), None);
        assert_eq!(run.events(Some("a")).unwrap(), [event("a", 1), event("a", 2)]);
        assert_eq!(run.events(None).unwrap().len(), 3);
        let mut samples = run.samples().unwrap();
        samples.sort_by(|a, b| a.sample_id.cmp(&b.sample_id));
        assert_eq!(samples, [sample("a"), sample("b"), sample("c")]);
    }
}

#[test]
fn a_finished_directory_holds_the_tables_and_no_stream() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 5, true);
    let mut names: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["events.parquet", "manifest.json", "samples.parquet", "steps.parquet"]);
}

#[test]
fn equal_runs_give_equal_bytes() {
    let read = || {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 70, true);
        ["steps", "events", "samples"]
            .map(|stem| std::fs::read(dir.path().join(format!("{stem}.parquet"))).unwrap())
    };
    assert_eq!(read(), read());
}

#[test]
fn rows_of_different_length_keep_their_own_ids() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    let lengths = [0, 2, 5, 0, 1];
    let rows: Vec<StepRow> = (0..)
        .zip(lengths)
        .map(|(position, len)| StepRow {
            top_ids: (0..len).collect(),
            top_logits: (0..len).map(|id| id as f32).collect(),
            ..step("a", position)
        })
        .collect();
    for row in &rows {
        writer.step(row.clone()).unwrap();
        // Batches of their own, so that the stride grows while reading.
        writer.flush().unwrap();
    }
    writer.sample(sample("a")).unwrap();
    let check = || {
        let run = RunReader::open(dir.path()).unwrap();
        let columns = run.steps(&StepQuery::default()).unwrap();
        assert_eq!(columns.top_k, 5);
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(columns.ids_of(i), row.top_ids);
            assert_eq!(columns.logits_of(i), row.top_logits);
            assert_eq!(columns.row(i).as_ref(), Some(row));
        }
        let only_ids =
            StepQuery { columns: Some(vec![StepColumn::TopIds]), ..StepQuery::default() };
        let ids = run.steps(&only_ids).unwrap();
        assert_eq!(ids.ids_of(2), [0, 1, 2, 3, 4]);
        assert!(ids.top_logits.is_empty());
        assert_eq!(ids.row(2), None);
        run.is_complete()
    };
    assert!(!check());
    writer.finish().unwrap();
    assert!(check());
}

#[test]
fn columns_of_rows_are_the_columns_that_are_read() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 20, true);
    let rows = expected(20);
    let from_rows = StepColumns::from_rows(&rows);
    let read = RunReader::open(dir.path()).unwrap().steps(&StepQuery::default()).unwrap();
    assert_eq!(from_rows.sample, read.sample);
    assert_eq!(from_rows.top_ids, read.top_ids);
    assert_eq!(from_rows.top_len, read.top_len);
    assert_eq!(from_rows.len, rows.len());
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(bits(&from_rows.row(i).unwrap()), bits(row));
        assert_eq!(bits(&read.row(i).unwrap()), bits(row));
    }
}

#[test]
fn rows_that_contradict_the_order_are_refused_and_cost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    writer.step(step("a", 4)).unwrap();
    let error = writer.step(step("a", 4)).unwrap_err().to_string();
    assert!(error.contains("sample `a`, position 4: comes after position 4"), "{error}");
    let uneven = StepRow { top_ids: vec![1], ..step("a", 5) };
    assert!(writer.step(uneven).unwrap_err().to_string().contains("1 ids but 3 logits"));
    writer.sample(sample("a")).unwrap();
    assert!(writer.step(step("a", 9)).unwrap_err().to_string().contains("has ended"));
    assert!(writer.sample(sample("a")).unwrap_err().to_string().contains("ended twice"));
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.steps(&StepQuery::default()).unwrap().position, [4]);
}

#[test]
fn a_run_with_an_open_sample_is_never_complete() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    writer.step(step("left", 0)).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("`left`"), "{error}");
    let run = RunReader::open(dir.path()).unwrap();
    assert!(!run.is_complete());
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 1);
}

#[test]
fn a_directory_with_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap_err();
    assert!(error.to_string().contains("already holds files"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_changed_manifest_reaches_the_disk_with_the_next_batch_and_stays_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    writer.manifest_mut().set("model.rope_theta", 1e6, "config.json");
    writer.manifest_mut().status = crate::manifest::Status::Complete;
    writer.step(step("a", 0)).unwrap();
    writer.sample(sample("a")).unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.manifest().get("model.rope_theta"), Some(&serde_json::json!(1e6)));
    assert!(!run.is_complete());
}

#[test]
fn a_run_of_nothing_is_a_run() {
    let dir = tempfile::tempdir().unwrap();
    RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap().finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert!(run.is_complete());
    assert!(run.steps(&StepQuery::default()).unwrap().is_empty());
    assert_eq!((run.samples().unwrap(), run.events(None).unwrap()), (vec![], vec![]));
    assert!(run.dumps().unwrap().is_empty());
}
