//! Against files that llama.cpp's programs wrote (`tests/data/interop/llamacpp/make.py`).

use std::path::{Path, PathBuf};

use super::debug::dump_of;
use super::import::bare;
use super::*;
use crate::manifest::{Producer, ValueEncoding};
use crate::store::{RunReader, RunWriter};
use crate::{
    Choice, Manifest, RecordPlan, SampleRow, StepQuery, TraceError, TraceSink as _, UNKNOWN_TOKEN,
};

const SHAPE: KldShape = KldShape { n_ctx: 16, n_vocab: 19, n_chunk: 15 };
/// First record: 20 bytes of header, 15 chunks of 16 tokens.
const DATA: usize = 20 + 15 * 16 * 4;
/// Bytes of a chunk's records: 7 of 48.
const CHUNK: usize = 7 * 48;

fn data(name: &str) -> PathBuf {
    lockstep_testkit::data().join("interop/llamacpp").join(name)
}

fn rows(name: &str) -> Vec<Vec<f32>> {
    let rows = LogitRows::open(&data(name), None, None).unwrap();
    (0..rows.size().0).map(|row| rows.row(row).unwrap()).collect()
}

fn place(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (home, path)
}

#[test]
fn a_base_file_is_read_as_its_program_wrote_it() {
    let file = KldFile::open(&data("base.kld")).unwrap();
    assert_eq!((file.shape(), file.chunks(), file.cut()), (SHAPE, 15, None));
    assert_eq!((SHAPE.first(), SHAPE.scored(), SHAPE.record_bytes()), (8, 7, 48));
    // The text's first tokens: BOS, which llama.cpp's tokenizer puts in front of the whole text, then letters (ids 3 to 17).
    assert_eq!(file.token(0, 0), Some(0));
    assert!((3..18).contains(&file.token(0, 1).unwrap()));
    assert_eq!((file.token(15, 0), file.token(0, 16)), (None, None));
    assert!(file.record(0, 7).is_none() && file.record(15, 0).is_none());
}

/// The codes of llama-perplexity from the logits that it had, to the last bit.
#[test]
fn codes_are_those_of_llama_perplexity() {
    let bytes = std::fs::read(data("base.kld")).unwrap();
    let mut made = Vec::new();
    for row in rows("base.npy") {
        encode_row(&row, &mut made).unwrap();
    }
    assert_eq!(made, bytes[DATA..]);
}

/// Rows that the model does not give, against the restatement in Python: all equal, cut, -inf, large offsets, one ULP apart.
#[test]
fn codes_of_odd_rows_are_those_of_the_restatement() {
    let mut made = Vec::new();
    for row in rows("edges.npy") {
        encode_row(&row, &mut made).unwrap();
    }
    assert_eq!(made, std::fs::read(data("edges.records")).unwrap());
    for none in
        [&[][..], &[f32::NAN, 1.0], &[f32::INFINITY, 0.0], &[f32::NEG_INFINITY], &[3e38, 0.0]]
    {
        assert!(encode_row(none, &mut made).is_none());
    }
}

