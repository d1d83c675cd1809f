//! Steps of a layout over a view, each checked against the sizes that are there.

use std::sync::Arc;

use lockstep_traces::tensor_files::PlainTensor;

use super::decode::integers;
use super::map::{Join, Op, Pages};
use super::view::{Axis, Place, Steps, View};

/// Entries of a table at most: rows of a cache, not elements of a tensor.
const TABLE_LIMIT: usize = 1 << 26;

/// Gives a tensor of the same side by name.
pub(super) type Lookup<'l, 'a> = &'l dyn Fn(&str) -> Option<&'a PlainTensor>;

/// Several shards as one view.
pub(super) fn join<'a>(shards: &[&'a PlainTensor], join: &Join) -> Result<View<'a>, String> {
    let views: Vec<View<'a>> = shards.iter().map(|tensor| View::of(tensor)).collect();
    let first = views.first().ok_or("no shard")?;
    let strides = |view: &View<'a>| -> Vec<(usize, usize)> {
        view.axes.iter().map(|axis| (axis.size, axis.place(1).at)).collect()
    };
    for (view, tensor) in views.iter().zip(shards) {
        if strides(view) != strides(first)
            || view.element != first.element
            || view.swap != first.swap
        {
            return Err(format!(
                "shard `{}` is {} {:?}, the first is {} {:?}; shards of one shape are joined",
                tensor.name,
                view.element.name(),
                view.shape(),
                first.element.name(),
                first.shape()
            ));
        }
    }
    let pieces = shards.to_vec();
    let mut axes = first.axes.clone();
    let count = pieces.len();
    if join.stack {
        if join.axis > axes.len() {
            return Err(no_axis(join.axis, axes.len() + 1));
        }
        let table = (0..count).map(|piece| Place { piece, at: 0 }).collect();
        axes.insert(join.axis, Axis { size: count, steps: Steps::Table(table) });
    } else {
        let rank = axes.len();
        let axis = axes.get_mut(join.axis).ok_or_else(|| no_axis(join.axis, rank))?;
        let size = axis.size;
        within(size.checked_mul(count))?;
        let places = (0..count).flat_map(|piece| (0..size).map(move |at| (piece, at)));
        let table = places.map(|(piece, at)| Place { piece, at: axis.place(at).at }).collect();
        *axis = Axis { size: size * count, steps: Steps::Table(table) };
    }
    Ok(View { pieces, axes, ..first.clone() })
}

fn no_axis(axis: usize, rank: usize) -> String {
    format!("there is no axis {axis} among {rank}")
}

fn within(entries: Option<usize>) -> Result<usize, String> {
    entries.filter(|n| *n <= TABLE_LIMIT).ok_or_else(|| "a table of too many rows".to_owned())
}

/// A mistake in the use of a block table, to be tried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shift {
    /// Each entry is moved by so many blocks.
    Entry(isize),
    /// Each block is looked up so many places further on.
    Place(isize),
}

/// Applies one step.
pub(super) fn apply<'a>(
    view: View<'a>,
    op: &Op,
    lookup: Lookup<'_, 'a>,
) -> Result<View<'a>, String> {
    apply_with(view, op, lookup, None)
}

/// Applies one step, block tables with a mistake in their use.
pub(super) fn apply_with<'a>(
    mut view: View<'a>,
    op: &Op,
    lookup: Lookup<'_, 'a>,
    shift: Option<Shift>,
) -> Result<View<'a>, String> {
    if let Some(shape) = &op.shape {
        return reshape(view, shape);
    }
    if let Some(order) = &op.permute {
        return permute(view, order);
    }
    if let Some(axis) = op.squeeze {
        let found = axis_of(&view, axis)?;
        if found.size != 1 {
            return Err(format!("axis {axis} has size {} and cannot be squeezed", found.size));
        }
        let place = found.place(0);
        view.base.at += place.at;
        view.base.piece += place.piece;
        view.axes.remove(axis);
        return Ok(view);
    }
    if let Some(take) = &op.take {
        let axis = axis_of(&view, take.axis)?.clone();
        if let Some(row) = take.rows.iter().find(|row| **row >= axis.size) {
            return Err(format!(
                "take: there is no slice {row} in axis {} of size {}",
                take.axis, axis.size
            ));
        }
        within(Some(take.rows.len()))?;
        let table = take.rows.iter().map(|row| axis.place(*row)).collect();
        return Ok(replace(view, take.axis, 1, vec![table_axis(table)]));
    }
    if let Some(slice) = &op.slice {
        let axis = axis_of(&view, slice.axis)?.clone();
        if slice.from > slice.to || slice.to > axis.size {
            return Err(format!(
                "slice {}..{} of axis {} of size {}",
                slice.from, slice.to, slice.axis, axis.size
            ));
        }
        let size = slice.to - slice.from;
        let steps = match &axis.steps {
            Steps::Stride(stride) => {
                view.base.at += if size > 0 { slice.from * stride } else { 0 };
                Steps::Stride(*stride)
            }
            Steps::Table(table) => {
                Steps::Table(table.get(slice.from..slice.to).unwrap_or_default().into())
            }
        };
        return Ok(replace(view, slice.axis, 1, vec![Axis { size, steps }]));
    }
    rearrange(view, op, lookup, shift)
}

