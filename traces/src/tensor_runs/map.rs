//! The map: which tensor is which of ours, and where it belongs.

use std::fmt::Write as _;
use std::path::Path;

use regex::{Captures, Regex};
use serde::Deserialize;

use crate::TraceError;
use crate::store::fail::malformed;
use crate::tensor_files::Element;

/// A map as it is written: YAML, or JSON, which is YAML too.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunMap {
    /// Id of the sample where no rule says one.
    pub sample: Option<String>,
    /// Tokens of the prompt.
    pub prompt_len: Option<u32>,
    /// Rules; the first whose expression is the whole of a name counts. Names that none matches are kept as they are.
    pub rules: Vec<MapRule>,
}

/// One rule. `{NAME}` stands for a capture group of `names` in every text.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapRule {
    /// Expression for the whole of a name.
    pub names: String,
    /// Name in the dump, as in [`crate::dump`]; `{layer}` is written with two digits. `token_id` is a tensor of fed ids.
    pub to: String,
    /// Row of a step dump: a number, or a sum such as `{step}-1`. With `rows` that of the first row.
    #[serde(default)]
    pub position: Option<Text>,
    /// Ordinal (from 1) of a compaction dump.
    #[serde(default)]
    pub compaction: Option<Text>,
    /// Position of the next token at that compaction, where it is known.
    #[serde(default)]
    pub absolute_position: Option<Text>,
    /// Id of the sample.
    #[serde(default)]
    pub sample: Option<String>,
    /// The first axis (after `permute`) counts rows: one step dump for each.
    #[serde(default)]
    pub rows: bool,
    /// Order of the axes: axis `i` of ours is axis `permute[i]` of the file.
    #[serde(default)]
    pub permute: Option<Vec<usize>>,
    /// Element type that the file could not say, of the same size.
    #[serde(default)]
    pub element: Option<String>,
}

/// A number or a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// As a number.
    Number(u32),
    /// As a text with captures.
    Text(String),
}

impl RunMap {
    /// Reads a map; its expressions are compiled, so that a wrong one is found before any tensor is.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] with the place.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TraceError::Io { path: path.to_path_buf(), source })?;
        Self::parse(&text, path)
    }

    /// The same from a text; errors name `path`.
    ///
    /// # Errors
    /// As [`RunMap::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, TraceError> {
        let map: Self = serde_saphyr::from_str(text).map_err(|error| {
            let line = error.to_string();
            malformed(path, line.lines().next().unwrap_or("not a map").to_owned())
        })?;
        for (at, rule) in map.rules.iter().enumerate() {
            rule.checked().map_err(|what| malformed(path, format!("rule {at}: {what}")))?;
        }
        Ok(map)
    }
}

impl MapRule {
    fn checked(&self) -> Result<(), String> {
        self.expression()?;
        self.declared()?;
        let ids = self.to == "token_id";
        match (&self.position, &self.compaction) {
            (Some(_), None) => {}
            (None, Some(_)) if !ids && !self.rows => {}
            (None, Some(_)) => {
                return Err("rows and ids belong to a position, not to a compaction".to_owned());
            }
            (None, None) => return Err("says neither `position` nor `compaction`".to_owned()),
            (Some(_), Some(_)) => return Err("says both `position` and `compaction`".to_owned()),
        }
        if self.absolute_position.is_some() && self.compaction.is_none() {
            return Err("`absolute_position` belongs to a compaction".to_owned());
        }
        Ok(())
    }

    /// The expression over whole names.
    pub(super) fn expression(&self) -> Result<Regex, String> {
        Regex::new(&format!("^(?:{})$", self.names))
            .map_err(|_| format!("`{}` is no regular expression", self.names))
    }

    /// The declared element type.
    pub(super) fn declared(&self) -> Result<Option<Element>, String> {
        self.element.as_deref().map(str::parse).transpose()
    }
}

/// `{NAME}` replaced by its capture; `{layer}` with two digits where `padded`.
pub(super) fn filled(text: &str, found: &Captures<'_>, padded: bool) -> Result<String, String> {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) =
            after.split_once('}').ok_or_else(|| format!("`{text}`: a `{{` without `}}`"))?;
        let value = found
            .name(name)
            .ok_or_else(|| {
                format!(
                    "`{text}`: `{}` has no group `{name}`",
                    found.get(0).map_or("", |m| m.as_str())
                )
            })?
            .as_str();
        out.push_str(before);
        match value.parse::<u32>() {
            Ok(layer) if padded && name == "layer" => {
                let _ = write!(out, "{layer:02}");
            }
            _ => out.push_str(value),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

/// The number of a text such as `{step}`, `{step}-1` or `7+{i}`.
pub(super) fn number(text: &Text, found: &Captures<'_>) -> Result<u32, String> {
    let text = match text {
        Text::Number(number) => return Ok(*number),
        Text::Text(text) => filled(text, found, false)?,
    };
    let bad = || format!("`{text}` is no number from 0 on");
    let (mut sum, mut sign, mut digits) = (0_i64, 1_i64, String::new());
    for character in text.chars().chain(['+']) {
        match character {
            '0'..='9' => digits.push(character),
            ' ' => {}
            '+' | '-' => {
                let term: i64 = digits.parse().map_err(|_| bad())?;
                sum = sum.checked_add(sign * term).ok_or_else(bad)?;
                digits.clear();
                sign = if character == '-' { -1 } else { 1 };
            }
            _ => return Err(bad()),
        }
    }
    u32::try_from(sum).map_err(|_| bad())
}
