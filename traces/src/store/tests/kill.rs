//! Kills, damage and full disks.

use super::*;
use crate::TraceError;

/// Rows of one sample in batches of 3 rows, then the stream's bytes.
fn small_stream() -> (tempfile::TempDir, Vec<u8>, Vec<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    let stream = dir.path().join("steps.arrows");
    let mut ends = vec![std::fs::metadata(&stream).unwrap().len()];
    for position in 0..9 {
        writer.step(step("a", position)).unwrap();
        if position % 3 == 2 {
            writer.flush().unwrap();
            ends.push(std::fs::metadata(&stream).unwrap().len());
        }
    }
    drop(writer);
    let bytes = std::fs::read(&stream).unwrap();
    (dir, bytes, ends)
}

#[test]
fn a_kill_at_any_byte_leaves_the_whole_batches_and_says_what_was_cut() {
    let (dir, bytes, ends) = small_stream();
    assert_eq!(ends.last(), Some(&(bytes.len() as u64)));
    for cut in 0..=bytes.len() {
        std::fs::write(dir.path().join("steps.arrows"), &bytes[..cut]).unwrap();
        let run =
            RunReader::open(dir.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert!(!run.is_complete());
        let whole = ends.iter().filter(|&&end| end <= cut as u64).count();
        let columns = run.steps(&StepQuery::default()).unwrap();
        let rows: Vec<_> = (0..columns.len).map(|i| bits(&columns.row(i).unwrap())).collect();
        let expected: Vec<_> = (0..3 * whole.saturating_sub(1) as u32)
            .map(|position| bits(&step("a", position)))
            .collect();
        assert_eq!(rows, expected, "cut at {cut}");
        let clean = cut == 0 || ends.contains(&(cut as u64));
        assert_eq!(run.remarks().is_empty(), clean, "cut at {cut}: {:?}", run.remarks());
        if !clean {
            assert!(run.remarks()[0].starts_with("steps.arrows: the last "), "{:?}", run.remarks());
        }
    }
}

#[test]
fn damage_before_the_last_batch_is_an_error_that_says_where() {
    let (dir, bytes, ends) = small_stream();
    let second = usize::try_from(ends[1]).unwrap();
    for (at, value) in [
        (second, 0x00),     // marker
        (second + 4, 0x07), // header length, misaligned
        (second + 5, 0x40), // header length, reaches into the next batch
        (second + 6, 0x01), // header length, reaches past the end
        (second + 7, 0x7F), // header length, absurd
        (second + 8, 0xF0), // flatbuffer root
        (4, 0xF0),          // schema
    ] {
        let mut damaged = bytes.clone();
        assert_ne!(damaged[at], value);
        damaged[at] = value;
        std::fs::write(dir.path().join("steps.arrows"), &damaged).unwrap();
        let outcome = RunReader::open(dir.path()).and_then(|run| run.steps(&StepQuery::default()));
        match outcome {
            Err(TraceError::Malformed { path, what }) => {
                assert!(path.ends_with("steps.arrows"));
                assert!(what.contains("batch") && what.contains("byte"), "{what}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_flipped_byte_gives_rows_or_an_error_never_a_panic() {
    let (dir, bytes, _) = small_stream();
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xFF] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            std::fs::write(dir.path().join("steps.arrows"), &damaged).unwrap();
            let outcome =
                RunReader::open(dir.path()).and_then(|run| run.steps(&StepQuery::default()));
            if let Ok(columns) = outcome {
                assert!(columns.len <= 9);
            }
        }
    }
}

#[test]
fn a_table_that_is_cut_or_missing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 10, true);
    let path = dir.path().join("steps.parquet");
    let bytes = std::fs::read(&path).unwrap();
    for cut in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let run = RunReader::open(dir.path()).unwrap();
        let error = run.steps(&StepQuery::default()).unwrap_err();
        assert!(matches!(error, TraceError::Arrow { .. }), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(RunReader::open(dir.path()), Err(TraceError::Io { .. })));
}

#[test]
fn a_flipped_byte_of_a_table_gives_rows_or_an_error_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 10, true);
    let path = dir.path().join("steps.parquet");
    let bytes = std::fs::read(&path).unwrap();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x5A;
        std::fs::write(&path, &damaged).unwrap();
        let _outcome = RunReader::open(dir.path()).and_then(|run| run.steps(&StepQuery::default()));
    }
}

#[test]
fn an_incomplete_run_without_its_streams_is_damaged_not_empty() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, false);
    std::fs::remove_file(dir.path().join("events.arrows")).unwrap();
    assert!(matches!(RunReader::open(dir.path()), Err(TraceError::Io { .. })));
}

#[test]
fn sixty_four_rows_are_on_disk_without_being_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    for position in 0..64 * 3 + 63 {
        writer.step(step("a", position)).unwrap();
    }
    // The writer still lives; a second look is what a kill leaves. Time may have flushed more.
    let run = RunReader::open(dir.path()).unwrap();
    let len = run.steps(&StepQuery::default()).unwrap().len;
    assert!(len >= 64 * 3, "{len} rows");
}

#[test]
fn a_row_after_a_second_of_work_is_on_disk_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    writer.step(step("a", 0)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1050));
    writer.step(step("a", 1)).unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.steps(&StepQuery::default()).unwrap().position, [0, 1]);
}

/// `/dev/full` refuses every write as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_the_rows_before_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let stream = dir.path().join("steps.arrows");
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    writer.step(step("a", 0)).unwrap();
    writer.flush().unwrap();
    writer.fill_disk();
    writer.step(step("a", 1)).unwrap();
    let error = writer.flush().unwrap_err();
    match &error {
        TraceError::Io { path, source } => {
            assert_eq!(path, &stream);
            assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
        }
        other => panic!("{other}"),
    }
    // What cannot be written later either is said again, and never half-written.
    assert!(writer.flush().unwrap_err().to_string().contains("earlier write failed"));
    drop(writer);
    let run = RunReader::open(dir.path()).unwrap();
    assert!(!run.is_complete());
    assert_eq!(run.steps(&StepQuery::default()).unwrap().position, [0]);
}
