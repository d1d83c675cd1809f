//! What a table could not say, in remarks and in the manifest.

use serde_json::json;

use super::columns::Found;
use super::rows::Table;
use crate::foreign::ForeignOptions;
use crate::limits::{TokenIds, Values};
use crate::manifest::{Producer, ValueEncoding};
use crate::{Manifest, Status};

impl Table<'_> {
    pub(super) fn remarks(
        &self,
        found: &Found,
        options: &ForeignOptions,
        known_rows: bool,
    ) -> Vec<String> {
        let seen = &self.seen;
        let mut out = Vec::new();
        if !found.extra.is_empty() {
            out.push(format!(
                "columns that are not known here and left aside: {}",
                found.extra.join(", ")
            ));
        }
        if found.hashes {
            out.push("the seeds of the logits hash stand in a run's manifest, which is not here: hashes are not compared".to_owned());
        }
        if !known_rows {
            let absent: Vec<&str> =
                ["rows_before", "rows_after"].into_iter().filter(|name| !found.has(name)).collect();
            out.push(if absent.is_empty() {
                format!(
                    "{} rows have an empty row count: row counts are unknown",
                    seen.missing_rows
                )
            } else {
                format!("no column {}: row counts are unknown", absent.join(", "))
            });
        }
        if seen.missing_tokens > 0 {
            out.push(format!("the fed token of {} rows is unknown", seen.missing_tokens));
        }
        if seen.missing_values.0 > 0 {
            out.push(format!(
                "{} listed values are empty: missing, not 0 (the first in row {})",
                seen.missing_values.0, seen.missing_values.1
            ));
        }
        if seen.rounded > 0 {
            out.push(format!(
                "{} listed values are no f32 and were rounded to one: equal is not equal to the last bit",
                seen.rounded
            ));
        }
        if seen.other_argmax > 0 {
            out.push(format!(
                "argmax is not the first of top_ids in {} rows; it is kept as written",
                seen.other_argmax
            ));
        }
        if !found.has("phase") && options.prompt_len.is_none() {
            out.push(
                "the file does not tell where the prompt ends: every row counts as decode (give the prompt length)".to_owned(),
            );
        }
        let gaps = self.rows.windows(2).filter(|pair| match pair {
            [a, b] => a.sample_id == b.sample_id && b.position - a.position > 1,
            _ => false,
        });
        let gaps = gaps.count();
        if gaps > 0 {
            out.push(format!("positions jump in {gaps} places: rows are missing there"));
        }
        out
    }

    pub(super) fn manifest(
        &self,
        found: &Found,
        writer: &str,
        known_rows: bool,
        remarks: &[String],
    ) -> Manifest {
        let producer = Producer {
            name: "parquet".to_owned(),
            version: writer.trim().to_owned(),
            ..Producer::default()
        };
        let mut manifest = Manifest::new(producer, "unknown");
        manifest.status = Status::Complete;
        // Six digits are less than an f32 holds of a wider number.
        manifest.encoding =
            if self.seen.rounded > 0 { ValueEncoding::Digits6 } else { ValueEncoding::F32 };
        manifest.rows_exact = self.rows.iter().all(|row| row.rows_bucketed.is_none());
        manifest.includes_prompt = self.rows.first().is_some_and(|row| row.position == 0);
        manifest.remarks = remarks.to_vec();
        manifest.limits.rows = known_rows;
        if !found.has("top_logits") {
            manifest.limits.values = Values::Nothing;
        }
        if !["token_id", "next_token", "argmax", "top_ids"].iter().any(|name| found.has(name)) {
            manifest.limits.token_ids = TokenIds::Nothing;
        }
        manifest.set("trace.dialect", "parquet-trace", "imported");
        if let Some((rows, line, position)) = self.seen.argmax_logit {
            let seen = json!({"rows": rows, "line": line, "position": position});
            manifest.set("trace.argmax_logit_differs", seen, "imported");
        }
        manifest
    }
}
