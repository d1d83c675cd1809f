use super::*;

fn rope(block: RopeParameters, context: usize, head_dim: usize) -> Rope {
    let config = ModelConfig {
        rope_parameters: Some(block),
        max_position_embeddings: Some(context),
        ..ModelConfig::default()
    };
    Rope::resolve(&config, head_dim, Path::new("config.json")).unwrap().0
}

fn block(kind: &str) -> RopeParameters {
    RopeParameters {
        rope_type: Some(kind.to_owned()),
        rope_theta: Some(10_000.0),
        ..RopeParameters::default()
    }
}

fn close(left: f32, right: f64) {
    assert!((f64::from(left) / right - 1.0).abs() < 3e-7, "{left} against {right}");
}

#[test]
fn plain_frequencies_are_powers_of_the_base() {
    let freqs = rope(block("default"), 64, 8).inv_freq();
    for (freq, expected) in freqs.iter().zip([1.0, 0.1, 0.01, 0.001]) {
        close(*freq, expected);
    }
}

#[test]
fn linear_divides_every_frequency() {
    let freqs = rope(RopeParameters { factor: Some(4.0), ..block("linear") }, 64, 4).inv_freq();
    close(freqs[0], 0.25);
    close(freqs[1], 0.0025);
}

#[test]
fn llama3_keeps_short_and_divides_long_wavelengths() {
    // Wavelengths 6.28, 62.8, 628, 6283 against bounds 8192/4 = 2048 and 8192/1 = 8192: three kept, one on the ramp.
    let freqs = rope(
        RopeParameters {
            factor: Some(8.0),
            low_freq_factor: Some(1.0),
            high_freq_factor: Some(4.0),
            original_max_position_embeddings: Some(8192.0),
            ..block("llama3")
        },
        131_072,
        8,
    )
    .inv_freq();
    close(freqs[2], 0.01);
    let smooth = (8192.0 * 0.001 / std::f64::consts::TAU - 1.0) / 3.0;
    close(freqs[3], 0.001 * ((1.0 - smooth) / 8.0 + smooth));
}

#[test]
fn yarn_ramps_between_extrapolation_and_interpolation() {
    let yarn = rope(
        RopeParameters {
            factor: Some(4.0),
            original_max_position_embeddings: Some(32_768.0),
            ..block("yarn")
        },
        131_072,
        8,
    );
    assert!((yarn.attention_scaling - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    // Correction dims: 8 ln(32768/(2 pi b)) / (2 ln 10000) = 2.21 for b = 32 and 3.72 for b = 1, so the ramp runs from 2 to 4.
    let freqs = yarn.inv_freq();
    close(freqs[1], 0.1);
    close(freqs[2], 0.01);
    close(freqs[3], 0.001 * (0.5 + 0.5 / 4.0));
    let untruncated = rope(
        RopeParameters {
            factor: Some(4.0),
            original_max_position_embeddings: Some(32_768.0),
            truncate: Some(false),
            ..block("yarn")
        },
        131_072,
        8,
    );
    assert!((untruncated.yarn_ramp().0 - 2.21).abs() < 0.02, "{:?}", untruncated.yarn_ramp());
}

#[test]
fn frequencies_in_f64_are_the_powers_themselves() {
    let freqs = rope(block("default"), 64, 8).inv_freq_f64();
    for (freq, expected) in freqs.iter().zip([1.0, 0.1, 0.01, 0.001]) {
        assert!((freq / expected - 1.0).abs() < 1e-15, "{freq} against {expected}");
    }
    // Half a power of ten: 10^-0.5 to 16 digits, which f32 cannot hold.
    let freqs = rope(block("default"), 64, 16).inv_freq_f64();
    assert!((freqs[1] - 0.316_227_766_016_837_94).abs() < 1e-16, "{}", freqs[1]);
}

#[test]
fn both_precisions_compute_the_same_table_under_every_scaling() {
    let scaled = |kind| RopeParameters {
        factor: Some(8.0),
        low_freq_factor: Some(1.0),
        high_freq_factor: Some(4.0),
        original_max_position_embeddings: Some(8192.0),
        ..block(kind)
    };
    for kind in ["default", "linear", "llama3", "yarn"] {
        let rope = rope(scaled(kind), 65_536, 64);
        for (narrow, wide) in rope.inv_freq().iter().zip(rope.inv_freq_f64()) {
            close(*narrow, wide);
        }
    }
}

#[test]
fn yarn_takes_the_factor_from_the_context_lengths_when_it_is_left_out() {
    let parameters =
        RopeParameters { original_max_position_embeddings: Some(64.0), ..block("yarn") };
    let kind = rope(parameters, 256, 8).kind;
    assert!(matches!(kind, RopeKind::Yarn { factor, .. } if (factor - 4.0).abs() < 1e-12));
}

#[test]
fn a_table_row_is_cos_and_sin_of_position_times_frequency() {
    let (cos, sin) = rope(block("default"), 64, 4).table_f64(&[0, 3]);
    assert_eq!((cos[0].to_bits(), sin[1].to_bits()), (1f64.to_bits(), 0f64.to_bits()));
    assert!((cos[2] - 3f64.cos()).abs() < 1e-15 && (sin[3] - 0.03f64.sin()).abs() < 1e-8);
}

#[test]
fn missing_and_unknown_parameters_are_named() {
    let fails = |parameters: RopeParameters| {
        let config = ModelConfig { rope_parameters: Some(parameters), ..ModelConfig::default() };
        Rope::resolve(&config, 8, Path::new("config.json")).unwrap_err().to_string()
    };
    assert!(fails(block("linear")).contains("factor is missing"));
    assert!(fails(block("longrope")).contains("longrope"));
    assert!(
        fails(RopeParameters { rope_theta: Some(-1.0), ..block("default") }).contains("rope_theta")
    );
}
