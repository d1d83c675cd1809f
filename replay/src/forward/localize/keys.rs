//! Cached keys and values before a compaction: which row departs, and how it was turned.

use super::compare::distance;
use super::passes::Pass;
use super::{Named, Scene, caches, figure, rotary};
use crate::ReplayError;

/// A row of the cache that departs.
struct Off {
    position: u32,
    head: usize,
    row: usize,
    exact: Vec<f64>,
    found: Vec<f64>,
}

/// Finds the first row that departs and asks what turned it.
pub(super) fn name(scene: &Scene<'_>) -> Result<Option<Named>, ReplayError> {
    let departure = scene.departure;
    let (Some(layer), n) = (departure.slot.layer, departure.position + 1) else {
        return Ok(None);
    };
    let event = scene.recording.events.iter().find(|event| event.absolute_position == n);
    let Some(event) = event else { return Ok(None) };
    let Some(dump) = caches::dump(scene.run, scene.recording, event)? else { return Ok(None) };
    let recorded = dump.get(&format!("{}.layer{layer:02}", departure.slot.name))?.to_f64()?;
    let mut cache = None;
    let mut pass = Pass::new(scene.run, scene.recording, scene.model)?;
    pass.advance(n as usize, scene.chunk, &[], &mut |before, _| {
        cache = Some(before.clone());
        Ok(())
    })?;
    let Some(cache) = cache else { return Ok(None) };
    let rows = cache.layer(layer)?;
    let keys = departure.slot.name == "pre.k";
    let mut first: Option<Off> = None;
    let mut off = 0usize;
    for head in 0..rows.heads {
        for (row, position) in cache.positions(layer, head).iter().enumerate() {
            let exact = if keys { rows.k_row(head, row) } else { rows.v_row(head, row) };
            let start = (head * rows.rows + row) * rows.head_dim;
            let found = &recorded[start..start + rows.head_dim];
            if distance(found, exact) > departure.tolerance {
                off += 1;
                if first.as_ref().is_none_or(|first| *position < first.position) {
                    let (exact, found) = (exact.to_vec(), found.to_vec());
                    first = Some(Off { position: *position, head, row, exact, found });
                }
            }
        }
    }
    let Some(Off { position, head, row, exact, found }) = first else { return Ok(None) };
    let turned = if keys { rotary::of_key(scene, position, &exact, &found) } else { None };
    let mut named = turned.unwrap_or_else(|| Named {
        cause: None,
        title: format!(
            "{off} rows of the cache before compaction {} depart, the first of position {position}",
            event.ordinal
        ),
        evidence: Vec::new(),
        head: None,
        row: None,
    });
    named.evidence.push(figure("rows_off", off));
    named.evidence.push(figure("position_of_row", position));
    named.head = u32::try_from(head).ok();
    named.row = u32::try_from(row).ok();
    Ok(Some(named))
}
