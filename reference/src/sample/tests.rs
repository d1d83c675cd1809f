//! Hand-worked filters and draws, and numbers that PyTorch made on a GPU.

use std::f64::consts::LN_2;

use super::*;

const OFF: Filters = Filters { temperature: 1.0, top_k: None, top_p: None, min_p: None };

fn candidates(logits: &[f64]) -> Vec<Candidate> {
    (0..).zip(logits).map(|(id, &logit)| Candidate { id, logit, count: 1.0 }).collect()
}

fn kept(filters: Filters, logits: &[f64], rules: Rules, variant: Variant) -> Vec<u32> {
    filters.apply(&candidates(logits), rules, variant).ids
}

/// Softmax 0.25, 0.125, 0.5, 0.125.
const HALVES: [f64; 4] = [-2.0 * LN_2, -3.0 * LN_2, -LN_2, -3.0 * LN_2];

#[test]
fn ranks_ties_and_minus_infinity() {
    for rules in [Rules::Hf, Rules::Native] {
        assert_eq!(kept(OFF, &HALVES, rules, Variant::Usual), [2, 0, 1, 3]);
        let gone = [f64::NEG_INFINITY, 0.0, f64::NEG_INFINITY];
        assert_eq!(kept(OFF, &gone, rules, Variant::Usual), [1]);
    }
    let three = Filters { top_k: Some(3), ..OFF };
    assert_eq!(kept(three, &HALVES, Rules::Native, Variant::Usual), [2, 0, 1]);
    assert_eq!(kept(three, &HALVES, Rules::Hf, Variant::Usual), [2, 0, 1, 3]);
}

#[test]
fn the_crossing_id_of_top_p_is_kept() {
    for (top_p, count) in [(0.0, 1), (0.5, 1), (0.6, 2), (0.75, 2), (0.8, 3), (1.0, 4)] {
        let filters = Filters { top_p: Some(top_p), ..OFF };
        assert_eq!(kept(filters, &HALVES, Rules::Hf, Variant::Usual).len(), count, "{top_p}");
    }
    let some = Filters { top_p: Some(0.6), ..OFF };
    let some = some.apply(&candidates(&HALVES), Rules::Native, Variant::Usual);
    assert!((some.probabilities[0] - 2.0 / 3.0).abs() < 1e-12);
    assert!((some.edges.top_p.unwrap() - 0.1).abs() < 1e-12);
}

/// Kept sets from public reports about the order of filters; the same logits stand under `tests/data/cases`.
#[test]
fn the_order_of_filters_and_the_space_of_min_p_show() {
    let logits = [2.0, 1.8, 1.6, 1.4, 1.2, 1.0];
    let both = Filters { top_k: Some(3), top_p: Some(0.7), ..OFF };
    assert_eq!(kept(both, &logits, Rules::Hf, Variant::Usual), [0, 1]);
    assert_eq!(kept(both, &logits, Rules::Hf, Variant::TopPFirst), [0, 1, 2]);
    let floor = Filters { min_p: Some(0.6), ..OFF };
    assert_eq!(kept(floor, &logits, Rules::Hf, Variant::Usual), [0, 1, 2]);
    assert_eq!(kept(floor, &logits, Rules::Hf, Variant::MinPOnLogits), [0, 1, 2, 3, 4]);
}

#[test]
fn temperature_before_and_after() {
    // At temperature 1 the first of [1, 0] has 0.731, at 0.5 it has 0.881.
    let filters = Filters { temperature: 0.5, top_p: Some(0.8), ..OFF };
    assert_eq!(kept(filters, &[1.0, 0.0], Rules::Native, Variant::Usual), [0]);
    let last = filters.apply(&candidates(&[1.0, 0.0]), Rules::Native, Variant::TemperatureLast);
    assert_eq!(last.ids, [0, 1]);
    assert!((last.probabilities[0] - 0.880_797_077_977_882).abs() < 1e-12);
}

#[test]
fn a_tail_counts_and_is_never_listed() {
    let mut list = candidates(&[3.0, 2.0]);
    list.push(Candidate { id: u32::MAX, logit: 0.0, count: 10.0 });
    let all = OFF.apply(&list, Rules::Native, Variant::Usual);
    assert_eq!((all.ids.len(), all.tail), (2, true));
    let sum = 3.0_f64.exp() + 2.0_f64.exp() + 10.0;
    assert!((all.probabilities[0] - 3.0_f64.exp() / sum).abs() < 1e-12);
    let two = Filters { top_k: Some(2), ..OFF }.apply(&list, Rules::Native, Variant::Usual);
    assert!(!two.tail);
    assert!(Filters { top_k: Some(3), ..OFF }.apply(&list, Rules::Native, Variant::Usual).tail);
}

