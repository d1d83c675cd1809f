//! The ledger file: read whole, appended to.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::Claim;
use crate::TraceError;

/// Longest ledger that is read.
const MOST_BYTES: u64 = 64 << 20;

const HEADER: &str = "# Claims of this investigation, oldest first. Records are appended and never edited; a record that no longer\n\
                      # holds is superseded by a later one. `lockstep claim check` tells which still stand.\n";

/// All records of a ledger, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Records.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
}

impl Ledger {
    /// Reads a ledger.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Malformed`] and [`TraceError::Line`] where it is no ledger, an id stands twice,
    /// or a record names a claim that does not stand before it.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let mut text = String::new();
        let read = File::open(path).map_err(io)?.take(MOST_BYTES + 1).read_to_string(&mut text);
        if read.map_err(io)? as u64 > MOST_BYTES {
            return Err(TraceError::Malformed {
                path: path.to_owned(),
                what: format!("more than {MOST_BYTES} bytes are no ledger of claims"),
            });
        }
        Self::parse(&text, path)
    }

    /// Reads the text of a ledger; `path` is for messages.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, TraceError> {
        let ledger: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let what = format!("no ledger of claims: {}", error.message());
            TraceError::Line { path: path.to_owned(), line, what }
        })?;
        ledger
            .consistent()
            .map_err(|what| TraceError::Malformed { path: path.to_owned(), what })?;
        Ok(ledger)
    }

    /// The record of that name.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }

    /// Appends a record to the file, which is made where it is missing. Nothing that stands in it is touched.
    ///
    /// # Errors
    /// As [`Self::read`]; [`TraceError::Malformed`] where the record does not fit behind those that stand.
    pub fn append(path: &Path, claim: &Claim) -> Result<Self, TraceError> {
        let mut ledger = if path.exists() { Self::read(path)? } else { Self::default() };
        ledger.claims.push(claim.clone());
        let malformed = |what| TraceError::Malformed { path: path.to_owned(), what };
        ledger.consistent().map_err(malformed)?;
        let one = Self { claims: vec![claim.clone()] };
        let block = toml::to_string(&one).map_err(|error| malformed(error.to_string()))?;
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
        let head = if file.metadata().map_err(io)?.len() == 0 { HEADER } else { "" };
        file.write_all(format!("{head}\n{block}").as_bytes()).map_err(io)?;
        Ok(ledger)
    }

    fn consistent(&self) -> Result<(), String> {
        let mut seen = BTreeSet::new();
        for claim in &self.claims {
            for (verb, list) in [("supersedes", &claim.supersedes), ("rests on", &claim.rests_on)] {
                if let Some(other) = list.iter().find(|id| !seen.contains(id.as_str())) {
                    return Err(format!(
                        "claim `{}` {verb} `{other}`, and no claim of that name stands before it",
                        claim.id
                    ));
                }
            }
            if claim.id.is_empty() || !seen.insert(claim.id.as_str()) {
                return Err(format!("the claim id `{}` is empty or stands twice", claim.id));
            }
        }
        Ok(())
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