/// The steps that make axes of others.
fn rearrange<'a>(
    view: View<'a>,
    op: &Op,
    lookup: Lookup<'_, 'a>,
    shift: Option<Shift>,
) -> Result<View<'a>, String> {
    if let Some(pages) = &op.pages {
        let table = table(pages, lookup)?;
        return paged(view, pages, &table, shift);
    }
    if let Some(expand) = &op.expand {
        let axis = axis_of(&view, expand.axis)?.clone();
        let size = within(axis.size.checked_mul(expand.times))?;
        let table = (0..size).map(|at| axis.place(at / expand.times.max(1))).collect();
        return Ok(replace(view, expand.axis, 1, vec![table_axis(table)]));
    }
    if let Some(split) = &op.split {
        let axis = axis_of(&view, split.axis)?.clone();
        let product = split.sizes.iter().try_fold(1_usize, |n, size| n.checked_mul(*size));
        let Steps::Stride(stride) = axis.steps else {
            return Err("split comes before the steps that reorder an axis".to_owned());
        };
        if product != Some(axis.size) {
            return Err(format!(
                "axis {} has size {} and cannot be split into {:?}",
                split.axis, axis.size, split.sizes
            ));
        }
        let mut axes = Vec::new();
        let mut step = stride;
        for size in split.sizes.iter().rev() {
            axes.insert(0, Axis { size: *size, steps: Steps::Stride(step) });
            step *= size;
        }
        return Ok(replace(view, split.axis, 1, axes));
    }
    if let Some(axis) = op.merge {
        let (a, b) = (axis_of(&view, axis)?.clone(), axis_of(&view, axis + 1)?.clone());
        let merged = merged(&a, &b)?;
        return Ok(replace(view, axis, 2, vec![merged]));
    }
    Err("a step without a key".to_owned())
}

fn axis_of<'v>(view: &'v View<'_>, axis: usize) -> Result<&'v Axis, String> {
    view.axes.get(axis).ok_or_else(|| no_axis(axis, view.axes.len()))
}

fn table_axis(table: Vec<Place>) -> Axis {
    Axis { size: table.len(), steps: Steps::Table(Arc::from(table)) }
}

fn replace<'a>(mut view: View<'a>, axis: usize, count: usize, with: Vec<Axis>) -> View<'a> {
    view.axes.splice(axis..axis + count, with);
    view
}

fn merged(a: &Axis, b: &Axis) -> Result<Axis, String> {
    if let (Steps::Stride(outer), Steps::Stride(inner)) = (&a.steps, &b.steps)
        && *outer == inner * b.size
    {
        return Ok(Axis { size: a.size * b.size, steps: Steps::Stride(*inner) });
    }
    within(a.size.checked_mul(b.size))?;
    let places = (0..a.size).flat_map(|i| (0..b.size).map(move |j| (i, j)));
    Ok(table_axis(places.map(|(i, j)| sum(a.place(i), b.place(j))).collect()))
}

fn sum(a: Place, b: Place) -> Place {
    Place { piece: a.piece + b.piece, at: a.at + b.at }
}

/// New order of the axes.
pub(super) fn permute<'a>(mut view: View<'a>, order: &[usize]) -> Result<View<'a>, String> {
    let mut seen: Vec<usize> = order.to_vec();
    seen.sort_unstable();
    if seen != (0..view.axes.len()).collect::<Vec<_>>() {
        return Err(format!("{order:?} is no order of {} axes", view.axes.len()));
    }
    view.axes = order.iter().filter_map(|&axis| view.axes.get(axis).cloned()).collect();
    Ok(view)
}

