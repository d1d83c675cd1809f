//! Draws that torch made on an H200 and on a CPU, under a claim that holds and under claims that do not.

use lockstep_reference::sample::{Filters, Order, Rules};
use lockstep_traces::store::DumpFile;
use lockstep_traces::{Cause, Verdict};

use crate::sampler::{
    Answer, Claim, Draw, Evidence, Hypothesis, Pattern, Row, SeedRule, Step, Stream, check_report,
    identify,
};

const OFF: Filters = Filters { temperature: 1.0, top_k: None, top_p: None, min_p: None };

fn vectors() -> DumpFile {
    let path = lockstep_testkit::golden().join("sampler/torch_multinomial.safetensors");
    DumpFile::open(&path).unwrap()
}

fn ids(file: &DumpFile, name: &str) -> Vec<u32> {
    let values = file.get(name).unwrap().to_i32().unwrap();
    values.into_iter().map(|id| u32::try_from(id).unwrap()).collect()
}

/// Twenty ids of a vocabulary of 151,936 hold all the mass; `draws` tokens of them.
fn sparse(case: &str, tokens: &[u32], seed: u64) -> Evidence {
    let file = vectors();
    let masses = file.get(&format!("{case}.probs")).unwrap().to_f64().unwrap();
    let listed: Vec<(u32, f64)> =
        ids(&file, &format!("{case}.ids")).into_iter().zip(masses.iter().map(|p| p.ln())).collect();
    let row = Row { listed, unlisted: 0, tail_weight: None };
    evidence(&row, tokens, 151_936, seed)
}

fn evidence(row: &Row, tokens: &[u32], vocab: usize, seed: u64) -> Evidence {
    let steps = (0..).zip(tokens).map(|(position, &token)| Step {
        position,
        row: row.clone(),
        token,
        offset: None,
    });
    Evidence {
        streams: vec![Stream {
            sample_id: "s".to_owned(),
            base_seed: Some(seed),
            seed_index: 0,
            steps: steps.collect(),
        }],
        vocab,
        filters: OFF,
        claim: Claim { sampler: Some("torch-cuda".to_owned()), rules: Some(Rules::Native) },
        sm_count: 132,
        logit_error: 0.0,
        given: Vec::new(),
        limits: Vec::new(),
    }
}

fn answer(evidence: &Evidence) -> Answer {
    identify(evidence, Hypothesis::claimed(evidence)).answer
}

fn cause(evidence: &Evidence) -> Option<Cause> {
    match answer(evidence) {
        Answer::Identified(_, cause) => cause,
        other => panic!("{other:?}"),
    }
}

#[test]
fn torchs_stream_on_a_device_is_what_it_claims() {
    for (case, seed) in [("sparse_s0", 0), ("sparse_s1234", 1234), ("sparse_s1235", 1235)] {
        let tokens = ids(&vectors(), &format!("{case}.draws"));
        let evidence = sparse(case, &tokens, seed);
        let found = identify(&evidence, Hypothesis::claimed(&evidence));
        assert_eq!(found.answer, Answer::Claimed, "{case}");
        assert_eq!(found.claimed.as_ref().unwrap().reproduced, 64);
        let report = check_report(&evidence, &found);
        assert_eq!(report.verdict, Verdict::Identical);
        assert_eq!((report.compared, report.different, report.skipped), (64, 0, 0));
        assert_eq!(report.detail["sampler"]["sampler"], "torch-cuda");
        assert_eq!(report.detail["sensitivity"]["with_choice"], 64);
        assert!(report.detail["sensitivity"]["smallest_margin"].as_f64().unwrap() > 0.0);
        let edges = report.detail["sensitivity"]["edges"][0]["margins"].as_array().unwrap();
        assert_eq!(edges.len(), 64);
        assert!(report.findings.is_empty());
    }
}

#[test]
fn torchs_stream_over_the_slice_is_named() {
    let tokens = ids(&vectors(), "sparse_s1234.kept_slice_draws");
    let evidence = sparse("sparse_s1234", &tokens, 1234);
    let found = identify(&evidence, Hypothesis::claimed(&evidence));
    // The slice of that file lies in order of ids.
    let Answer::Identified(one, cause) = &found.answer else { panic!("{:?}", found.answer) };
    assert_eq!((one.draw, *cause), (Draw::Slice(Order::Id), Some(Cause::RaceOverSlice)));
    let report = check_report(&evidence, &found);
    assert_eq!(report.verdict, Verdict::Diverged);
    assert_eq!(report.findings[0].cause, Some(Cause::RaceOverSlice));
    assert_eq!(report.detail["first_misfit"]["draw"], 0);
    assert!(report.different > 50, "{}", report.different);
}

