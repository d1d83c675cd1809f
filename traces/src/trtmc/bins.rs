//! Binary dumps: bare little-endian f32, `[rows][kv_heads][head_dim]`, the shape only in the keep dump beside them.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::keep::KeepDump;
use crate::TraceError;
use crate::store::fail::{io, malformed};

/// One mapped `.bin` file.
#[derive(Debug)]
pub struct BinFile {
    path: PathBuf,
    map: Option<memmap2::Mmap>,
    shape: [usize; 3],
}

impl BinFile {
    /// Maps `path` as `shape` = `[rows, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Malformed`] where the size is not that of the shape.
    pub fn open(path: &Path, shape: [usize; 3]) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(io(path))?;
        let found = file.metadata().map_err(io(path))?.len();
        let wanted =
            shape.iter().try_fold(size_of::<f32>(), |bytes, &size| bytes.checked_mul(size));
        if wanted.and_then(|bytes| u64::try_from(bytes).ok()) != Some(found) {
            let wanted =
                wanted.map_or_else(|| "more than fits".to_owned(), |bytes| bytes.to_string());
            return Err(malformed(
                path,
                format!(
                    "{found} bytes; shape {shape:?} of f32 takes {wanted}: the file is cut or belongs to another dump"
                ),
            ));
        }
        // An empty file cannot be mapped.
        let map = if found == 0 { None } else { Some(map(&file).map_err(io(path))?) };
        Ok(Self { path: path.to_owned(), map, shape })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `[rows, kv_heads, head_dim]`.
    #[must_use]
    pub const fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Little-endian bytes of one row of one head; `None` outside the shape.
    #[must_use]
    pub fn row(&self, row: usize, head: usize) -> Option<&[u8]> {
        let [rows, heads, dim] = self.shape;
        if row >= rows || head >= heads {
            return None;
        }
        let width = dim * size_of::<f32>();
        let start = (row * heads + head) * width;
        self.map.as_deref().unwrap_or_default().get(start..start + width)
    }
}

#[expect(unsafe_code, reason = "caches are larger than memory; only a map reads them in place")]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the map is read only and its bytes are valid as u8 whatever they are. A dump that its engine still
    // rewrites while it is read could shrink under the map; dumps are read after the engine has ended.
    unsafe { memmap2::Mmap::map(file) }
}

/// K or V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Keys, rotated as the cache holds them.
    Key,
    /// Values.
    Value,
}

impl Part {
    /// `k` or `v`.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Key => "k",
            Self::Value => "v",
        }
    }
}

/// One layer's K or V before and after.
#[derive(Debug)]
pub struct LayerBins {
    /// Layer, as the file name counts.
    pub layer: u32,
    /// K or V.
    pub part: Part,
    /// `[rows before, kv_heads, head_dim]`.
    pub pre: BinFile,
    /// `[rows after, kv_heads, head_dim]`; absent where only the cache before was dumped.
    pub post: Option<BinFile>,
}

/// All binary files of one keep dump, K before V, by layer.
#[derive(Debug, Default)]
pub struct Bins {
    /// Files.
    pub layers: Vec<LayerBins>,
}

