use std::path::PathBuf;

use serde_json::{Value, json};

use super::{EngineTable, RopeConfig, RopeQuestion, RopeReport, check};

fn config(written: &Value) -> RopeConfig {
    let dir = tempfile::tempdir().unwrap();
    let path: PathBuf = dir.path().join("config.json");
    std::fs::write(&path, written.to_string()).unwrap();
    RopeConfig::read(&path, None).unwrap()
}

fn compared(written: &Value, values: &[f64]) -> RopeReport {
    let engine = EngineTable { name: String::new(), values: values.to_vec() };
    let question = RopeQuestion { positions: vec![10], tolerance: None };
    check(&[config(written)], &[Some(&engine)], &question)
}

fn names(report: &RopeReport) -> Vec<&str> {
    let check = report.configs[0].engine.as_ref().unwrap();
    check.recognised.iter().map(String::as_str).collect()
}

#[test]
fn a_table_of_f32_arithmetic_is_the_same_and_one_of_bf16_is_not() {
    let written = json!({"head_dim": 128, "rope_theta": 1e6});
    let own = config(&written).rope;
    let f32s: Vec<f64> = own.inv_freq().iter().map(|freq| f64::from(*freq)).collect();
    assert_eq!(compared(&written, &f32s).verdict.exit_code(), 0);
    let bf16: Vec<f64> =
        own.inv_freq_f64().iter().map(|freq| half::bf16::from_f64(*freq).to_f64()).collect();
    let report = compared(&written, &bf16);
    assert_eq!((report.verdict.exit_code(), names(&report)), (1, vec!["rounded_to_bf16"]));
}

#[test]
fn the_head_is_found_in_every_spelling() {
    // Half of a head of 8, by hidden_size / heads: two bands of base 100 over four dimensions.
    let written = json!({"hidden_size": 32, "num_attention_heads": 4, "partial_rotary_factor": 0.5, "rope_theta": 100.0});
    assert_eq!(config(&written).rope.inv_freq_f64(), [1.0, 0.1]);
    let inner = json!({"text_config": {"head_dim": 4, "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 1.0}}});
    let inner = config(&inner);
    assert_eq!((inner.rope.inv_freq_f64(), inner.remarks.len()), (vec![1.0, 0.1], 1));
    let plain = config(&json!({"head_dim": 4}));
    assert_eq!((plain.base_from.as_str(), plain.rope.inv_freq_f64()), ("default", vec![1.0, 0.01]));
}

#[test]
fn two_bases_in_one_file_are_told_and_the_other_one_is_recognised() {
    let written = json!({"head_dim": 4, "rope_theta": 100.0, "rope_parameters": {"rope_type": "default", "rope_theta": 400.0}});
    assert!(config(&written).remarks[0].contains("100 at the top and 400"));
    let report = compared(&written, &[1.0, 0.1]);
    assert_eq!(names(&report), ["base_of_the_top_level"]);
}

#[test]
fn a_table_of_another_length_is_not_compared_band_by_band() {
    let report = compared(&json!({"head_dim": 8}), &[1.0, 0.1, 0.01]);
    assert_eq!(report.verdict.exit_code(), 1);
    assert_eq!(report.findings[0].name, "unlike");
    assert!(report.findings[0].title.contains("3 frequencies, the configuration 4"));
}

#[test]
fn the_phase_error_is_position_times_the_difference() {
    let report = compared(&json!({"head_dim": 4, "rope_theta": 100.0}), &[1.0, 0.3]);
    let error = &report.configs[0].engine.as_ref().unwrap().phase_errors[0];
    assert_eq!((error.position, error.largest_band), (10, 1));
    assert!((error.slowest_band - 2.0).abs() < 1e-12, "{error:?}");
}
