//! Which configurations are run: policies by name, swept over budgets.

use lockstep_traces::{PolicyKind, PolicySpec};

use crate::cli::BenchRunArgs;
use crate::commands::run::policy_spec;
use crate::exit::usage;

/// One configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arm {
    /// Name of its folder: `dense`, `triattention`, `triattention-b512-d64`.
    pub(super) name: String,
    pub(super) policy: PolicySpec,
}

impl Arm {
    pub(super) fn kind(&self) -> PolicyKind {
        self.policy.kind.unwrap_or(PolicyKind::Dense)
    }
}

/// What is run over the same rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Arms {
    pub(super) runs: Vec<Arm>,
    /// The dense run is replayed on the reference afterwards.
    pub(super) reference: bool,
}

/// A combination of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Point {
    budget: Option<usize>,
    divide: Option<usize>,
    window: Option<usize>,
}

impl Arms {
    pub(super) fn of(args: &BenchRunArgs) -> anyhow::Result<Self> {
        let asked = policy_spec(&args.policy);
        let sweep = args.sweep.as_deref().map(points).transpose()?;
        let arms = arms(&args.compare, &asked, sweep.as_deref())?;
        let stats =
            args.policy.stats.is_some() || args.model == std::path::Path::new(super::LEDGER);
        let needs = arms.runs.iter().any(|arm| arm.kind() == PolicyKind::Triattention);
        if needs && !stats {
            return Err(usage("triattention needs --stats; `lockstep calibrate` makes them"));
        }
        Ok(arms)
    }
}

fn arms(compare: &[String], asked: &PolicySpec, sweep: Option<&[Point]>) -> anyhow::Result<Arms> {
    let mut arms = Arms { runs: Vec::new(), reference: false };
    let own = asked.kind.unwrap_or(PolicyKind::Dense);
    let mut kinds = Vec::new();
    for name in compare {
        if name == "reference" {
            arms.reference = true;
        } else {
            kinds.push(kind(name)?);
        }
    }
    if compare.is_empty() {
        kinds.push(own);
    } else if own != PolicyKind::Dense && !kinds.contains(&own) {
        return Err(usage(format!(
            "--compare leaves out --policy {}; give one of the two",
            word(own)
        )));
    }
    if arms.reference && !kinds.contains(&PolicyKind::Dense) {
        return Err(usage("--compare reference replays the dense run; name dense too"));
    }
    for kind in kinds {
        let points = match (kind, sweep) {
            (PolicyKind::Dense, _) | (_, None) => &[Point::default()],
            (_, Some(points)) => points,
        };
        arms.runs.extend(points.iter().map(|point| arm(kind, asked, *point)));
    }
    let mut names: Vec<&String> = arms.runs.iter().map(|arm| &arm.name).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(usage(format!("configuration {} comes twice", pair[0])));
    }
    if sweep.is_some() && arms.runs.iter().all(|arm| arm.kind() == PolicyKind::Dense) {
        return Err(usage("--sweep has nothing to sweep: no policy here compacts"));
    }
    Ok(arms)
}

fn arm(kind: PolicyKind, asked: &PolicySpec, point: Point) -> Arm {
    let policy = if kind == PolicyKind::Dense {
        // The control shares nothing with the policy but the capacity.
        PolicySpec {
            kind: Some(kind),
            kv_cache_bytes: asked.kv_cache_bytes,
            max_rows: asked.max_rows,
            ..PolicySpec::default()
        }
    } else {
        PolicySpec {
            kind: Some(kind),
            rule_set: asked.rule_set.filter(|_| kind == PolicyKind::Triattention),
            kv_budget: point.budget.or(asked.kv_budget),
            divide_length: point.divide.or(asked.divide_length),
            recent_window: point.window.or(asked.recent_window),
            ..asked.clone()
        }
    };
    let mut name = word(kind).to_owned();
    for (letter, value) in [("b", point.budget), ("d", point.divide), ("w", point.window)] {
        if let Some(value) = value {
            name = format!("{name}-{letter}{value}");
        }
    }
    Arm { name, policy }
}

const fn word(kind: PolicyKind) -> &'static str {
    match kind {
        PolicyKind::Dense => "dense",
        PolicyKind::Recent => "recent",
        PolicyKind::Random => "random",
        PolicyKind::Triattention => "triattention",
    }
}

fn kind(name: &str) -> anyhow::Result<PolicyKind> {
    let all = [PolicyKind::Dense, PolicyKind::Recent, PolicyKind::Random, PolicyKind::Triattention];
    all.into_iter().find(|kind| word(*kind) == name).ok_or_else(|| {
        usage(format!(
            "--compare {name}: there are dense, recent, random, triattention and reference"
        ))
    })
}