#[test]
fn a_running_sum_and_a_race_by_hand() {
    let masses = [0.5, 0.3, 0.2];
    for (unit, place, margin) in [(0.0, 0, 0.5), (0.49, 0, 0.01), (0.5, 1, 0.0), (0.9, 2, 0.1)] {
        let draw = interval_draw(&masses, unit).unwrap();
        assert_eq!(draw.place, place, "{unit}");
        assert!((draw.margin - margin).abs() < 1e-12, "{unit}: {}", draw.margin);
    }
    assert!(interval_draw(&[], 0.5).is_none());
    // 0.5 / 1, 0.3 / 0.5, 0.2 / 0.1: the last wins by ln(2 / 0.6).
    let times = [1.0, 0.5, 0.1];
    let draw = race_draw(&[7, 8, 9], &masses, |place| times[place]).unwrap();
    assert_eq!(draw.place, 2);
    assert!((draw.margin - (2.0_f64 / 0.6).ln()).abs() < 1e-12);
    let even = race_draw(&[9, 7], &[0.5, 0.5], |_| 1.0).unwrap();
    assert_eq!((even.place, even.margin.to_bits()), (1, 0.0_f64.to_bits()));
}

/// The native runtime's published draws (seed 1235, 100,000 ids, two of them with mass).
#[test]
fn the_native_runtimes_own_expected_draws_come_out() {
    let geometry = Geometry::new(100_000, 132, SM_THREADS).unwrap();
    let ids = [279, 419];
    let drawn: Vec<u32> = (0..8)
        .map(|draw| {
            let time = |place: usize| {
                let word = geometry.word(1235, draw * geometry.advance(), u64::from(ids[place]));
                race_exponential(uniform_of(word))
            };
            ids[race_draw(&ids, &[0.545_416_14, 0.454_583_86], time).unwrap().place]
        })
        .collect();
    assert_eq!(drawn, [419, 279, 279, 419, 279, 279, 419, 419]);
}

/// Two devices as public reports describe them: 40 multiprocessors of 1024 threads, 58 of 1536.
#[test]
fn the_same_seed_on_another_grid() {
    let a = Geometry::new(50_000, 40, 1024).unwrap();
    let b = Geometry::new(50_000, 58, 1536).unwrap();
    assert_eq!((a.blocks, a.threads, a.advance()), (160, 40_960, 4));
    assert_eq!((b.blocks, b.threads, b.advance()), (196, 50_176, 4));
    assert_eq!((a.place(40_960), b.place(40_960)), ((0, 0, 1), (40_960, 0, 0)));
    assert_eq!(a.word(1234, 0, 40_959), b.word(1234, 0, 40_959));
    assert!((uniform_of(a.word(1234, 0, 40_960)) - 0.853_469_0).abs() < 5e-8);
    assert!((uniform_of(b.word(1234, 0, 40_960)) - 0.206_617_3).abs() < 5e-8);
    assert!(Geometry::new(0, 40, 1024).is_none() && Geometry::new(5, 40, 128).is_none());
}

/// Draws of `torch.multinomial` on a CPU from seven probabilities, seed 1234 (torch 2.11).
#[test]
fn torchs_draws_on_a_cpu_come_out() {
    let masses = [
        0.183_523_446_321_487_43,
        0.068_206_220_865_249_63,
        0.226_165_086_030_960_08,
        0.225_368_648_767_471_3,
        0.079_856_805_503_368_38,
        0.145_831_838_250_160_22,
        0.071_047_931_909_561_16,
    ];
    let ids: Vec<u32> = (0..7).collect();
    let mut numbers = Mersenne::new(1234);
    let drawn: Vec<usize> = (0..16)
        .map(|_| {
            let times: Vec<f64> = masses.iter().map(|_| -(-numbers.unit_53()).ln_1p()).collect();
            race_draw(&ids, &masses, |place| times[place]).unwrap().place
        })
        .collect();
    assert_eq!(drawn, [1, 4, 3, 4, 3, 2, 3, 3, 6, 2, 5, 0, 5, 0, 2, 5]);
}
