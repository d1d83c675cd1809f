//! Kills, damage and full disks.

use super::*;
use crate::TraceError;
use crate::store::format::{read_manifest, write_manifest};
use crate::store::steps;
use crate::store::stream::StreamIndex;

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

/// Overwrites one byte in place.
fn poke(path: &Path, at: usize, byte: u8) {
    use std::io::{Seek as _, Write as _};
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(std::io::SeekFrom::Start(at as u64)).unwrap();
    file.write_all(&[byte]).unwrap();
}

/// Positions that the whole batches of a stream hold.
fn positions(path: &Path) -> Result<(Vec<u32>, Option<String>), TraceError> {
    let index = StreamIndex::open(path)?;
    let mut reader = index.reader(&steps::schema())?;
    let mut decoder = steps::Decoder::new(&["a".to_owned()], StepQuery::default().wanted());
    for number in 0..index.frames().len() {
        decoder.append(&reader.read(number)?, path)?;
    }
    Ok((decoder.finish().position, index.remark()))
}

#[test]
fn a_kill_at_any_byte_leaves_the_whole_batches_and_says_what_was_cut() {
    let (dir, bytes, ends) = small_stream();
    assert_eq!(ends.last(), Some(&(bytes.len() as u64)));
    let path = dir.path().join("steps.arrows");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for cut in (0..=bytes.len() as u64).rev() {
        file.set_len(cut).unwrap();
        let (found, remark) =
            positions(&path).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let whole = ends.iter().filter(|&&end| end <= cut).count();
        let expected: Vec<u32> = (0..3 * whole.saturating_sub(1) as u32).collect();
        assert_eq!(found, expected, "cut at {cut}");
        let clean = cut == 0 || ends.contains(&cut);
        assert_eq!(remark.is_none(), clean, "cut at {cut}: {remark:?}");
    }
}

#[test]
fn a_killed_run_opens_incomplete_with_the_rows_of_its_whole_batches() {
    let (dir, bytes, ends) = small_stream();
    for cut in ends
        .iter()
        .flat_map(|&end| [end - 1, end, end + 1])
        .take_while(|&cut| cut <= bytes.len() as u64)
    {
        let cut = usize::try_from(cut).unwrap();
        std::fs::write(dir.path().join("steps.arrows"), &bytes[..cut]).unwrap();
        let run = RunReader::open(dir.path()).unwrap();
        assert!(!run.is_complete());
        let columns = run.steps(&StepQuery::default()).unwrap();
        let whole = ends.iter().filter(|&&end| end <= cut as u64).count();
        assert_eq!(columns.len, 3 * whole.saturating_sub(1));
        for row in 0..columns.len {
            assert_eq!(bits(&columns.row(row).unwrap()), bits(&step("a", row as u32)));
        }
        let clean = ends.contains(&(cut as u64));
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
                assert!(what.contains("batch") && what.contains("at byte"), "{what}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_flipped_byte_never_comes_out_as_another_number() {
    let (dir, bytes, _) = small_stream();
    let path = dir.path().join("steps.arrows");
    let all: Vec<u32> = (0..9).collect();
    let mut cut = 0;
    for at in 0..bytes.len() {
        poke(&path, at, bytes[at] ^ [0x01, 0x80, 0xFF][at % 3]);
        if let Ok((found, remark)) = positions(&path) {
            // A length of the last batch that reaches past the end is what a kill looks like.
            assert!(remark.is_some() && found.len() < 9 && all.starts_with(&found), "byte {at}");
            cut += 1;
        }
        poke(&path, at, bytes[at]);
    }
    assert!(cut < 12, "{cut} damaged streams were taken for cut ones");
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
        let error = run.steps(&StepQuery::default()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("has {cut} bytes, but {} were written", bytes.len())),
            "{error}"
        );
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(RunReader::open(dir.path()), Err(TraceError::Io { .. })));
}

#[test]
fn a_flipped_byte_of_a_table_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 10, true);
    for (name, step_by) in [("steps.parquet", 5), ("events.parquet", 97), ("samples.parquet", 97)] {
        let path = dir.path().join(name);
        let bytes = std::fs::read(&path).unwrap();
        for at in (0..bytes.len()).step_by(step_by) {
            poke(&path, at, bytes[at] ^ 0x5A);
            let run = RunReader::open(dir.path()).unwrap();
            let outcome = run
                .steps(&StepQuery::default())
                .and_then(|_| run.events(None))
                .and_then(|_| run.samples());
            let error = outcome.expect_err(name).to_string();
            assert!(error.contains("checksum"), "{name}, byte {at}: {error}");
            poke(&path, at, bytes[at]);
        }
    }
}

#[test]
fn tables_without_checksums_are_read_and_their_damage_never_panics() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 10, true);
    let mut manifest = read_manifest(dir.path()).unwrap();
    manifest.tables.clear();
    write_manifest(dir.path(), &manifest).unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.steps(&StepQuery::default()).unwrap().len, 21);
    let path = dir.path().join("steps.parquet");
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(53) {
        poke(&path, at, bytes[at] ^ 0x5A);
        let _outcome = run.steps(&StepQuery::default());
        poke(&path, at, bytes[at]);
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
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    writer.write_steps_to(full);
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