impl Bins {
    /// Opens the files that `dump` lists. They are looked for beside `json`, where the engine writes them, whatever
    /// directory the list names.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] where lists, shapes and sizes disagree; [`TraceError::Io`] where a file is missing.
    pub fn open(dump: &KeepDump, json: &Path) -> Result<Self, TraceError> {
        let mut bins = Self::default();
        let parts = [
            (Part::Key, &dump.score_cache_files, &dump.post_score_cache_files),
            (Part::Value, &dump.value_cache_files, &dump.post_value_cache_files),
        ];
        for (part, pre, post) in parts {
            let Some(pre) = pre.as_ref().filter(|files| !files.is_empty()) else { continue };
            let shapes = shapes(dump, json)?;
            let post = post.as_ref().filter(|files| !files.is_empty());
            if let Some(post) = post
                && post.len() != pre.len()
            {
                let (before, after) = (pre.len(), post.len());
                return Err(malformed(
                    json,
                    format!(
                        "{before} files of {} before stand beside {after} after",
                        part.letter()
                    ),
                ));
            }
            for (index, name) in pre.iter().enumerate() {
                let layer = layer_of(name).map_or_else(|| u32::try_from(index).ok(), Some);
                let layer =
                    layer.ok_or_else(|| malformed(json, format!("`{name}` has no layer")))?;
                let pre = BinFile::open(&beside(json, name), shapes.0)?;
                let post = match post.and_then(|post| post.get(index)) {
                    Some(name) => Some(BinFile::open(&beside(json, name), shapes.1)?),
                    None => None,
                };
                bins.layers.push(LayerBins { layer, part, pre, post });
            }
        }
        Ok(bins)
    }
}

type Shape = [usize; 3];

fn shapes(dump: &KeepDump, json: &Path) -> Result<(Shape, Shape), TraceError> {
    let pre = dump
        .score_cache_shape
        .ok_or_else(|| malformed(json, "cache files are listed without `score_cache_shape`"))?;
    let post = dump.post_score_cache_shape.unwrap_or([dump.keep_count as usize, pre[1], pre[2]]);
    let heads = dump.kv_heads();
    let dtype = dump.score_cache_dtype.as_deref().unwrap_or("float32");
    let wanted = [dump.cache_length_before as usize, heads, pre[2]];
    if pre != wanted || post != [dump.keep_count as usize, heads, pre[2]] || dtype != "float32" {
        return Err(malformed(
            json,
            format!(
                "cache shapes {pre:?} and {post:?} of {dtype} contradict {} rows before, {} after and {heads} heads of float32",
                dump.cache_length_before, dump.keep_count
            ),
        ));
    }
    Ok((pre, post))
}

/// `NN` of `....layerNN.bin`.
fn layer_of(name: &str) -> Option<u32> {
    let stem = name.strip_suffix(".bin")?;
    stem.rsplit_once(".layer")?.1.parse().ok()
}

fn beside(json: &Path, name: &str) -> PathBuf {
    // The engine may have run on a system with the other separator.
    let file = name.rsplit(['/', '\\']).next().unwrap_or(name);
    json.with_file_name(file)
}

/// A layer whose rows after are not the kept rows before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatherFault {
    /// Layer.
    pub layer: u32,
    /// K or V.
    pub part: Part,
    /// Rows (of single heads) that differ.
    pub different: usize,
    /// Rows compared.
    pub compared: usize,
}

