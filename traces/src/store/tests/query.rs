//! Push-down: less is asked for, less is read.

use super::*;
use crate::TraceError;
use crate::store::pushdown;

/// Three samples of 9,000 rows: four row groups of 8,192 rows, the last shorter.
fn large(dir: &Path) {
    let mut writer = RunWriter::create(dir, manifest(), RecordPlan::default()).unwrap();
    for name in ["s0", "s1", "s2"] {
        for position in 0..9000 {
            writer.step(step(name, position)).unwrap();
        }
        writer.sample(sample(name)).unwrap();
    }
    writer.finish().unwrap();
}

fn query(sample_id: Option<&str>, positions: Option<std::ops::RangeInclusive<u32>>) -> StepQuery {
    StepQuery { sample_id: sample_id.map(str::to_owned), positions, columns: None }
}

fn groups(dir: &Path, query: &StepQuery) -> Vec<usize> {
    let file = std::fs::File::open(dir.join("steps.parquet")).unwrap();
    let builder =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    pushdown::row_groups(builder.metadata().row_groups(), query)
}

#[test]
fn only_row_groups_that_may_hold_the_rows_are_read() {
    let dir = tempfile::tempdir().unwrap();
    large(dir.path());
    // Row group 0: s0 0..8191; 1: s0 8192..8999, s1 0..7383; 2: s1 7384..8999, s2 0..6575; 3: s2 6576..8999.
    assert_eq!(groups(dir.path(), &query(None, None)), [0, 1, 2, 3]);
    assert_eq!(groups(dir.path(), &query(Some("s0"), None)), [0, 1]);
    assert_eq!(groups(dir.path(), &query(Some("s2"), None)), [2, 3]);
    assert_eq!(groups(dir.path(), &query(Some("s2"), Some(6600..=6700))), [2, 3]);
    assert_eq!(groups(dir.path(), &query(None, Some(9000..=u32::MAX))), [0; 0]);

    let run = RunReader::open(dir.path()).unwrap();
    let columns = run.steps(&query(Some("s1"), Some(7382..=7385))).unwrap();
    assert_eq!(columns.position, [7382, 7383, 7384, 7385]);
    assert_eq!(columns.sample, [1; 4]);
    assert_eq!(bits(&columns.row(2).unwrap()), bits(&step("s1", 7384)));
    assert_eq!(run.steps(&query(None, Some(8999..=8999))).unwrap().sample, [0, 1, 2]);
    assert!(run.steps(&query(None, Some(9000..=9001))).unwrap().is_empty());
}

/// What is not needed is not touched: it may even be rubbish.
#[test]
fn bytes_of_other_row_groups_and_columns_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    large(dir.path());
    let mut manifest = crate::store::format::read_manifest(dir.path()).unwrap();
    // The checksums cover blocks of the file, here much larger than a column.
    manifest.tables.clear();
    crate::store::format::write_manifest(dir.path(), &manifest).unwrap();
    let path = dir.path().join("steps.parquet");
    let file = std::fs::File::open(&path).unwrap();
    let builder =
        parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    for (number, group) in builder.metadata().row_groups().iter().enumerate() {
        for column in group.columns() {
            let key = ["sample_id", "position", "argmax"]
                .contains(&column.column_path().string().as_str());
            if number < 2 || !key {
                let (start, len) = column.byte_range();
                let (start, len) = (usize::try_from(start).unwrap(), usize::try_from(len).unwrap());
                bytes[start..start + len].fill(0xA5);
            }
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    let one = StepQuery {
        columns: Some(vec![StepColumn::Argmax]),
        ..query(Some("s2"), Some(8000..=8002))
    };
    let columns = run.steps(&one).unwrap();
    assert_eq!(columns.argmax, [11_000, 11_001, 11_002]);
    assert!(columns.token_id.is_empty());
    assert!(run.steps(&query(Some("s2"), Some(8000..=8002))).is_err());
    let other = StepQuery { sample_id: Some("s0".to_owned()), ..one };
    assert!(run.steps(&other).is_err());
}

#[test]
fn an_incomplete_run_answers_the_same_queries() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 100, false);
    let run = RunReader::open(dir.path()).unwrap();
    let columns = run.steps(&query(Some("a"), Some(63..=65))).unwrap();
    assert_eq!((columns.position, columns.sample), (vec![63, 64, 65], vec![1, 1, 1]));
}

#[test]
fn an_unknown_sample_is_an_error_and_not_an_empty_answer() {
    for finish in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 3, finish);
        let run = RunReader::open(dir.path()).unwrap();
        let error = run.steps(&query(Some("z"), None)).unwrap_err();
        assert!(
            matches!(&error, TraceError::Malformed { what, .. } if what.contains("`z`")),
            "{error}"
        );
    }
}

/// Large enough that the samples are regrouped in several passes and one sample alone exceeds a pass.
#[test]
fn interleaved_samples_larger_than_memory_groups_come_out_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(dir.path(), manifest(), RecordPlan::default()).unwrap();
    let wide = |name: &str, position: u32| StepRow {
        top_ids: (0..20_000).map(|id| id + position).collect(),
        top_logits: vec![0.5; 20_000],
        ..step(name, position)
    };
    // "big" has 220 rows of 160 kB, 35 MB; the small ones 12 MB each.
    for position in 0..220 {
        writer.step(wide("big", position)).unwrap();
        if position % 3 == 0 {
            for name in ["x", "y", "z"] {
                writer.step(wide(name, position)).unwrap();
            }
        }
    }
    for name in ["x", "y", "z", "big"] {
        writer.sample(sample(name)).unwrap();
    }
    writer.finish().unwrap();
    let run = RunReader::open(dir.path()).unwrap();
    assert_eq!(run.sample_ids().unwrap(), ["big", "x", "y", "z"]);
    let only = StepQuery { columns: Some(vec![StepColumn::TopIds]), ..StepQuery::default() };
    let columns = run.steps(&only).unwrap();
    assert_eq!(columns.len, 220 + 3 * 74);
    for row in 0..columns.len {
        let first = columns.ids_of(row).first().copied();
        assert_eq!(first, Some(columns.position[row]));
    }
    assert_eq!(columns.sample_id(220), Some("x"));
    assert_eq!(columns.sample_id(219), Some("big"));
}
