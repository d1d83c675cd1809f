//! A keep dump and its binary files become a run directory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use super::bins::{BinFile, Bins, GatherFault, gather_faults};
use super::import_trace::sample;
use super::keep::KeepDump;
use super::ordinal::{Ordinal, true_ordinal};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::store::streamed::{Streamed, write_streamed};
use crate::tensor_files::Element;
use crate::{DType, DumpId, EventRow, Manifest, RecordPlan, TraceError, TraceSink as _};

/// What a keep dump does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DumpImport {
    /// Divide length of the run.
    pub divide_length: Option<u32>,
    /// Id of the sample; `sample_0` where not given.
    pub sample_id: Option<String>,
}

/// Makes a run directory `out` with one event and one dump from the keep dump at `json` and the binary files beside
/// it; K and V are transposed to `[kv_heads, rows, head_dim]` and pass through a small buffer. Returns what was
/// noticed, as the manifest's remarks.
///
/// Binary files are rewritten at every compaction while the JSON obeys the index asked for, and their sizes do not
/// tell. Where not one layer's K and V follow the keep-set, the files are of another compaction: they are left out.
///
/// # Errors
/// As [`KeepDump::read`], [`Bins::open`] and [`RunWriter::create`]. Nothing is written where the input is at fault.
pub fn import_dump(
    json: &Path,
    options: &DumpImport,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let dump = KeepDump::read(json)?;
    let ordinal = true_ordinal(&dump, options.divide_length);
    let mut bins = Bins::open(&dump, json)?;
    let mut remarks = ordinal.remarks.clone();
    remarks.extend(dump_remarks(&dump, json));
    if !bins_remarks(&bins, &gather_faults(&dump, &bins), &mut remarks) {
        bins.layers.clear();
    }
    let sample_id = options.sample_id.clone().unwrap_or_else(|| "sample_0".to_owned());
    let id = DumpId::Compaction { sample_id: sample_id.clone(), ordinal: ordinal.value };
    let mut writer =
        RunWriter::create(out, manifest(&dump, &ordinal, &bins, &remarks), RecordPlan::default())?;
    write_streamed(
        &out.join(id.relative_path()),
        &metadata(&dump, &sample_id, ordinal.value),
        tensors(&dump, &bins),
    )?;
    writer.event(event(&dump, &sample_id, ordinal.value, id.relative_path()))?;
    let prompt_len = Some(dump.planned_prompt_length);
    writer.sample(sample(&sample_id, prompt_len, Vec::new(), Vec::new()))?;
    writer.finish()?;
    Ok(remarks)
}

fn dump_remarks(dump: &KeepDump, json: &Path) -> Vec<String> {
    let mut remarks = Vec::new();
    let uncounted = if dump.count_prompt_tokens { 0 } else { dump.planned_prompt_length };
    if dump.keep_count != dump.kv_budget.saturating_add(uncounted) {
        remarks
            .push(format!("{} rows are kept, the budget is {}", dump.keep_count, dump.kv_budget));
    }
    if dump.prompt_end_position != dump.planned_prompt_length {
        remarks.push(format!(
            "prompt_end_position {} is not the planned prompt length {}",
            dump.prompt_end_position, dump.planned_prompt_length
        ));
    }
    let falls = |positions: &Vec<u32>| positions.windows(2).any(|pair| pair[0] >= pair[1]);
    let heads: Vec<usize> =
        (0..dump.kv_heads()).filter(|&head| falls(&dump.cache_positions_per_head[head])).collect();
    if !heads.is_empty() {
        remarks.push(format!("positions before the compaction do not ascend in heads {heads:?}"));
    }
    for suffix in ["agg.bin", "layeragg.bin"] {
        let mut name = json.as_os_str().to_owned();
        name.push(".");
        name.push(suffix);
        if Path::new(&name).exists() {
            remarks.push(format!("scores in {suffix} beside the dump are not imported"));
        }
    }
    remarks
}

