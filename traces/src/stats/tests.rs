//! Statistics against upstream's own files, and hand-made pickles against the interpreter.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::pickle::{Node, Pickle};
use super::{QueryStats, read, write_pt, write_safetensors};
use crate::TraceError;

fn golden(name: &str) -> PathBuf {
    lockstep_testkit::golden().join(name)
}

fn small() -> QueryStats {
    let values = |scale: f32| (0..2 * 3 * 4).map(|i| scale * (i as f32 - 7.0) / 3.0).collect();
    QueryStats {
        layers: vec![1, 5],
        heads: vec![0, 2, 101],
        freqs: 4,
        q_mean_real: values(1.0),
        q_mean_imag: values(-0.1),
        q_abs_mean: values(1e-20),
        inv_freq: Some(vec![1.0, 0.1, 0.01, f32::MIN_POSITIVE / 2.0]),
        freq_scale_sq: Some(vec![1.0; 4]),
        // Neither sorted nor all heads of the axes.
        sampled: vec![(5, 101), (1, 0), (1, 2), (1, 101), (5, 0), (5, 2)],
        metadata: BTreeMap::from([
            ("rope_style".to_owned(), json!("half")),
            ("head_dim".to_owned(), json!(8)),
            ("big".to_owned(), json!([u64::MAX, -5_000_000_000_i64, 70_000, 0.25, true, null])),
            ("scaling".to_owned(), json!({"factor": 32.0, "truncate": false})),
        ]),
    }
}

#[test]
fn both_formats_read_back_bit_equal_with_the_order_of_sampled_heads() {
    let dir = tempfile::tempdir().unwrap();
    let (pt, dense) = (dir.path().join("a.pt"), dir.path().join("a.safetensors"));
    write_pt(&small(), &pt).unwrap();
    write_safetensors(&small(), &dense).unwrap();
    assert_eq!(read(&pt).unwrap(), small());
    assert_eq!(read(&dense).unwrap(), small());
    // Equal content, equal bytes.
    let again = dir.path().join("again").join("a.pt");
    std::fs::create_dir(again.parent().unwrap()).unwrap();
    write_pt(&small(), &again).unwrap();
    assert_eq!(std::fs::read(&pt).unwrap(), std::fs::read(&again).unwrap());
}

/// Upstream's own files: the first two and the calibration store interleaved, strided views.
#[test]
fn upstream_pt_files_hold_what_their_dense_twins_hold() {
    for (pt, dense) in [
        ("triattention/pt/syn_g3.pt", "triattention/stats/syn_g3.safetensors"),
        ("triattention/pt/syn_g4.pt", "triattention/stats/syn_g4.safetensors"),
        ("traces/stats/ledger_stats.pt", "traces/stats/ledger_stats.safetensors"),
        (
            "traces/stats/ledger_stats_decode_only.pt",
            "traces/stats/ledger_stats_decode_only.safetensors",
        ),
    ] {
        let (pt, dense) = (read(&golden(pt)).unwrap(), read(&golden(dense)).unwrap());
        assert_eq!(pt.q_mean_real, dense.q_mean_real);
        assert_eq!(pt.q_mean_imag, dense.q_mean_imag);
        assert_eq!(pt.q_abs_mean, dense.q_abs_mean);
        assert_eq!((&pt.layers, &pt.heads, pt.freqs), (&dense.layers, &dense.heads, dense.freqs));
        assert_eq!(pt.sampled, dense.sampled);
        assert_eq!(pt.metadata["rope_style"], "half");
        // Rewritten in either format nothing is lost.
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy.pt");
        write_pt(&pt, &copy).unwrap();
        assert_eq!(read(&copy).unwrap(), pt);
        let copy = dir.path().join("copy.safetensors");
        write_safetensors(&dense, &copy).unwrap();
        assert_eq!(read(&copy).unwrap(), dense);
    }
}

#[test]
fn the_calibration_file_has_the_moduli_above_the_means() {
    let stats = read(&golden("triattention/pt/calibrate_tiny.pt")).unwrap();
    assert!(!stats.sampled.is_empty());
    for (i, &modulus) in stats.q_abs_mean.iter().enumerate() {
        // A reading at the wrong stride or offset breaks this within a few values.
        let mean = stats.q_mean_real[i].hypot(stats.q_mean_imag[i]);
        assert!(modulus * 1.000_01 >= mean, "value {i}: {modulus} < {mean}");
    }
}

/// A pickle from its parts, and the archive around it.
struct Forged {
    pickle: Vec<u8>,
    storages: Vec<(String, Vec<u8>)>,
    byteorder: &'static [u8],
    compressed: bool,
}

