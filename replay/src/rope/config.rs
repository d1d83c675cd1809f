//! A configuration as far as its rotary embedding goes.

use std::path::Path;

use lockstep_reference::rope::Rope;
use lockstep_reference::{Hyper, ReferenceError};
use lockstep_traces::{ModelConfig, TraceError};
use serde_json::Value;

use crate::ReplayError;

/// Widest head whose table is computed.
const WIDEST: usize = 1 << 16;

/// A resolved rotary embedding and where its parameters stand.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Name to show and to find an engine's table by: the file's, or the folder's.
    pub name: String,
    /// The parameters as written.
    pub written: ModelConfig,
    /// Resolved by the reference.
    pub rope: Rope,
    /// Where the base stands: `rope_parameters`, `rope_scaling`, `rope_theta`, or `default` where nothing says it.
    pub base_from: String,
    /// What a reader should know of the file.
    pub remarks: Vec<String>,
}

impl RopeConfig {
    /// Reads `config.json`, a folder with one, or a GGUF file. Only the rotary parameters and the head's width must be there.
    ///
    /// # Errors
    /// [`ReplayError`] for an unreadable file, a scaling that is not computed, or a head's width that nothing says.
    pub fn read(path: &Path, head_dim: Option<usize>) -> Result<Self, ReplayError> {
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let (file, written, remarks) = written(path)?;
        let fail = |what: String| ReferenceError::Config { path: file.clone(), what };
        let width = width(&written, head_dim, &file).ok_or_else(|| {
            fail("the width of a head is missing: neither head_dim nor hidden_size and num_attention_heads; give --head-dim".to_owned())
        })?;
        if !width.is_multiple_of(2) || width == 0 || width > WIDEST {
            return Err(fail(format!("{width} rotated dimensions are not computed")).into());
        }
        let (rope, defaulted) = Rope::resolve(&written, width, &file)?;
        let nested = |block: &Option<lockstep_traces::RopeParameters>| {
            block.as_ref().is_some_and(|block| block.rope_theta.is_some())
        };
        let base_from = if defaulted {
            "default"
        } else if nested(&written.rope_parameters) {
            "rope_parameters"
        } else if written.rope_parameters.is_none() && nested(&written.rope_scaling) {
            "rope_scaling"
        } else {
            "rope_theta"
        };
        let base_from = base_from.to_owned();
        Ok(Self { name, written, rope, base_from, remarks })
    }
}

/// The file, its parameters as written, and remarks.
fn written(path: &Path) -> Result<(std::path::PathBuf, ModelConfig, Vec<String>), ReplayError> {
    use std::io::Read as _;
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let io = |source| TraceError::Io { path: file.clone(), source };
    let mut head = Vec::new();
    std::fs::File::open(&file).map_err(io)?.take(4).read_to_end(&mut head).map_err(io)?;
    if head == b"GGUF" {
        return Ok((file.clone(), Hyper::config(&file)?, Vec::new()));
    }
    let bytes = std::fs::read(&file).map_err(io)?;
    let json = |source: serde_json::Error| TraceError::Json {
        path: file.clone(),
        line: source.line(),
        source,
    };
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let mut document: Value = serde_json::from_slice(text).map_err(json)?;
    let mut remarks = Vec::new();
    // Models of several parts keep the language model's settings one level down.
    let own = ["rope_theta", "rope_parameters", "rope_scaling", "head_dim", "hidden_size"];
    if own.iter().all(|key| document.get(key).is_none())
        && let Some(inner) = document.get_mut("text_config")
    {
        document = inner.take();
        remarks.push("the parameters are those of text_config".to_owned());
    }
    by_layer(&file, &document)?;
    let config: ModelConfig = serde_json::from_value(document).map_err(json)?;
    let block = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref());
    if let (Some(outer), Some(inner)) =
        (config.rope_theta, block.and_then(|block| block.rope_theta))
        && outer.total_cmp(&inner).is_ne()
    {
        remarks.push(format!(
            "rope_theta is {outer} at the top and {inner} in the block, which was taken"
        ));
    }
    Ok((file, config, remarks))
}

/// Some models have a block for each kind of layer; taking none of them would give the default table without a sign of it.
fn by_layer(file: &Path, document: &Value) -> Result<(), ReferenceError> {
    for key in ["rope_parameters", "rope_scaling"] {
        let members = document.get(key).and_then(Value::as_object);
        let block = members.and_then(|members| members.iter().find(|(_, value)| value.is_object()));
        if let Some((kind, _)) = block {
            let what = format!(
                "{key} has a block for each kind of layer (`{kind}`): write the one that is meant into a file of its own"
            );
            return Err(ReferenceError::Config { path: file.to_path_buf(), what });
        }
    }
    Ok(())
}

/// Rotated dimensions of a head.
fn width(config: &ModelConfig, given: Option<usize>, file: &Path) -> Option<usize> {
    // The reference rotates whole heads only; here their width is wanted, whatever share of it is rotated.
    let mut whole = config.clone();
    whole.partial_rotary_factor = None;
    for block in [&mut whole.rope_parameters, &mut whole.rope_scaling].into_iter().flatten() {
        block.partial_rotary_factor = None;
    }
    let complete = || Hyper::resolve(&whole, file).ok().map(|hyper| hyper.head_dim);
    let divided =
        || Some(config.hidden_size? / config.num_attention_heads.filter(|heads| *heads > 0)?);
    let head = given.or(config.head_dim).or_else(complete).or_else(divided)?;
    let block = config.rope_parameters.as_ref().or(config.rope_scaling.as_ref());
    let share = block.and_then(|block| block.partial_rotary_factor);
    let share = share
        .or(config.partial_rotary_factor)
        .filter(|share| (0.0..=1.0).contains(share))
        .unwrap_or(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a head, rounded down as int() does"
    )]
    Some((head.min(WIDEST + 1) as f64 * share) as usize)
}
