//! A tensor as it is to be compared: axes over the bytes of one or several stored tensors.
//!
//! Each axis is a stride or a table, and the place of an element is the sum over its axes. That covers permuted, sliced, paged, joined
//! and repeated layouts without a copy.

use std::sync::Arc;

use lockstep_traces::tensor_files::{Element, PlainTensor};

/// Where the slices of an axis start.
#[derive(Debug, Clone)]
pub(super) enum Steps {
    /// Elements from one to the next.
    Stride(usize),
    /// Piece and element of each.
    Table(Arc<[Place]>),
}

/// A piece (stored tensor) and an element in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) piece: usize,
    pub(super) at: usize,
}

/// One axis.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    pub(super) size: usize,
    pub(super) steps: Steps,
}

impl Axis {
    /// Piece and element of slice `index`.
    pub(super) fn place(&self, index: usize) -> Place {
        match &self.steps {
            Steps::Stride(stride) => Place { piece: 0, at: index * stride },
            Steps::Table(table) => table.get(index).copied().unwrap_or(Place { piece: 0, at: 0 }),
        }
    }
}

/// What is compared.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    pub(super) pieces: Vec<&'a PlainTensor>,
    pub(super) axes: Vec<Axis>,
    /// Where index 0 of every axis lies, before the axes' own places.
    pub(super) base: Place,
    pub(super) element: Element,
    /// Bytes of an element are to be turned round.
    pub(super) swap: bool,
}

impl<'a> View<'a> {
    /// A stored tensor as it is.
    pub(super) fn of(tensor: &'a PlainTensor) -> Self {
        let axes = tensor.shape.iter().zip(&tensor.strides);
        let axes =
            axes.map(|(&size, &stride)| Axis { size, steps: Steps::Stride(stride) }).collect();
        let base = Place { piece: 0, at: 0 };
        Self { pieces: vec![tensor], axes, base, element: tensor.element, swap: tensor.big_endian }
    }

    pub(super) fn shape(&self) -> Vec<usize> {
        self.axes.iter().map(|axis| axis.size).collect()
    }

    pub(super) fn elements(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Trailing axes that lie without gaps: how many, and their elements.
    fn run(&self) -> (usize, usize) {
        let (mut axes, mut length) = (0, 1);
        for axis in self.axes.iter().rev() {
            match axis.steps {
                Steps::Stride(stride) if stride == length || axis.size == 1 => {
                    axes += 1;
                    length *= axis.size;
                }
                _ => break,
            }
        }
        (axes, length.max(1))
    }

    /// The bytes themselves where they lie in order, else `None`.
    fn straight(&self, start: usize, count: usize) -> Option<&'a [u8]> {
        let [piece] = self.pieces.as_slice() else { return None };
        if self.swap || self.run().0 != self.axes.len() {
            return None;
        }
        let width = self.element.size();
        let from = (piece.offset + self.base.at + start) * width;
        piece.bytes().get(from..from + count * width)
    }

    /// Elements `start..start + count` in row-major order, little-endian: the stored bytes where they lie so, else a copy in `buffer`.
    pub(super) fn block<'b>(&self, start: usize, count: usize, buffer: &'b mut Vec<u8>) -> &'b [u8]
    where
        'a: 'b,
    {
        if let Some(bytes) = self.straight(start, count) {
            return bytes;
        }
        let width = self.element.size();
        buffer.clear();
        let (inner, run) = self.run();
        let outer = self.axes.get(..self.axes.len() - inner).unwrap_or_default();
        let mut index = unravel(start / run, outer);
        let (mut skip, mut left) = (start % run, count);
        while left > 0 {
            let take = (run - skip).min(left);
            let place = self.locate(outer, &index);
            self.copy(place, skip, take, width, buffer);
            left -= take;
            skip = 0;
            advance(&mut index, outer);
        }
        if self.swap {
            for element in buffer.chunks_exact_mut(width) {
                element.reverse();
            }
        }
        buffer
    }

    fn locate(&self, axes: &[Axis], index: &[usize]) -> Place {
        let mut sum = self.base;
        for (axis, at) in axes.iter().zip(index) {
            let place = axis.place(*at);
            sum.piece += place.piece;
            sum.at += place.at;
        }
        sum
    }

    fn copy(&self, place: Place, skip: usize, take: usize, width: usize, buffer: &mut Vec<u8>) {
        // Every table was checked against its tensor when it was made; a place outside would give zeros and never a panic.
        let bytes = self.pieces.get(place.piece).and_then(|piece| {
            let from = (piece.offset + place.at + skip) * width;
            piece.bytes().get(from..from + take * width)
        });
        match bytes {
            Some(bytes) => buffer.extend_from_slice(bytes),
            None => buffer.resize(buffer.len() + take * width, 0),
        }
    }

    /// Bytes of one element, little-endian, at an index.
    pub(super) fn element_at(&self, index: &[usize], out: &mut [u8; 8]) {
        let place = self.locate(&self.axes, index);
        let mut buffer = Vec::with_capacity(8);
        self.copy(place, 0, 1, self.element.size(), &mut buffer);
        if self.swap {
            buffer.reverse();
        }
        *out = [0; 8];
        for (to, from) in out.iter_mut().zip(buffer) {
            *to = from;
        }
    }
}

/// Index of the flat element `at` (row-major).
pub(super) fn unravel(mut at: usize, axes: &[Axis]) -> Vec<usize> {
    let mut index = vec![0; axes.len()];
    for (slot, axis) in index.iter_mut().zip(axes).rev() {
        *slot = at % axis.size.max(1);
        at /= axis.size.max(1);
    }
    index
}

fn advance(index: &mut [usize], axes: &[Axis]) {
    for (slot, axis) in index.iter_mut().zip(axes).rev() {
        *slot += 1;
        if *slot < axis.size {
            return;
        }
        *slot = 0;
    }
}
