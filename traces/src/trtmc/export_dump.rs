//! A dumped compaction of a run directory becomes a keep dump with its binary files.

use std::io::{BufWriter, Write as _};
use std::path::Path;

use super::keep::{KeepDump, Profile};
use crate::store::fail::{io, malformed};
use crate::store::{DumpFile, RunReader, TensorView, replace_file};
use crate::{DumpId, EventRow, TraceError};

/// How a keep dump is written. The default is an engine that does not profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpExport {
    /// With a `profile` object and a true index; without it the index reads one high, as the engine's does.
    pub profile: bool,
}

/// Writes compaction `ordinal` of `sample_id` as a keep dump at `path`, with its `.bin` files beside it where K and
/// V were dumped.
///
/// # Errors
/// [`TraceError::Malformed`] where the run has no such dump or event, lacks an effective setting that the layout
/// states, or its keep-sets are not one ascending set for each KV head; what reading and writing report.
pub fn export_dump(
    run: &RunReader,
    sample_id: &str,
    ordinal: u32,
    path: &Path,
    options: DumpExport,
) -> Result<(), TraceError> {
    let id = DumpId::Compaction { sample_id: sample_id.to_owned(), ordinal };
    let missing =
        |what: &str| malformed(run.dir(), format!("compaction {ordinal} of `{sample_id}` {what}"));
    let file = run.dump(&id)?.ok_or_else(|| missing("was not dumped"))?;
    let event = run.events(Some(sample_id))?.into_iter().find(|event| event.ordinal == ordinal);
    let event = event.ok_or_else(|| missing("has no event row"))?;
    let mut dump = keep_dump(run, &file, &event, options)?;
    let heads = dump.kv_heads();
    let layers: Vec<u32> =
        file.names().filter_map(|name| name.strip_prefix("pre.k.layer")?.parse().ok()).collect();
    if !layers.is_empty() {
        let list =
            |kind: &str| Some(layers.iter().map(|layer| bin_name(path, kind, *layer)).collect());
        dump.score_cache_files = list("");
        dump.value_cache_files = list(".v");
        dump.post_score_cache_files = list(".post");
        dump.post_value_cache_files = list(".post.v");
        dump.score_cache_dtype = Some("float32".to_owned());
        for &layer in &layers {
            for (tensor, kind) in
                [("pre.k", ""), ("pre.v", ".v"), ("post.k", ".post"), ("post.v", ".post.v")]
            {
                let rows = if tensor.starts_with("pre") {
                    dump.cache_length_before
                } else {
                    dump.keep_count
                };
                let view = file.get(&format!("{tensor}.layer{layer:02}"))?;
                let shape = write_bin(
                    &view,
                    heads,
                    rows as usize,
                    Path::new(&bin_name(path, kind, layer)),
                )?;
                match tensor {
                    "pre.k" => dump.score_cache_shape = Some(shape),
                    "post.k" => dump.post_score_cache_shape = Some(shape),
                    _ => {}
                }
            }
        }
    }
    dump.write(path)
}

fn bin_name(path: &Path, kind: &str, layer: u32) -> String {
    format!("{}{kind}.layer{layer:02}.bin", path.display())
}

/// `[kv_heads, rows, head_dim]` in the cache's dtype as bare f32 `[rows][kv_heads][head_dim]`; returns that shape.
fn write_bin(
    view: &TensorView<'_>,
    heads: usize,
    rows: usize,
    path: &Path,
) -> Result<[usize; 3], TraceError> {
    let dim = match view.shape[..] {
        [h, r, dim] if h == heads && r == rows => dim,
        _ => {
            let what =
                format!("has shape {:?}, the dump {heads} heads and {rows} rows", view.shape);
            return Err(view.error(what));
        }
    };
    let values = view.to_f32()?;
    replace_file(path, |file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        for row in 0..rows {
            for head in 0..heads {
                let start = (head * rows + row) * dim;
                for value in &values[start..start + dim] {
                    out.write_all(&value.to_le_bytes()).map_err(io(path))?;
                }
            }
        }
        out.flush().map_err(io(path))
    })?;
    Ok([rows, heads, dim])
}

fn keep_dump(
    run: &RunReader,
    file: &DumpFile,
    event: &EventRow,
    options: DumpExport,
) -> Result<KeepDump, TraceError> {
    let (prompt, profile) = (prompt_len(file)?, options.profile.then(|| profile(file, event)));
    let old = by_head(&file.get("positions.pre")?, event.rows_before)?;
    let keep = by_head(&file.get("keep")?, event.rows_after)?;
    if keep.iter().any(|rows| rows.windows(2).any(|pair| pair[0] >= pair[1])) {
        return Err(file.get("keep")?.error(
            "rows are not ascending; this layout holds ascending rows only (rule set hf keeps them by score)",
        ));
    }
    Ok(KeepDump {
        compaction_index: event.ordinal.saturating_add(u32::from(!options.profile)),
        absolute_position: event.absolute_position,
        cache_length_before: event.rows_before,
        keep_count: event.rows_after,
        prompt_end_position: prompt,
        planned_prompt_length: prompt,
        protect_prefill: flag(run, "policy.protect_prefill")?,
        recent_window: count(run, "policy.recent_window")?,
        kv_budget: count(run, "policy.kv_budget")?,
        count_prompt_tokens: flag(run, "policy.count_prompt_tokens")?,
        cache_positions: old.first().cloned().unwrap_or_default(),
        cache_positions_per_head: old,
        new_positions_by_head: by_head(&file.get("positions.post")?, event.rows_after)?,
        keep_indices_by_head: keep,
        profile,
        score_cache_shape: None,
        score_cache_dtype: None,
        score_cache_files: None,
        value_cache_files: None,
        post_score_cache_shape: None,
        post_score_cache_files: None,
        post_value_cache_files: None,
    })
}