fn exact_log_softmax(row: &[f32]) -> Vec<f64> {
    let highest = f64::from(row.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = row.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
    row.iter().map(|logit| f64::from(*logit) - highest - sum.ln()).collect()
}

#[test]
fn decoded_values_lie_within_the_stated_error() {
    let mut state = 7;
    let mut draw = || {
        state = crate::hash::splitmix64(state);
        f32::from(u16::try_from(state >> 48).unwrap()) / 65536.0
    };
    let mut wide: Vec<Vec<f32>> = (0..40_u8)
        .map(|scale| (0..501).map(|_| (draw() - 0.5) * f32::from(scale) + 100.0).collect())
        .collect();
    // So near to one another that the scale has no inverse: every code is 0.
    wide.push(vec![0.0, f32::from_bits(3)]);
    let (mut cut, mut worst) = (0, 0.0_f64);
    for row in rows("base.npy").iter().chain(&rows("edges.npy")).chain(&wide) {
        let mut bytes = Vec::new();
        encode_row(row, &mut bytes).unwrap();
        let record = KldRecord::of(&bytes, row.len()).unwrap();
        assert_eq!(record.fault_of_sum(), None);
        for ((code, value), exact) in
            record.codes().zip(record.values()).zip(exact_log_softmax(row))
        {
            let off = (f64::from(value) - exact).abs();
            if code == 0 && record.cut_below() {
                cut += 1;
                assert!(exact <= f64::from(value) + record.error());
            } else {
                assert!(off <= record.error(), "{off} {record:?}");
                worst = worst.max(off / record.error());
            }
        }
    }
    // The bound is no idle one: an error comes near it, and entries below the range were met.
    assert!(cut > 100 && worst > 0.8, "{cut} {worst}");
}

#[test]
fn the_highest_codes_come_in_order_and_equal_ones_by_id() {
    let mut bytes = Vec::new();
    encode_row(&[1.0, 3.0, 2.0, 3.0, -1.0], &mut bytes).unwrap();
    let record = KldRecord::of(&bytes, 5).unwrap();
    assert_eq!(record.top(3), [1, 3, 2]);
    assert_eq!(record.top(9), [1, 3, 2, 0, 4]);
    assert!(record.top(0).is_empty());
}

#[test]
fn a_file_that_is_cut_is_read_up_to_its_last_whole_chunk_and_no_cut_panics() {
    let bytes = std::fs::read(data("base.kld")).unwrap();
    for length in (0..bytes.len()).step_by(7).chain([19, 20, DATA, DATA + CHUNK - 1, DATA + CHUNK])
    {
        let (_home, path) = place("cut.kld", &bytes[..length]);
        let whole = length.saturating_sub(DATA) / CHUNK;
        match KldFile::open(&path) {
            Ok(file) => {
                assert_eq!(file.chunks(), whole, "{length}");
                assert!(file.cut().unwrap().contains(&format!("{whole} of 15 chunks are whole")));
                assert!(file.record(whole, 0).is_none());
            }
            Err(error) => assert!(whole == 0, "{length}: {error}"),
        }
    }
}

#[test]
fn headers_that_lie_are_refused_with_the_reason() {
    let bytes = std::fs::read(data("base.kld")).unwrap();
    for (at, value, part) in [
        (8, 15_u32, "60 bytes follow the 15 chunks"),
        (8, 17, "no id below n_vocab"),
        (8, 2, "n_ctx at byte 8 is 2"),
        (8, 0x1000_0000, "big-endian"),
        (8, 1 << 24, "do not fit"),
        (12, 18, "420 bytes follow the 15 chunks"),
        (12, 21, "none that llama-perplexity writes"),
        (12, 300_000, "cut before its first chunk ended"),
        (12, u32::MAX, "n_vocab at byte 12 is -1"),
        (16, 14, "bytes follow the 14 chunks"),
        (16, 16, "no id below n_vocab"),
        (16, i32::MAX.cast_unsigned(), "do not fit"),
        (16, 0, "n_chunk at byte 16 is 0"),
    ] {
        let mut lie = bytes.clone();
        lie[at..at + 4].copy_from_slice(&value.to_le_bytes());
        let (_home, path) = place("lie.kld", &lie);
        match KldFile::open(&path) {
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(part), "{at} {value}: {text}");
            }
            Ok(file) => panic!("{at} {value}: {file:?}"),
        }
    }
    let (_home, path) = place("other", b"_logitz_0123456789ab");
    assert!(!is_kld(&path) && is_kld(&data("base.kld")));
    assert!(KldFile::open(&path).unwrap_err().to_string().contains("no KLD base file"));
    let (_home, path) = place("long.kld", &[&bytes[..], &[0; 48]].concat());
    assert!(KldFile::open(&path).unwrap_err().to_string().contains("48 bytes follow"));
}