/// Tests `post[i][h] == pre[keep[h][i]][h]`, bit for bit, and returns the layers where it fails. Layers without a
/// cache after are not tested.
#[must_use]
pub fn gather_faults(dump: &KeepDump, bins: &Bins) -> Vec<GatherFault> {
    let mut faults = Vec::new();
    for LayerBins { layer, part, pre, post } in &bins.layers {
        let Some(post) = post else { continue };
        let (mut different, mut compared) = (0, 0);
        for (head, keep) in dump.keep_indices_by_head.iter().enumerate() {
            for (row, &kept) in keep.iter().enumerate() {
                let (after, before) = (post.row(row, head), pre.row(kept as usize, head));
                compared += 1;
                different += usize::from(after.is_none() || after != before);
            }
        }
        if different > 0 {
            faults.push(GatherFault { layer: *layer, part: *part, different, compared });
        }
    }
    faults
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::trtmc::keep::tests::example;

    /// Value of element `d` of head `h` at row `r`: unlike in every place.
    fn element(salt: f32, row: usize, head: usize, dim: usize) -> f32 {
        salt + row as f32 + head as f32 * 0.25 + dim as f32 * 0.001
    }

    fn write(path: &Path, rows: &[Vec<f32>]) {
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(path, bytes).unwrap();
    }

    /// The example with two layers of K and V beside it, gathered as it says.
    pub(in crate::trtmc) fn write_example(json: &Path) -> KeepDump {
        let mut dump = example();
        let name = |suffix: &str, layer: usize| {
            format!(
                "elsewhere/{}{suffix}.layer{layer:02}.bin",
                json.file_name().unwrap().to_str().unwrap()
            )
        };
        let list = |suffix: &str| Some((0..2).map(|layer| name(suffix, layer)).collect::<Vec<_>>());
        dump.score_cache_shape = Some([12, 2, 4]);
        dump.score_cache_dtype = Some("float32".to_owned());
        dump.post_score_cache_shape = Some([8, 2, 4]);
        dump.score_cache_files = list("");
        dump.value_cache_files = list(".v");
        dump.post_score_cache_files = list(".post");
        dump.post_value_cache_files = list(".post.v");
        for (pre, post, salt) in [("", ".post", 100.0_f32), (".v", ".post.v", 200.0)] {
            for layer in 0..2 {
                let salt = salt + layer as f32 * 50.0;
                let row =
                    |row: usize, head: usize| (0..4).map(move |dim| element(salt, row, head, dim));
                let before =
                    (0..12).map(|r| row(r, 0).chain(row(r, 1)).collect()).collect::<Vec<_>>();
                let kept = |head: usize, i: usize| dump.keep_indices_by_head[head][i] as usize;
                let after = (0..8)
                    .map(|i| row(kept(0, i), 0).chain(row(kept(1, i), 1)).collect())
                    .collect::<Vec<_>>();
                write(&beside(json, &name(pre, layer)), &before);
                write(&beside(json, &name(post, layer)), &after);
            }
        }
        dump.write(json).unwrap();
        dump
    }

    #[test]
    fn files_beside_the_json_are_read_with_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        let dump = write_example(&json);
        let bins = Bins::open(&dump, &json).unwrap();
        let seen: Vec<_> = bins.layers.iter().map(|bin| (bin.part, bin.layer)).collect();
        assert_eq!(seen, [(Part::Key, 0), (Part::Key, 1), (Part::Value, 0), (Part::Value, 1)]);
        let row = bins.layers[3].pre.row(5, 1).unwrap();
        assert_eq!(row[..4], element(250.0, 5, 1, 0).to_le_bytes());
        assert_eq!(bins.layers[0].pre.row(12, 0), None);
        assert!(gather_faults(&dump, &bins).is_empty());
    }

    #[test]
    fn one_stale_row_is_found_in_its_layer() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        let dump = write_example(&json);
        let path = dir.path().join("k.json.post.v.layer01.bin");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[(3 * 2 + 1) * 16] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let faults = gather_faults(&dump, &Bins::open(&dump, &json).unwrap());
        let fault = GatherFault { layer: 1, part: Part::Value, different: 1, compared: 16 };
        assert_eq!(faults, [fault]);
    }

    #[test]
    fn sizes_shapes_and_lists_that_disagree_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let json = dir.path().join("k.json");
        let dump = write_example(&json);
        let open = |dump: &KeepDump| match Bins::open(dump, &json) {
            Err(TraceError::Malformed { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let planted = KeepDump { score_cache_shape: Some([12, 2, 8]), ..dump.clone() };
        assert!(open(&planted).contains("contradict"));
        let planted = KeepDump { score_cache_dtype: Some("float16".into()), ..dump.clone() };
        assert!(open(&planted).contains("float16"));
        let planted =
            KeepDump { post_value_cache_files: Some(vec!["x.bin".into()]), ..dump.clone() };
        assert!(open(&planted).contains("2 files of v before stand beside 1"));
        let planted = KeepDump { score_cache_shape: None, ..dump.clone() };
        assert!(open(&planted).contains("without `score_cache_shape`"));
        let path = dir.path().join("k.json.layer00.bin");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(open(&dump).contains("380 bytes; shape [12, 2, 4] of f32 takes 384"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(Bins::open(&dump, &json), Err(TraceError::Io { .. })));
    }
}