/// Another shape over the same elements in row-major order. Every axis must be a plain stride.
pub(super) fn reshape<'a>(mut view: View<'a>, shape: &[usize]) -> Result<View<'a>, String> {
    let product = shape.iter().try_fold(1_usize, |n, size| n.checked_mul(*size));
    let have = view.elements();
    if product != Some(have) {
        return Err(format!(
            "shape {shape:?} does not hold the {have} elements of {:?}",
            view.shape()
        ));
    }
    let mut step = 1;
    for axis in view.axes.iter().rev() {
        if axis.size != 1 && !matches!(axis.steps, Steps::Stride(stride) if stride == step) {
            return Err("shape comes before the steps that move elements".to_owned());
        }
        step *= axis.size;
    }
    let mut step = 1;
    view.axes = shape
        .iter()
        .rev()
        .map(|&size| {
            let axis = Axis { size, steps: Steps::Stride(step) };
            step *= size.max(1);
            axis
        })
        .collect();
    view.axes.reverse();
    Ok(view)
}

/// The block table of a step: written out, or a tensor's values.
fn table(pages: &Pages, lookup: Lookup<'_, '_>) -> Result<Vec<usize>, String> {
    let Some(name) = &pages.table_from else { return Ok(pages.table.clone()) };
    let tensor = lookup(name).ok_or_else(|| format!("no tensor `{name}` for the block table"))?;
    within(usize::try_from(tensor.elements()).ok())?;
    let table = integers(&View::of(tensor))
        .ok_or_else(|| format!("the block table `{name}` holds no integers"))?;
    // Tables are filled up with -1 behind the last block in use.
    let used = table.iter().take_while(|block| **block >= 0);
    used.map(|block| usize::try_from(*block).map_err(|_| format!("block {block} of `{name}`")))
        .collect()
}

/// Blocks and rows in a block as rows in the order of the table. With a mistake, what leaves table or cache is held at their end.
fn paged<'a>(
    view: View<'a>,
    pages: &Pages,
    table: &[usize],
    shift: Option<Shift>,
) -> Result<View<'a>, String> {
    let (blocks, rows) =
        (axis_of(&view, pages.axis)?.clone(), axis_of(&view, pages.axis + 1)?.clone());
    let in_table = within(table.len().checked_mul(rows.size))?;
    let used = pages.rows.unwrap_or(in_table);
    if used > in_table {
        return Err(format!(
            "{used} rows need more than the {} blocks of {} rows in the table",
            table.len(),
            rows.size
        ));
    }
    let mut places = Vec::with_capacity(used);
    for row in 0..used {
        let at = row / rows.size.max(1);
        let at = match shift {
            Some(Shift::Place(by)) => {
                at.saturating_add_signed(by).min(table.len().saturating_sub(1))
            }
            _ => at,
        };
        let entry = table.get(at).copied().unwrap_or(usize::MAX);
        let block = match shift {
            Some(Shift::Entry(by)) => {
                Some(entry.saturating_add_signed(by).min(blocks.size.saturating_sub(1)))
            }
            _ => Some(entry).filter(|block| *block < blocks.size),
        };
        let block = block
            .ok_or_else(|| format!("the block table names block {entry} of {}", blocks.size))?;
        places.push(sum(blocks.place(block), rows.place(row % rows.size.max(1))));
    }
    Ok(replace(view, pages.axis, 2, vec![table_axis(places)]))
}

/// Names of axes: `[rows][heads][dim]`, or with blanks or commas between.
fn names(text: &str) -> Vec<&str> {
    text.split(|c: char| c.is_whitespace() || matches!(c, '[' | ']' | ','))
        .filter(|part| !part.is_empty())
        .collect()
}

/// Drops the axes that are called `1`, and gives the names of the rest.
pub(super) fn named<'a, 't>(
    mut view: View<'a>,
    text: &'t str,
) -> Result<(View<'a>, Vec<&'t str>), String> {
    let names = names(text);
    if names.len() != view.axes.len() {
        return Err(format!("`{text}` names {} axes of {:?}", names.len(), view.shape()));
    }
    for (axis, _) in names.iter().enumerate().filter(|(_, name)| **name == "1").rev() {
        view = apply(view, &Op { squeeze: Some(axis), ..Op::default() }, &|_| None)?;
    }
    Ok((view, names.into_iter().filter(|name| *name != "1").collect()))
}

/// Brings the right side into the order of the left by the names of the axes.
pub(super) fn align<'a>(
    (left, left_dims): (View<'a>, &str),
    (right, right_dims): (View<'a>, &str),
) -> Result<(View<'a>, View<'a>), String> {
    let ((left, l), (right, r)) = (named(left, left_dims)?, named(right, right_dims)?);
    let order: Option<Vec<usize>> =
        l.iter().map(|name| r.iter().position(|other| other == name)).collect();
    let order = order.filter(|order| order.len() == r.len());
    let order = order
        .ok_or_else(|| format!("`{left_dims}` and `{right_dims}` do not name the same axes"))?;
    Ok((left, permute(right, &order)?))
}