#[test]
fn a_record_that_no_program_writes_is_named_by_chunk_and_position() {
    let mut bytes = std::fs::read(data("base.kld")).unwrap();
    let at = DATA + 4 * CHUNK + 3 * 48;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let (home, path) = place("nan.kld", &bytes);
    let file = KldFile::open(&path).unwrap();
    let text = file.sound_record(4, 3).unwrap_err().to_string();
    assert!(text.contains("chunk 5, position 11") && text.contains("scale NaN"), "{text}");
    assert!(import_kld(&path, 8, &home.path().join("run")).is_err());
}

#[test]
fn an_imported_file_is_a_run_of_codes() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    let remarks = import_kld(&data("base.kld"), 4, &out).unwrap();
    assert!(remarks[0].starts_with("15 chunks of 16 tokens, 7 of each scored, vocabulary 19"));
    let run = RunReader::open(&out).unwrap();
    let manifest = run.manifest();
    assert_eq!(manifest.encoding, ValueEncoding::Codes16);
    assert!(!manifest.limits.rows && manifest.limits.values == crate::limits::Values::Logprobs);
    let error = manifest.limits.value_error.unwrap();
    // Half a step of 16 nats in 65535 codes, and the f32 roundings.
    assert!((1.22e-4..1.5e-4).contains(&error), "{error}");
    let steps = run.steps(&StepQuery::default()).unwrap();
    assert_eq!((steps.len, steps.sample_ids.len(), steps.top_k), (240, 15, 4));
    let exact = rows("base.npy");
    for row in 0..steps.len {
        let (chunk, position) = (row / 16, row % 16);
        let ids = steps.ids_of(row);
        if !(8..15).contains(&position) {
            assert!(
                ids.is_empty()
                    && steps.argmax[row] == UNKNOWN_TOKEN
                    && steps.logsumexp[row].is_none()
            );
            continue;
        }
        let exact = exact_log_softmax(&exact[chunk * 7 + position - 8]);
        assert_eq!((ids.len(), steps.logsumexp[row]), (4, Some(0.0)));
        for (id, value) in ids.iter().zip(steps.logits_of(row)) {
            assert!((f64::from(*value) - exact[*id as usize]).abs() <= error);
        }
    }
    assert_eq!(run.samples().unwrap()[0].prompt_ids, steps.token_id[..16]);
}

#[test]
fn a_cut_file_becomes_an_incomplete_run_of_its_whole_chunks() {
    let bytes = std::fs::read(data("base.kld")).unwrap();
    let (home, path) = place("cut.kld", &bytes[..DATA + 3 * CHUNK + 100]);
    let out = home.path().join("run");
    let remarks = import_kld(&path, 100, &out).unwrap();
    assert!(remarks.iter().any(|line| line.contains("3 of 15 chunks are whole")));
    let run = RunReader::open(&out).unwrap();
    assert!(!run.is_complete());
    let steps = run.steps(&StepQuery::default()).unwrap();
    assert_eq!((steps.len, steps.top_k), (48, 19));
}

