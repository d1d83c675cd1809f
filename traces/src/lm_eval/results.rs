//! The results file that lm-eval writes beside its samples: who answered, with which settings.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::hash::sha256_hex;
use crate::imported::IMPORTED;
use crate::{DType, Manifest};

/// Largest results file that is read; tasks with many groups write some megabytes.
const LONGEST: u64 = 64 << 20;

/// `results_<time>.json` beside `samples_<task>_<time>.jsonl`, and the task.
fn beside(samples: &Path) -> Option<(PathBuf, String)> {
    let name = samples.file_name()?.to_str()?;
    let stem = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".jsonl")?;
    let (task, time) = stem.strip_prefix("samples_")?.rsplit_once('_')?;
    let path = samples.with_file_name(format!("results_{time}.json"));
    let length = std::fs::metadata(&path).ok()?.len();
    (length <= LONGEST).then(|| (path, task.to_owned()))
}

/// Adds what the results file of `samples` says to `manifest`. `hashes` are `doc_hash`, `prompt_hash` and `target_hash` of the rows
/// joined in order: their sha256 is the task's hash in the results. Returns false where there is no such file.
pub(super) fn describe(samples: &Path, hashes: &str, manifest: &mut Manifest) -> bool {
    let Some((path, task)) = beside(samples) else { return false };
    let read =
        std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(results) = read else {
        manifest.remarks.push(format!("{name} beside the samples is no JSON and was not read"));
        return false;
    };
    if let Some(version) = results.get("lm_eval_version").and_then(Value::as_str) {
        version.clone_into(&mut manifest.producer.version);
    }
    for (ours, pointer) in [
        ("model.name", "/model_name".to_owned()),
        ("model.args", "/config/model_args".to_owned()),
        ("model.revision", "/config/model_sha".to_owned()),
        ("device.batch_size", "/config/batch_size".to_owned()),
        ("device.requested", "/config/device".to_owned()),
        ("inputs.random_seed", "/config/random_seed".to_owned()),
        ("inputs.fewshot_seed", "/config/fewshot_seed".to_owned()),
        ("sampling.torch_seed", "/config/torch_seed".to_owned()),
        ("inputs.limit", "/config/limit".to_owned()),
        ("inputs.num_fewshot", format!("/n-shot/{}", escaped(&task))),
        ("inputs.task_version", format!("/versions/{}", escaped(&task))),
        ("prompt.chat_template_sha256", "/chat_template_sha".to_owned()),
        ("producer.harness_commit", "/git_hash".to_owned()),
    ] {
        if let Some(value) = results.pointer(&pointer).filter(|value| !value.is_null()) {
            manifest.set(ours, value.clone(), IMPORTED);
        }
    }
    let dtype = results.pointer("/config/model_dtype").and_then(Value::as_str);
    manifest.dtype = match dtype.map(|name| name.strip_prefix("torch.").unwrap_or(name)) {
        Some("bfloat16") => Some(DType::Bf16),
        Some("float16") => Some(DType::F16),
        Some("float32") => Some(DType::F32),
        _ => None,
    };
    let stated =
        results.pointer(&format!("/task_hashes/{}", escaped(&task))).and_then(Value::as_str);
    if let Some(stated) = stated.filter(|stated| **stated != *sha256_hex(hashes.as_bytes())) {
        manifest.remarks.push(format!(
            "{name} has the hash {stated} for task `{task}`, and the rows have another: samples and results are not of one run, or \
             rows were changed"
        ));
    }
    manifest.remarks.push(format!("settings were read from {name} beside the samples"));
    true
}

/// A key in a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lm_eval::{Import, import_samples};
    use crate::store::RunReader;

    /// Task hash of `samples_gen.jsonl`, computed with Python as lm-eval does.
    const HASH: &str = "51c1b4a5e97b6f351aa7c55e67ca888199bbd63ff868bbe0c5bb93bb5e1a0175";

    fn import(hash: &str) -> Manifest {
        let dir = tempfile::tempdir().unwrap();
        let source = lockstep_testkit::data().join("interop/lm-eval/samples_gen.jsonl");
        let path = dir.path().join("samples_gen_2026-11-30T20-29-06.993539.jsonl");
        std::fs::copy(source, &path).unwrap();
        let results = format!(
            r#"{{"lm_eval_version":"0.4.13","model_name":"canned","task_hashes":{{"gen":"{hash}"}},"n-shot":{{"gen":0}},"versions":{{"gen":1.0}},
                "config":{{"model_args":"pretrained=x","model_dtype":"torch.bfloat16","torch_seed":1234,"limit":null}}}}"#
        );
        std::fs::write(dir.path().join("results_2026-11-30T20-29-06.993539.json"), results)
            .unwrap();
        let out = dir.path().join("run");
        import_samples(&path, &Import::default(), &out).unwrap();
        RunReader::open(&out).unwrap().manifest().clone()
    }

    #[test]
    fn settings_beside_the_samples_reach_the_manifest() {
        let manifest = import(HASH);
        assert_eq!(manifest.producer.version, "0.4.13");
        assert_eq!(manifest.dtype, Some(DType::Bf16));
        for (key, value) in [
            ("model.name", Value::from("canned")),
            ("sampling.torch_seed", 1234.into()),
            ("inputs.num_fewshot", 0.into()),
        ] {
            assert_eq!(manifest.get(key), Some(&value), "{key}");
            assert_eq!(manifest.config[key].source, "imported");
        }
        assert_eq!(manifest.get("inputs.limit"), None);
        assert!(!manifest.remarks.iter().any(|line| line.contains("not of one run")));
    }

    #[test]
    fn results_of_other_rows_are_said() {
        let manifest = import(&"0".repeat(64));
        assert!(manifest.remarks.iter().any(|line| line.contains("not of one run")));
    }
}