/// Says where the gather identity fails; `false` where it fails everywhere.
fn bins_remarks(bins: &Bins, faults: &[GatherFault], remarks: &mut Vec<String>) -> bool {
    let tested = bins.layers.iter().filter(|layer| layer.post.is_some()).count();
    if bins.layers.is_empty() {
        remarks.push("no cache was dumped beside the keep-sets".to_owned());
    } else if tested > 0 && faults.len() == tested {
        remarks.push(
            "bins from another compaction: in no layer are the rows after those kept of the rows before; K and V are \
             left out (dump again and abort after the dump)"
                .to_owned(),
        );
        return false;
    }
    for fault in faults {
        remarks.push(format!(
            "gather identity fails in {} of layer {}: {} of {} rows differ",
            fault.part.letter(),
            fault.layer,
            fault.different,
            fault.compared
        ));
    }
    true
}

fn manifest(dump: &KeepDump, ordinal: &Ordinal, bins: &Bins, remarks: &[String]) -> Manifest {
    let producer = Producer { name: "trtmc".to_owned(), ..Producer::default() };
    let mut manifest = Manifest::new(producer, "unknown");
    manifest.cache_dtype = (!bins.layers.is_empty()).then_some(DType::F32);
    manifest.includes_prompt = false;
    manifest.remarks = remarks.to_vec();
    let source = "imported";
    manifest.set("policy.kind", "triattention", source);
    manifest.set("policy.rule_set", "trt", source);
    manifest.set("policy.kv_budget", dump.kv_budget, source);
    manifest.set("policy.recent_window", dump.recent_window, source);
    manifest.set("policy.protect_prefill", dump.protect_prefill, source);
    manifest.set("policy.count_prompt_tokens", dump.count_prompt_tokens, source);
    manifest.set("trace.sample_ids", "invented", source);
    if let Some(length) = ordinal.divide_length {
        manifest.set("policy.divide_length", length, "rows dropped, or as told to the importer");
    }
    manifest
}

