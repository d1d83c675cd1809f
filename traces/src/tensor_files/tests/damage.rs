//! Files that are cut, turned over, or made to harm.

use std::io::Write as _;
use std::path::Path;

use super::super::{ReadOptions, read};
use super::data;

fn refused(path: &Path) -> String {
    let error = read(path, &ReadOptions::default()).and_then(|set| {
        set.tensors.iter().try_for_each(super::PlainTensor::verify)?;
        Ok(set)
    });
    let text = error.expect_err("the file is to be refused").to_string();
    assert!(
        !text.contains('\n') && text.contains(path.file_name().unwrap().to_str().unwrap()),
        "{text}"
    );
    text
}

#[test]
fn a_cut_file_is_refused_wherever_it_is_cut() {
    let home = tempfile::tempdir().unwrap();
    for name in [
        "npy/f32.npy",
        "stored.npz",
        "deflated.npz",
        "pt/nested.pt",
        "pt/state_bare.pt",
        "plain.safetensors",
        "polygraphy.json",
    ] {
        let bytes = std::fs::read(data(name)).unwrap();
        let path = home.path().join(Path::new(name).file_name().unwrap());
        for end in (0..bytes.len()).step_by(3) {
            std::fs::write(&path, &bytes[..end]).unwrap();
            refused(&path);
        }
        std::fs::write(&path, [bytes.as_slice(), b"more"].concat()).unwrap();
        if !name.ends_with("json") && !name.ends_with("npz") && !name.ends_with("nested.pt") {
            refused(&path);
        }
    }
}

#[test]
fn a_turned_byte_never_panics_and_in_the_data_of_an_archive_it_is_found() {
    let home = tempfile::tempdir().unwrap();
    for name in [
        "npy/f32.npy",
        "stored.npz",
        "deflated.npz",
        "pt/nested.pt",
        "pt/state_bare.pt",
        "plain.safetensors",
    ] {
        let bytes = std::fs::read(data(name)).unwrap();
        let path = home.path().join(Path::new(name).file_name().unwrap());
        for at in (0..bytes.len()).step_by(5) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&path, &damaged).unwrap();
            if let Ok(set) = read(&path, &ReadOptions::default()) {
                for tensor in &set.tensors {
                    let _ = tensor.verify();
                }
            }
        }
    }
    // The first element of the first array of the archive: npz data start after an entry header and an array header.
    let mut bytes = std::fs::read(data("stored.npz")).unwrap();
    let value = (-1.25_f32).to_le_bytes();
    let at = bytes.windows(4).position(|window| window == value).unwrap();
    bytes[at] ^= 1;
    let path = home.path().join("turned.npz");
    std::fs::write(&path, bytes).unwrap();
    let text = refused(&path);
    assert!(text.contains("entry `second.npy` at byte") && text.contains("CRC-32"), "{text}");
}

/// An entry of a made archive.
struct Made<'a> {
    name: &'a str,
    method: u16,
    data: &'a [u8],
    claims: u32,
    at: Option<u32>,
}

/// A zip archive byte by byte; sizes are as the entries claim them.
fn archive(entries: &[Made<'_>]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let at = entry.at.unwrap_or(out.len() as u32);
        let mut crc = flate2::Crc::new();
        crc.update(entry.data);
        let common = |to: &mut Vec<u8>| {
            to.extend([20, 0, 0, 0]);
            to.extend(entry.method.to_le_bytes());
            to.extend([0; 4]);
            to.extend(crc.sum().to_le_bytes());
            to.extend((entry.data.len() as u32).to_le_bytes());
            to.extend(entry.claims.to_le_bytes());
            to.extend((entry.name.len() as u16).to_le_bytes());
            to.extend([0, 0]);
        };
        if entry.at.is_none() {
            out.extend(b"PK\x03\x04");
            common(&mut out);
            out.extend(entry.name.bytes());
            out.extend(entry.data);
        }
        directory.extend(b"PK\x01\x02\x14\x00");
        common(&mut directory);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(entry.name.bytes());
    }
    let start = out.len() as u32;
    let count = (entries.len() as u16).to_le_bytes();
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count, count].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

fn stored<'a>(name: &'a str, data: &'a [u8]) -> Made<'a> {
    Made { name, method: 0, data, claims: data.len() as u32, at: None }
}

