use lockstep_traces::forms::{KeepSpec, KeptRows};

use super::{TIMES, Time, check, select};

/// A score that falls with the distance from t, up to 31 rows.
fn near(budget: usize) -> KeepSpec {
    KeepSpec {
        amp: vec![1.0],
        omega: vec![0.1],
        phase: vec![0.0],
        budget,
        time: None,
        trigger_rows: None,
        score: None,
    }
}

#[test]
fn ties_go_to_the_smaller_position_whatever_the_order_of_the_rows() {
    let rows = [6, 10, 8, 7, 9];
    let places: Vec<f64> = rows.iter().map(|row| *row as f64).collect();
    assert_eq!(select(&near(4), 8.0, &rows, &places).kept, [6, 7, 8, 9]);
    assert_eq!(select(&near(2), 8.0, &rows, &places).kept, [7, 8]);
    assert_eq!(select(&near(9), 8.0, &rows, &places).kept, [6, 7, 8, 9, 10]);
}

#[test]
fn a_phase_moves_the_peak_and_an_amplitude_turns_it() {
    let rows: Vec<u64> = (0..16).collect();
    let places: Vec<f64> = rows.iter().map(|row| *row as f64).collect();
    // cos(0.1 (t - p) - 0.5) peaks at p = t - 5.
    let shifted = KeepSpec { phase: vec![-0.5], ..near(3) };
    assert_eq!(select(&shifted, 15.0, &rows, &places).kept, [9, 10, 11]);
    // -cos keeps what is farthest.
    let turned = KeepSpec { amp: vec![-1.0], ..near(3) };
    assert_eq!(select(&turned, 15.0, &rows, &places).kept, [0, 1, 2]);
}

#[test]
fn every_time_has_a_name_of_its_own() {
    for time in TIMES {
        assert_eq!(Time::named(time.name()), Some(time));
    }
    assert_eq!(Time::named("noon"), None);
}

#[test]
fn a_slot_for_a_position_is_recognised_where_rows_are_not_in_order() {
    // Rows in falling order: the last slots, 6 and 7, are nearest to t = 8, and rows 1 and 0 lie in them.
    let records = vec![KeptRows {
        compaction: 1,
        absolute_position: 8,
        rows: vec![7, 6, 5, 4, 3, 2, 1, 0],
        kept: vec![0, 1],
    }];
    let report = check(&near(2), &records, None).unwrap();
    assert_eq!(report.compactions[0].reference, [6, 7]);
    assert!(report.recognised.contains(&"absolute_position_and_slots".to_owned()), "{report:?}");
}

#[test]
fn nothing_is_no_parity() {
    assert_eq!(check(&near(4), &[], None).unwrap().verdict.exit_code(), 4);
    let kept = KeptRows { compaction: 1, absolute_position: 2, rows: vec![0, 1], kept: vec![0, 1] };
    assert_eq!(check(&near(4), &[kept], None).unwrap().verdict.exit_code(), 4);
}
