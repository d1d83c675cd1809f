use lockstep_traces::logprobs::{
    Candidate, Entry, ListSettings, Logprob, LogprobFile, Number, Part, Said, Sequence, Source,
    TokenName,
};

use super::{CompareOptions, Convention, RelationKind, Settings, compare, identify, inspect};

fn value(value: f64) -> Logprob {
    Logprob::of_number(Number { value, decimals: 6 })
}

fn token(text: &str) -> TokenName {
    TokenName { text: Some(text.to_owned()), ..TokenName::default() }
}

/// An entry of that token whose candidates are the given ones.
fn entry(text: &str, own: f64, candidates: &[(&str, f64)]) -> Entry {
    let candidates = candidates
        .iter()
        .map(|(text, v)| Candidate { token: token(text), logprob: value(*v), rank: None })
        .collect();
    Entry { token: token(text), logprob: value(own), candidates, text_offset: None }
}

fn file(entries: Vec<Entry>) -> LogprobFile {
    LogprobFile {
        source: Source::OpenaiChat,
        said: Said::Unknown,
        sequences: vec![Sequence {
            record: 0,
            choice: 0,
            part: Part::Completion,
            name: None,
            text: None,
            usage_tokens: None,
            usage_choices: 1,
            usage_prompt: None,
            asked: None,
            entries,
        }],
        logits: Vec::new(),
        settings: ListSettings::default(),
        complete: true,
        oddities: Vec::new(),
        oddity_count: 0,
        remarks: Vec::new(),
    }
}

/// Names of the findings of a file, with the entries that they are about.
fn findings(file: &LogprobFile) -> Vec<(String, Option<usize>)> {
    inspect("f", file, None)
        .findings
        .into_iter()
        .map(|finding| (finding.name, finding.entry))
        .collect()
}

fn has(file: &LogprobFile, name: &str, entry: Option<usize>) -> bool {
    findings(file).contains(&(name.to_owned(), entry))
}

fn clean() -> LogprobFile {
    let mut file = file(vec![
        entry("a", -0.5, &[("a", -0.5), ("x", -1.5)]),
        entry(" b", -0.25, &[(" b", -0.25), ("y", -2.0)]),
    ]);
    let only = &mut file.sequences[0];
    only.text = Some("a b".to_owned());
    only.usage_tokens = Some(2);
    only.asked = Some(2);
    only.entries[0].text_offset = Some(7);
    only.entries[1].text_offset = Some(8);
    file
}

#[test]
fn a_file_that_holds_together_has_no_finding() {
    let report = inspect("f", &clean(), None);
    assert_eq!(
        (report.findings.len(), report.verdict.exit_code()),
        (0, 0),
        "{:#?}",
        report.findings
    );
    assert!((report.sequences[0].total_logprob + 0.75).abs() < 1e-12);
    assert_eq!(report.sequences[0].rebuilt.as_deref(), Some("a b"));
    // exp(-0.5) + exp(-1.5) = 0.60653 + 0.22313.
    assert!((report.sequences[0].shown[0].probability_sum - 0.82966).abs() < 1e-5);
}

#[test]
fn each_contradiction_is_named_at_its_entry() {
    type Plant = fn(&mut Sequence);
    let plants: [(&str, Option<usize>, Plant); 9] = [
        ("count_disagrees", None, |s| s.usage_tokens = Some(3)),
        ("fewer_candidates", Some(0), |s| {
            s.entries[0].candidates.pop();
        }),
        ("more_candidates", Some(1), |s| {
            s.entries[1].candidates.extend(entry("", 0.0, &[("p", -9.0), ("q", -9.0)]).candidates);
        }),
        ("probabilities_above_one", Some(1), |s| s.entries[1].candidates[1].logprob = value(-0.3)),
        ("own_differs", Some(0), |s| s.entries[0].logprob = value(-0.7)),
        ("own_not_listed", Some(0), |s| s.entries[0].candidates[0].token = token("z")),
        ("text_gap", Some(1), |s| s.text = Some("a! b".to_owned())),
        ("text_disagrees", Some(1), |s| s.text = Some("a c".to_owned())),
        ("offset_disagrees", Some(1), |s| s.entries[1].text_offset = Some(9)),
    ];
    for (name, at, plant) in plants {
        let mut file = clean();
        plant(&mut file.sequences[0]);
        assert!(has(&file, name, at), "{name}: {:?}", findings(&file));
        assert_eq!(inspect("f", &file, None).verdict.exit_code(), 1, "{name}");
    }
    let mut file = clean();
    file.sequences[0].entries[1].candidates[1].logprob = value(0.5);
    assert!(has(&file, "above_zero", Some(1)), "{:?}", findings(&file));
}

