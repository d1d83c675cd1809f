//! Reading a foreign trace: lines to rows, rows to columns, and what had to be read around.

use std::path::Path;

use super::dialect::{Dialect, RawRow};
use super::lines::Lines;
use super::scan::Fault;
use super::table::{ForeignOptions, Table};
use crate::TraceError;

/// The file as it stands.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) dialect: Dialect,
    pub(super) table: Table,
    /// The file does not end as its writer ends it.
    pub(super) cut: bool,
    pub(super) remarks: Vec<String>,
}

/// Reads all rows of `path`.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Line`] for a damaged line that is not the last, a row that contradicts itself,
/// and a position that cannot follow the one before; [`TraceError::Malformed`] where there is no row.
pub(super) fn read(path: &Path, options: &ForeignOptions) -> Result<Raw, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut row = RawRow::default();
    let mut table = Table::default();
    let mut dialect = None;
    let mut cut: Option<(usize, usize)> = None;
    let error = |line, what| TraceError::Line { path: path.to_owned(), line, what };
    while let Some((line, text)) = lines.next()? {
        if let Some((line, _)) = cut {
            return Err(error(line, damage(dialect)));
        }
        match row.parse(text) {
            Ok(()) => {}
            Err(Fault::Cut) => {
                cut = Some((line, text.len()));
                continue;
            }
            Err(Fault::Bad(what)) => return Err(error(line, what)),
        }
        let dialect = match dialect {
            Some(dialect) => dialect,
            None => match Dialect::of(&row) {
                Ok(found) => *dialect.insert(found),
                Err(Fault::Bad(what)) => return Err(error(line, what)),
                Err(Fault::Cut) => return Err(error(line, "the line is cut".to_owned())),
            },
        };
        if let Some(key) = row.missing(dialect) {
            return Err(error(line, format!("the row has no `{key}`")));
        }
        table.push(&row, line, options).map_err(|what| error(line, what))?;
    }
    let mut remarks = lines.oddities().remarks();
    if let Some((line, bytes)) = cut {
        remarks.push(format!("last line incomplete, {bytes} bytes at line {line}"));
    }
    let Some(dialect) = dialect else {
        return Err(TraceError::Malformed { path: path.to_owned(), what: nothing(cut) });
    };
    Ok(Raw { dialect, table, cut: cut.is_some() || lines.oddities().cut(), remarks })
}

fn damage(dialect: Option<Dialect>) -> String {
    let what = match dialect {
        Some(_) => "the line is cut and is not the last: the file is damaged here",
        None => {
            "no whole object stands on the first line: a trace has one object a line (a keep dump is imported, not \
             loaded)"
        }
    };
    what.to_owned()
}

fn nothing(cut: Option<(usize, usize)>) -> String {
    match cut {
        Some((line, _)) => format!(
            "no complete row: the only line ({line}) is cut, or the file is no JSON Lines (one object per line)"
        ),
        None => "the file is empty; a trace has at least one row".to_owned(),
    }
}
