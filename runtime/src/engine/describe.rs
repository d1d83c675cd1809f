//! The manifest's part of an engine: what is in force, and where each value came from.

use lockstep_traces::hash::{DEFAULT_SEEDS, sha256_file};
use lockstep_traces::manifest::ValueEncoding;
use lockstep_traces::{Manifest, Setting};

use super::backend::Loaded;
use super::{Engine, RunOptions, StopRules};
use crate::RuntimeError;
use crate::cuda::gpu::compile_options;
use crate::sample::Sampler;

impl Engine {
    /// Fills in model identity, dtypes, device, kernel options, and the effective configuration with the source of each value. The
    /// caller knows the rest: producer, time, statistics file, trace settings.
    ///
    /// # Errors
    /// Options that cannot be honoured, or a model file that cannot be read again.
    pub fn describe(
        &self,
        options: &RunOptions,
        manifest: &mut Manifest,
    ) -> Result<(), RuntimeError> {
        let hyper = self.hyper();
        manifest.dtype = Some(self.dtype);
        manifest.cache_dtype = Some(self.cache_dtype);
        self.describe_device(manifest);
        manifest.encoding = ValueEncoding::F32;
        manifest.rows_exact = true;
        manifest.includes_prompt = true;
        manifest.logits_hash_seeds = Some(DEFAULT_SEEDS);
        let model = &mut manifest.model;
        model.architecture = Some(hyper.architecture.name().to_owned());
        if !self.dir.as_os_str().is_empty() {
            model.path = Some(self.dir.display().to_string());
            // A GGUF file is configuration, weights and tokenizer at once; its hash stands below.
            if self.dir.is_dir() {
                model.config_sha256 = Some(sha256_file(self.dir.join("config.json"))?);
            }
        }
        for path in &self.weight_files {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            model.weights_sha256.insert(name.unwrap_or_default(), sha256_file(path)?);
        }
        if self.tokenizer.is_some() && self.dir.is_dir() {
            model.tokenizer_sha256 = Some(sha256_file(self.dir.join("tokenizer.json"))?);
        }
        manifest.config.extend(self.settings(options)?);
        for remark in self.remarks() {
            if !manifest.remarks.contains(remark) {
                manifest.remarks.push(remark.clone());
            }
        }
        Ok(())
    }

    fn describe_device(&self, manifest: &mut Manifest) {
        match &self.model {
            Loaded::Cpu(model) => {
                "cpu".clone_into(&mut manifest.device);
                manifest.sm_arch = None;
                manifest.kernel_options = vec![
                    format!("isa={}", model.isa().name()),
                    "sum=16 lanes, fused multiply-add, folded by halves".to_owned(),
                ];
            }
            Loaded::Cuda(model) => {
                let info = model.gpu.info();
                manifest.device = format!("cuda: {}", info.name);
                manifest.sm_arch = Some(info.arch.clone());
                manifest.kernel_options = compile_options();
                manifest.kernel_options.push(format!("nvrtc={}", info.compiler));
                manifest.kernel_options.push(format!("driver={}", info.driver));
            }
        }
    }

    /// What a run on a CUDA device was asked to do; nothing on the CPU.
    fn device_settings(&self, options: &RunOptions) -> Vec<(&'static str, serde_json::Value)> {
        if matches!(self.model, Loaded::Cpu(_)) {
            return Vec::new();
        }
        let device = &options.device;
        vec![
            ("device.deterministic", device.deterministic.into()),
            ("device.graphs", device.graphs.into()),
            ("device.batch_buckets", device.batch_buckets.clone().into()),
            ("device.row_buckets", device.row_buckets.clone().into()),
            ("device.select", device.select.into()),
            ("device.gather", device.gather.into()),
            ("device.prefill_rows", device.prefill_rows.into()),
        ]
    }

    /// The effective configuration alone: `model.*`, `policy.*`, `sampling.*`, `stop.*`, `plant`.
    ///
    /// # Errors
    /// Options that cannot be honoured.
    pub fn settings(
        &self,
        options: &RunOptions,
    ) -> Result<std::collections::BTreeMap<String, Setting>, RuntimeError> {
        let hyper = self.hyper();
        let mut settings = hyper.settings.clone();
        let mut set = |key: &str, value: serde_json::Value, source: &str| {
            settings.insert(key.to_owned(), Setting { value, source: source.to_owned() });
        };
        set("model.dtype", self.dtype.name().into(), self.dtype_source);
        set("model.cache_dtype", self.cache_dtype.name().into(), self.cache_dtype_source);
        for setting in self.policy(options)?.effective() {
            set(setting.key, setting.value.clone(), setting.source);
        }
        let sampler = Sampler::resolve(&options.sampling, hyper.vocab_size)?;
        for (key, setting) in sampler.config() {
            set(key, setting.value.clone(), &setting.source);
        }
        set("stop.max_new_tokens", options.max_new_tokens.into(), "flag");
        let (ids, source) = match &options.stop_ids {
            Some(ids) => (ids, "flag"),
            None => (&hyper.eos_ids, "model"),
        };
        set("stop.ids", ids.clone().into(), source);
        for (key, value) in options.stop.config() {
            set(key, value, if options.stop == StopRules::default() { "default" } else { "flag" });
        }
        let standard = RunOptions::default();
        let defaults = self.device_settings(&standard);
        for ((key, value), (_, default)) in self.device_settings(options).into_iter().zip(defaults)
        {
            let source = if value == default { "default" } else { "flag" };
            set(key, value, source);
        }
        if let Some(cause) = options.plant {
            set("plant", cause.slug().into(), "flag");
        }
        Ok(settings)
    }
}