#[test]
fn end_markers_lost_blanks_and_echoed_prompts_are_no_contradiction() {
    let mut file = clean();
    file.sequences[0].text = Some("a".to_owned());
    assert!(has(&file, "entries_behind_text", Some(1)));
    assert_eq!(inspect("f", &file, None).verdict.exit_code(), 0);
    let mut file = self::file(vec![entry(" a", -0.5, &[])]);
    file.sequences[0].text = Some("a".to_owned());
    assert!(has(&file, "leading_blanks", Some(0)));
    let mut file = clean();
    file.sequences[0].usage_tokens = Some(1);
    file.sequences[0].usage_prompt = Some(1);
    assert_eq!(inspect("f", &file, None).verdict.exit_code(), 0, "one prompt token is echoed");
}

#[test]
fn equal_keys_stay_candidates_and_the_tokens_own_pair_is_found() {
    let mut file = file(vec![entry("t", -6.0, &[("t", -0.7), ("u", -2.0), ("t", -6.0)])]);
    file.sequences[0].asked = Some(3);
    let report = inspect("f", &file, None);
    let twice = report.findings.iter().find(|finding| finding.name == "duplicate_keys").unwrap();
    assert_eq!(twice.evidence[0].value, 3);
    assert_eq!(twice.evidence[1].value, 2);
    assert_eq!(twice.evidence[2].value[0]["map_keeps"], -6.0);
    let own = report.findings.iter().find(|finding| finding.name == "own_pair").unwrap();
    assert_eq!(own.evidence[0].value, 2, "the third pair");
    let mut ids = file.clone();
    for candidate in &mut ids.sequences[0].entries[0].candidates {
        candidate.token.id = Some(if candidate.logprob.written < -5.0 { 1 } else { 2 });
    }
    assert!(!has(&ids, "own_pair", Some(0)));
}

#[test]
fn an_entry_of_two_positions_shifts_those_behind_it() {
    let mut file = clean();
    let only = &mut file.sequences[0];
    only.text = Some("a! b".to_owned());
    only.usage_tokens = Some(3);
    only.entries[0].candidates.extend(entry("", 0.0, &[("!", -0.1), ("?", -3.0)]).candidates);
    let report = inspect("f", &file, None);
    let merged = report.findings.iter().find(|finding| finding.name == "merged_entries").unwrap();
    assert_eq!(
        (merged.entry, &merged.evidence[0].value, &merged.evidence[1].value),
        (Some(0), &1.into(), &1.into())
    );
}

fn lists(lists: &[(&str, &[Option<f64>])]) -> LogprobFile {
    let mut file = file(Vec::new());
    file.source = Source::Lists;
    file.logits = vec![3.0, 2.0, 1.0, 0.0];
    file.sequences = lists
        .iter()
        .map(|(name, list)| {
            let candidates = (0..).zip(list.iter()).map(|(id, v)| {
                let logprob = v.map_or(
                    Logprob::of_number(Number { value: f64::NEG_INFINITY, decimals: 0 }),
                    |v| Logprob::of_number(Number { value: v, decimals: 5 }),
                );
                Candidate {
                    token: TokenName { id: Some(id), ..TokenName::default() },
                    logprob,
                    rank: None,
                }
            });
            let entry = Entry {
                token: TokenName::default(),
                logprob: Logprob::ABSENT,
                candidates: candidates.collect(),
                text_offset: None,
            };
            Sequence {
                name: Some((*name).to_owned()),
                part: Part::List,
                entries: vec![entry],
                ..clean().sequences[0].clone()
            }
        })
        .collect();
    file
}

/// Hand-worked for logits 3, 2, 1, 0: ln(e^3 + e^2 + e + 1) = 3.44019, at T = 0.5 ln(e^6 + e^4 + e^2 + 1) = 6.14508.
const RAW: [Option<f64>; 4] = [Some(-0.44019), Some(-1.44019), Some(-2.44019), Some(-3.44019)];

