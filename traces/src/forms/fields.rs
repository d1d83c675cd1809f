//! Fields of a form, each with the place at which it stands.

use std::collections::BTreeSet;
use std::path::Path;

use crate::TraceError;
use crate::logprobs::{Node, documents};

/// The document of a file; several documents (JSON Lines) are a list.
pub(super) fn root(path: &Path) -> Result<Node, TraceError> {
    let mut documents = documents(path)?;
    if !documents.complete {
        let what = "the last record is cut: write the file again".to_owned();
        return Err(TraceError::Malformed { path: path.to_owned(), what });
    }
    Ok(match documents.nodes.pop() {
        Some(one) if documents.nodes.is_empty() => one,
        last => Node::List(documents.nodes.into_iter().chain(last).collect()),
    })
}

/// A value and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    path: &'a Path,
    place: String,
    pub(super) node: &'a Node,
}

impl<'a> Field<'a> {
    /// The whole document.
    pub(super) fn root(path: &'a Path, node: &'a Node) -> Self {
        Self { path, place: String::new(), node }
    }

    fn below(&self, step: &str, node: &'a Node) -> Self {
        Self { path: self.path, place: format!("{}/{step}", self.place), node }
    }

    /// An error at this place.
    pub(super) fn fault(&self, what: impl std::fmt::Display) -> TraceError {
        let place = if self.place.is_empty() { "the document" } else { &self.place };
        TraceError::Malformed { path: self.path.to_owned(), what: format!("{place}: {what}") }
    }

    /// Members in their order; a key that stands twice is an error.
    pub(super) fn members(&self) -> Result<Vec<(&'a str, Self)>, TraceError> {
        let members = self.node.members().ok_or_else(|| self.fault("an object is expected"))?;
        let mut seen = BTreeSet::new();
        if let Some((key, _)) = members.iter().find(|(key, _)| !seen.insert(key)) {
            return Err(self.fault(format!("`{key}` stands twice")));
        }
        Ok(members.iter().map(|(key, node)| (key.as_str(), self.below(key, node))).collect())
    }

    /// The member under the first of these names that is there.
    pub(super) fn get(&self, names: &[&str]) -> Option<Self> {
        names.iter().find_map(|name| Some(self.below(name, self.node.get(name)?)))
    }

    /// As [`Field::get`], which must be there.
    pub(super) fn need(&self, names: &[&str]) -> Result<Self, TraceError> {
        self.get(names).ok_or_else(|| {
            self.fault(format!("`{}` is missing", names.first().copied().unwrap_or_default()))
        })
    }

    /// Elements.
    pub(super) fn list(&self) -> Result<Vec<Self>, TraceError> {
        let items = self.node.list().ok_or_else(|| self.fault("a list is expected"))?;
        Ok(items.iter().enumerate().map(|(at, node)| self.below(&at.to_string(), node)).collect())
    }

    /// A whole number of 0 ..= 2^53.
    pub(super) fn index(&self) -> Result<u64, TraceError> {
        self.node.index().ok_or_else(|| self.fault("a whole number from 0 is expected"))
    }

    /// A whole number of either sign.
    pub(super) fn whole(&self) -> Result<i64, TraceError> {
        let value = self.number()?;
        #[expect(clippy::cast_possible_truncation, reason = "whole, and at most 2^53")]
        (value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0)
            .then_some(value as i64)
            .ok_or_else(|| self.fault("a whole number is expected"))
    }

    /// A finite number.
    pub(super) fn number(&self) -> Result<f64, TraceError> {
        let number = self.node.number().map(|number| number.value);
        number
            .filter(|value| value.is_finite())
            .ok_or_else(|| self.fault("a finite number is expected"))
    }

    /// A text.
    pub(super) fn text(&self) -> Result<&'a str, TraceError> {
        self.node.text().ok_or_else(|| self.fault("a text is expected"))
    }

    /// `null` is `None`.
    pub(super) fn maybe<T>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, TraceError>,
    ) -> Result<Option<T>, TraceError> {
        if *self.node == Node::Null { Ok(None) } else { read(self).map(Some) }
    }

    /// A list of whole numbers.
    pub(super) fn indices(&self) -> Result<Vec<u64>, TraceError> {
        self.list()?.iter().map(Self::index).collect()
    }

    /// A list of finite numbers.
    pub(super) fn numbers(&self) -> Result<Vec<f64>, TraceError> {
        self.list()?.iter().map(Self::number).collect()
    }

    /// Fails at the first member that is none of these.
    pub(super) fn only(&self, known: &[&str]) -> Result<(), TraceError> {
        match self.members()?.iter().find(|(key, _)| !known.contains(key)) {
            Some((key, field)) => {
                Err(field
                    .fault(format!("`{key}` is not known here; known are {}", known.join(", "))))
            }
            None => Ok(()),
        }
    }
}