fn metadata(dump: &KeepDump, sample_id: &str, ordinal: u32) -> BTreeMap<String, String> {
    [
        ("sample_id", sample_id.to_owned()),
        ("ordinal", ordinal.to_string()),
        ("absolute_position", dump.absolute_position.to_string()),
        ("rows_before", dump.cache_length_before.to_string()),
        ("rows_after", dump.keep_count.to_string()),
        ("rule_set", "trt".to_owned()),
        ("mode", "per_head".to_owned()),
        ("prompt_len", dump.planned_prompt_length.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

fn tensors<'a>(dump: &'a KeepDump, bins: &'a Bins) -> Vec<Streamed<'a>> {
    let mut tensors = vec![
        Streamed::table("keep", &dump.keep_indices_by_head),
        Streamed::table("positions.pre", &dump.cache_positions_per_head),
        Streamed::table("positions.post", &dump.new_positions_by_head),
    ];
    for layer in &bins.layers {
        let name = |side: &str| format!("{side}.{}.layer{:02}", layer.part.letter(), layer.layer);
        tensors.push(transposed(name("pre"), &layer.pre));
        if let Some(post) = &layer.post {
            tensors.push(transposed(name("post"), post));
        }
    }
    tensors
}

/// `[rows][head][dim]` as `[head][rows][dim]`.
fn transposed(name: String, bin: &BinFile) -> Streamed<'_> {
    let [rows, heads, dim] = bin.shape();
    let write = move |out: &mut dyn Write| {
        for head in 0..heads {
            for row in 0..rows {
                let bytes = bin.row(row, head).ok_or(io::ErrorKind::UnexpectedEof)?;
                out.write_all(bytes)?;
            }
        }
        Ok(())
    };
    Streamed { name, element: Element::F32, shape: vec![heads, rows, dim], write: Box::new(write) }
}

fn event(dump: &KeepDump, sample_id: &str, ordinal: u32, path: String) -> EventRow {
    let profile = dump.profile.clone().unwrap_or_default();
    let seconds = |milliseconds: f64| milliseconds / 1000.0;
    EventRow {
        sample_id: sample_id.to_owned(),
        ordinal,
        absolute_position: dump.absolute_position,
        round_start: None,
        rows_before: dump.cache_length_before,
        rows_after: dump.keep_count,
        protected: profile.reserved_count,
        candidates: profile.candidate_count,
        score_seconds: seconds(profile.score_ms),
        reduce_seconds: seconds(profile.combine_ms),
        select_seconds: seconds(profile.select_ms),
        gather_seconds: seconds(profile.repack_ms),
        dump: Some(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunReader;
    use crate::trtmc::bins::tests::write_example;

    fn imported(plant: impl FnOnce(&Path)) -> (tempfile::TempDir, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        write_example(&json);
        plant(dir.path());
        let options = DumpImport { divide_length: Some(4), sample_id: None };
        let remarks = import_dump(&json, &options, &dir.path().join("run")).unwrap();
        (dir, remarks)
    }

    fn says(remarks: &[String], what: &str) -> bool {
        remarks.iter().any(|remark| remark.contains(what))
    }

    #[test]
    fn a_keep_dump_becomes_a_run_with_one_event_and_its_transposed_cache() {
        let (dir, remarks) = imported(|_| {});
        assert!(says(&remarks, "compaction_index 2 is shifted: this is compaction 1"));
        assert!(!says(&remarks, "gather") && !says(&remarks, "bins"));
        let run = RunReader::open(&dir.path().join("run")).unwrap();
        let events = run.events(None).unwrap();
        assert_eq!((events[0].ordinal, events[0].absolute_position), (1, 12));
        assert_eq!((events[0].rows_before, events[0].rows_after), (12, 8));
        let id = run.dumps().unwrap().remove(0);
        assert_eq!(id, DumpId::Compaction { sample_id: "sample_0".into(), ordinal: 1 });
        let dump = run.dump(&id).unwrap().unwrap();
        assert_eq!(dump.metadata()["prompt_len"], "3");
        assert_eq!(dump.get("keep").unwrap().to_i32().unwrap()[8..11], [0, 1, 2]);
        let value = dump.get("pre.v.layer01").unwrap();
        assert_eq!(value.shape, [2, 12, 4]);
        // Head 1, row 5, element 3 of the example.
        let found = value.to_f32().unwrap()[(12 + 5) * 4 + 3];
        assert_eq!(found.to_bits(), (250.0_f32 + 5.0 + 0.25 + 0.003).to_bits());
        let after = dump.get("post.k.layer00").unwrap().to_f32().unwrap();
        assert_eq!(after[(8 + 4) * 4].to_bits(), 106.25_f32.to_bits());
        assert_eq!(run.manifest().get("policy.kv_budget"), Some(&serde_json::json!(8)));
    }

    #[test]
    fn bins_of_another_compaction_are_said_and_left_out() {
        let (dir, remarks) = imported(|dir| {
            // Another compaction of the same size: every row before is another one.
            for part in ["", ".v"] {
                for layer in 0..2 {
                    let path = dir.join(format!("k.json{part}.layer{layer:02}.bin"));
                    let mut bytes = std::fs::read(&path).unwrap();
                    bytes.rotate_left(32);
                    std::fs::write(&path, bytes).unwrap();
                }
            }
        });
        assert!(says(&remarks, "bins from another compaction"));
        let run = RunReader::open(&dir.path().join("run")).unwrap();
        let dump = run.dump(&run.dumps().unwrap()[0]).unwrap().unwrap();
        assert!(dump.has("keep") && !dump.has("pre.k.layer00"));
    }

    #[test]
    fn one_layer_that_was_not_gathered_is_named_and_kept_for_the_check() {
        let (dir, remarks) = imported(|dir| {
            let before = std::fs::read(dir.join("k.json.v.layer01.bin")).unwrap();
            std::fs::write(dir.join("k.json.post.v.layer01.bin"), &before[..8 * 32]).unwrap();
        });
        assert!(says(&remarks, "gather identity fails in v of layer 1"), "{remarks:?}");
        let run = RunReader::open(&dir.path().join("run")).unwrap();
        assert!(run.dump(&run.dumps().unwrap()[0]).unwrap().unwrap().has("post.v.layer01"));
    }

    #[test]
    fn faulty_input_leaves_no_run_behind() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        write_example(&json);
        std::fs::write(dir.path().join("k.json.layer00.bin"), [0; 8]).unwrap();
        let out = dir.path().join("run");
        assert!(import_dump(&json, &DumpImport::default(), &out).is_err());
        assert!(!out.exists());
    }
}