#[test]
fn moved_streams_are_named_by_their_pattern() {
    let all = ids(&vectors(), "sparse_s1235.draws");
    let of = |tokens: &[u32]| cause(&sparse("sparse_s1235", tokens, 1235));
    assert_eq!(of(&all[1..]), Some(Cause::DrawDiscarded));
    assert_eq!(of(&[all[0]; 40]), Some(Cause::RngFrozen));
    let even: Vec<u32> = all.iter().copied().step_by(2).collect();
    assert_eq!(of(&even), Some(Cause::DrawDiscardedEachStep));
    // Four draws late has no name of its own and is still said.
    match answer(&sparse("sparse_s1235", &all[4..], 1235)) {
        Answer::Identified(one, None) => assert_eq!(one.pattern, Pattern::Advancing(4)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn seeds_are_named_by_their_rule() {
    let tokens = ids(&vectors(), "sparse_s1235.draws");
    let with = |base: u64, index: u64| {
        let mut evidence = sparse("sparse_s1235", &tokens, base);
        evidence.streams[0].seed_index = index;
        evidence
    };
    assert_eq!(answer(&with(1234, 1)), Answer::Claimed);
    assert_eq!(cause(&with(1233, 1)), Some(Cause::SeedIndexTwice));
    assert_eq!(cause(&with(1235, 3)), Some(Cause::OneSeedForAll));
    assert_eq!(answer(&with(77, 5)), Answer::NoneFits);
}

#[test]
fn the_effective_seed_of_another_sample_is_named() {
    let tokens = ids(&vectors(), "sparse_s1235.draws");
    let mut evidence = sparse("sparse_s1235", &tokens, 1230);
    let mut other = evidence.streams[0].clone();
    (other.sample_id, other.seed_index) = ("t".to_owned(), 5);
    evidence.streams[0].seed_index = 2;
    evidence.streams.push(other);
    match answer(&evidence) {
        Answer::Identified(one, None) => assert_eq!(one.seed, SeedRule::Of(1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn torchs_stream_on_a_cpu_is_named_without_a_claim() {
    let file = vectors();
    let masses = file.get("cpu_v7.probs").unwrap().to_f64().unwrap();
    let row = Row::full(masses.iter().map(|p| p.ln()));
    let mut evidence = evidence(&row, &ids(&file, "cpu_v7.draws"), 7, 1234);
    evidence.claim.sampler = None;
    let found = identify(&evidence, None);
    match &found.answer {
        Answer::Identified(one, None) => assert_eq!(one.draw, Draw::TorchCpu),
        other => panic!("{other:?}"),
    }
    assert_eq!(check_report(&evidence, &found).verdict, Verdict::Identical);
    evidence.claim.sampler = Some("torch-cuda".to_owned());
    let found = identify(&evidence, Hypothesis::claimed(&evidence));
    assert!(matches!(&found.answer, Answer::Identified(one, None) if one.draw == Draw::TorchCpu));
    assert_eq!(check_report(&evidence, &found).verdict, Verdict::Diverged);
}

#[test]
fn what_cannot_be_told_is_not_told() {
    let file = vectors();
    let tokens = ids(&file, "sparse_s1234.draws");
    // Three tokens are reproduced by many by chance.
    let few = sparse("sparse_s1234", &tokens[..3], 1234);
    assert!(matches!(answer(&few), Answer::NotDecidable(why) if why.contains("had a choice")));
    let report = check_report(&few, &identify(&few, Hypothesis::claimed(&few)));
    assert!(matches!(report.verdict, Verdict::Incomparable { .. }));
    // One survivor in every row: nothing is drawn.
    let sure = Row::full([0.0, f64::NEG_INFINITY]);
    let fixed = evidence(&sure, &[0; 64], 2, 1);
    assert!(matches!(answer(&fixed), Answer::NotDecidable(_)));
    let nothing = evidence(&sure, &[], 2, 1);
    assert!(matches!(answer(&nothing), Answer::NotDecidable(_)));
    // A list that does not show the survivors.
    let mut short = sparse("sparse_s1234", &tokens, 1234);
    for step in &mut short.streams[0].steps {
        step.row = Row::top(step.row.listed[..8].to_vec(), 151_936, None);
    }
    let found = identify(&short, Hypothesis::claimed(&short));
    assert!(matches!(&found.answer, Answer::NotDecidable(why) if why.contains("survivors")));
    assert_eq!(check_report(&short, &found).skipped, 64);
}

#[test]
fn a_list_that_covers_top_k_is_enough() {
    let file = vectors();
    let evidence = sparse("sparse_s1234", &ids(&file, "sparse_s1234.draws"), 1234);
    let row = &evidence.streams[0].steps[0].row;
    let mut listed = row.listed.clone();
    listed.sort_by(|a, b| b.1.total_cmp(&a.1));
    let top = Row::top(listed[..10].to_vec(), 151_936, None);
    let five = Filters { top_k: Some(5), ..OFF };
    for rules in [Rules::Native, Rules::Hf] {
        let usual = lockstep_reference::sample::Variant::Usual;
        let (long, short) = (row.kept(&five, rules, usual), top.kept(&five, rules, usual));
        assert_eq!(long.unwrap().ids, short.unwrap().ids);
        let ten = Filters { top_k: Some(10), ..OFF };
        // All ten are seen, and so is that no other can tie with them only where exactly ten survive.
        assert_eq!(top.kept(&ten, rules, usual).is_some(), rules == Rules::Native);
        let all = Filters { top_p: Some(0.9), ..OFF };
        assert!(top.kept(&all, rules, usual).is_none());
    }
}

#[test]
fn a_token_that_nobody_draws_fits_nothing() {
    let file = vectors();
    let mut tokens = ids(&file, "sparse_s1234.draws");
    tokens[40] = 12;
    let evidence = sparse("sparse_s1234", &tokens, 1234);
    let found = identify(&evidence, Hypothesis::claimed(&evidence));
    assert_eq!(found.answer, Answer::NoneFits);
    let misfit = found.claimed.unwrap().first_misfit.unwrap();
    assert_eq!((misfit.step, misfit.token), (40, 12));
    let best = &found.scored[0];
    assert_eq!((best.reproduced, best.missed), (63, 1));
}
