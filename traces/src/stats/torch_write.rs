//! Writing the per-head variant as `torch.save` would: a stored zip with a protocol 2 pickle and one storage per array.

use std::fs::File;
use std::io::{Seek, Write};
use std::path::Path;

use serde_json::{Value, json};
use zip::CompressionMethod;
use zip::ZipWriter;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;

use super::QueryStats;
use crate::TraceError;
use crate::store::fail::malformed;
use crate::store::replace_file;

/// Writes upstream's per-head `.pt`, which `torch.load` reads; [`super::read`] gives back an equal value where every
/// head on the axes is sampled or zero. `inv_freq` and `freq_scale_sq` become lists in the metadata.
///
/// # Errors
/// [`TraceError::Tensor`] or [`TraceError::Malformed`] where the statistics contradict themselves; [`TraceError::Io`].
pub fn write_pt(stats: &QueryStats, path: &Path) -> Result<(), TraceError> {
    stats.check(path)?;
    for key in ["sampled_heads", "inv_freq", "freq_scale_sq"] {
        if stats.metadata.contains_key(key) {
            return Err(malformed(path, format!("metadata key `{key}` is reserved")));
        }
    }
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("archive").to_owned();
    let mut arrays = Vec::new();
    let pickle = pickle(stats, &mut arrays);
    replace_file(path, |file| {
        archive(file, &stem, &pickle, &arrays).map_err(|error| match error {
            ZipError::Io(source) => TraceError::Io { path: path.to_path_buf(), source },
            other => malformed(path, other.to_string()),
        })
    })
}

fn archive(file: &mut File, stem: &str, pickle: &[u8], arrays: &[&[f32]]) -> Result<(), ZipError> {
    fn add<W: Write + Seek>(
        zip: &mut ZipWriter<W>,
        name: String,
        bytes: &[u8],
    ) -> Result<(), ZipError> {
        // torch aligns storages so that they can be mapped.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .with_alignment(64);
        zip.start_file(name, options)?;
        zip.write_all(bytes)?;
        Ok(())
    }
    let mut zip = ZipWriter::new(std::io::BufWriter::new(file));
    add(&mut zip, format!("{stem}/data.pkl"), pickle)?;
    add(&mut zip, format!("{stem}/byteorder"), b"little")?;
    for (key, values) in arrays.iter().enumerate() {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        add(&mut zip, format!("{stem}/data/{key}"), &bytes)?;
    }
    add(&mut zip, format!("{stem}/version"), b"3\n")?;
    zip.finish()?.flush()?;
    Ok(())
}

fn pickle<'a>(stats: &'a QueryStats, arrays: &mut Vec<&'a [f32]>) -> Vec<u8> {
    let mut out = Emitter { bytes: vec![0x80, 2], globals: Vec::new() };
    let mut metadata: serde_json::Map<String, Value> =
        stats.metadata.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    metadata.insert("sampled_heads".to_owned(), json!(stats.sampled));
    for (key, values) in [("inv_freq", &stats.inv_freq), ("freq_scale_sq", &stats.freq_scale_sq)] {
        if let Some(values) = values {
            let wide: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
            metadata.insert(key.to_owned(), json!(wide));
        }
    }
    out.bytes.extend(b"}(");
    out.text("metadata");
    out.value(&Value::Object(metadata));
    out.text("stats");
    out.bytes.extend(b"}(");
    for &layer in &stats.layers {
        for &head in &stats.heads {
            let Some(found) = stats.head(layer, head) else { continue };
            if !stats.sampled.contains(&(layer, head))
                && found.abs_mean.iter().all(|&value| value == 0.0)
            {
                continue;
            }
            out.text(&format!("layer{layer:02}_head{head:02}"));
            out.bytes.extend(b"}(");
            for (name, values) in [
                ("q_mean_real", found.mean_real),
                ("q_mean_imag", found.mean_imag),
                ("q_abs_mean", found.abs_mean),
            ] {
                out.text(name);
                out.tensor(arrays.len(), values.len());
                arrays.push(values);
            }
            out.bytes.push(b'u');
        }
    }
    out.bytes.extend(b"uu.");
    out.bytes
}

struct Emitter {
    bytes: Vec<u8>,
    /// Globals written so far; their index is their memo key.
    globals: Vec<&'static str>,
}

impl Emitter {
    fn text(&mut self, text: &str) {
        self.bytes.push(b'X');
        self.bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn int(&mut self, number: i128) {
        if let Ok(byte) = u8::try_from(number) {
            self.bytes.extend([b'K', byte]);
        } else if let Ok(word) = i32::try_from(number) {
            self.bytes.push(b'J');
            self.bytes.extend(word.to_le_bytes());
        } else {
            self.bytes.extend([0x8A, 16]);
            self.bytes.extend(number.to_le_bytes());
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.bytes.push(b'N'),
            Value::Bool(truth) => self.bytes.push(if *truth { 0x88 } else { 0x89 }),
            Value::String(text) => self.text(text),
            Value::Number(number) => {
                if let Some(number) = number.as_i64() {
                    self.int(number.into());
                } else if let Some(number) = number.as_u64() {
                    self.int(number.into());
                } else {
                    self.bytes.push(b'G');
                    self.bytes.extend(number.as_f64().unwrap_or(f64::NAN).to_be_bytes());
                }
            }
            Value::Array(items) => {
                self.bytes.extend(b"](");
                for item in items {
                    self.value(item);
                }
                self.bytes.push(b'e');
            }
            Value::Object(entries) => {
                self.bytes.extend(b"}(");
                for (key, value) in entries {
                    self.text(key);
                    self.value(value);
                }
                self.bytes.push(b'u');
            }
        }
    }

    fn global(&mut self, name: &'static str) {
        let known = self.globals.iter().position(|known| *known == name);
        let key = known.unwrap_or(self.globals.len());
        let key = u8::try_from(key).unwrap_or(u8::MAX);
        if known.is_some() {
            self.bytes.extend([b'h', key]);
            return;
        }
        self.globals.push(name);
        self.bytes.push(b'c');
        self.bytes.extend(name.as_bytes());
        self.bytes.extend([b'\n', b'q', key]);
    }

    /// `_rebuild_tensor_v2(storage, 0, (len,), (1,), False, OrderedDict())`.
    fn tensor(&mut self, key: usize, len: usize) {
        let len = i128::try_from(len).unwrap_or(i128::MAX);
        self.global("torch._utils\n_rebuild_tensor_v2");
        self.bytes.extend(b"((");
        self.text("storage");
        self.global("torch\nFloatStorage");
        self.text(&key.to_string());
        self.text("cpu");
        self.int(len);
        self.bytes.extend(b"tQ");
        self.int(0);
        self.int(len);
        self.bytes.push(0x85);
        self.int(1);
        self.bytes.push(0x85);
        self.bytes.push(0x89);
        self.global("collections\nOrderedDict");
        self.bytes.extend(b")RtR");
    }
}
