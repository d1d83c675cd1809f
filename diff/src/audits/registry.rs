//! All audits, in order.

use super::{Audit, results};
use super::{
    capacity, engine, policy_runs, prompts, provenance, reference, rows, sampler, seeds, sequence,
    variables,
};

/// Audits 1 to 24: is the pair comparable, prompts and rows, seeds and samplers.
const INPUTS: &[&Audit] = &[
    &provenance::STALE,
    &engine::PAIR,
    &capacity::LADDER,
    &capacity::CAPACITY,
    &provenance::GRAFTED,
    &variables::ONE_VARIABLE,
    &policy_runs::SAME_ENGINE_CONTROL,
    &variables::OVERRIDES,
    &policy_runs::TRIGGER,
    &rows::POLLUTED,
    &prompts::MISMATCH,
    &prompts::SAME_ID,
    &prompts::TEMPLATE,
    &rows::ROW_INDEX,
    &sequence::LEAK,
    &seeds::ONE_SEED,
    &seeds::ADDED_TWICE,
    &seeds::OVERLAP,
    &sampler::WHICH,
    &sampler::DIFFERENT,
    &sampler::MAPPING,
    &reference::DTYPE,
    &reference::SELECTOR,
    &sampler::MODE,
];

/// Every audit, by number.
pub fn all() -> impl Iterator<Item = &'static Audit> {
    INPUTS.iter().chain(results::AUDITS).copied()
}

/// The audit of this number or slug.
#[must_use]
pub fn find(name: &str) -> Option<&'static Audit> {
    let name = name.trim();
    all().find(|audit| audit.slug == name || name.parse() == Ok(audit.number))
}

#[cfg(test)]
mod tests {
    use super::super::verify;
    use super::*;

    #[test]
    fn audits_are_in_order_and_none_is_missing() {
        let numbers: Vec<u8> = all().map(|audit| audit.number).collect();
        assert_eq!(numbers, (1..=64).collect::<Vec<u8>>());
    }

    #[test]
    fn every_audit_catches_its_planted_fault_and_passes_clean_evidence() {
        let wrong: Vec<String> = all().filter_map(|audit| verify(audit).err()).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_audit_says_what_it_is() {
        for audit in all() {
            let texts = [audit.slug, audit.title, audit.compares, audit.needs];
            assert!(texts.iter().all(|text| !text.is_empty()), "{audit:?}");
            assert!(audit.each.or(None).is_some() || audit.pair.is_some() || audit.whole.is_some());
            let slug = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(audit.slug.chars().all(slug), "{}", audit.slug);
            assert_eq!(find(audit.slug).map(|found| found.number), Some(audit.number));
            assert_eq!(find(&audit.number.to_string()).map(|found| found.slug), Some(audit.slug));
        }
        assert!(find("0").is_none() && find("none-such").is_none());
    }
}
