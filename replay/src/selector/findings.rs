//! From compactions to findings: which mistake explains what was recorded, and what the run cannot show.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use lockstep_reference::select::{Deviation, HeadUse};
use lockstep_traces::{
    Cause, CheckKind, CheckReport, Evidence, Finding, Location, RuleSet, SelectionMode, Verdict,
};

use super::detail::{EventDetail, HypothesisDetail, SelectorDetail, SetStatus};
use super::event::Event;
use super::facts::{Claim, Moved};
use super::notes::EventNotes;
use super::setup::Setup;

/// Collects compactions.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    events: Vec<(EventDetail, EventNotes)>,
    skipped: u64,
    reasons: BTreeMap<String, Vec<String>>,
    /// What metadata and tables say against each other, and round starts that need no scores.
    stated: Vec<Finding>,
}

impl Ledger {
    pub(super) fn add(&mut self, detail: EventDetail, notes: EventNotes) {
        self.events.push((detail, notes));
    }

    /// Compactions that differ so far.
    pub(super) fn differing(&self) -> usize {
        self.events.iter().filter(|(event, _)| event.first_stage.is_some()).count()
    }

    /// Names of the hypotheses that gave what was recorded at one compaction or another.
    pub(super) fn explanations(&self) -> BTreeSet<&str> {
        let all = self.events.iter().flat_map(|(event, _)| reproducing(event));
        all.map(|hypothesis| hypothesis.name.as_str()).collect()
    }

    pub(super) fn skip(&mut self, event: &Event, why: &str) {
        let sets = event.keep.as_ref().map_or(event.kv_heads, |(_, sets)| sets.len());
        let sets = u64::try_from(sets).unwrap_or(u64::MAX);
        self.skip_sets(&event.sample_id, event.ordinal, sets, why);
    }

    /// Passes over `sets` keep-sets; a compaction may be passed over for several reasons, and counts once.
    pub(super) fn skip_sets(&mut self, sample_id: &str, ordinal: u32, sets: u64, why: &str) {
        let place = format!("{sample_id} #{ordinal}");
        if !self.reasons.values().any(|places| places.contains(&place)) {
            self.skipped += sets;
        }
        self.reasons.entry(why.to_owned()).or_default().push(place);
    }

    /// A dump's metadata against its name, its event and the manifest.
    pub(super) fn contradicted(&mut self, sample_id: &str, ordinal: u32, claims: Vec<Claim>) {
        if claims.iter().any(|claim| !claim.harmless) {
            let why = "the metadata are of another compaction, the tensors are not judged";
            self.skip_sets(sample_id, ordinal, 1, why);
        }
        self.stated.extend(claims.into_iter().map(|claim| claim.finding));
    }

    /// A round start as recorded; the first wrong one of a kind is a finding that counts the others.
    pub(super) fn round_start(
        &mut self,
        rule_set: Option<RuleSet>,
        moved: Moved<'_>,
        round_start: Option<u32>,
    ) {
        let Some(found) = moved.round_start(rule_set, round_start) else { return };
        let held = self.stated.iter_mut().find(|held| held.title == found.title);
        let Some(held) = held else { return self.stated.push(found) };
        if held.location.ordinal == found.location.ordinal
            && held.location.sample_id == found.location.sample_id
        {
            return;
        }
        if let Some(count) = held.evidence.iter_mut().find(|fact| fact.name == "compactions") {
            count.value = (count.value.as_u64().unwrap_or(0) + 1).into();
        }
    }

    /// The report of a run whose compactions are not dumped.
    pub(super) fn without_dumps(self, compactions: usize) -> CheckReport {
        let none = format!(
            "none of {compactions} compactions is dumped with its keys or scores; record them again"
        );
        let why =
            self.missing().map_or_else(|| none.clone(), |missing| format!("{none}: {missing}"));
        let diverged = !self.stated.is_empty();
        CheckReport {
            kind: CheckKind::Selector,
            verdict: if diverged { Verdict::Diverged } else { Verdict::Incomparable { why } },
            compared: 0,
            different: 0,
            skipped: self.skipped,
            unit: "keep-sets".to_owned(),
            findings: self.stated,
            limits: if diverged { vec![none] } else { Vec::new() },
            detail: serde_json::Value::Null,
        }
    }