#[test]
fn hostile_archives_are_refused_before_anything_is_unpacked() {
    let home = tempfile::tempdir().unwrap();
    let npy = std::fs::read(data("npy/f32.npy")).unwrap();
    let mut zeros = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    zeros.write_all(&vec![0; 1 << 22]).unwrap();
    let zeros = zeros.finish().unwrap();
    let deflated = |claims| Made { name: "a.npy", method: 8, data: &zeros, claims, at: None };
    for (what, bytes, part) in [
        ("bomb.npz", archive(&[deflated(2_000_000_000)]), "zip bomb"),
        ("liar.npz", archive(&[deflated(1000)]), "more than the 1000 bytes"),
        ("short.npz", archive(&[deflated(5_000_000)]), "becomes 4194304 bytes and claims 5000000"),
        ("climb.npz", archive(&[stored("../a.npy", &npy)]), "leaves the archive"),
        ("root.npz", archive(&[stored("/a.npy", &npy)]), "leaves the archive"),
        (
            "shared.npz",
            archive(&[stored("a.npy", &npy), Made { at: Some(0), ..stored("b.npy", &npy) }]),
            "share bytes",
        ),
        ("other.npz", archive(&[stored("a.txt", b"x")]), "neither torch.save nor numpy.savez"),
        (
            "packed.npz",
            archive(&[Made { method: 12, ..stored("a.npy", &npy) }]),
            "stored and deflated",
        ),
    ] {
        let path = home.path().join(what);
        std::fs::write(&path, bytes).unwrap();
        let text = refused(&path);
        assert!(text.contains(part), "{what}: {text}");
    }
    let path = home.path().join("good.npz");
    std::fs::write(&path, archive(&[stored("a.npy", &npy)])).unwrap();
    assert_eq!(read(&path, &ReadOptions::default()).unwrap().tensors[0].name, "a");
}

fn pickled(home: &Path, name: &str, pickle: &[u8]) -> String {
    let path = home.join(name);
    std::fs::write(&path, archive(&[stored("x/data.pkl", pickle)])).unwrap();
    refused(&path)
}

#[test]
fn a_pickle_runs_nothing_and_its_nesting_is_bounded() {
    let home = tempfile::tempdir().unwrap();
    let marker = home.path().join("ran");
    let command = format!("touch {}", marker.display());
    let mut evil = b"\x80\x02cos\nsystem\nX".to_vec();
    evil.extend((command.len() as u32).to_le_bytes());
    evil.extend(command.bytes());
    evil.extend(b"\x85R.");
    let text = pickled(home.path(), "evil.pt", &evil);
    assert!(
        text.contains("`os system`")
            && text.contains("nothing was executed")
            && text.contains("byte 2 "),
        "{text}"
    );
    assert!(
        pickled(home.path(), "eval.pt", b"\x80\x02cbuiltins\neval\nX\x01\0\0\0a\x85R.")
            .contains("`builtins eval`")
    );
    assert!(!marker.exists());
    let mut deep = b"\x80\x02".to_vec();
    deep.extend([b']'; 200_000]);
    deep.extend([b'a'; 199_999]);
    deep.push(b'.');
    assert!(pickled(home.path(), "deep.pt", &deep).contains("nest more than"));
    // Forty lists, each of ten times the one before: 10^40 values in 1 KB.
    let mut laughs = b"\x80\x02]q\x00".to_vec();
    for level in 1..40_u8 {
        laughs.push(b']');
        laughs.extend([b'q', level, b'(']);
        for _ in 0..10 {
            laughs.extend([b'h', level - 1]);
        }
        laughs.push(b'e');
    }
    laughs.push(b'.');
    assert!(pickled(home.path(), "laughs.pt", &laughs).contains("more values"));
    // A list that holds itself.
    assert!(pickled(home.path(), "ring.pt", b"\x80\x02]q\x00h\x00a.").contains("nest more than"));
    for (pickle, part) in [
        (b"\x80\x02X\xff\xff\xff\x7fa.".as_slice(), "reaches past the end"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x02h\x07.", "memo 7"),
        (b"\x80\x02R.", "stack is empty"),
        (b"\x80\x02}", "the pickle ends here"),
        (b"\x80\x02N.", "holds no tensor"),
    ] {
        let text = pickled(home.path(), "odd.pt", pickle);
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_tensor_that_leaves_its_storage_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("past.pt");
    let bytes = std::fs::read(data("pt/lone.pt")).unwrap();
    // The shape (3, 4) in the pickle becomes (3, 5): 15 elements of a storage of 12.
    let at = bytes.windows(5).position(|window| window == b"K\x03K\x04\x86").unwrap();
    let mut damaged = bytes;
    damaged[at + 3] = 5;
    std::fs::write(&path, damaged).unwrap();
    let text = refused(&path);
    // The archive's own checksum of the pickle speaks first.
    assert!(text.contains("CRC-32"), "{text}");
    let mut pickle = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x0ctQK\0".to_vec();
    pickle.extend(b"K\x03K\x05\x86K\x05K\x01\x86\x89}tR.");
    let floats = [0_u8; 48];
    std::fs::write(&path, archive(&[stored("x/data.pkl", &pickle), stored("x/data/0", &floats)]))
        .unwrap();
    let text = refused(&path);
    assert!(text.contains("reaches past the 12 elements"), "{text}");
    std::fs::write(
        &path,
        archive(&[stored("x/data.pkl", &pickle), stored("x/data/0", &floats[..44])]),
    )
    .unwrap();
    assert!(refused(&path).contains("claims 12 elements of 4 bytes and has 44 bytes"));
    std::fs::write(&path, archive(&[stored("x/data.pkl", &pickle)])).unwrap();
    assert!(refused(&path).contains("no entry `x/data/0`"));
}
