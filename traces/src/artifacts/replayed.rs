//! Rows of TensorRT-Model-Connect's teacher-forced replay harness, with the state of its own cache policy.
//!
//! [`crate::load`] reads the same files as a trace. Here stands what a trace has no place for: what the harness itself
//! believed about positions, by which it can be caught counting wrongly.

use std::path::Path;

use serde::Deserialize;

use super::tidy::tidy;
use crate::TraceError;
use crate::foreign::lines::Lines;
use crate::store::fail::malformed;

/// Most rows read: a million tokens.
const MAX_ROWS: usize = 1 << 20;

/// State of the harness's cache policy around one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct ReplayState {
    /// Position that the policy believes to be next.
    pub absolute_position: u32,
    /// Rows that it believes to hold.
    pub cache_positions_len: u32,
    /// Prompt rows that it protects.
    pub prefix_length: u32,
}

/// One replayed row. Row counts are exact, `position_before` and `token_id` are copied from the trace that was replayed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ReplayRow {
    /// 1-based line.
    #[serde(skip)]
    pub line: usize,
    /// Position, as the replayed trace had it.
    pub position_before: u32,
    /// Token fed.
    pub token_id: u32,
    /// Rows of the reference's cache before.
    pub rows_before: u32,
    /// Rows after.
    pub rows_after: u32,
    /// Id of the largest logit.
    pub argmax_token: u32,
    /// Ids of the largest logits.
    pub top_ids: Vec<u32>,
    /// Those logits; `None` where not finite.
    pub top_logits: Vec<Option<f64>>,
    /// State before, in compressing mode.
    #[serde(default)]
    pub comp_before: Option<ReplayState>,
    /// State after.
    #[serde(default)]
    pub comp_after: Option<ReplayState>,
}

/// A replay in the order of its file.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayRows {
    /// Rows.
    pub rows: Vec<ReplayRow>,
    /// Line that is cut, where the last one is.
    pub cut: Option<usize>,
}

/// Reads replay rows.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Line`] for a line that is no replay row, unless it is the last and cut;
/// [`TraceError::Malformed`] where there is no row, or more than a million.
pub fn read_replay(path: &Path) -> Result<ReplayRows, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut read = ReplayRows { rows: Vec::new(), cut: None };
    let error = |line, what: String| TraceError::Line { path: path.to_owned(), line, what };
    while let Some((line, text)) = lines.next()? {
        if let Some(line) = read.cut {
            return Err(error(
                line,
                "the line is cut and is not the last: the file is damaged here".to_owned(),
            ));
        }
        if read.rows.len() >= MAX_ROWS {
            return Err(malformed(path, format!("more than {MAX_ROWS} rows: split the file")));
        }
        match serde_json::from_str::<ReplayRow>(&tidy(text).text) {
            Ok(row) if row.top_ids.len() != row.top_logits.len() => {
                let (ids, logits) = (row.top_ids.len(), row.top_logits.len());
                return Err(error(line, format!("{ids} ids stand beside {logits} logits")));
            }
            Ok(row) => read.rows.push(ReplayRow { line, ..row }),
            Err(source) if source.is_eof() => read.cut = Some(line),
            Err(source) => return Err(error(line, format!("no replay row: {source}"))),
        }
    }
    if read.rows.is_empty() {
        return Err(malformed(path, "no complete replay row"));
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"position_before":319,"token_id":220,"rows_before":320,"rows_after":256,"argmax_token":16,"argmax_logit":24.109375,"top_ids":[16,17],"top_logits":[24.109375,NaN],"comp_before":{"absolute_position":320,"cache_positions_len":320,"prefix_length":41},"comp_after":{"absolute_position":321,"cache_positions_len":256,"prefix_length":41}}"#;

    fn read_text(text: &str) -> Result<ReplayRows, TraceError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.jsonl");
        std::fs::write(&path, text).unwrap();
        read_replay(&path)
    }

    #[test]
    fn a_row_keeps_what_the_harness_believed() {
        let read = read_text(ROW).unwrap();
        let row = &read.rows[0];
        assert_eq!((row.position_before, row.rows_before, row.rows_after), (319, 320, 256));
        let before = row.comp_before.unwrap();
        assert_eq!(
            (before.absolute_position, before.cache_positions_len, before.prefix_length),
            (320, 320, 41)
        );
        assert_eq!(row.top_logits, [Some(24.109_375), None]);
    }

    #[test]
    fn a_dense_row_has_no_state_and_damage_is_named_by_its_line() {
        let dense = ROW.split_once(",\"comp_before\"").unwrap().0.to_owned() + "}";
        let read = read_text(&format!("{dense}\n{}", &ROW[..40])).unwrap();
        assert_eq!((read.rows[0].comp_before, read.cut), (None, Some(2)));
        assert!(matches!(
            read_text(&format!("{}\n{dense}", &ROW[..40])),
            Err(TraceError::Line { line: 1, .. })
        ));
        let odd = ROW.replace("[16,17]", "[16]");
        assert!(matches!(read_text(&odd), Err(TraceError::Line { line: 1, .. })));
        assert!(matches!(read_text("\n"), Err(TraceError::Malformed { .. })));
    }
}
