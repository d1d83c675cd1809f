//! What else the table says of the arms with an effect: what they share, and lengths that fill no whole block.

use lockstep_traces::forms::Arm;

use super::confounded::Divided;
use super::{OddLength, SharedLevel};

/// Levels that all affected arms have.
pub(super) fn shared(
    divided: &Divided<'_>,
    affected: &[&Arm],
    unaffected: &[&Arm],
) -> Vec<SharedLevel> {
    let Some(first) = affected.first() else { return Vec::new() };
    let mut out = Vec::new();
    for (column, factor) in divided.table.factors.iter().enumerate() {
        let level = divided.level(first, column);
        if level.is_null() || !affected.iter().all(|arm| divided.level(arm, column) == level) {
            continue;
        }
        let also = unaffected.iter().filter(|arm| divided.level(arm, column) == level);
        out.push(SharedLevel {
            factor: factor.clone(),
            level: level.clone(),
            also_unaffected: also.map(|arm| arm.name.clone()).collect(),
        });
    }
    out
}

/// A factor whose whole numbers are lengths, by its name.
fn is_length(factor: &str) -> bool {
    let name = factor.to_ascii_lowercase();
    ["len", "tokens", "context", "rows"].iter().any(|part| name.contains(part))
}

/// Lengths of affected arms that are no multiple of the block.
pub(super) fn odd_lengths(
    divided: &Divided<'_>,
    block: u64,
    affected: &[&Arm],
    unaffected: &[&Arm],
) -> Vec<OddLength> {
    let mut out: Vec<OddLength> = Vec::new();
    let factors = divided.table.factors.iter().enumerate();
    for (column, factor) in factors.filter(|(_, factor)| is_length(factor)) {
        for arm in affected {
            let length = divided.level(arm, column).as_u64();
            let Some(length) = length.filter(|length| block > 0 && !length.is_multiple_of(block))
            else {
                continue;
            };
            let known = |one: &&mut OddLength| one.factor == *factor && one.length == length;
            if let Some(one) = out.iter_mut().find(known) {
                one.affected.push(arm.name.clone());
                continue;
            }
            let has = |arm: &&&Arm| divided.level(arm, column).as_u64() == Some(length);
            out.push(OddLength {
                factor: factor.clone(),
                length,
                block,
                remainder: length % block,
                affected: vec![arm.name.clone()],
                unaffected: unaffected.iter().filter(has).map(|arm| arm.name.clone()).collect(),
            });
        }
    }
    out
}
