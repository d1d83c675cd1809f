//! `post[l, h, i, :] == pre[l, h, keep[h][i], :]`, bit for bit, K and V, every layer and head of every dumped compaction.
//!
//! Rows are compared as slices of the memory map; nothing is copied, so memory does not grow with the dumps.

mod explain;
mod head;

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::store::{DumpFile, RunReader, TensorView};
use lockstep_traces::{
    CheckKind, CheckReport, DumpId, EventRow, Evidence, Finding, Location, TraceError, Verdict,
};
use rayon::prelude::*;
use serde_json::json;

use crate::identity;
use crate::keep::KeepSets;
use head::{HeadFault, HeadTask};

/// Which compactions are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatherOptions {
    /// Only this sample.
    pub sample_id: Option<String>,
    /// Only this compaction (1-based).
    pub ordinal: Option<u32>,
}

/// K or V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    K,
    V,
}

impl Kind {
    pub(crate) const fn letter(self) -> &'static str {
        match self {
            Self::K => "k",
            Self::V => "v",
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    compared: u64,
    different: u64,
    skipped: u64,
    rows: u64,
    bytes: u64,
    dumps: u64,
    /// Compactions looked at.
    looked_at: Vec<(String, u32)>,
    layers: BTreeSet<u32>,
    heads: usize,
    /// Dumps that say they are another compaction's.
    strangers: u64,
    /// What could not be compared, the first of it.
    missing: Option<String>,
    findings: Vec<Finding>,
    limits: Vec<String>,
}

/// Checks every dumped compaction of a run.
///
/// # Errors
/// [`TraceError`] where a dump cannot be read or its sizes disagree.
pub fn check(run: &RunReader, options: &GatherOptions) -> Result<CheckReport, TraceError> {
    let mut tally = Tally::default();
    let mut without_cache = 0_u64;
    let dumps: BTreeSet<DumpId> = run.dumps()?.into_iter().collect();
    let mut events = run.events(options.sample_id.as_deref())?;
    events.retain(|event| options.ordinal.is_none_or(|only| only == event.ordinal));
    for id in &dumps {
        let DumpId::Compaction { sample_id, ordinal } = id else { continue };
        if options.sample_id.as_ref().is_some_and(|wanted| wanted != sample_id)
            || options.ordinal.is_some_and(|wanted| wanted != *ordinal)
        {
            continue;
        }
        let Some(dump) = run.dump(id)? else { continue };
        tally.identity(&dump, sample_id, *ordinal, &events);
        if !dump.names().any(|name| cache_name(name).is_some()) {
            without_cache += 1;
            continue;
        }
        tally.dump(&dump, sample_id, *ordinal)?;
    }
    if without_cache > 0 {
        tally.limits.push(format!("{without_cache} dumped compactions hold no K or V"));
    }
    let mut lost = 0;
    for (event, file) in identity::lost(&events, &dumps) {
        lost += 1;
        tally.skip(
            1,
            format!(
                "{} compaction {}: its dump `{file}` is missing, not compared",
                event.sample_id, event.ordinal
            ),
        );
    }
    let undumped = (events.len() as u64).saturating_sub(tally.dumps + without_cache + lost);
    if undumped > 0 {
        tally.limits.push(format!("{undumped} compactions of the run were not dumped"));
    }
    Ok(tally.report())
}

/// `pre.k.layer03` -> (before, K, 3).
fn cache_name(name: &str) -> Option<(bool, Kind, u32)> {
    let mut parts = name.splitn(3, '.');
    let before = match parts.next()? {
        "pre" => true,
        "post" => false,
        _ => return None,
    };
    let kind = match parts.next()? {
        "k" => Kind::K,
        "v" => Kind::V,
        _ => return None,
    };
    let layer = parts.next()?.strip_prefix("layer")?.parse().ok()?;
    Some((before, kind, layer))
}

/// Sizes of the tensors of one dump.
struct Sizes {
    heads: usize,
    before: usize,
    after: usize,
    row_bytes: usize,
}

fn sizes(pre: &TensorView<'_>, post: &TensorView<'_>) -> Result<Sizes, TraceError> {
    let [heads, before, width] = *pre.shape.as_slice() else {
        return Err(pre.error("is not [kv_heads, rows, head_dim]"));
    };
    let [other_heads, after, other_width] = *post.shape.as_slice() else {
        return Err(post.error("is not [kv_heads, rows, head_dim]"));
    };
    if (heads, width, pre.dtype) != (other_heads, other_width, post.dtype) {
        return Err(post.error(format!(
            "is {} {:?}, which does not follow from {} {:?} before",
            post.dtype.name(),
            post.shape,
            pre.dtype.name(),
            pre.shape
        )));
    }
    let row_bytes = width.saturating_mul(pre.dtype.size());
    if row_bytes == 0 {
        return Err(pre.error("has rows of no bytes"));
    }
    Ok(Sizes { heads, before, after, row_bytes })
}

impl Tally {
    /// Notes units that could not be compared.
    fn skip(&mut self, units: u64, why: String) {
        self.skipped += units;
        self.missing.get_or_insert_with(|| why.clone());
        self.limits.push(why);
    }