/// A run of the logits and tokens of `base.kld`, chunk by chunk; `skip` leaves one dump out.
fn run_of_logits(out: &Path, skip: Option<(usize, usize)>) {
    let file = KldFile::open(&data("base.kld")).unwrap();
    let rows = rows("base.npy");
    let manifest = Manifest::new(Producer::default(), "cpu");
    let plan = RecordPlan { logits: Choice::All, ..RecordPlan::default() };
    let mut writer = RunWriter::create(out, manifest, plan).unwrap();
    for chunk in 0..15 {
        let name = format!("s{chunk:02}");
        for position in 0..16 {
            if (8..15).contains(&position) && skip != Some((chunk, position)) {
                let row = &rows[chunk * 7 + position - 8];
                writer.dump(dump_of(&name, u32::try_from(position).unwrap(), row)).unwrap();
            }
            writer.step(bare(&name, position, file.token(chunk, position).unwrap())).unwrap();
        }
        writer.sample(SampleRow::bare(name)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_run_of_the_same_logits_is_written_as_llama_perplexity_wrote_them() {
    let home = tempfile::tempdir().unwrap();
    let (run, out) = (home.path().join("run"), home.path().join("out.kld"));
    run_of_logits(&run, None);
    let written = export_kld(&run, KldExport::default(), &out).unwrap();
    assert_eq!((written.shape, written.remarks.len()), (SHAPE, 0));
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(data("base.kld")).unwrap());
    // Windows of 5 take 3 of each sample and leave one token; most of them lack logits.
    let text = export_kld(&run, KldExport { chunk_tokens: Some(5) }, &out).unwrap_err().to_string();
    assert!(text.contains("sample `s00`, position 2: no logits"), "{text}");
}

#[test]
fn a_run_that_cannot_become_a_base_file_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (run, out) = (home.path().join("run"), home.path().join("out.kld"));
    run_of_logits(&run, Some((9, 12)));
    let text = export_kld(&run, KldExport::default(), &out).unwrap_err().to_string();
    assert!(
        text.contains("sample `s09`, position 12") && text.contains("--record-logits all"),
        "{text}"
    );
    assert!(!out.exists());
    // Codes are no logits.
    let codes = home.path().join("codes");
    import_kld(&data("base.kld"), 19, &codes).unwrap();
    assert!(export_kld(&codes, KldExport::default(), &out).is_err());
    let uneven = home.path().join("uneven");
    let mut writer = RunWriter::create(
        &uneven,
        Manifest::new(Producer::default(), "cpu"),
        RecordPlan::default(),
    )
    .unwrap();
    for (name, length) in [("a", 4), ("b", 5)] {
        for position in 0..length {
            writer.step(bare(name, position, 1)).unwrap();
        }
        writer.sample(SampleRow::bare(name)).unwrap();
    }
    writer.finish().unwrap();
    let text = export_kld(&uneven, KldExport::default(), &out).unwrap_err().to_string();
    assert!(
        text.contains("`a` has 4 tokens and `b` has 5") && text.contains("--chunk-tokens"),
        "{text}"
    );
}

/// llama-results declares [rows, vocabulary]; read by its header the table would be [vocabulary][rows]. The last row is that of
/// llama-debug, which computed the prompt in one batch as well.
#[test]
fn rows_of_llama_results_are_found_though_their_dimensions_stand_the_other_way_round() {
    let file = ResultsFile::open(&data("results/llama-results.gguf")).unwrap();
    assert_eq!((file.rows, file.n_vocab, file.decode_steps), (12, 19, 0));
    assert!(file.remark.contains("[12, 19] stand the other way round"), "{}", file.remark);
    assert_eq!(file.tokens, [0, 18, 5, 18, 5, 6, 7, 8, 9, 10, 11, 12]);
    let last = DebugRow::open(&data("results/llamacpp-base.bin"), Some(19)).unwrap().logits();
    let near = |row: &[f32]| row.iter().zip(&last).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near(&file.row(11).unwrap()) && (0..11).all(|row| !near(&file.row(row).unwrap())));
    // What a reader that believes the header takes for the last row: every 12th value.
    let flat: Vec<f32> = (0..12).flat_map(|row| file.row(row).unwrap()).collect();
    let naive: Vec<f32> = flat.iter().skip(11).step_by(12).copied().collect();
    assert_eq!(naive.len(), 19);
    assert!(!near(&naive));
    assert!(file.row(12).is_err());
}