#[test]
fn each_transform_of_the_logits_is_named() {
    let cold = [Some(-0.14508), Some(-2.14508), Some(-4.14508), Some(-6.14508)];
    // Over ids 0 and 1 alone: ln(e^6 + e^4) = 6.126928.
    let kept = [Some(-0.12693), Some(-2.12693), None, None];
    let open = [Some(-0.14508), Some(-2.14508), None, None];
    let scaled = [Some(-0.88038), Some(-2.88038), Some(-4.88038), Some(-6.88038)];
    let plain = [Some(3.0), Some(2.0), Some(1.0), Some(0.0)];
    let file = lists(&[
        ("raw", &RAW),
        ("cold", &cold),
        ("kept", &kept),
        ("open", &open),
        ("scaled", &scaled),
        ("plain", &plain),
    ]);
    let found = identify(&file, Settings { temperature: 0.5, top_p: 0.9 }).unwrap();
    let named: Vec<_> = found.lists.iter().map(|list| list.convention.unwrap()).collect();
    assert_eq!(
        named,
        [
            Convention::Raw,
            Convention::Temperature,
            Convention::TemperatureTopP,
            Convention::TemperatureTopPOpen,
            Convention::Scaled,
            Convention::Logits
        ]
    );
    assert!(found.lists.iter().all(|list| list.fits.len() == 1));
    let possible: Vec<bool> = found.lists.iter().map(|list| list.to_raw.possible).collect();
    assert_eq!(possible, [true, true, false, false, true, true]);
    assert!(found.lists.iter().filter_map(|list| list.to_raw.max_error).all(|error| error < 1e-5));
    assert_eq!(found.lists[2].lost, [2, 3]);
    assert!(
        (found.lists[4].probability_sum - 0.479_361).abs() < 1e-5 && !found.lists[4].distribution
    );
    assert_eq!(found.verdict.exit_code(), 4, "not all of them can be brought to one convention");
    assert!(!found.one_convention);
}

#[test]
fn a_list_of_no_known_transform_and_settings_that_change_nothing_are_told() {
    let off = [Some(-0.44019), Some(-1.44019), Some(-2.44019), Some(-3.4)];
    let found =
        identify(&lists(&[("off", &off)]), Settings { temperature: 0.5, top_p: 0.9 }).unwrap();
    assert_eq!((found.lists[0].convention, found.verdict.exit_code()), (None, 1));
    let same = identify(&lists(&[("raw", &RAW)]), Settings::default()).unwrap();
    assert!(same.lists[0].fits.len() > 1 && same.lists[0].convention == Some(Convention::Raw));
    assert!(same.lists[0].words.contains("give the same list"));
    assert!(identify(&clean(), Settings::default()).is_none());
}

fn diff(left: &LogprobFile, right: &LogprobFile) -> super::LogprobDiff {
    compare(("l", left), ("r", right), CompareOptions::default())
}

#[test]
fn equal_files_agree_and_a_planted_difference_is_located() {
    let found = diff(&clean(), &clean());
    assert_eq!((found.verdict.exit_code(), found.values, found.compared), (0, 4, 2));
    assert_eq!(found.verdict.word(), "within noise", "six digits prove no bits");
    let mut other = clean();
    other.sequences[0].entries[1].candidates[1].logprob = value(-2.003);
    let found = diff(&clean(), &other);
    let max = found.max_delta.unwrap();
    assert_eq!(
        (max.entry, max.token.text.as_deref(), found.verdict.exit_code()),
        (1, Some("y"), 1)
    );
    assert!((max.delta - 0.003).abs() < 1e-9);
    let wide = compare(
        ("l", &clean()),
        ("r", &other),
        CompareOptions { tolerance: Some(0.01), temperature: None },
    );
    assert_eq!(wide.verdict.exit_code(), 0);
}