    /// What was passed over and why, in one line.
    fn missing(&self) -> Option<String> {
        let line = |(why, places): (&String, &Vec<String>)| format!("{why}: {}", shorten(places));
        let lines: Vec<String> = self.reasons.iter().map(line).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    pub(super) fn report(self, setup: &Setup, mut limits: Vec<String>) -> CheckReport {
        for (why, places) in &self.reasons {
            limits.push(format!(
                "{why}: {} ({} compactions skipped)",
                shorten(places),
                places.len()
            ));
        }
        limits.extend(self.blind_spots(setup));
        let sum = |of: fn(&EventDetail) -> u64| {
            self.events.iter().map(|(event, _)| of(event)).sum::<u64>()
        };
        let detail = SelectorDetail {
            rule_set: slug(setup.rules.rule_set).to_owned(),
            events: u64::try_from(self.events.len()).unwrap_or(u64::MAX),
            heads: sum(|event| event.heads),
            exact: sum(|event| event.exact),
            tie: sum(|event| event.tie),
            differs: sum(|event| event.differs),
            by_event: self.events.iter().map(|(event, _)| event.clone()).collect(),
        };
        CheckReport {
            kind: CheckKind::Selector,
            verdict: self.verdict(),
            compared: detail.heads,
            different: detail.differs,
            skipped: self.skipped,
            unit: "keep-sets".to_owned(),
            findings: self.findings(setup),
            limits,
            detail: serde_json::to_value(detail).unwrap_or_default(),
        }
    }

    fn verdict(&self) -> Verdict {
        let compared: u64 = self.events.iter().map(|(event, _)| event.heads).sum();
        let any = |status| self.events.iter().any(|(event, _)| event.status == status);
        if any(SetStatus::Differs) || !self.stated.is_empty() {
            Verdict::Diverged
        } else if let Some(missing) = self.missing() {
            let why = format!("{} keep-sets could not be compared: {missing}", self.skipped);
            Verdict::Incomparable { why }
        } else if compared == 0 {
            Verdict::Incomparable { why: "nothing that was dumped can be compared".to_owned() }
        } else if any(SetStatus::Tie) {
            Verdict::Tie
        } else if self.events.iter().any(|(event, _)| !event.stages.is_empty()) {
            Verdict::WithinNoise
        } else {
            Verdict::Identical
        }
    }

    /// What these compactions could not have shown, whatever was wrong.
    fn blind_spots(&self, setup: &Setup) -> Vec<String> {
        let mut lines = Vec::new();
        if self.events.is_empty() {
            return lines;
        }
        let places = |which: &dyn Fn(&EventNotes) -> bool| -> Vec<String> {
            let hit = self.events.iter().filter(|(_, notes)| which(notes));
            hit.map(|(event, _)| format!("{} #{}", event.sample_id, event.ordinal)).collect()
        };
        let all = |places: &Vec<String>| places.len() == self.events.len();
        let blind = places(&|notes| notes.round_start_blind);
        if all(&blind) {
            lines.push("every compaction compared has R = row count: a wrong round start would not show; dump a later one".to_owned());
        } else if !blind.is_empty() {
            lines.push(format!(
                "a wrong round start cannot show where R = row count: {}",
                shorten(&blind)
            ));
        }
        let unscored = places(&|notes| !notes.scored);
        if !unscored.is_empty() {
            lines.push(format!("no scores are recorded, so that stages and the divisor of the z-score (n or n - 1) cannot be told from keep-sets: {}", shorten(&unscored)));
        }
        let no_keys = places(&|notes| !notes.keys);
        if !no_keys.is_empty() {
            lines.push(format!(
                "keys are not dumped, so that raw scores are taken as recorded: {}",
                shorten(&no_keys)
            ));
        }
        let ruled = setup.rules.rule_set == RuleSet::Trt;
        if ruled && !self.events.iter().any(|(_, notes)| notes.exact_tie) {
            lines.push(
                "no two rows tie exactly at a threshold: the order of ties is not tested"
                    .to_owned(),
            );
        }
        if all(&places(&|notes| notes.all_candidates)) {
            lines.push(
                "nothing is kept outright: z-scores over all rows and over candidates coincide"
                    .to_owned(),
            );
        }
        if setup.rules.mode == SelectionMode::PerHead && all(&places(&|notes| notes.one_layer)) {
            lines.push("one layer is scored: mean and maximum over layers coincide".to_owned());
        }
        let averaged = setup.recipe.heads == HeadUse::GroupMean;
        if setup.recipe.normalize
            && !averaged
            && all(&places(&|notes| notes.scored && !notes.z_recorded))
        {
            let own = if setup.recipe.deviation == Deviation::Sample { "n - 1" } else { "n" };
            lines.push(format!("no z-scores are recorded: that the divisor is {own} shows in the ranked scores only"));
        }
        lines
    }

    fn findings(&self, setup: &Setup) -> Vec<Finding> {
        let mut groups: BTreeMap<(Option<Cause>, String), Vec<&EventDetail>> = BTreeMap::new();
        for (event, _) in &self.events {
            let Some(stage) = &event.first_stage else { continue };
            groups.entry((name(event), stage.clone())).or_default().push(event);
        }
        let mut findings: Vec<Finding> = groups
            .into_iter()
            .filter_map(|((cause, stage), events)| self.finding(setup, cause, &stage, &events))
            .chain(self.stated.iter().cloned())
            .collect();
        // Named ones first; of two alike the one that more compactions show.
        let weight = |finding: &Finding| {
            let events = finding.evidence.iter().find(|evidence| evidence.name == "compactions");
            events.and_then(|evidence| evidence.value.as_u64()).unwrap_or(0)
        };
        findings
            .sort_by_key(|finding| (finding.cause.is_none(), std::cmp::Reverse(weight(finding))));
        findings
    }

    fn finding(
        &self,
        setup: &Setup,
        cause: Option<Cause>,
        stage: &str,
        events: &[&EventDetail],
    ) -> Option<Finding> {
        let first = *events.first()?;
        let title = cause.map_or_else(
            || untitled(first, stage, slug(setup.rules.rule_set)),
            |cause| cause.title().to_owned(),
        );
        let mut evidence = vec![
            fact("rule_set", slug(setup.rules.rule_set)),
            fact("first_stage", stage),
            fact("compactions", events.len()),
            fact("compared_compactions", self.events.len()),
            fact("heads_exact", events.iter().map(|event| event.exact).sum::<u64>()),
            fact("heads", events.iter().map(|event| event.heads).sum::<u64>()),
        ];
        if let Some(wrong) = first.stages.iter().find(|stage| !stage.within) {
            evidence.push(fact("stage", wrong.stage.as_str()));
            evidence.push(fact("stage_error", wrong.error));
            evidence.push(fact("stage_tolerance", wrong.tolerance));
            if let Some(control) = wrong.control {
                evidence.push(fact("f32_control", control));
            }
            if let Some(note) = &wrong.note {
                evidence.push(fact("stage_note", note.as_str()));
            }
        }
        if let Some(budget) = &first.budget {
            evidence.push(fact("budget", budget.as_str()));
        }
        evidence.extend(explanation(cause, first));
        if cause == Some(Cause::RoundStartRows) {
            evidence.push(fact("round_start_recorded", first.round_start));
            evidence.push(fact("absolute_position", first.absolute_position));
            evidence.push(fact("rows_before", first.rows_before));
        }
        Some(Finding { cause, title, location: locate(first), evidence })
    }
}

/// The one cause among the hypotheses that give what was recorded; else what the missing rows say by themselves.
fn name(event: &EventDetail) -> Option<Cause> {
    let causes: BTreeSet<Cause> = reproducing(event)
        .filter_map(|hypothesis| Cause::from_slug(hypothesis.cause.as_deref()?))
        .collect();
    if causes.len() == 1 {
        return causes.first().copied();
    }
    let newest = event.rows_before.checked_sub(1);
    let lost = |rows: &[u32]| rows.len() == 1 && rows.first().copied() == newest;
    let mut missing = event
        .sets
        .iter()
        .map(|set| set.unprotected.as_slice())
        .filter(|rows| !rows.is_empty())
        .peekable();
    let only_newest = missing.peek().is_some() && missing.all(lost);
    (causes.is_empty() && only_newest).then_some(Cause::WindowRowLost)
}

fn reproducing(event: &EventDetail) -> impl Iterator<Item = &HypothesisDetail> {
    event.hypotheses.iter().filter(|hypothesis| hypothesis.reproduces)
}

fn untitled(event: &EventDetail, stage: &str, rule_set: &str) -> String {
    let what =
        format!("the selection is not that of rule set {rule_set}, first at stage `{stage}`");
    let names: Vec<&str> = reproducing(event).map(|hypothesis| hypothesis.name.as_str()).collect();
    match names.len() {
        0 => format!("{what}; no hypothesis gives what was recorded"),
        1 => format!("{what}; hypothesis {} gives what was recorded", names.concat()),
        _ => format!("{what}; it is one of {}", names.join(", ")),
    }
}

fn explanation(cause: Option<Cause>, event: &EventDetail) -> Vec<Evidence> {
    let mut list = Vec::new();
    let mut shown = reproducing(event)
        .filter(|hypothesis| {
            cause.is_none() || hypothesis.cause.as_deref() == cause.map(Cause::slug)
        })
        .peekable();
    if shown.peek().is_none() {
        let closest = event.hypotheses.iter().max_by(|a, b| {
            a.exact_heads.cmp(&b.exact_heads).then(a.mean_jaccard.total_cmp(&b.mean_jaccard))
        });
        if let Some(closest) = closest {
            list.push(fact("closest_hypothesis", closest.name.as_str()));
            list.push(fact("closest_exact_heads", closest.exact_heads));
            list.push(fact("closest_mean_jaccard", closest.mean_jaccard));
        }
        return list;
    }
    for hypothesis in shown {
        list.push(fact("hypothesis", hypothesis.name.as_str()));
        list.push(fact("hypothesis_exact_heads", hypothesis.exact_heads));
        list.push(fact("hypothesis_mean_jaccard", hypothesis.mean_jaccard));
        list.push(fact("hypothesis_max_stage_error", hypothesis.max_stage_error));
    }
    list
}

fn locate(event: &EventDetail) -> Location {
    let mut location = Location {
        sample_id: Some(event.sample_id.clone()),
        position: event.absolute_position.checked_sub(1),
        ordinal: Some(event.ordinal),
        stage: Some("keep".to_owned()),
        ..Location::default()
    };
    if let Some(stage) = event.stages.iter().find(|stage| !stage.within) {
        location.stage = Some(stage.stage.clone());
        if let Some(cell) = stage.worst {
            (location.layer, location.head, location.row) = (cell.layer, cell.head, Some(cell.row));
        }
        return location;
    }
    let wrong = event
        .sets
        .iter()
        .find(|set| set.status == SetStatus::Differs || set.against_tie_rule || !set.ordered);
    if let Some(set) = wrong {
        (location.layer, location.head) = (set.layer, set.head);
        location.row = set.missing.first().or(set.extra.first()).copied();
    }
    location
}

pub(super) fn fact(name: &str, value: impl Into<serde_json::Value>) -> Evidence {
    Evidence { name: name.to_owned(), value: value.into() }
}

fn shorten(places: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = places.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if places.len() > SHOWN {
        let _ = write!(text, " and {} more", places.len() - SHOWN);
    }
    text
}

/// The rule set's name as on the command line.
pub(super) const fn slug(rule_set: RuleSet) -> &'static str {
    match rule_set {
        RuleSet::Trt => "trt",
        RuleSet::Hf => "hf",
        RuleSet::Vllm => "vllm",
        RuleSet::Sglang => "sglang",
    }
}
