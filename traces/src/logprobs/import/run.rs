//! A file becomes a run directory, record by record.

use std::collections::BTreeSet;
use std::path::Path;

use super::super::node::Node;
use super::super::read::read;
use super::kind::LogprobKind;
use super::miles::{self, Labels};
use super::names::{Lookup, Names};
use super::records;
use super::rows;
use super::tally::Tally;
use super::track::{self, Found, Known, Track};
use crate::limits::{TokenIds, Values};
use crate::manifest::Producer;
use crate::store::RunWriter;
use crate::store::fail::malformed;
use crate::{Manifest, RecordPlan, SourceLimits, TraceError};

/// What the caller knows that a file does not say.
#[derive(Clone, Copy, Default)]
pub struct LogprobImport<'a> {
    /// What the values went through.
    pub values: Option<Values>,
    /// Ids of the prompt, where the file has one prompt.
    pub prompt_ids: Option<&'a [u32]>,
    /// Prompt length in tokens: where the prompt ends in a file of prompt log-probabilities, where rows start in a file
    /// without its prompt.
    pub prompt_len: Option<u32>,
    /// Finds ids of tokens that the file names by text.
    pub lookup: Option<Lookup<'a>>,
    /// Whose labels [`LogprobKind::Miles`] has.
    pub labels: Labels,
}

/// Makes a run directory `out` from a file of log-probabilities. One choice of one record is one sample. JSON Lines are read a
/// record at a time; a cut last record gives an incomplete run. The remarks, which stand in the manifest as well, come back.
///
/// # Errors
/// [`TraceError`] with path and line where the file is damaged, of another kind, or without any log-probability; then `out` is
/// left empty.
pub fn import(
    path: &Path,
    kind: LogprobKind,
    options: &LogprobImport<'_>,
    out: &Path,
) -> Result<Vec<String>, TraceError> {
    let producer = Producer { name: kind.name().to_owned(), ..Producer::default() };
    let writer = RunWriter::create(out, Manifest::new(producer, "unknown"), RecordPlan::default())?;
    let mut import = Import {
        path,
        kind,
        options,
        writer,
        names: Names::new(options.lookup),
        tally: Tally::default(),
        taken: BTreeSet::new(),
        records: 0,
        samples: 0,
        prompted: None,
        front: None,
        after_sampling: false,
        probabilities: false,
        model: None,
    };
    match import.read() {
        Ok((cut, remarks)) => import.finish(cut, remarks, out),
        Err(error) => {
            drop(import);
            // The folder was empty before, so all that is in it is half a run of this call.
            let _ = std::fs::remove_dir_all(out);
            Err(error)
        }
    }
}

struct Import<'a> {
    path: &'a Path,
    kind: LogprobKind,
    options: &'a LogprobImport<'a>,
    writer: RunWriter,
    names: Names<'a>,
    tally: Tally,
    taken: BTreeSet<String>,
    records: usize,
    samples: usize,
    /// The record that the caller's prompt ids belong to.
    prompted: Option<usize>,
    /// Position of the first token of the first sample.
    front: Option<u32>,
    after_sampling: bool,
    probabilities: bool,
    model: Option<String>,
}

impl<'a> Import<'a> {
    fn read(&mut self) -> Result<(bool, Vec<String>), TraceError> {
        if self.kind == LogprobKind::Miles {
            let remarks =
                miles::write(self.path, self.options.labels, &mut self.tally, &mut self.writer)?;
            return Ok((false, remarks));
        }
        let ending = if is_events(self.path) {
            let file = read(self.path)?;
            self.accept(Some(file.source)).map_err(|what| malformed(self.path, what))?;
            let tracks =
                track::of_sequences(file.sequences, Some(file.source), self.known(), &Node::Null);
            self.write(tracks)?;
            records::Ending { cut: !file.complete, remarks: file.remarks }
        } else {
            let path = self.path;
            records::each(path, &mut |node, line| match node.list() {
                Some(list) => list.iter().try_for_each(|node| self.record(node, line)),
                None => self.record(node, line),
            })?
        };
        if self.samples == 0 {
            return Err(malformed(
                self.path,
                "no log-probability is in it; ask the server for them (`logprobs`, `top_logprobs`, `n_probs`, ...)",
            ));
        }
        Ok((ending.cut, ending.remarks))
    }

    fn known(&self) -> Known {
        let ids = self.options.prompt_ids.and_then(|ids| u32::try_from(ids.len()).ok());
        Known { prompt_len: self.options.prompt_len.or(ids) }
    }

    fn record(&mut self, node: &Node, line: Option<usize>) -> Result<(), TraceError> {
        let number = self.records;
        self.records += 1;
        let path = self.path;
        let fault = |what: String| match line {
            Some(line) => TraceError::Line { path: path.to_owned(), line, what },
            None => malformed(path, format!("record {}: {what}", number + 1)),
        };
        let Found { tracks, source, after_sampling, probabilities, model } =
            track::of_record(number, node, self.known()).map_err(fault)?;
        if source.is_none() {
            self.tally.unknown_records += 1;
            return Ok(());
        }
        self.tally.bare_records += u64::from(tracks.is_empty());
        if !tracks.is_empty() {
            self.accept(source).map_err(fault)?;
        }
        self.after_sampling |= after_sampling;
        self.probabilities |= probabilities;
        self.model = self.model.take().or(model);
        self.write(tracks)
    }

