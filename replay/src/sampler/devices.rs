//! The same seed on two GPUs: from which element of a fill on the two draw other numbers.

use std::path::Path;

use lockstep_reference::sample::{Geometry, uniform_of};
use serde::Serialize;
use serde_json::Value;

use super::error::SamplerError;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads that each holds.
    pub threads_each: u32,
}

/// A fill: what is filled and how threads take elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) elements: u64,
    pub(super) seed: u64,
    pub(super) offset: u64,
    pub(super) block: u64,
    pub(super) unroll: u64,
}

/// One side of an element.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Place {
    /// Device.
    pub device: String,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of the grid.
    pub threads: u64,
    /// What one fill adds to the generator's offset.
    pub advance: u64,
    /// Thread of the first element that differs; `None` where none does.
    pub thread: Option<u64>,
    /// Call of that thread's generator.
    pub call: Option<u64>,
    /// Component of the call's four words.
    pub component: Option<u64>,
    /// The uniform number there.
    pub uniform: Option<f64>,
}

/// Two devices compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceSplit {
    /// Elements of the fill.
    pub elements: u64,
    /// Seed.
    pub seed: u64,
    /// First element that the two draw from other words; `None`: all alike.
    pub first_different: Option<u64>,
    /// Elements that differ.
    pub different: u64,
    /// The two advance the generator alike, so that the next fill begins at the same place.
    pub same_advance: bool,
    /// Baseline and target.
    pub places: Vec<Place>,
}

/// Compares the fills of two devices, element by element.
///
/// # Errors
/// [`SamplerError::Options`] for a device or fill of size 0.
pub fn compare_devices(
    pair: [&Device; 2],
    elements: u64,
    seed: u64,
) -> Result<DeviceSplit, SamplerError> {
    compare(pair, Fill { elements, seed, offset: 0, block: 256, unroll: 4 })
}

/// Elements of the largest fill that is walked through.
const MOST_ELEMENTS: u64 = 1 << 28;

fn compare([a, b]: [&Device; 2], fill: Fill) -> Result<DeviceSplit, SamplerError> {
    if fill.elements > MOST_ELEMENTS {
        let what = format!(
            "{} elements are more than the {MOST_ELEMENTS} that are compared",
            fill.elements
        );
        return Err(SamplerError::Options { what });
    }
    let geometry = |device: &Device| {
        let each = (device.multiprocessors, device.threads_each);
        Geometry::with_block(fill.elements, each, fill.block, fill.unroll).ok_or_else(|| {
            let what = format!(
                "device `{}`: {} multiprocessors of {} threads hold no block of {}, or the fill is empty",
                device.name, device.multiprocessors, device.threads_each, fill.block
            );
            SamplerError::Options { what }
        })
    };
    let grids = [geometry(a)?, geometry(b)?];
    let [left, right] = grids;
    // Both take element e < the smaller grid from thread e; beyond, the places are looked at one by one.
    let shared = left.threads.min(right.threads).min(fill.elements);
    let alike = |element: &u64| left.place(*element) == right.place(*element);
    let (mut first_different, mut different) = (None, 0);
    if left.threads == right.threads {
        different = 0;
    } else {
        for element in shared..fill.elements {
            if !alike(&element) {
                first_different.get_or_insert(element);
                different += 1;
            }
        }
    }
    let place = |device: &Device, grid: &Geometry| {
        let at = first_different.map(|element| grid.place(element));
        let word = first_different.map(|element| grid.word(fill.seed, fill.offset, element));
        Place {
            device: device.name.clone(),
            blocks: grid.blocks,
            threads: grid.threads,
            advance: grid.advance(),
            thread: at.map(|(thread, ..)| thread),
            call: at.map(|(_, call, _)| call),
            component: at.map(|(.., component)| component),
            uniform: word.map(uniform_of),
        }
    };
    Ok(DeviceSplit {
        elements: fill.elements,
        seed: fill.seed,
        first_different,
        different,
        same_advance: left.advance() == right.advance(),
        places: vec![place(a, &left), place(b, &right)],
    })
}

/// Compares the two devices of a JSON object: `numel`, `seed`, optionally `offset`, `block`, `unroll`, and two objects with `sm` and
/// `threads_per_sm`, in order of their names. `None` where the object is none of that kind.
///
/// # Errors
/// [`SamplerError`] for sizes that are missing, or another number of devices than two.
pub fn read_devices(path: &Path, object: &Value) -> Result<Option<DeviceSplit>, SamplerError> {
    /// Elements beyond which a comparison one by one takes too long.
    const MOST: u64 = 1 << 32;
    let Some(map) = object.as_object().filter(|map| map.contains_key("numel")) else {
        return Ok(None);
    };
    let number = |key: &str, default: Option<u64>| match map.get(key) {
        None => default.ok_or_else(|| SamplerError::file(path, format!("no `{key}`"))),
        Some(value) => value
            .as_u64()
            .ok_or_else(|| SamplerError::file(path, format!("`{key}` is no whole number"))),
    };
    let fill = Fill {
        elements: number("numel", None)?,
        seed: number("seed", Some(0))?,
        offset: number("offset", Some(0))?,
        block: number("block", Some(256))?,
        unroll: number("unroll", Some(4))?,
    };
    if fill.elements > MOST {
        let what = format!("`numel` is {}; up to {MOST} elements are compared", fill.elements);
        return Err(SamplerError::file(path, what));
    }
    let mut devices = Vec::new();
    for (name, value) in map {
        let Some(device) = value.as_object() else { continue };
        let size = |key: &str| {
            let size = device.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
            size.ok_or_else(|| SamplerError::file(path, format!("device `{name}` has no `{key}`")))
        };
        let (multiprocessors, threads_each) = (size("sm")?, size("threads_per_sm")?);
        devices.push(Device { name: name.clone(), multiprocessors, threads_each });
    }
    match devices.as_slice() {
        [a, b] => compare([a, b], fill).map(Some),
        other => {
            let what = format!("{} devices; give two", other.len());
            Err(SamplerError::file(path, what))
        }
    }
}
