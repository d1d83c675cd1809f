//! One claim, its scope and what it stands on.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::hash::sha256_hex;

/// Positions from `first` to `last`, both included. Written `7150-7190`, or `7150` for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Window {
    /// First absolute position.
    pub first: u32,
    /// Last absolute position.
    pub last: u32,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for Window {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no window of positions; write 7150-7190");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |part: &str| part.trim().parse::<u32>().map_err(|_| bad());
        let (first, last) = (number(first)?, number(last)?);
        if first > last { Err(bad()) } else { Ok(Self { first, last }) }
    }
}

impl TryFrom<String> for Window {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Window> for String {
    fn from(window: Window) -> Self {
        window.to_string()
    }
}

/// What a claim speaks of. An empty list says nothing about that dimension.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scope {
    /// Sample ids; `all` claims every sample there is, which no evidence covers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<String>,
    /// Compaction ordinals, counted from 1.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ordinals: Vec<u32>,
    /// Windows of absolute positions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<Window>,
    /// Modes: `greedy`, `sampled`, a policy, a rule set, a dtype, a device, or words of one's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modes: Vec<String>,
}

impl Scope {
    /// True where the claim says nothing about what it covers.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.samples.is_empty()
            && self.ordinals.is_empty()
            && self.windows.is_empty()
            && self.modes.is_empty()
    }
}

impl fmt::Display for Scope {
    /// One line: `samples a, b; ordinals 1; windows 0-99; modes greedy`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn part<T: ToString>(name: &str, values: &[T]) -> Option<String> {
            let list: Vec<String> = values.iter().map(ToString::to_string).collect();
            (!list.is_empty()).then(|| format!("{name} {}", list.join(", ")))
        }
        let parts = [
            part("samples", &self.samples),
            part("ordinals", &self.ordinals),
            part("windows", &self.windows),
            part("modes", &self.modes),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            f.write_str("no scope stated")
        } else {
            f.write_str(&parts.join("; "))
        }
    }
}

/// What a cited path held when it was cited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArtifactKind {
    /// A folder; its sha256 is that of the lines `sha256  path` of its files in order of path.
    Folder,
    /// JSON, or JSON Lines: the answer of a check, an audit, a comparison.
    Answer,
    /// Any other file.
    File,
}

/// An artifact that a claim stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cited {
    /// Path relative to the ledger's folder, with `/`.
    pub path: String,
    /// sha256 when it was cited, lower-case hex.
    pub sha256: String,
    /// What it was.
    pub kind: ArtifactKind,
    /// Its own verdict when it was cited, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
}

/// One record of the ledger.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name; `c-` and eight hex digits of the content where none was given.
    pub id: String,
    /// What is claimed, in words.
    pub text: String,
    /// Day or moment as the author writes it; nothing reads a clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Claims that this one replaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub supersedes: Vec<String>,
    /// Claims that this one follows from: it falls with them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rests_on: Vec<String>,
    /// sha256 of the record without this field; an edited record shows.
    #[serde(default)]
    pub digest: String,
    /// What it speaks of.
    #[serde(default)]
    pub scope: Scope,
    /// What it stands on.
    #[serde(default)]
    pub evidence: Vec<Cited>,
}

impl Claim {
    /// Gives the record its digest, and an id from its content where it has none.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        if self.id.is_empty() {
            let content = self.content();
            self.id = format!("c-{}", content.get(..8).unwrap_or_default());
        }
        self.digest = self.content();
        self
    }

    /// False where the record is not what was written.
    #[must_use]
    pub fn intact(&self) -> bool {
        self.digest == self.content()
    }

    fn content(&self) -> String {
        let bare = Self { digest: String::new(), ..self.clone() };
        // Strings, lists and numbers only: this cannot fail, and an empty text would not match any digest.
        sha256_hex(serde_json::to_string(&bare).unwrap_or_default().as_bytes())
    }
}