    fn accept(&self, source: Option<super::super::model::Source>) -> Result<(), String> {
        match source {
            Some(source) if !self.kind.accepts(source) => Err(format!(
                "this is no {} but another layout ({source:?}); leave the kind out to have it guessed",
                self.kind.name()
            )),
            _ => Ok(()),
        }
    }

    fn write(&mut self, tracks: Vec<Track>) -> Result<(), TraceError> {
        for track in tracks {
            if track.entries.is_empty() {
                self.tally.bare_records += 1;
                continue;
            }
            self.names.settle(&track.entries);
            let prompt = self.prompt_of(&track)?;
            self.front.get_or_insert(track.start);
            let sample_id = self.sample_id(&track);
            rows::write(
                &track,
                &sample_id,
                prompt,
                &mut self.names,
                &mut self.tally,
                &mut self.writer,
            )?;
            self.samples += 1;
        }
        Ok(())
    }

    /// The caller's prompt ids, held against what the record says of its prompt.
    fn prompt_of(&mut self, track: &Track) -> Result<&'a [u32], TraceError> {
        let Some(given) = self.options.prompt_ids else { return Ok(&[]) };
        let record = track.record + 1;
        let fault = |what: String| Err(malformed(self.path, format!("record {record}: {what}")));
        if self.prompted.is_some_and(|first| first != track.record) {
            return fault(
                "the prompt ids are those of one prompt, and the file has several records"
                    .to_owned(),
            );
        }
        self.prompted = Some(track.record);
        let length = u32::try_from(given.len()).unwrap_or(u32::MAX);
        let counted = track.counted.or(track.prompt_len).unwrap_or(length);
        if counted != length {
            return fault(format!(
                "its prompt has {counted} tokens, and {length} prompt ids are given"
            ));
        }
        for (place, (entry, given)) in
            track.entries.iter().zip(given.iter().skip(track.start as usize)).enumerate()
        {
            if let Some(id) = entry.token.id.filter(|id| id != given) {
                let position = track.start as usize + place;
                return fault(format!(
                    "its token at position {position} is {id}, and {given} is given"
                ));
            }
        }
        Ok(given)
    }

    /// An id that no other sample of the run bears.
    fn sample_id(&mut self, track: &Track) -> String {
        let (record, choice) = (track.record, track.choice);
        let invented = format!("record_{record}_choice_{choice}");
        self.tally.invented_ids += u64::from(track.id.is_none());
        let mut id = track.id.clone().unwrap_or(invented);
        if self.taken.contains(&id) {
            self.tally.repeated_ids += 1;
            id = format!("{id}_record_{record}");
        }
        let mut unique = id.clone();
        let mut number = 2;
        while !self.taken.insert(unique.clone()) {
            unique = format!("{id}_{number}");
            number += 1;
        }
        unique
    }

    fn finish(
        mut self,
        cut: bool,
        mut remarks: Vec<String>,
        out: &Path,
    ) -> Result<Vec<String>, TraceError> {
        let mut limits =
            SourceLimits { rows: false, token_ids: self.token_ids(), ..SourceLimits::default() };
        let encoding = self.tally.encoding(self.probabilities, &mut limits);
        limits.values = self.values();
        limits.cannot = self.cannot();
        self.tally.remarks(encoding, &limits, &mut remarks);
        self.names.remarks(&mut remarks);
        if self.tally.invented_ids > 0 {
            remarks.push("the file names no samples: their ids are invented, from the numbers of records and choices".to_owned());
        }
        let manifest = self.writer.manifest_mut();
        manifest.encoding = encoding;
        manifest.limits = limits;
        manifest.rows_exact = false;
        manifest.includes_prompt = self.front == Some(0);
        manifest.remarks.clone_from(&remarks);
        manifest.set("trace.dialect", self.kind.name(), "imported");
        if self.tally.invented_ids > 0 {
            manifest.set("trace.sample_ids", "invented", "imported");
        }
        if let Some(model) = self.model {
            manifest.set("source.model", model, "imported");
        }
        self.names.write(out)?;
        if cut {
            self.writer.flush()?;
        } else {
            self.writer.finish()?;
        }
        Ok(remarks)
    }

    fn token_ids(&self) -> TokenIds {
        if self.kind == LogprobKind::Miles { TokenIds::Given } else { self.names.origin() }
    }

    /// What the values are: as the file shows, else as the caller says.
    fn values(&self) -> Values {
        if self.tally.values() == 0 {
            Values::Nothing
        } else if self.after_sampling {
            Values::ProcessedLogprobs
        } else if self.kind == LogprobKind::Miles {
            // log_softmax of the logits as they come from the model.
            Values::Logprobs
        } else {
            self.options.values.unwrap_or(Values::UnsaidLogprobs)
        }
    }

    fn cannot(&self) -> Vec<String> {
        let mut lines =
            vec!["whatever lies outside a row's list is known as a bound only".to_owned()];
        if self.tally.own_only > 0 {
            lines.push(
                "rows that hold the chosen token only do not say which token was the likeliest"
                    .to_owned(),
            );
        }
        if self.probabilities {
            lines.push("the file prints probabilities; the values are their logarithms".to_owned());
        }
        lines
    }
}

/// Does the file hold server-sent events? Their chunks make one answer, so they are read together.
fn is_events(path: &Path) -> bool {
    let Ok((head, _)) = super::super::read::unpacked(path, 64) else { return false };
    head.trim_ascii_start().starts_with(b"data:")
}
