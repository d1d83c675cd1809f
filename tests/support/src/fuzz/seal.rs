//! Containers whose checksums an input cannot guess: made anew around it, so that what lies behind the checksum is reached.

use std::io::{Cursor, Write as _};

use base64::Engine as _;
use lockstep_traces::hash::sha256_hex;
use zip::write::SimpleFileOptions;

/// Mark of the checksum of a message of a running stream.
const SEAL: &[u8] = b"lockstep-crc";

/// A zip archive with these entries, stored, checksums right.
///
/// # Panics
/// Never: it is written to memory.
#[must_use]
pub fn zip(entries: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in entries {
        // A name that comes twice is refused by the writer; hostile directories are what the raw archive target is for.
        if writer.start_file(name.as_str(), options).is_ok() {
            writer.write_all(bytes).expect("memory takes bytes");
        }
    }
    writer.finish().expect("an archive in memory").into_inner()
}

/// Sets the CRC-32 of every whole message of a running Arrow stream that carries one.
pub fn stream(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(prefix) = bytes.get(at..at + 8) {
        if prefix[..4] != [0xFF; 4] {
            return;
        }
        let header =
            prefix[4..].iter().rev().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte));
        let Some(end) =
            at.checked_add(8 + header).filter(|end| header >= 16 && *end <= bytes.len())
        else {
            return;
        };
        // Where the next message starts is in the flatbuffer; the next mark is as good, and bodies are zero-padded.
        let next = (end..bytes.len().saturating_sub(7)).step_by(8);
        let next = next
            .clone()
            .find(|&start| {
                bytes[start..start + 4] == [0xFF; 4]
                    && bytes.get(start + 6..start + 8) == Some(&[0, 0])
            })
            .unwrap_or(bytes.len());
        if bytes[..end - 4].ends_with(SEAL) {
            let mut crc = flate2::Crc::new();
            crc.update(&bytes[at..end - 4]);
            crc.update(&bytes[end..next]);
            let sum = crc.sum().to_le_bytes();
            bytes[end - 4..end].copy_from_slice(&sum);
        }
        at = next;
    }
}

/// The bodies of a response cache, one a line, as its lines.
#[must_use]
pub fn responses(bodies: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for body in bodies.split(|byte| *byte == b'\n').filter(|body| !body.is_empty()) {
        out.extend_from_slice(format!(r#"{{"sum":"{}","body":"#, sha256_hex(body)).as_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(b"}\n");
    }
    out
}

/// The bodies of a response cache's lines.
#[must_use]
pub fn bodies(lines: &[u8]) -> Vec<u8> {
    const BEFORE: usize = r#"{"sum":"","body":"#.len() + 64;
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| line.len() > BEFORE);
    let mut out = Vec::new();
    for line in lines {
        out.extend_from_slice(&line[BEFORE..line.len() - 1]);
        out.push(b'\n');
    }
    out
}

/// Base64 as the response cache has it.
#[must_use]
pub fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The inverse of [`base64()`].
#[must_use]
pub fn from_base64(text: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(text).unwrap_or_default()
}

/// The entries of an archive that stores them as they are.
///
/// # Panics
/// Where it is none.
#[must_use]
pub fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = zip::ZipArchive::new(Cursor::new(archive)).expect("an archive");
    let one = |at: usize, zip: &mut zip::ZipArchive<_>| {
        let mut entry = zip.by_index(at).expect("an entry");
        let mut bytes = Vec::new();
        std::io::copy(&mut entry, &mut bytes).expect("a stored entry");
        (entry.name().expect("a name").into_owned(), bytes)
    };
    (0..zip.len()).map(|at| one(at, &mut zip)).collect()
}
