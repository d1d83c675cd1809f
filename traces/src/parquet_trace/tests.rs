//! Tables as other writers make them, and damage.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Array, Int16Array, Int64Array, LargeListArray, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::datatypes::{Float64Type, Int64Type};
use parquet::arrow::ArrowWriter;

use super::{is_parquet, load};
use crate::foreign::{ForeignOptions, Loaded, UNKNOWN_TOKEN};
use crate::limits::Values;
use crate::manifest::ValueEncoding;

type Columns = Vec<(&'static str, ArrayRef)>;

fn bytes(columns: Columns) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut out = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    out
}

fn read(bytes: &[u8]) -> Result<Loaded, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t");
    std::fs::write(&path, bytes).unwrap();
    assert!(is_parquet(&path));
    load(&path, &ForeignOptions::default()).map_err(|error| error.to_string())
}

fn whole(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn lists(values: &[&[Option<f64>]]) -> ArrayRef {
    let rows = values.iter().map(|row| Some(row.to_vec()));
    Arc::new(LargeListArray::from_iter_primitive::<Float64Type, _, _>(rows))
}

fn ids(values: &[&[i64]]) -> ArrayRef {
    let rows = values.iter().map(|row| Some(row.iter().map(|id| Some(*id)).collect::<Vec<_>>()));
    Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

/// Three rows, the second with an empty value in second place.
fn plain() -> Columns {
    vec![
        ("position", whole(&[0, 1, 2])),
        ("token_id", whole(&[5, 6, 7])),
        ("rows_before", whole(&[0, 1, 2])),
        ("rows_after", Arc::new(Int16Array::from(vec![1, 2, 3]))),
        ("top_ids", ids(&[&[6, 1], &[7, 1], &[1, 8]])),
        (
            "top_logits",
            lists(&[&[Some(2.5), Some(1.0)], &[Some(3.5), None], &[Some(0.5), Some(4.0)]]),
        ),
        ("note", Arc::new(StringArray::from(vec!["a", "b", "c"]))),
    ]
}

fn without(name: &str) -> Columns {
    plain().into_iter().filter(|(column, _)| *column != name).collect()
}

fn says(loaded: &Loaded, what: &str) -> bool {
    loaded.remarks.iter().any(|remark| remark.contains(what))
}

#[test]
fn widths_and_kinds_of_lists_do_not_matter() {
    let loaded = read(&bytes(plain())).unwrap();
    let steps = &loaded.steps;
    assert_eq!((steps.len, steps.token_id.as_slice()), (3, [5, 6, 7].as_slice()));
    assert_eq!((steps.rows_before[2], steps.rows_after[2]), (2, 3));
    // The empty value is missing and no 0; the third row is brought to order.
    assert_eq!((steps.ids_of(1), steps.logits_of(1)), ([7].as_slice(), [3.5].as_slice()));
    assert_eq!((steps.ids_of(2), steps.argmax[2]), ([8, 1].as_slice(), 8));
    assert_eq!(steps.next_token, [Some(6), Some(7), None]);
    assert!(says(&loaded, "1 listed values are empty: missing, not 0 (the first in row 2)"));
    assert!(says(&loaded, "left aside: note"));
    assert!(loaded.manifest.limits.rows);
    assert_eq!(loaded.manifest.encoding, ValueEncoding::F32);
}

#[test]
fn what_is_absent_is_unknown() {
    let loaded = read(&bytes(without("rows_after"))).unwrap();
    assert!(!loaded.manifest.limits.rows && loaded.events.is_empty());
    assert!(says(&loaded, "no column rows_after: row counts are unknown"));
    assert_eq!((loaded.steps.rows_before[2], loaded.steps.rows_after[2]), (2, 3));
    let loaded = read(&bytes(without("token_id"))).unwrap();
    assert_eq!(loaded.steps.token_id, [UNKNOWN_TOKEN; 3]);
    assert_eq!(loaded.steps.next_token, [None; 3]);
    let loaded = read(&bytes(without("top_logits"))).unwrap();
    assert_eq!(loaded.manifest.limits.values, Values::Nothing);
    assert_eq!(loaded.steps.argmax, [UNKNOWN_TOKEN; 3]);
}

#[test]
fn a_first_value_that_is_missing_leaves_the_argmax_open() {
    let mut columns = plain();
    columns[5].1 = lists(&[&[None, Some(1.0)], &[Some(3.5), Some(2.0)], &[Some(0.5), Some(4.0)]]);
    let loaded = read(&bytes(columns)).unwrap();
    assert_eq!(loaded.steps.argmax, [UNKNOWN_TOKEN, 7, 8]);
}

#[test]
fn values_that_no_f32_holds_are_not_called_exact() {
    let mut columns = plain();
    columns[5].1 = lists(&[&[Some(0.1), None], &[Some(3.5), None], &[Some(4.0), None]]);
    let loaded = read(&bytes(columns)).unwrap();
    assert!(!loaded.manifest.encoding.exact());
    assert!(says(&loaded, "1 listed values are no f32"));
}

#[test]
fn another_type_is_named_with_its_column() {
    for (name, column, words) in [
        (
            "token_id",
            Arc::new(StringArray::from(vec!["5", "6", "7"])) as ArrayRef,
            "`token_id` has type Utf8",
        ),
        (
            "position",
            Arc::new(Float64Array::from(vec![0.0, 1.0, 2.0])),
            "`position` has type Float64",
        ),
        ("top_logits", whole(&[1, 2, 3]), "`top_logits` has type Int64"),
        (
            "token_id",
            Arc::new(UInt64Array::from(vec![5, 1 << 40, 7])),
            "row 2, column `token_id`: 1099511627776 is out of range",
        ),
        ("token_id", whole(&[5, -1, 7]), "row 2, column `token_id`: -1 is out of range"),
        ("position", whole(&[0, 2, 1]), "position 1 follows 2"),
        ("rows_after", whole(&[1, 2, 9]), "cannot end with 9"),
        ("top_ids", ids(&[&[6], &[7, 1], &[1, 8]]), "row 1, column `top_ids`: 1 ids and 2 values"),
    ] {
        let mut columns = plain();
        columns.iter_mut().find(|(column, _)| *column == name).unwrap().1 = column;
        let error = read(&bytes(columns)).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    let error = read(&bytes(without("position"))).unwrap_err();
    assert!(error.contains("no table of step rows"), "{error}");
    let mut twice = plain();
    twice.push(("position_before", whole(&[0, 1, 2])));
    assert!(read(&bytes(twice)).unwrap_err().contains("both say position"));
}

#[test]
fn samples_without_names_are_parted_where_position_falls() {
    let columns = vec![("position", whole(&[0, 1, 0, 1])), ("token_id", whole(&[1, 2, 3, 4]))];
    assert_eq!(read(&bytes(columns)).unwrap().samples, ["sample_0", "sample_1"]);
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "a", "b"]));
    let mixed = vec![
        ("sample_id", names),
        ("position", whole(&[0, 0, 1, 1])),
        ("token_id", whole(&[1, 2, 3, 4])),
    ];
    let loaded = read(&bytes(mixed)).unwrap();
    assert_eq!(
        (loaded.samples.as_slice(), loaded.steps.token_id.as_slice()),
        (["a".to_owned(), "b".to_owned()].as_slice(), [1, 3, 2, 4].as_slice())
    );
}