    /// The dump says that it is the compaction that its name and the event table make it.
    fn identity(&mut self, dump: &DumpFile, sample_id: &str, ordinal: u32, events: &[EventRow]) {
        let event =
            events.iter().find(|event| event.sample_id == sample_id && event.ordinal == ordinal);
        let wrong = identity::contradictions(dump, sample_id, ordinal, event);
        let Some(first) = wrong.first() else { return };
        self.strangers += 1;
        self.findings.push(Finding {
            cause: None,
            title: format!("{}: {first}", identity::ANOTHER),
            location: Location {
                sample_id: Some(sample_id.to_owned()),
                ordinal: Some(ordinal),
                stage: Some("metadata".to_owned()),
                ..Location::default()
            },
            evidence: vec![Evidence { name: "metadata".to_owned(), value: wrong.into() }],
        });
    }

    fn dump(&mut self, dump: &DumpFile, sample_id: &str, ordinal: u32) -> Result<(), TraceError> {
        self.dumps += 1;
        self.looked_at.push((sample_id.to_owned(), ordinal));
        let mut found: BTreeMap<(u32, Kind), (bool, bool)> = BTreeMap::new();
        for (before, kind, layer) in dump.names().filter_map(cache_name) {
            for kind in [Kind::K, Kind::V] {
                found.entry((layer, kind)).or_default();
            }
            let entry = found.entry((layer, kind)).or_default();
            if before { entry.0 = true } else { entry.1 = true }
        }
        let kv_heads = dump
            .names()
            .find(|name| cache_name(name).is_some())
            .map(|name| dump.get(name))
            .transpose()?
            .and_then(|view| view.shape.first().copied());
        let keep = KeepSets::read(dump, kv_heads)?;
        let heads = kv_heads.unwrap_or(0) as u64;
        self.heads = self.heads.max(kv_heads.unwrap_or(0));
        let mut views = Vec::new();
        for ((layer, kind), (before, after)) in &found {
            let letter = kind.letter();
            let Some(keep) = keep.as_ref().filter(|_| *before && *after) else {
                let missing = match (keep.is_some(), before, after) {
                    (false, ..) => "keep".to_owned(),
                    (_, false, _) => format!("pre.{letter}.layer{layer:02}"),
                    _ => format!("post.{letter}.layer{layer:02}"),
                };
                self.skip(
                    heads,
                    format!(
                        "{sample_id} compaction {ordinal}: `{missing}` is missing, not compared"
                    ),
                );
                continue;
            };
            let pre = dump.get(&format!("pre.{letter}.layer{layer:02}"))?;
            let post = dump.get(&format!("post.{letter}.layer{layer:02}"))?;
            let sizes = sizes(&pre, &post)?;
            if sizes.after != keep.k {
                return Err(
                    post.error(format!("holds {} rows, `keep` names {}", sizes.after, keep.k))
                );
            }
            views.push((*layer, *kind, pre.bytes, post.bytes, sizes, keep));
            self.layers.insert(*layer);
        }
        let mut tasks = Vec::new();
        for (layer, kind, pre, post, sizes, keep) in &views {
            for head in 0..sizes.heads {
                let (before, after) =
                    (sizes.before * sizes.row_bytes, sizes.after * sizes.row_bytes);
                let rows = usize::try_from(*layer).ok().and_then(|layer| keep.of(layer, head));
                let parts = pre
                    .get(head * before..(head + 1) * before)
                    .zip(post.get(head * after..(head + 1) * after));
                let (Some(keep), Some((pre, post))) = (rows, parts) else {
                    self.skip(1, format!("{sample_id} compaction {ordinal}: `keep` does not cover layer {layer}, head {head}"));
                    continue;
                };
                tasks.push(HeadTask {
                    layer: *layer,
                    kind: *kind,
                    head,
                    pre,
                    post,
                    keep,
                    row_bytes: sizes.row_bytes,
                });
            }
        }
        let faults: Vec<HeadFault> = tasks.par_iter().filter_map(HeadTask::check).collect();
        self.compared += self.telling(&tasks, &faults, sample_id, ordinal);
        self.different += faults.len() as u64;
        self.rows += tasks.iter().map(|task| task.keep.len() as u64).sum::<u64>();
        self.bytes += tasks.iter().map(|task| 2 * task.post.len() as u64).sum::<u64>();
        explain::explain(&faults, &tasks, sample_id, ordinal, &mut self.findings);
        Ok(())
    }

