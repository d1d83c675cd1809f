//! Lines of a response cache.
//!
//! A line is `{"sum":"<sha256 of the body's text>","body":{...}}`: JSON for whoever reads it with other tools, and
//! checked here by its text, so that a damaged byte is never taken for another number. Step rows and compactions are
//! base64 of an Arrow IPC stream with the columns of the run tables.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::Configuration;
use crate::hash::sha256_hex;
use crate::store::packed;
use crate::{EventRow, SampleRow, StepRow, TraceError};

const BEFORE_SUM: &str = r#"{"sum":""#;
const BEFORE_BODY: &str = r#"","body":"#;
const AFTER_BODY: &str = "}";
const SUM_LEN: usize = 64;

/// Schema of the lines; another one is refused.
pub(super) const SCHEMA: u32 = 1;

/// Everything that a run recorded of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Response {
    /// See [`Configuration::key`].
    pub key: String,
    /// The sample's row.
    pub sample: SampleRow,
    /// Its step rows, by position.
    pub steps: Vec<StepRow>,
    /// Its compactions, by ordinal.
    pub events: Vec<EventRow>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) schema: u32,
    /// sha256 of the executable that began the file.
    pub(super) binary_sha256: Option<String>,
    pub(super) configuration: Configuration,
}

/// A body, as far as a scan needs it.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Outline {
    Header(Header),
    Response { key: String },
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Written<'a> {
    Header(&'a Header),
    Response(Body<'a>),
}

#[derive(Serialize)]
struct Body<'a> {
    key: &'a str,
    sample: &'a SampleRow,
    steps: String,
    events: String,
}

#[derive(Deserialize)]
struct ReadBody {
    key: String,
    sample: SampleRow,
    steps: String,
    events: String,
}

/// The header as a line, newline included.
pub(super) fn header_line(header: &Header) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_string(&Written::Header(header)).map(|body| sealed(&body))
}

/// A response as a line, newline included.
pub(super) fn response_line(response: &Response, path: &Path) -> Result<Vec<u8>, TraceError> {
    let body = Body {
        key: &response.key,
        sample: &response.sample,
        steps: STANDARD.encode(packed::pack_steps(&response.steps, path)?),
        events: STANDARD.encode(packed::pack_events(&response.events, path)?),
    };
    let text = serde_json::to_string(&Written::Response(body))
        .map_err(|source| TraceError::Json { path: path.to_owned(), line: 1, source })?;
    Ok(sealed(&text))
}

fn sealed(body: &str) -> Vec<u8> {
    let sum = sha256_hex(body.as_bytes());
    format!("{BEFORE_SUM}{sum}{BEFORE_BODY}{body}{AFTER_BODY}\n").into_bytes()
}

/// The body of a line (without its newline) whose sum holds.
pub(super) fn body(line: &[u8]) -> Option<&[u8]> {
    let rest = line.strip_prefix(BEFORE_SUM.as_bytes())?;
    let (sum, rest) = rest.split_at_checked(SUM_LEN)?;
    let body = rest.strip_prefix(BEFORE_BODY.as_bytes())?.strip_suffix(AFTER_BODY.as_bytes())?;
    (sha256_hex(body).as_bytes() == sum).then_some(body)
}

/// A response from its body.
pub(super) fn response(body: &[u8], path: &Path) -> Result<Response, String> {
    let read: ReadBody = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let bytes = |text: &str| STANDARD.decode(text).map_err(|error| error.to_string());
    let name = &read.sample.sample_id;
    let steps = packed::unpack_steps(&bytes(&read.steps)?, name, path);
    let events = packed::unpack_events(&bytes(&read.events)?, path);
    Ok(Response {
        key: read.key,
        steps: steps.map_err(|error| error.to_string())?,
        events: events.map_err(|error| error.to_string())?,
        sample: read.sample,
    })
}
