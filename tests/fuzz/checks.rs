//! Bodies over the checks that read foreign files: rotary tables, keeps, cache states, shifts, visible keys, base files in pairs.

use lockstep_diff::arms::{self, Question};
use lockstep_diff::kld::{self, KldSide};
use lockstep_diff::states;
use lockstep_replay::keepsets;
use lockstep_replay::rope::{self, EngineTable, RopeConfig, RopeQuestion};
use lockstep_testkit::fuzz::{TARGETS, Target, place};
use lockstep_traces::forms::{ArmTable, CacheStates, KeepSpec, KeptRows, Shifts, VisibleKeys};
use lockstep_traces::llamacpp::KldFile;

pub(super) const CHECKS: &[Target] = &[
    Target { name: "rope_config", body: rope_config, seeds: rope_seeds },
    Target { name: "form_checks", body: form_checks, seeds: form_seeds },
    Target { name: "keep_check", body: keep_check, seeds: keep_seeds },
    Target { name: "kld_pair", body: kld_pair, seeds: pair_seeds },
];

/// A configuration's rotary embedding, held against a table of its own.
fn rope_config(data: &[u8]) {
    place::file("config.json", data, |path| {
        for head_dim in [None, Some(8)] {
            let Ok(config) = RopeConfig::read(path, head_dim) else { continue };
            let values = (0..4).map(|band| 0.1_f64.powi(band)).collect();
            let table = EngineTable { name: config.name.clone(), values };
            let question = RopeQuestion { positions: vec![0, 1, 1 << 40], tolerance: None };
            for pairs in [[None], [Some(&table)]] {
                let report = rope::check(std::slice::from_ref(&config), &pairs, &question);
                serde_json::to_string(&report).expect("a report is printed");
            }
        }
    });
}

/// Forms of single questions, answered.
fn form_checks(data: &[u8]) {
    place::file("form.json", data, |path| {
        if let Ok(form) = CacheStates::read(path) {
            serde_json::to_string(&states::check_states(&form)).expect("a report is printed");
        }
        if let Ok(form) = Shifts::read(path) {
            serde_json::to_string(&states::check_shifts(&form)).expect("a report is printed");
        }
        if let Ok(form) = VisibleKeys::read(path) {
            serde_json::to_string(&states::check_visible(&form)).expect("a report is printed");
        }
        for effect in ["score", "accuracy"] {
            let Ok(table) = ArmTable::read(path, effect, &[]) else { continue };
            for factor in table.factors.clone() {
                let question = Question { factor, baseline: None, tolerance: 0.0, block: 4 };
                let report = arms::judge(&table, effect, &question);
                serde_json::to_string(&report).expect("a report is printed");
            }
        }
    });
}

/// A score of positions, and what was kept under it.
fn keep_check(data: &[u8]) {
    place::tree(data, |dir| {
        let Ok(spec) = KeepSpec::read(&dir.join("spec.json")) else { return };
        let Ok(records) = KeptRows::read(&dir.join("keeps.json")) else { return };
        if let Ok(report) = keepsets::check(&spec, &records, None) {
            serde_json::to_string(&report).expect("a report is printed");
        }
    });
}

/// Two base files, one against the other.
fn kld_pair(data: &[u8]) {
    place::tree(data, |dir| {
        let open = |name: &str| KldFile::open(&dir.join(name)).ok().map(KldSide::Records);
        let (Some(base), Some(target)) = (open("a.kld"), open("b.kld")) else { return };
        for (left, right) in [(&base, &target), (&base, &base)] {
            if let Ok(report) = kld::compare(("a", left), ("b", right), |_, _| ()) {
                serde_json::to_string(&report).expect("a report is printed");
            }
        }
    });
}

fn of(name: &str) -> Vec<Vec<u8>> {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of that name");
    (target.seeds)()
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(lockstep_testkit::data().join(name)).expect("a test file")
}

fn rope_seeds() -> Vec<Vec<u8>> {
    let names = ["config_flat", "config_nested", "config_llama3"];
    let mut seeds: Vec<_> =
        names.iter().map(|name| read(&format!("cases/24/{name}.json"))).collect();
    seeds.extend(of("config"));
    seeds
}

fn form_seeds() -> Vec<Vec<u8>> {
    of("forms")
}

fn keep_seeds() -> Vec<Vec<u8>> {
    let (spec, keeps) = (read("cases/10/spec.json"), read("cases/10/engine_keeps.json"));
    vec![place::pack([("spec.json", spec.as_slice()), ("keeps.json", &keeps)])]
}

fn pair_seeds() -> Vec<Vec<u8>> {
    let pair = |left: &[u8], right: &[u8]| place::pack([("a.kld", left), ("b.kld", right)]);
    let small = of("llama_kld");
    let (base, target) = (read("interop/llamacpp/base.kld"), read("interop/llamacpp/target.kld"));
    let last = small.last().expect("a seed");
    vec![pair(&base, &target), pair(last, last)]
}