    /// Head tensors whose rows before tell one gather from another; the others are skipped.
    fn telling(
        &mut self,
        tasks: &[HeadTask<'_>],
        faults: &[HeadFault],
        sample_id: &str,
        ordinal: u32,
    ) -> u64 {
        let tells = |task: &HeadTask<'_>| !task.flat() || faults.iter().any(|fault| fault.of(task));
        let told = tasks.par_iter().filter(|task| tells(task)).count();
        let blind = tasks.len() - told;
        if blind > 0 {
            self.skip(
                blind as u64,
                format!("{sample_id} compaction {ordinal}: rows before are all equal, a gather cannot be told ({blind} of {} head tensors)", tasks.len()),
            );
        }
        told as u64
    }

    fn report(mut self) -> CheckReport {
        let verdict = if self.different > 0 || self.strangers > 0 {
            Verdict::Diverged
        } else if self.compared == 0 && self.missing.is_none() {
            Verdict::Incomparable {
                why: "no dumped K and V with a keep-set: nothing was compared".to_owned(),
            }
        } else if let Some(first) = &self.missing {
            let count = self.skipped;
            let rest = if self.compared > 0 { "; the others are equal" } else { "" };
            Verdict::Incomparable { why: format!("{first} ({count} units skipped){rest}") }
        } else {
            Verdict::Identical
        };
        self.findings.sort_by_key(explain::gravity);
        CheckReport {
            kind: CheckKind::Gather,
            verdict,
            compared: self.compared,
            different: self.different,
            skipped: self.skipped,
            unit: "head tensors".to_owned(),
            findings: self.findings,
            limits: self.limits,
            detail: json!({
                "compactions": self.dumps,
                "events": self.looked_at.iter()
                    .map(|(sample_id, ordinal)| json!({"sample_id": sample_id, "ordinal": ordinal}))
                    .collect::<Vec<_>>(),
                "layers": self.layers.len(),
                "kv_heads": self.heads,
                "rows": self.rows,
                "bytes": self.bytes,
            }),
        }
    }
}

#[cfg(test)]
mod tests;
