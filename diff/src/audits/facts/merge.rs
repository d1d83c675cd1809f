//! Several files about one run are one subject.

use super::subject::{Artifact, Engine, Made, State};
use super::{Sample, Subject};

/// Takes what `into` lacks from `from`.
macro_rules! fill {
    ($into:expr, $from:expr, $($field:ident),+ $(,)?) => {
        $(if $into.$field.is_none() { $into.$field = $from.$field; })+
    };
}

impl<'a> Subject<'a> {
    /// Adds what another file says about the same run. Where both say something the first file's word stands; settings and
    /// samples are joined key by key and id by id.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        if other.kind.is_run() && !self.kind.is_run() {
            self.kind = other.kind;
        }
        self.made = made(self.made, other.made);
        self.engine = engine(self.engine, other.engine);
        self.state = state(self.state, other.state);
        self.artifact = match (self.artifact, other.artifact) {
            (Some(own), Some(more)) => Some(artifact(own, more)),
            (own, more) => own.or(more),
        };
        for (key, setting) in other.settings.into_iter().flatten() {
            self.settings.get_or_insert_default().entry(key).or_insert(setting);
        }
        for (key, value) in other.declared.into_iter().flatten() {
            self.declared.get_or_insert_default().entry(key).or_insert(value);
        }
        self.samples = match (self.samples, other.samples) {
            (Some(own), Some(more)) => Some(samples(own, more)),
            (own, more) => own.or(more),
        };
        self.log = match (self.log, other.log) {
            (Some(mut own), Some(more)) => {
                own.extend(more);
                Some(own)
            }
            (own, more) => own.or(more),
        };
        if let Some(more) = other.dumps {
            self.dumps.get_or_insert_default().extend(more);
        }
        fill!(self, other, identity, parent, trace, events, lines, reference);
        fill!(self, other, kept_prefix, believed, rates);
        self.checks.extend(other.checks);
        self.claims.extend(other.claims);
        self.remarks.extend(other.remarks);
        self
    }
}

fn made(mut own: Made, more: Made) -> Made {
    fill!(own, more, producer, version, binary_sha256, commit, dirty, diff_sha256, created_at);
    fill!(own, more, modified_at);
    own
}

fn engine(mut own: Engine, more: Engine) -> Engine {
    fill!(own, more, dtype, cache_dtype, device, sm_arch, sm_count, kernel_options, weights, vocab);
    for (name, hash) in more.files {
        own.files.entry(name).or_insert(hash);
    }
    own
}

fn state(mut own: State, more: State) -> State {
    fill!(own, more, complete, exit_code, rows_written, expected_ids);
    own
}

fn artifact(mut own: Artifact, more: Artifact) -> Artifact {
    fill!(own, more, sections, profile_rows, capacity_rows, precision, builder, gpu, composite);
    for (name, time) in more.section_times {
        own.section_times.entry(name).or_insert(time);
    }
    own
}

/// Joined by id where each side has an id once; else appended, so that a repeated id stays visible.
fn samples(mut own: Vec<Sample>, more: Vec<Sample>) -> Vec<Sample> {
    let mut rest = Vec::new();
    let ids: Vec<String> = more.iter().map(|sample| sample.id.clone()).collect();
    for sample in more {
        let once = ids.iter().filter(|id| **id == sample.id).count() == 1;
        let mut same = own.iter_mut().filter(|known| known.id == sample.id);
        match (same.next(), same.next()) {
            (Some(known), None) if once => join(known, sample),
            _ => rest.push(sample),
        }
    }
    own.extend(rest);
    own
}

fn join(own: &mut Sample, more: Sample) {
    fill!(own, more, row_index, filter, prompt_text, prompt_text_sha256, prompt_ids, template);
    fill!(own, more, prompt_ids_sha256, prompt_tokens, thinking, base_seed, seed_index, sampler);
    fill!(own, more, effective_seed, gold, pred, pred_rule, text, generated_ids, finish);
    fill!(own, more, generated_tokens, prefill_seconds, decode_seconds, wall_seconds);
    fill!(own, more, field_answer, correct, model, recorded_at);
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn the_first_file_has_the_word_and_the_second_fills_the_gaps() {
        let trace = Subject::new("t.jsonl", Kind::Log)
            .with("policy.kv_budget", 3072, "log")
            .with_sample(Sample { base_seed: Some(1), ..Sample::new("a") });
        let rows = Subject::new("rows.jsonl", Kind::Benchmark)
            .with("policy.kv_budget", 1, "row")
            .with("stop.interval", 16, "row")
            .with_sample(Sample { base_seed: Some(9), gold: Some("7".into()), ..Sample::new("a") })
            .with_sample(Sample::new("b"));
        let both = trace.merge(rows);
        assert_eq!((both.kind, both.label.as_str()), (Kind::Benchmark, "t.jsonl"));
        assert_eq!(
            (both.count("policy.kv_budget"), both.count("stop.interval")),
            (Some(3072), Some(16))
        );
        let a = both.sample("a").unwrap();
        assert_eq!((a.base_seed, a.gold.as_deref()), (Some(1), Some("7")));
        assert_eq!(both.samples.unwrap().len(), 2);
    }

    #[test]
    fn a_repeated_sample_stays_visible() {
        let one = Subject::new("x", Kind::Run).with_sample(Sample::new("a"));
        let twice = Subject::new("y", Kind::Benchmark)
            .with_sample(Sample::new("a"))
            .with_sample(Sample::new("a"));
        assert_eq!(one.merge(twice).samples.unwrap().len(), 3);
    }
}