/// A `[kv_heads, count]` table.
fn by_head(view: &TensorView<'_>, count: u32) -> Result<Vec<Vec<u32>>, TraceError> {
    if !matches!(view.shape[..], [_, found] if found == count as usize) {
        let shape = &view.shape;
        return Err(view.error(format!(
            "has shape {shape:?}; this layout has one list of {count} for each KV head"
        )));
    }
    let values = view.to_i32()?;
    let rows: Result<Vec<u32>, _> = values.into_iter().map(u32::try_from).collect();
    let rows = rows.map_err(|_| view.error("holds a negative number"))?;
    Ok(rows.chunks(count.max(1) as usize).map(<[u32]>::to_vec).collect())
}

fn prompt_len(file: &DumpFile) -> Result<u32, TraceError> {
    let text = file.metadata().get("prompt_len").and_then(|text| text.parse().ok());
    text.ok_or_else(|| malformed(file.path(), "metadata has no number `prompt_len`"))
}

fn profile(file: &DumpFile, event: &EventRow) -> Profile {
    let listed = |key: &str| {
        let text = file.metadata().get(key).map_or("", String::as_str);
        u32::try_from(text.split(',').filter(|part| !part.trim().is_empty()).count())
            .unwrap_or(u32::MAX)
    };
    let layers = listed("score_layers");
    Profile {
        reserved_count: event.protected,
        candidate_count: event.candidates,
        sampled_layers: layers,
        sampled_heads: layers.saturating_mul(listed("score_heads")),
        score_ms: event.score_seconds * 1000.0,
        combine_ms: event.reduce_seconds * 1000.0,
        select_ms: event.select_seconds * 1000.0,
        repack_ms: event.gather_seconds * 1000.0,
    }
}

fn setting<'a>(run: &'a RunReader, key: &str) -> Result<&'a serde_json::Value, TraceError> {
    let found = run.manifest().get(key);
    found.ok_or_else(|| {
        malformed(run.dir(), format!("the manifest has no `{key}`, which a keep dump states"))
    })
}

fn flag(run: &RunReader, key: &str) -> Result<bool, TraceError> {
    let value = setting(run, key)?;
    value
        .as_bool()
        .ok_or_else(|| malformed(run.dir(), format!("`{key}` is {value}, not true or false")))
}

fn count(run: &RunReader, key: &str) -> Result<u32, TraceError> {
    let value = setting(run, key)?;
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| malformed(run.dir(), format!("`{key}` is {value}, not a count of rows")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trtmc::bins::tests::write_example;
    use crate::trtmc::{DumpImport, import_dump};

    #[test]
    fn a_dump_and_its_bins_come_back_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        write_example(&json);
        let options = DumpImport { divide_length: Some(4), sample_id: None };
        import_dump(&json, &options, &dir.path().join("run")).unwrap();
        let run = RunReader::open(&dir.path().join("run")).unwrap();
        let out = dir.path().join("out");
        std::fs::create_dir(&out).unwrap();
        export_dump(&run, "sample_0", 1, &out.join("k.json"), DumpExport::default()).unwrap();
        let mut bins = 0;
        for entry in std::fs::read_dir(&out).unwrap() {
            let name = entry.unwrap().file_name();
            if name.to_str().unwrap().ends_with(".bin") {
                bins += 1;
                let (a, b) = (dir.path().join(&name), out.join(&name));
                assert_eq!(std::fs::read(a).unwrap(), std::fs::read(b).unwrap(), "{name:?}");
            }
        }
        assert_eq!(bins, 8);
        let (first, again) =
            (KeepDump::read(&json).unwrap(), KeepDump::read(&out.join("k.json")).unwrap());
        assert_eq!(again.compaction_index, 2);
        assert_eq!(again.post_score_cache_shape, Some([8, 2, 4]));
        assert_eq!(first.keep_indices_by_head, again.keep_indices_by_head);
        assert_eq!(first.new_positions_by_head, again.new_positions_by_head);
    }

    #[test]
    fn a_profiled_export_has_the_true_index() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        write_example(&json);
        import_dump(&json, &DumpImport::default(), &dir.path().join("run")).unwrap();
        let run = RunReader::open(&dir.path().join("run")).unwrap();
        let out = dir.path().join("p.json");
        export_dump(&run, "sample_0", 1, &out, DumpExport { profile: true }).unwrap();
        let again = KeepDump::read(&out).unwrap();
        assert_eq!((again.compaction_index, again.profile), (1, Some(Profile::default())));
        let absent = export_dump(&run, "sample_0", 2, &out, DumpExport::default());
        assert!(
            matches!(absent, Err(TraceError::Malformed { what, .. }) if what.contains("was not dumped"))
        );
    }
}
