//! Engine bundles: a header of JSON and sections back to back.
//!
//! Eight bytes of magic, the header's length as little-endian u64, the header in UTF-8, then the sections at offsets
//! that count from the header's end. The format holds no hash of a section and no source commit; hashes are computed
//! here in one pass over the file. Engine plans are opaque.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::sections::{BundleConfig, StatsHeader, read_config, read_stats};
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// Longest header; the engine's own reader refuses more as well.
const MAX_HEADER: u64 = 100 << 20;
const CHUNK: usize = 1 << 20;
const MAGIC_LEN: usize = 8;
const CONFIG: &str = "config.json";
const STATS: &str = "triattention_stats.json";

/// Generation of the container; they differ in the magic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundleFormat {
    /// `TRTFB`, the first.
    Trtfb,
    /// `BUNDLE`.
    Bundle,
}

impl BundleFormat {
    /// The format whose magic `bytes` begin with.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<Self> {
        match bytes.get(..MAGIC_LEN) {
            Some(b"TRTFB\0\x01\0") => Some(Self::Trtfb),
            Some(b"BUNDLE\x01\0") => Some(Self::Bundle),
            _ => None,
        }
    }
}

/// What the header says of the engine.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BundleHeader {
    /// Model.
    pub model_id: Option<String>,
    /// Model type.
    pub model_type: Option<String>,
    /// Engine version.
    pub trt_version: Option<String>,
    /// GPU that the engine was built on.
    pub gpu_name: Option<String>,
    /// UTC, ends in Z.
    pub created_at: Option<String>,
    /// Vocabulary.
    pub vocab_size: Option<u64>,
    /// Layers.
    pub num_layers: Option<u64>,
    /// Query heads.
    pub num_attention_heads: Option<u64>,
    /// KV heads.
    pub num_key_value_heads: Option<u64>,
    /// Cache capacity in rows.
    pub max_cache_length: Option<u64>,
    /// Strategy at run time.
    pub runtime_strategy: Option<String>,
    /// Precision of the engine.
    pub precision: Option<String>,
    /// Quantization.
    pub quantization: Option<Value>,
    /// Sections by name.
    sections: BTreeMap<String, Extent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct Extent {
    offset: u64,
    size: u64,
}

/// One section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Name.
    pub name: String,
    /// From the header's end.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// sha256, hex.
    pub sha256: String,
}

/// A bundle's facts.
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// File.
    pub path: PathBuf,
    /// Container.
    pub format: BundleFormat,
    /// sha256 of the whole file, hex.
    pub sha256: String,
    /// Header.
    pub header: BundleHeader,
    /// Sections in the order of the file.
    pub sections: Vec<Section>,
    /// Facts of the `config.json` section, where there is one.
    pub config: Option<BundleConfig>,
    /// Head of the statistics section, where there is one.
    pub stats: Option<StatsHeader>,
    /// Bytes that belong to no section.
    pub unclaimed_bytes: u64,
}

impl Bundle {
    /// The section `name`.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Ladder of optimization profiles in rows, where the config section has it.
    #[must_use]
    pub fn profile_rows(&self) -> Option<&[u32]> {
        self.config.as_ref()?.profile_rows.as_deref()
    }
}

/// Reads a bundle in one pass, in constant memory but for its header and its two JSON sections.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Json`] for a header or section that is no JSON; [`TraceError::Malformed`] for
/// another magic, a length or section beyond the file, and sections that overlap.
pub fn read_bundle(path: &Path) -> Result<Bundle, TraceError> {
    let file = File::open(path).map_err(io(path))?;
    let total = file.metadata().map_err(io(path))?.len();
    let mut source = BufReader::with_capacity(CHUNK, file);
    let (format, start, header) = read_header(path, &mut source, total)?;
    let extents = in_order(path, &header, total - start)?;
    source.seek(SeekFrom::Start(0)).map_err(io(path))?;
    let mut pass = Pass { path, source, whole: Sha256::new() };
    pass.skip(start)?;
    let mut sections = Vec::with_capacity(extents.len());
    let (mut at, mut unclaimed_bytes) = (0, 0);
    for (name, extent) in extents {
        unclaimed_bytes += extent.offset - at;
        pass.skip(extent.offset - at)?;
        let sha256 = pass.section(extent.size)?;
        at = extent.offset + extent.size;
        sections.push(Section { name, offset: extent.offset, size: extent.size, sha256 });
    }
    unclaimed_bytes += total - start - at;
    pass.skip(total - start - at)?;
    let Pass { mut source, whole, .. } = pass;
    let at = |name| sections.iter().find(|section| section.name == name);
    let config = match at(CONFIG) {
        Some(section) => Some(read_config(path, bytes_of(path, &mut source, start, section)?)?),
        None => None,
    };
    let stats = match at(STATS) {
        Some(section) => Some(read_stats(path, bytes_of(path, &mut source, start, section)?)?),
        None => None,
    };
    let sha256 = hex(whole);
    Ok(Bundle {
        path: path.to_owned(),
        format,
        sha256,
        header,
        sections,
        config,
        stats,
        unclaimed_bytes,
    })
}