#[test]
fn every_cut_and_every_turned_byte_is_an_error_or_a_trace() {
    let whole = bytes(plain());
    for length in 4..whole.len() {
        assert!(read(&whole[..length]).is_err(), "cut to {length}");
    }
    let mut read_again = 0;
    for at in 4..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        read_again += usize::from(read(&damaged).is_ok());
    }
    // What other bytes hold is another table, and no panic.
    assert!(read_again < whole.len());
}

fn case(name: &str) -> PathBuf {
    lockstep_testkit::data().join("cases/59").join(name)
}

#[test]
fn case_59_as_a_trace() {
    let load = |name: &str| load(&case(name), &ForeignOptions::default());
    let ok = load("ok.parquet").unwrap();
    assert_eq!(ok.steps.len, 3);
    assert!(says(&ok, "missing, not 0"), "{:?}", ok.remarks);
    assert!(ok.steps.top_logits.iter().all(|value| *value != 0.0));
    let without = load("no_rows_after.parquet").unwrap();
    assert_eq!((without.steps.len, without.manifest.limits.rows), (3, false));
    for (name, words) in [
        ("token_as_text.parquet", "column `token_id` has type"),
        ("no_footer.parquet", "truncated or still being written"),
        ("footer_len_lies.parquet", "its footer claims"),
        ("hollow.parquet", "its footer claims"),
    ] {
        let error = load(name).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
}