/// Every combination, the last key running fastest.
fn points(text: &str) -> anyhow::Result<Vec<Point>> {
    let bad =
        |what: &str| usage(format!("--sweep {text}: {what}; write budget=256,512:divide=32,64"));
    let mut points = vec![Point::default()];
    let mut seen: Vec<&str> = Vec::new();
    for part in text.split(':') {
        let (key, list) = part.split_once('=').ok_or_else(|| bad("a part has no `=`"))?;
        let key = key.trim();
        if seen.contains(&key) {
            return Err(bad("a key comes twice"));
        }
        seen.push(key);
        let values: Vec<usize> = list
            .split(',')
            .map(|value| value.trim().parse().map_err(|_| bad("a value is no whole number")))
            .collect::<anyhow::Result<_>>()?;
        let set = |point: &Point, value: usize| match key {
            "budget" => Ok(Point { budget: Some(value), ..*point }),
            "divide" => Ok(Point { divide: Some(value), ..*point }),
            "window" => Ok(Point { window: Some(value), ..*point }),
            _ => Err(bad("keys are budget, divide and window")),
        };
        let mut next = Vec::new();
        for point in &points {
            for value in &values {
                next.push(set(point, *value)?);
            }
        }
        points = next;
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(compare: &[&str], asked: &PolicySpec, sweep: Option<&str>) -> Vec<String> {
        let compare: Vec<String> = compare.iter().map(|name| (*name).to_owned()).collect();
        let sweep = sweep.map(|text| points(text).unwrap());
        arms(&compare, asked, sweep.as_deref())
            .unwrap()
            .runs
            .into_iter()
            .map(|arm| arm.name)
            .collect()
    }

    fn asked(kind: PolicyKind) -> PolicySpec {
        PolicySpec {
            kind: Some(kind),
            kv_budget: Some(100),
            max_rows: Some(900),
            ..PolicySpec::default()
        }
    }

    #[test]
    fn a_sweep_makes_every_combination_and_leaves_the_control_alone() {
        let dense = asked(PolicyKind::Dense);
        assert_eq!(names(&[], &dense, None), ["dense"]);
        assert_eq!(
            names(
                &["dense", "triattention", "reference"],
                &dense,
                Some("budget=256,512:divide=32,64")
            ),
            [
                "dense",
                "triattention-b256-d32",
                "triattention-b256-d64",
                "triattention-b512-d32",
                "triattention-b512-d64"
            ]
        );
        assert_eq!(names(&[], &asked(PolicyKind::Recent), Some("window=8")), ["recent-w8"]);
    }

    #[test]
    fn swept_values_go_before_flags_and_dense_takes_the_capacity_only() {
        let list = ["dense".to_owned(), "recent".to_owned()];
        let sweep = points("divide=32").unwrap();
        let arms = arms(&list, &asked(PolicyKind::Dense), Some(&sweep)).unwrap();
        let [dense, recent] = arms.runs.as_slice() else { panic!("{arms:?}") };
        assert_eq!((dense.policy.kv_budget, dense.policy.max_rows), (None, Some(900)));
        assert_eq!((recent.policy.kv_budget, recent.policy.divide_length), (Some(100), Some(32)));
        assert_eq!(recent.policy.max_rows, Some(900));
    }

    #[test]
    fn contradictions_are_refused() {
        let fault = |compare: &[&str], kind: PolicyKind, sweep: Option<&str>| {
            let compare: Vec<String> = compare.iter().map(|name| (*name).to_owned()).collect();
            let swept = sweep.map(points).transpose();
            swept
                .and_then(|sweep| arms(&compare, &asked(kind), sweep.as_deref()))
                .unwrap_err()
                .to_string()
        };
        let dense = PolicyKind::Dense;
        assert!(fault(&["dense", "lru"], dense, None).contains("lru"));
        assert!(fault(&["reference"], dense, None).contains("name dense too"));
        assert!(fault(&["dense"], PolicyKind::Random, None).contains("leaves out"));
        assert!(fault(&["dense", "dense"], dense, None).contains("twice"));
        assert!(fault(&["dense"], dense, Some("budget=1")).contains("nothing to sweep"));
        for bad in ["budget", "budget=x", "budget=1:budget=2", "rows=3", "budget="] {
            assert!(fault(&["recent"], dense, Some(bad)).contains("--sweep"), "{bad}");
        }
    }
}