#[test]
fn no_difference_is_taken_between_values_that_stand_for_impossible() {
    let with = |fill: f64| {
        let mut file = clean();
        file.sequences[0].entries[0].candidates[1].logprob = value(fill);
        file
    };
    let found = diff(&with(-9999.0), &with(-100.0));
    assert_eq!((found.both_impossible, found.values, found.verdict.exit_code()), (1, 3, 0));
    assert!(found.max_delta.unwrap().delta < 1.0);
    let one = diff(&with(-9999.0), &clean());
    assert_eq!((one.one_impossible, one.verdict.exit_code()), (1, 1));
}

#[test]
fn values_of_another_convention_are_not_compared_as_they_are() {
    let at = |values: &[f64; 3]| {
        file(vec![entry("a", values[0], &[("a", values[0]), ("b", values[1]), ("c", values[2])])])
    };
    let raw = at(&[-0.44019, -1.44019, -2.44019]);
    for (right, kind) in [
        ([-0.145_08, -2.145_08, -4.145_08], RelationKind::Temperature),
        ([-0.880_38, -2.880_38, -4.880_38], RelationKind::Scaled),
        ([-0.407_61, -1.407_61, -2.407_61], RelationKind::Renormalised),
    ] {
        let found = diff(&raw, &at(&right));
        assert_eq!(found.relation.kind, kind, "{found:#?}");
        assert_eq!((found.verdict.exit_code(), found.max_delta.is_none()), (4, true));
        assert!(found.log_odds.unwrap().max_delta < 1e-4, "on one scale they agree");
    }
    let found = diff(&raw, &at(&[-0.145_08, -2.145_08, -4.145_08]));
    assert!((found.relation.temperature.unwrap() - 0.5).abs() < 1e-4);
}

#[test]
fn a_large_difference_is_not_explained_away_as_another_temperature() {
    let mut other = clean();
    other.sequences[0].entries[1].candidates[1].logprob = value(-3.0);
    let found = diff(&clean(), &other);
    assert_eq!((found.relation.kind, found.verdict.exit_code()), (RelationKind::Unknown, 1));
    assert!((found.max_delta.unwrap().delta - 1.0).abs() < 1e-9);
    // Two candidates of one entry lie on a line whatever they are: only a temperature that is given may name it.
    let one = |a, b| file(vec![entry("a", a, &[("a", a), ("b", b)])]);
    let (raw, cold) = (one(-0.44019, -1.44019), one(-0.126_93, -2.126_93));
    assert_eq!(diff(&raw, &cold).verdict.exit_code(), 1);
    let known = CompareOptions { temperature: Some(0.5), tolerance: None };
    let found = compare(("l", &raw), ("r", &cold), known);
    assert_eq!((found.relation.kind, found.verdict.exit_code()), (RelationKind::Temperature, 4));
}

#[test]
fn after_the_first_other_token_nothing_is_compared_but_the_candidates_there() {
    let mut other = clean();
    other.sequences[0].entries[0].token = token("x");
    other.sequences[0].entries[0].logprob = value(-1.5);
    other.sequences[0].entries[1].candidates[1].logprob = value(-7.0);
    let found = diff(&clean(), &other);
    assert_eq!((found.compared, found.dependent, found.values), (1, 1, 2));
    assert_eq!((found.pairs[0].first_token, found.verdict.exit_code()), (Some(0), 1));
}

#[test]
fn one_text_in_other_tokens_leaves_only_the_totals() {
    let left = file(vec![entry("ab", -1.0, &[])]);
    let right = file(vec![entry("a", -0.5, &[]), entry("b", -0.75, &[])]);
    let found = diff(&left, &right);
    assert_eq!((found.pairs[0].other_tokens, found.pairs[0].totals_comparable), (true, true));
    assert_eq!((found.pairs[0].totals, found.verdict.exit_code()), ((-1.0, -1.25), 4));
    assert!(found.summary.contains("the total log-likelihood is"), "{}", found.summary);
}

#[test]
fn nothing_in_common_is_incomparable_and_doubled_names_are_not_paired() {
    let found = diff(&file(vec![entry("a", f64::NAN, &[])]), &file(vec![entry("a", -1.0, &[])]));
    assert_eq!((found.values, found.verdict.exit_code()), (0, 4));
    let twice = file(vec![entry("a", -0.5, &[("a", -0.5), ("a", -3.0), ("b", -2.0)])]);
    let found = diff(&twice, &twice);
    assert_eq!((found.ambiguous, found.verdict.exit_code()), (2, 0));
}
