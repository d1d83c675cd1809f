//! Operations on the positions of cached cells, and what was observed after them.

use std::path::Path;

use super::fields::{Field, root};
use crate::TraceError;
use crate::logprobs::Node;

/// Operations on positions and their outcome. The JSON:
///
/// `{"cells": [position, ..], "theta": 1.0, "ops": [OP, ..], "observed_pos..": [position | null, ..], "observed_angle..": [angle | null, ..]}`
///
/// `cells` are the positions before the first operation; lists that start with `observed_pos` or `observed_angle` go by cell, `null` for a
/// cell that is gone. The angle of a key is `theta` (a number, or one for each cell) times its position; `"angles_wrapped": true` says
/// that angles were reduced to one turn. An operation covers the positions of `from_pos` (0 without it) up to `to_pos` (not included; to
/// the end where it is absent or negative), as llama.cpp's operations on a sequence do:
///
/// | `op` | effect |
/// |---|---|
/// | `add` | `delta` is added; a cell whose position would fall below 0 is removed |
/// | `div` | the position is divided by `factor`, rounded down |
/// | `rm` | the cell is removed |
#[derive(Debug, Clone, PartialEq)]
pub struct Shifts {
    /// Positions before.
    pub cells: Vec<i64>,
    /// Radian per position, by cell.
    pub theta: Vec<f64>,
    /// Operations in order.
    pub ops: Vec<ShiftOp>,
    /// Observed positions by name.
    pub positions: Vec<(String, Vec<Option<i64>>)>,
    /// Observed angles by name.
    pub angles: Vec<(String, Vec<Option<f64>>)>,
    /// Angles are known up to whole turns.
    pub wrapped: bool,
}

/// One operation; ranges are `[from, to)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShiftOp {
    /// Adds to positions.
    Add {
        /// First position.
        from: i64,
        /// One behind the last.
        to: i64,
        /// What is added.
        delta: i64,
    },
    /// Divides positions.
    Div {
        /// First position.
        from: i64,
        /// One behind the last.
        to: i64,
        /// Divisor, at least 1.
        factor: i64,
    },
    /// Removes cells.
    Remove {
        /// First position.
        from: i64,
        /// One behind the last.
        to: i64,
    },
}

impl Shifts {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`] with the place of an unknown operation, or of a list of another length than `cells`.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let node = root(path)?;
        let form = Field::root(path, &node);
        let cells = form.need(&["cells"])?;
        let list = cells.list()?.iter().map(Field::whole).collect::<Result<Vec<_>, _>>()?;
        if list.iter().any(|position| *position < 0) {
            return Err(cells.fault("positions start at 0"));
        }
        let count = list.len();
        let mut out = Self {
            cells: list,
            theta: theta(&form, count)?,
            ops: form.need(&["ops"])?.list()?.iter().map(op).collect::<Result<_, _>>()?,
            positions: Vec::new(),
            angles: Vec::new(),
            wrapped: false,
        };
        for (name, field) in form.members()? {
            match name {
                "cells" | "theta" | "ops" | "note" => {}
                "angles_wrapped" => out.wrapped = *field.node == Node::Bool(true),
                name if name.starts_with("observed_pos") => {
                    out.positions.push((name.to_owned(), by_cell(&field, count, Field::whole)?));
                }
                name if name.starts_with("observed_angle") => {
                    out.angles.push((name.to_owned(), by_cell(&field, count, Field::number)?));
                }
                _ => {
                    return Err(field.fault(
                        "not known; observations start with observed_pos or observed_angle",
                    ));
                }
            }
        }
        Ok(out)
    }
}

fn theta(form: &Field<'_>, count: usize) -> Result<Vec<f64>, TraceError> {
    let field = form.need(&["theta"])?;
    let list = match field.node {
        Node::List(_) => field.numbers()?,
        _ => vec![field.number()?; count],
    };
    if list.len() != count {
        return Err(field.fault(format!("{} values for {count} cells", list.len())));
    }
    if list.contains(&0.0) {
        return Err(field.fault("an angle of 0 a position shows no rotation"));
    }
    Ok(list)
}

fn by_cell<'a, T>(
    field: &Field<'a>,
    count: usize,
    read: impl Fn(&Field<'a>) -> Result<T, TraceError>,
) -> Result<Vec<Option<T>>, TraceError> {
    let items = field.list()?;
    if items.len() != count {
        return Err(field.fault(format!("{} values for {count} cells", items.len())));
    }
    items.iter().map(|item| item.maybe(&read)).collect()
}

fn op(field: &Field<'_>) -> Result<ShiftOp, TraceError> {
    let from = field.get(&["from_pos", "p0"]).map_or(Ok(0), |field| field.whole())?.max(0);
    let to = field.get(&["to_pos", "p1"]).map_or(Ok(-1), |field| field.whole())?;
    let to = if to < 0 { i64::MAX } else { to };
    let name = field.need(&["op"])?;
    let ranges = ["op", "from_pos", "to_pos", "p0", "p1", "note"];
    let only = |more: &[&str]| field.only(&[&ranges, more].concat());
    match name.text()? {
        "add" | "seq_add" => {
            only(&["delta"])?;
            Ok(ShiftOp::Add { from, to, delta: field.need(&["delta"])?.whole()? })
        }
        "div" | "seq_div" => {
            only(&["factor", "d"])?;
            let divisor = field.need(&["factor", "d"])?;
            match divisor.whole()? {
                factor if factor >= 1 => Ok(ShiftOp::Div { from, to, factor }),
                factor => Err(divisor.fault(format!("{factor} is no divisor"))),
            }
        }
        "rm" | "seq_rm" => {
            only(&[])?;
            Ok(ShiftOp::Remove { from, to })
        }
        other => Err(name.fault(format!("`{other}` is not known; add, div and rm are"))),
    }
}
