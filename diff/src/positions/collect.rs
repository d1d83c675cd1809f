//! Findings by rule: the first of each, with how many there were.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_traces::{Cause, Evidence, Finding, Location};

/// A broken rule; the order is the order of gravity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    Gap,
    Rope,
    Offset,
    RowArithmetic,
    EventTable,
    SampleTable,
    DumpIdentity,
    KeepIndex,
    PositionsGathered,
    RowsBeforeEvent,
    Window,
    Prefix,
    KeepCount,
    Trigger,
    PromptCompaction,
    RoundStart,
}

#[derive(Debug, Default)]
pub(crate) struct Collector {
    first: BTreeMap<(Rule, Option<Cause>), (Finding, u64)>,
    limits: BTreeSet<String>,
    /// Units that could not be checked.
    pub(crate) skipped: u64,
    /// The first of them, in words.
    pub(crate) missing: Option<String>,
}

impl Collector {
    /// Notes a broken rule; the first of each rule and cause is kept, later ones are counted.
    pub(crate) fn add(
        &mut self,
        rule: Rule,
        cause: Option<Cause>,
        location: Location,
        title: String,
        evidence: Vec<(&str, serde_json::Value)>,
    ) {
        let make = || {
            let evidence = evidence
                .into_iter()
                .map(|(name, value)| Evidence { name: name.to_owned(), value })
                .collect();
            (Finding { cause, title, location, evidence }, 0)
        };
        self.first.entry((rule, cause)).or_insert_with(make).1 += 1;
    }

    pub(crate) fn limit(&mut self, text: impl Into<String>) {
        self.limits.insert(text.into());
    }

    /// Notes something that could not be checked and that the run should have: it never counts as passed.
    pub(crate) fn skip(&mut self, why: String) {
        self.skipped += 1;
        self.missing.get_or_insert_with(|| why.clone());
        self.limits.insert(why);
    }

    /// Findings by gravity, limits, and the number of broken units.
    pub(crate) fn finish(self) -> (Vec<Finding>, Vec<String>, u64) {
        let different = self.first.values().map(|(_, count)| count).sum();
        let findings = self
            .first
            .into_values()
            .map(|(mut finding, count)| {
                finding
                    .evidence
                    .push(Evidence { name: "occurrences".to_owned(), value: count.into() });
                finding
            })
            .collect();
        (findings, self.limits.into_iter().collect(), different)
    }
}
