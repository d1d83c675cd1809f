//! Audits of whether two runs came from one engine.

use std::collections::BTreeMap;

use super::facts::{Artifact, Evidence, Kind};
use super::{Audit, Control, Note, Outcome, Pair, Subject, short};

/// Two engines under one claim about a policy.
pub(super) static PAIR: Audit = Audit {
    number: 2,
    slug: "engine-pair",
    title: "two policies were compared on two different engines",
    compares: "engine plan, precision, builder and GPU of the bundles; of runs: executable, weights, kernel options, dtypes, device",
    needs: "`sections.engine_plan` of two bundles, or `binary_sha256` and `weights_sha256` of two runs",
    gate: true,
    each: None,
    pair: Some(engine_pair),
    whole: None,
    controls: engine_controls,
};

/// What makes an engine, by name; empty where nothing is known.
pub(super) fn parts(subject: &Subject<'_>) -> BTreeMap<&'static str, String> {
    let mut parts = BTreeMap::new();
    let mut add = |name: &'static str, value: Option<String>| {
        if let Some(value) = value {
            parts.insert(name, value);
        }
    };
    if let Some(artifact) = &subject.artifact {
        let plan = artifact.sections.as_ref().and_then(|sections| sections.get("engine_plan"));
        add("engine_plan", plan.cloned());
        add("precision", artifact.precision.clone());
        add("builder", artifact.builder.clone());
        add("gpu", artifact.gpu.clone());
    }
    let engine = &subject.engine;
    add("binary_sha256", subject.made.binary_sha256.clone());
    let weights = engine.weights.as_ref();
    add(
        "weights_sha256",
        weights.map(|files| files.values().cloned().collect::<Vec<_>>().join(" ")),
    );
    add("kernel_options", engine.kernel_options.as_ref().map(|options| options.join(" ")));
    add("dtype", engine.dtype.clone());
    add("cache_dtype", engine.cache_dtype.clone());
    add("device", engine.device.clone());
    parts
}

/// Names of the parts that differ, with both values; `Err` where neither an engine plan nor an executable is on both sides.
pub(super) fn differing(pair: &Pair<'_, '_>) -> Result<Vec<String>, Note> {
    let (left, right) = (parts(pair.left), parts(pair.right));
    let identified = |name: &str| left.contains_key(name) && right.contains_key(name);
    if !identified("engine_plan") && !identified("binary_sha256") {
        let labels = [pair.left.label.as_str(), pair.right.label.as_str()];
        let why = "neither `sections.engine_plan` nor `binary_sha256` is recorded on both sides";
        return Err(Note::no_evidence(why).of(labels));
    }
    let both = left.iter().filter_map(|(name, value)| Some((name, value, right.get(name)?)));
    Ok(both
        .filter(|(_, l, r)| l != r)
        .map(|(name, l, r)| {
            let cut = |text: &str| {
                if name.ends_with("sha256") || *name == "engine_plan" {
                    short(text).to_owned()
                } else {
                    text.to_owned()
                }
            };
            format!("{name}: {} against {}", cut(l), cut(r))
        })
        .collect())
}

fn engine_pair(pair: &Pair<'_, '_>) -> Vec<Note> {
    if !(pair.left.kind.is_run() || pair.left.kind == Kind::Bundle) {
        return Vec::new();
    }
    if pair.lineage() {
        return vec![Note::pass(
            "one side replays the other: the implementation is what differs, on purpose",
        )];
    }
    let differing = match differing(pair) {
        Ok(differing) => differing,
        Err(note) => return vec![note],
    };
    if differing.is_empty() {
        return vec![Note::pass(format!(
            "{} parts of the engine are equal",
            parts(pair.left).len()
        ))];
    }
    let list = differing.join("; ");
    match pair.policies_differ() {
        Some(false) => {
            vec![Note::pass(format!("the engines differ ({list}); no policy is compared"))]
        }
        Some(true) => vec![
            Note::void(format!("the policies differ and so do the engines: {list}"))
                .remedy("run the control on the same engine with the policy switched off"),
        ],
        None if pair.left.kind == Kind::Bundle => {
            vec![
                Note::void(format!("the bundles hold different engines: {list}"))
                    .remedy("claim nothing about a policy from this pair"),
            ]
        }
        None => vec![Note::no_evidence(format!(
            "`policy.kind` is not recorded; the engines differ: {list}"
        ))],
    }
}

fn bundle(label: &str, plan: &str) -> Subject<'static> {
    let mut subject = Subject::new(label, Kind::Bundle);
    let sections = BTreeMap::from([("engine_plan".to_owned(), plan.repeat(32))]);
    subject.artifact = Some(Artifact { sections: Some(sections), ..Artifact::default() });
    subject
}

fn run(policy: &str, binary: &str) -> Subject<'static> {
    let mut subject = Subject::new(policy, Kind::Run).with("policy.kind", policy, "flag");
    subject.made.binary_sha256 = Some(binary.repeat(32));
    subject
}

fn engine_controls() -> Vec<Control> {
    vec![
        Control::planted(
            "a dense bundle against one of another build",
            Evidence::pair(bundle("dense", "d1"), bundle("tri", "e7")),
            Outcome::Void,
            "engine_plan: d1d1",
        ),
        Control::planted(
            "two policies on two executables",
            Evidence::pair(run("dense", "0a"), run("triattention", "0b")),
            Outcome::Void,
            "binary_sha256",
        ),
        Control::clean(
            "one plan",
            Evidence::pair(bundle("dense", "d1"), bundle("tri", "d1")),
            "parts of the engine are equal",
        ),
        Control::clean(
            "one executable, policy switched",
            Evidence::pair(run("dense", "0a"), run("triattention", "0a")),
            "equal",
        ),
        Control::clean(
            "yesterday's build against today's, one policy",
            Evidence::pair(run("dense", "0a"), run("dense", "0b")),
            "no policy is compared",
        ),
    ]
}