/// The bytes of one section.
fn bytes_of<'a, R: Read + Seek>(
    path: &Path,
    source: &'a mut R,
    start: u64,
    section: &Section,
) -> Result<impl Read + use<'a, R>, TraceError> {
    source.seek(SeekFrom::Start(start + section.offset)).map_err(io(path))?;
    Ok(source.take(section.size))
}

fn read_header(
    path: &Path,
    source: &mut impl Read,
    total: u64,
) -> Result<(BundleFormat, u64, BundleHeader), TraceError> {
    let mut front = [0_u8; 16];
    source
        .read_exact(&mut front)
        .map_err(|_| malformed(path, format!("{total} bytes are too few for a bundle's header")))?;
    let format = BundleFormat::of(&front)
        .ok_or_else(|| malformed(path, "the magic is that of no bundle"))?;
    let [_, _, _, _, _, _, _, _, length @ ..] = front;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > total - 16 {
        return Err(malformed(
            path,
            format!(
                "the header claims {length} bytes; the file has {} after it begins, and at most {MAX_HEADER} are read",
                total - 16
            ),
        ));
    }
    let mut text = Vec::new();
    source.take(length).read_to_end(&mut text).map_err(io(path))?;
    let header = serde_json::from_slice(&text).map_err(|source| TraceError::Json {
        path: path.to_owned(),
        line: source.line(),
        source,
    })?;
    Ok((format, 16 + length, header))
}

/// Sections by offset; refuses what reaches beyond the file or into another section.
fn in_order(
    path: &Path,
    header: &BundleHeader,
    room: u64,
) -> Result<Vec<(String, Extent)>, TraceError> {
    if header.sections.is_empty() {
        return Err(malformed(path, "the header lists no sections"));
    }
    let mut list: Vec<_> =
        header.sections.iter().map(|(name, extent)| (name.clone(), *extent)).collect();
    list.sort_by_key(|(_, extent)| (extent.offset, extent.size));
    let (mut at, mut before) = (0, "");
    for (name, Extent { offset, size }) in &list {
        let end = offset.checked_add(*size).filter(|end| *end <= room).ok_or_else(|| {
            malformed(path, format!("section `{name}` (offset {offset}, {size} bytes) reaches beyond the file: it is cut, or the header lies"))
        })?;
        if *offset < at {
            return Err(malformed(path, format!("sections `{before}` and `{name}` share bytes")));
        }
        (at, before) = (end, name);
    }
    Ok(list)
}

/// One pass over the file; every byte enters the hash of the whole.
struct Pass<'a, R> {
    path: &'a Path,
    source: R,
    whole: Sha256,
}

impl<R: Read> Pass<'_, R> {
    fn skip(&mut self, count: u64) -> Result<(), TraceError> {
        self.each(count, |_| {})
    }

    fn section(&mut self, count: u64) -> Result<String, TraceError> {
        let mut hasher = Sha256::new();
        self.each(count, |bytes| hasher.update(bytes))?;
        Ok(hex(hasher))
    }

    fn each(&mut self, count: u64, mut take: impl FnMut(&[u8])) -> Result<(), TraceError> {
        let mut buffer = vec![0_u8; CHUNK];
        let mut left = count;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let chunk = buffer.get_mut(..wanted).unwrap_or_default();
            self.source.read_exact(chunk).map_err(io(self.path))?;
            self.whole.update(&*chunk);
            take(chunk);
            left -= wanted as u64;
        }
        Ok(())
    }
}

