//! Making subjects, and asking them.

use lockstep_traces::{EventRow, Phase, Setting};
use serde_json::Value;

use super::subject::Kind;
use super::{Sample, Subject};
use crate::Side;

impl<'a> Subject<'a> {
    /// A subject of which nothing is known but its name.
    #[must_use]
    pub fn new(label: impl Into<String>, kind: Kind) -> Self {
        Self { label: label.into(), kind, ..Self::default() }
    }

    /// Adds a setting; for readers and controls.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>, source: &str) -> Self {
        self.set(key, value, source);
        self
    }

    /// Adds a setting.
    pub fn set(&mut self, key: &str, value: impl Into<Value>, source: &str) {
        let setting = Setting { value: value.into(), source: source.to_owned() };
        self.settings.get_or_insert_default().insert(key.to_owned(), setting);
    }

    /// Adds a sample; for readers and controls.
    #[must_use]
    pub fn with_sample(mut self, sample: Sample) -> Self {
        self.samples.get_or_insert_default().push(sample);
        self
    }

    /// Effective value of `key`.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&Value> {
        self.settings.as_ref()?.get(key).map(|setting| &setting.value)
    }

    /// Effective value as text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        self.setting(key).filter(|value| !value.is_null()).map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        })
    }

    /// Effective value as a count.
    #[must_use]
    pub fn count(&self, key: &str) -> Option<u64> {
        self.setting(key)?.as_u64()
    }

    /// Effective value as a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<f64> {
        self.setting(key)?.as_f64()
    }

    /// Effective value as a switch.
    #[must_use]
    pub fn switch(&self, key: &str) -> Option<bool> {
        self.setting(key)?.as_bool()
    }

    /// Tokens are the largest logit and nothing is drawn; `None` where neither sampler nor temperature is recorded.
    #[must_use]
    pub fn greedy(&self) -> Option<bool> {
        if let Some(sampler) = self.text("sampling.sampler") {
            return Some(sampler == "argmax");
        }
        self.number("sampling.temperature").map(|value| value < 1e-6)
    }

    /// The sample of this id.
    #[must_use]
    pub fn sample(&self, id: &str) -> Option<&Sample> {
        self.samples.as_ref()?.iter().find(|sample| sample.id == id)
    }

    /// Generated ids of a sample: as recorded, else the decode rows' fed tokens of the trace.
    #[must_use]
    pub fn stream(&self, id: &str) -> Option<Vec<u32>> {
        if let Some(ids) = self.sample(id).and_then(|sample| sample.generated_ids.clone()) {
            return Some(ids);
        }
        let steps = &self.trace.as_ref()?.steps;
        let rows = (0..steps.len).filter(|&row| {
            steps.sample_id(row) == Some(id) && steps.phase.get(row) == Some(&Phase::Decode)
        });
        let ids: Vec<u32> = rows.filter_map(|row| steps.token_id.get(row).copied()).collect();
        (!ids.is_empty()).then_some(ids)
    }

    /// Compactions of a sample, in order.
    pub fn events_of<'s>(&'s self, id: &'s str) -> impl Iterator<Item = &'s EventRow> {
        self.events.iter().flatten().filter(move |event| event.sample_id == id)
    }

    /// The trace as one side of a comparison.
    #[must_use]
    pub fn side(&self) -> Option<Side<'_>> {
        let trace = self.trace.as_ref()?;
        Some(Side {
            label: &self.label,
            manifest: &trace.manifest,
            samples: &trace.rows,
            steps: &trace.steps,
            events: &trace.events,
        })
    }
}
