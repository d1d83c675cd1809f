//! Rows of a foreign trace as columns, and which rows belong to which sample.

use super::dialect::RawRow;
use super::precision::Precision;

/// What a caller knows that the file does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForeignOptions {
    /// Prompt length in tokens. Rows below it are prompt rows, and a fall of position to it starts the next sample.
    pub prompt_len: Option<u32>,
}

/// Columns as they stand in the file; nothing is interpreted yet.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// First row of each sample.
    pub(super) starts: Vec<usize>,
    pub(super) position: Vec<u32>,
    pub(super) token: Vec<u32>,
    pub(super) rows_before: Vec<u32>,
    pub(super) rows_after: Vec<u32>,
    /// 0-based index where a row names one.
    pub(super) compaction: Vec<Option<u32>>,
    /// Argmax as written, where the dialect has it.
    pub(super) argmax: Vec<Option<u32>>,
    pub(super) ids: Vec<u32>,
    pub(super) logits: Vec<f32>,
    /// End of each row in `ids` and `logits`.
    pub(super) ends: Vec<usize>,
    pub(super) precision: Precision,
    /// Rows with `comp_after` whose N is not `position + 1`.
    pub(super) odd_absolute: Vec<(usize, u32)>,
    /// Rows whose `argmax_logit` is not the largest of `top_logits`, and the line of the first of them.
    pub(super) argmax_disagrees: Option<(usize, usize)>,
    pub(super) decoders: Option<(u32, u32)>,
    pub(super) says_compaction: bool,
    pub(super) last_compaction: Option<u32>,
}

impl Table {
    pub(super) fn len(&self) -> usize {
        self.position.len()
    }

    /// Appends a row; an error says why it cannot follow the rows before it.
    pub(super) fn push(
        &mut self,
        row: &RawRow,
        line: usize,
        options: &ForeignOptions,
    ) -> Result<(), String> {
        if self.starts_sample(row.position, options)? {
            self.starts.push(self.len());
            self.last_compaction = None;
        }
        self.note_compaction(row)?;
        if row.absolute.is_some_and(|absolute| Some(absolute) != row.position.checked_add(1)) {
            self.odd_absolute.extend(row.absolute.map(|absolute| (self.len(), absolute)));
        }
        let (least, most) = self.decoders.unwrap_or((row.decoder, row.decoder));
        self.decoders = Some((least.min(row.decoder), most.max(row.decoder)));
        let largest = row.logits.iter().map(|number| number.value).max_by(f32::total_cmp);
        if let (Some((_, logit)), Some(largest)) = (row.argmax, largest)
            && logit.to_bits() != largest.to_bits()
            && !(logit.is_nan() || largest.is_nan())
        {
            let (count, first) = self.argmax_disagrees.unwrap_or((0, line));
            self.argmax_disagrees = Some((count + 1, first));
        }
        self.position.push(row.position);
        self.token.push(row.token);
        self.rows_before.push(row.rows_before);
        self.rows_after.push(row.rows_after);
        self.compaction.push(row.compaction);
        self.argmax.push(row.argmax.map(|(id, _)| id));
        self.ids.extend_from_slice(&row.ids);
        for number in &row.logits {
            self.precision.observe(number);
            self.logits.push(number.value);
        }
        self.ends.push(self.ids.len());
        Ok(())
    }

    fn starts_sample(&self, position: u32, options: &ForeignOptions) -> Result<bool, String> {
        let (Some(&last), Some(&first)) = (self.position.last(), self.position.first()) else {
            return Ok(true);
        };
        if position > last {
            return if position - last == 1 {
                Ok(false)
            } else {
                Err(format!("position {position} follows {last}: rows are missing between them"))
            };
        }
        if position == last {
            return Err(format!("position {position} stands twice"));
        }
        if position == 0 || position == first || Some(position) == options.prompt_len {
            return Ok(true);
        }
        let starts = if first == 0 { "0".to_owned() } else { format!("0 or {first}") };
        Err(format!(
            "position falls from {last} to {position}; only a fall to {starts} or to the prompt's length starts \
             the next sample (give the prompt length if it is {position})"
        ))
    }

    fn note_compaction(&mut self, row: &RawRow) -> Result<(), String> {
        self.says_compaction |= row.says_compaction;
        if let Some(index) = row.compaction {
            if index == u32::MAX {
                return Err(format!("compaction index {index} is no index"));
            }
            if let Some(last) = self.last_compaction.filter(|&last| last >= index) {
                return Err(format!("compaction index {index} follows {last}"));
            }
            self.last_compaction = Some(index);
        }
        Ok(())
    }
}