impl Forged {
    fn write(&self, path: &Path) {
        use std::io::Write as _;
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        let mut add = |name: &str, bytes: &[u8]| {
            zip.start_file(format!("x/{name}"), options).unwrap();
            zip.write_all(bytes).unwrap();
        };
        add("data.pkl", &self.pickle);
        add("byteorder", self.byteorder);
        for (key, bytes) in &self.storages {
            add(&format!("data/{key}"), bytes);
        }
        zip.finish().unwrap();
        if self.compressed {
            // Method 8 (deflate) in the local header (byte 8) and in the central directory's first entry (byte 10).
            let mut bytes = std::fs::read(path).unwrap();
            bytes[8] = 8;
            let central = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
            bytes[central + 10] = 8;
            std::fs::write(path, bytes).unwrap();
        }
    }
}

fn text(text: &str) -> Vec<u8> {
    let mut out = vec![b'X'];
    out.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
    out.extend(text.as_bytes());
    out
}

fn int(number: i32) -> Vec<u8> {
    let mut out = vec![b'J'];
    out.extend(number.to_le_bytes());
    out
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(".to_vec(), items.concat(), b"t".to_vec()].concat()
}

struct View {
    class: &'static str,
    key: &'static str,
    numel: i32,
    offset: i32,
    size: Vec<i32>,
    stride: Vec<i32>,
}

impl View {
    fn pickle(&self) -> Vec<u8> {
        let ints = |numbers: &[i32]| tuple(&numbers.iter().map(|&n| int(n)).collect::<Vec<_>>());
        let storage = [
            tuple(&[
                text("storage"),
                format!("ctorch\n{}\n", self.class).into_bytes(),
                text(self.key),
                text("cpu"),
                int(self.numel),
            ]),
            b"Q".to_vec(),
        ]
        .concat();
        let hooks = b"ccollections\nOrderedDict\n)R".to_vec();
        let arguments = tuple(&[
            storage,
            int(self.offset),
            ints(&self.size),
            ints(&self.stride),
            vec![0x89],
            hooks,
        ]);
        [b"ctorch._utils\n_rebuild_tensor_v2\n".to_vec(), arguments, b"R".to_vec()].concat()
    }
}

fn dict(items: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let items: Vec<u8> = items.iter().flat_map(|(k, v)| [k.clone(), v.clone()].concat()).collect();
    [b"}(".to_vec(), items, b"u".to_vec()].concat()
}

fn pickle(root: Vec<u8>) -> Vec<u8> {
    [vec![0x80, 2], root, b".".to_vec()].concat()
}

fn head_file(real: &View, imag: &View, abs: &View, storages: &[(&str, Vec<u8>)]) -> Forged {
    let head = dict(&[
        (text("q_mean_real"), real.pickle()),
        (text("q_mean_imag"), imag.pickle()),
        (text("q_abs_mean"), abs.pickle()),
    ]);
    Forged {
        pickle: pickle(dict(&[(text("stats"), dict(&[(text("layer00_head00"), head)]))])),
        storages: storages.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        byteorder: b"little",
        compressed: false,
    }
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn view(class: &'static str, key: &'static str, numel: i32) -> View {
    View { class, key, numel, offset: 0, size: vec![2], stride: vec![1] }
}

fn read_forged(forged: &Forged) -> Result<QueryStats, TraceError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.pt");
    forged.write(&path);
    read(&path)
}

#[test]
fn strides_and_offsets_are_honoured() {
    // One storage: re0 im0 re1 im1.
    let real = View { stride: vec![2], ..view("FloatStorage", "0", 4) };
    let imag = View { offset: 1, stride: vec![2], ..view("FloatStorage", "0", 4) };
    let abs = View { offset: 3, stride: vec![0], ..view("FloatStorage", "0", 4) };
    let forged = head_file(&real, &imag, &abs, &[("0", f32s(&[1.0, 2.0, 3.0, 4.0]))]);
    let stats = read_forged(&forged).unwrap();
    assert_eq!(stats.q_mean_real, [1.0, 3.0]);
    assert_eq!(stats.q_mean_imag, [2.0, 4.0]);
    assert_eq!(stats.q_abs_mean, [4.0, 4.0]);
    assert_eq!(stats.sampled, [(0, 0)]);
}

#[test]
fn half_bfloat16_and_double_storages_are_widened() {
    let forged = head_file(
        &view("HalfStorage", "h", 2),
        &view("BFloat16Storage", "b", 2),
        &view("DoubleStorage", "d", 2),
        &[
            // 1.5 and the smallest subnormal half, 2^-24.
            ("h", vec![0x00, 0x3E, 0x01, 0x00]),
            // -2 and 2^-133 (subnormal).
            ("b", vec![0x00, 0xC0, 0x01, 0x00]),
            ("d", [0.1_f64.to_le_bytes(), 3.0_f64.to_le_bytes()].concat()),
        ],
    );
    let stats = read_forged(&forged).unwrap();
    assert_eq!(stats.q_mean_real, [1.5, 2.0_f32.powi(-24)]);
    assert_eq!(stats.q_mean_imag, [-2.0, f32::from_bits(0x0001_0000)]);
    assert_eq!(stats.q_abs_mean, [0.1_f32, 3.0]);
}

#[test]
fn the_layer_variant_is_read() {
    let tensor = |key, size: &[i32], stride: &[i32]| {
        let numel = size.iter().product();
        View {
            class: "FloatStorage",
            key,
            numel,
            offset: 0,
            size: size.to_vec(),
            stride: stride.to_vec(),
        }
        .pickle()
    };
    let layer = |complex, abs| {
        dict(&[
            (text("q_mean_complex"), tensor(complex, &[2, 2, 2], &[4, 2, 1])),
            (text("q_abs_mean"), tensor(abs, &[2, 2], &[2, 1])),
            (text("freq_scale_sq"), tensor("s", &[2, 2], &[2, 1])),
        ])
    };
    let metadata = dict(&[(text("num_layers"), int(2))]);
    let forged = Forged {
        pickle: pickle(dict(&[
            (text("metadata"), metadata),
            (
                text("layer_stats"),
                dict(&[(int(7), layer("c7", "a7")), (int(3), layer("c3", "a3"))]),
            ),
        ])),
        storages: vec![
            ("c3".to_owned(), f32s(&[1., -1., 2., -2., 3., -3., 4., -4.])),
            ("a3".to_owned(), f32s(&[1.5, 2.5, 3.5, 4.5])),
            ("c7".to_owned(), f32s(&[5., -5., 6., -6., 7., -7., 8., -8.])),
            ("a7".to_owned(), f32s(&[5.5, 6.5, 7.5, 8.5])),
            ("s".to_owned(), f32s(&[1.25, 1.5, 1.25, 1.5])),
        ],
        byteorder: b"little",
        compressed: false,
    };
    let stats = read_forged(&forged).unwrap();
    assert_eq!(
        (stats.layers.as_slice(), stats.heads.as_slice(), stats.freqs),
        (&[3, 7][..], &[0, 1][..], 2)
    );
    assert_eq!(stats.q_mean_real, [1., 2., 3., 4., 5., 6., 7., 8.]);
    assert_eq!(stats.q_mean_imag, [-1., -2., -3., -4., -5., -6., -7., -8.]);
    assert_eq!(stats.q_abs_mean, [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5]);
    assert_eq!(stats.freq_scale_sq, Some(vec![1.25, 1.5]));
    assert_eq!(stats.metadata["num_layers"], 2);

    let mut uneven = forged;
    uneven.storages[4].1 = f32s(&[1.25, 1.5, 1.25, 1.75]);
    let error = read_forged(&uneven).unwrap_err().to_string();
    assert!(error.contains("freq_scale_sq differs"), "{error}");
}

fn refused(forged: &Forged, word: &str) {
    let error = read_forged(forged).expect_err(word);
    assert!(matches!(error, TraceError::Malformed { .. } | TraceError::Tensor { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains(word), "`{error}` does not say `{word}`");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn sizes_that_lie_are_refused() {
    let good = || view("FloatStorage", "0", 2);
    let data = [("0", f32s(&[1.0, 2.0]))];
    let case = |bad: View| head_file(&bad, &good(), &good(), &data);
    refused(&case(View { numel: 3, ..good() }), "claims 3");
    refused(&case(View { numel: i32::MAX, ..good() }), "claims");
    refused(&case(View { offset: 1, ..good() }), "reaches past");
    refused(&case(View { stride: vec![2], ..good() }), "reaches past");
    refused(&case(View { stride: vec![i32::MAX], ..good() }), "reaches past");
    refused(&case(View { offset: -1, ..good() }), "no size, stride or offset");
    refused(&case(View { size: vec![2, 1], ..good() }), "as many sizes as strides");
    refused(
        &case(View { size: vec![i32::MAX], stride: vec![0], ..good() }),
        "no statistics are so large",
    );
    refused(&case(View { size: vec![i32::MAX; 3], stride: vec![0; 3], ..good() }), "expected [_]");
    refused(&case(View { size: vec![1], ..good() }), "expected [1]");
    refused(&case(View { key: "9", ..good() }), "data/9");
    refused(&case(View { key: "../../etc/passwd", ..good() }), "data/../../etc/passwd");
    refused(&case(View { class: "HalfStorage", ..good() }), "claims 2 Half");
    refused(&head_file(&good(), &good(), &good(), &[("0", f32s(&[f32::NAN, 1.0]))]), "not finite");
}

#[test]
fn a_foreign_global_is_named_and_nothing_is_executed() {
    let root = b"cposix\nsystem\n(X\x04\x00\x00\x00truetR".to_vec();
    let forged =
        Forged { pickle: pickle(root), storages: vec![], byteorder: b"little", compressed: false };
    refused(&forged, "`posix system`");
    let storage = b"ctorch\nLongStorage\n".to_vec();
    let forged = Forged { pickle: pickle(storage), ..forged };
    refused(&forged, "`torch LongStorage`");
}

#[test]
fn containers_that_are_no_statistics_are_told_apart() {
    let plain = |root: Vec<u8>| Forged {
        pickle: pickle(root),
        storages: vec![],
        byteorder: b"little",
        compressed: false,
    };
    refused(&plain(dict(&[(text("model"), int(1))])), "neither `stats` nor `layer_stats`");
    refused(&plain(dict(&[(text("stats"), dict(&[]))])), "stats is empty");
    refused(&plain(dict(&[(text("stats"), dict(&[(text("layer0"), int(1))]))])), "`layer0`");
    refused(&plain(int(3)), "no dict");
    refused(&Forged { byteorder: b"big", ..plain(int(3)) }, "big-endian");
    refused(&Forged { compressed: true, ..plain(int(3)) }, "compress");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    for (bytes, word) in [
        (b"PK\x03\x04 and no more".as_slice(), "zip"),
        (b"\x80\x02}q\x00.", "bare pickle"),
        (b"", "shorter"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn metadata_that_unfolds_without_end_is_refused() {
    // l0 = [1]; l1 = [l0, l0]; ... doubles thirty times.
    let list = (1..31_u8).fold(b"](K\x01eq\x00".to_vec(), |inner, key| {
        [b"](".to_vec(), inner, vec![b'h', key - 1, b'e', b'q', key]].concat()
    });
    let bomb = dict(&[(text("metadata"), dict(&[(text("x"), list)])), (text("stats"), dict(&[]))]);
    let plain =
        Forged { pickle: pickle(bomb), storages: vec![], byteorder: b"little", compressed: false };
    refused(&plain, "beyond reason");
    // A list that holds itself.
    let cycle = b"]q\x00h\x00a".to_vec();
    let cyclic =
        dict(&[(text("metadata"), dict(&[(text("x"), cycle)])), (text("stats"), dict(&[]))]);
    refused(&Forged { pickle: pickle(cyclic), ..plain }, "beyond reason");
}

#[test]
fn the_interpreter_reads_numbers_as_python_wrote_them() {
    // pickle.dumps([0, 255, 256, 65535, -1, 2**31, -2**40, 1.5, True, None], 2) by CPython.
    let bytes = b"\x80\x02]q\x00(K\x00K\xffM\x00\x01M\xff\xffJ\xff\xff\xff\xff\x8a\x05\x00\x00\x00\x80\x00\x8a\x06\x00\x00\x00\x00\x00\xffG?\xf8\x00\x00\x00\x00\x00\x00\x88Ne.";
    let pickle = Pickle::parse(bytes).unwrap();
    let Node::List(items) = pickle.node(pickle.root) else { panic!("no list") };
    let values: Vec<&Node> = items.iter().map(|&id| pickle.node(id)).collect();
    let ints = [0, 255, 256, 65_535, -1, 1 << 31, -(1 << 40)].map(Node::Int);
    assert_eq!(values[..7], ints.iter().collect::<Vec<_>>());
    assert_eq!(values[7..], [&Node::Float(1.5), &Node::Bool(true), &Node::None]);
}

#[test]
fn a_pickle_cut_or_flipped_anywhere_is_an_error_or_a_value_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pt");
    write_pt(&small(), &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let start = whole.windows(4).position(|four| four == [0x80, 2, b'}', b'(']).unwrap();
    let pickle: Vec<u8> = whole[start..].to_vec();
    let end = pickle.windows(3).position(|three| three == b"uu.").unwrap() + 3;
    let pickle = &pickle[..end];
    assert!(Pickle::parse(pickle).is_ok());
    for cut in 0..end {
        assert!(Pickle::parse(&pickle[..cut]).is_err(), "cut at {cut}");
    }
    for at in 0..end {
        for byte in [0x00, b'(', b'.', b'R', b'u', 0xFF, pickle[at] ^ 1] {
            let mut flipped = pickle.to_vec();
            flipped[at] = byte;
            let _outcome = Pickle::parse(&flipped);
        }
    }
    for cut in (0..whole.len()).step_by(97) {
        let cut_path = dir.path().join("cut.pt");
        std::fs::write(&cut_path, &whole[..cut]).unwrap();
        assert!(read(&cut_path).is_err(), "cut at {cut}");
    }
}