#[test]
fn decode_steps_and_dimensions_that_stand_right_are_understood() {
    let file = ResultsFile::open(&data("results/steps.gguf")).unwrap();
    assert_eq!((file.rows, file.n_vocab, file.decode_steps), (9, 5, 2));
    assert_eq!(file.row(8).unwrap(), [8.5, 8.25, 8.75, 8.0, 8.125]);
    let straight = ResultsFile::open(&data("results/straight.gguf")).unwrap();
    assert_eq!((straight.rows, straight.n_vocab), (3, 5));
    assert_eq!(straight.row(2).unwrap(), [2.5, 2.25, 2.75, 2.0, 2.125]);
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    import_results(&data("results/steps.gguf"), 2, &out).unwrap();
    let run = RunReader::open(&out).unwrap();
    let steps = run.steps(&StepQuery::default()).unwrap();
    assert_eq!(steps.sample_ids, ["results", "refill"]);
    // Prompt 4 0 3, two steps 4 0, the last id after the restored state; then the prompt again.
    assert_eq!(steps.token_id, [4, 0, 3, 4, 0, 3, 4, 0, 3]);
    assert_eq!(steps.position, [0, 1, 2, 3, 4, 5, 0, 1, 2]);
    // The largest entry is id 2, and row r adds r: rows 0 to 4, row 8, rows 5 to 7.
    let tops: Vec<f32> = (0..9).map(|row| steps.logits_of(row)[0]).collect();
    assert_eq!(tops, [0.75, 1.75, 2.75, 3.75, 4.75, 8.75, 5.75, 6.75, 7.75]);
    assert!(steps.argmax.iter().all(|id| *id == 2));
    assert_eq!(run.dumps().unwrap().len(), 9);
}

#[test]
fn a_results_file_whose_counts_fit_no_dimension_is_refused() {
    let bytes = std::fs::read(data("results/steps.gguf")).unwrap();
    let key = b"decode_steps";
    let at = bytes.windows(key.len()).position(|part| part == key).unwrap() + key.len() + 4;
    let mut lie = bytes.clone();
    lie[at] = 3;
    let (_home, path) = place("lie.gguf", &lie);
    let text = ResultsFile::open(&path).unwrap_err().to_string();
    assert!(text.contains("dimensions [9, 5], and neither is the number of rows"), "{text}");
    // The last bytes are padding that no tensor has.
    for length in (0..bytes.len() - 16).step_by(5) {
        let (_home, path) = place("cut.gguf", &bytes[..length]);
        assert!(!is_results(&path), "{length}");
    }
    assert!(is_results(&data("results/steps.gguf")) && !is_results(&data("base.kld")));
}

#[test]
fn a_bare_row_needs_its_vocabulary_and_knows_the_tokens_beside_it() {
    let path = data("results/llamacpp-base.bin");
    let none = DebugRow::open(&path, None).unwrap_err().to_string();
    assert!(none.contains("--vocab 19"), "{none}");
    let wrong = DebugRow::open(&path, Some(20)).unwrap_err().to_string();
    assert!(wrong.contains("19 values of f32 and 0 bytes more"), "{wrong}");
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("run");
    import_debug(&path, Some(19), 3, &out).unwrap();
    let run = RunReader::open(&out).unwrap();
    let steps = run.steps(&StepQuery::default()).unwrap();
    assert_eq!((steps.position[0], steps.token_id[0], steps.top_k), (11, 12, 3));
    let (_home, lone) = place("lone.bin", &std::fs::read(&path).unwrap());
    let out = home.path().join("lone");
    import_debug(&lone, Some(19), 3, &out).unwrap();
    let steps = RunReader::open(&out).unwrap().steps(&StepQuery::default()).unwrap();
    assert_eq!((steps.position[0], steps.token_id[0]), (0, UNKNOWN_TOKEN));
    let nan: Vec<u8> = [1.0, f32::NAN].iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
    let (_home, path) = place("nan.bin", &nan);
    assert!(matches!(DebugRow::open(&path, Some(2)), Err(TraceError::Malformed { .. })));
}