fn hex(hasher: Sha256) -> String {
    crate::hash::hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::super::testing::bundle;
    use super::*;

    fn write(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.bundle");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    const CONFIG_TEXT: &str = r#"{"dynamic_kv_cache":true,"dynamic_kv_profile_rows":[32,64,128],"triattention":{"enabled":true,"kv_budget":32}}"#;

    #[test]
    fn sections_are_hashed_and_the_ladder_is_read() {
        for (magic, format) in
            [(b"TRTFB\0\x01\0", BundleFormat::Trtfb), (b"BUNDLE\x01\0", BundleFormat::Bundle)]
        {
            let bytes =
                bundle(magic, &[("engine_plan", b"abc"), ("config.json", CONFIG_TEXT.as_bytes())]);
            let (_dir, path) = write(&bytes);
            let read = read_bundle(&path).unwrap();
            assert_eq!(read.format, format);
            assert_eq!(read.sha256, crate::hash::sha256_hex(&bytes));
            // The published digest of "abc".
            let plan = read.section("engine_plan").unwrap();
            assert_eq!(
                plan.sha256,
                "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
            );
            assert_eq!((plan.offset, plan.size, read.unclaimed_bytes), (0, 3, 0));
            assert_eq!(read.profile_rows(), Some([32, 64, 128].as_slice()));
            assert_eq!(read.config.unwrap().policy["kv_budget"], 32);
            assert_eq!(read.header.max_cache_length, Some(4096));
            assert_eq!(read.stats, None);
        }
    }

    #[test]
    fn the_head_of_the_statistics_is_read() {
        let stats = br#"{"version":2,"format":"sampled_head_rkv","head_dim":4,"rope_style":"half","rope_theta":1000000.0,"num_attention_heads":4,"num_key_value_heads":2,"stats_head_count":2,"num_layers":3,"sampled_heads":[[0,1],[2,3]],"inv_freq":[1.0,0.1],"stats":{"layer00_head01":{"q_mean_real":[1,2]},"layer02_head03":{}}}"#;
        let (_dir, path) = write(&bundle(b"BUNDLE\x01\0", &[("triattention_stats.json", stats)]));
        let head = read_bundle(&path).unwrap().stats.unwrap();
        assert_eq!((head.version, head.format.as_deref()), (Some(2), Some("sampled_head_rkv")));
        assert_eq!((head.sampled_heads, head.head_entries, head.layer_entries), (2, 2, 0));
        assert_eq!((head.num_key_value_heads, head.stats_head_count), (Some(2), Some(2)));
    }

    #[test]
    fn damage_is_refused_by_what_is_wrong() {
        let good = bundle(b"BUNDLE\x01\0", &[("engine_plan", b"abc"), ("config.json", b"{}")]);
        let edit = |from: &str, to: &str| {
            assert_eq!(from.len(), to.len());
            let at = good.windows(from.len()).position(|part| part == from.as_bytes()).unwrap();
            let mut bytes = good.clone();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            bytes
        };
        let mut huge = good.clone();
        huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        for (bytes, part) in [
            (good[..10].to_vec(), "too few"),
            (good[..good.len() - 1].to_vec(), "`config.json`"),
            (b"GGUFxxxxxxxxxxxxxxxx".to_vec(), "magic"),
            (huge, "claims 18446744073709551615"),
            (edit("\"offset\":3", "\"offset\":2"), "share bytes"),
            (edit("\"model_id\":", "\"model_id\"="), "JSON"),
            (bundle(b"BUNDLE\x01\0", &[]), "no sections"),
            (bundle(b"BUNDLE\x01\0", &[("config.json", b"{\"a\":")]), "JSON"),
        ] {
            let (_dir, path) = write(&bytes);
            let error = read_bundle(&path).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn bytes_after_the_last_section_are_counted() {
        let mut bytes = bundle(b"BUNDLE\x01\0", &[("engine_plan", b"abc")]);
        bytes.extend_from_slice(b"tail");
        let (_dir, path) = write(&bytes);
        assert_eq!(read_bundle(&path).unwrap().unclaimed_bytes, 4);
    }
}
