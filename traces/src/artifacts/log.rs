//! What an engine said on stderr: the policy's start, its compactions, cache sizes and rates.
//!
//! Lines of other programs are everywhere in such a file, progress bars in front of the engine's own words included. A
//! line is known by its tag, wherever the tag stands.

use std::path::{Path, PathBuf};

use super::words::{Words, number_before};
use crate::TraceError;
use crate::foreign::lines::Lines;

/// The policy's settings as it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitLine {
    /// 1-based line.
    pub line: usize,
    /// Rows kept.
    pub kv_budget: u32,
    /// Rows decoded between compactions.
    pub divide_length: u32,
    /// Rows protected at the end.
    pub recent_window: u32,
    /// `mean` or `max`.
    pub per_layer_aggregation: Option<String>,
    /// The prompt counts against the budget.
    pub count_prompt_tokens: Option<bool>,
    /// The prompt is protected.
    pub protect_prefill: Option<bool>,
    /// KV heads.
    pub kv_heads: Option<u32>,
    /// Query heads.
    pub query_heads: Option<u32>,
    /// Heads of the cache.
    pub cache_heads: Option<u32>,
    /// Layers with statistics.
    pub layers_with_stats: Option<u32>,
}

/// One compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactLine {
    /// 1-based line.
    pub line: usize,
    /// True 1-based index; profiled lines only.
    pub ordinal: Option<u32>,
    /// Position of the next token.
    pub absolute_position: u32,
    /// Rows before.
    pub old_rows: u32,
    /// Rows after.
    pub kept_rows: u32,
    /// Prompt rows kept; plain lines only.
    pub kept_prefix: Option<u32>,
}

/// Cache size at start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLine {
    /// 1-based line.
    pub line: usize,
    /// Rows allocated.
    pub rows: u32,
    /// Most rows of the bundle.
    pub bundle_max: Option<u32>,
    /// The request was cut to the bundle's most.
    pub clamped: bool,
}

/// Rate of one generation.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeLine {
    /// 1-based line.
    pub line: usize,
    /// Tokens.
    pub tokens: u64,
    /// Milliseconds.
    pub ms: f64,
    /// Tokens per second, as printed.
    pub tokens_per_sec: f64,
    /// Decode ran as a CUDA graph.
    pub cuda_graph: bool,
}

/// One sample of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleLine {
    /// 1-based line.
    pub line: usize,
    /// Sample.
    pub sample_id: String,
    /// Tokens.
    pub generated_tokens: u64,
    /// Milliseconds of decode.
    pub decode_ms: f64,
    /// Tokens per second, as printed.
    pub tokens_per_sec: f64,
}

/// A log's facts. Only debug and profile runs write the policy's lines: their absence says nothing about compactions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EngineLog {
    /// File.
    pub path: PathBuf,
    /// Starts of the policy, one a pipeline.
    pub inits: Vec<InitLine>,
    /// Compactions of plain lines.
    pub compactions: Vec<CompactLine>,
    /// Compactions of profiled lines.
    pub profiled: Vec<CompactLine>,
    /// Cache sizes.
    pub caches: Vec<CacheLine>,
    /// Rates.
    pub decodes: Vec<DecodeLine>,
    /// Benchmark samples.
    pub samples: Vec<SampleLine>,
    /// Lines that say that a graph capture failed.
    pub graph_failures: Vec<usize>,
    /// Lines that say that the run ended itself after its dump.
    pub dump_aborts: Vec<usize>,
    /// Lines with a known tag that cannot be read, with what is wrong: cut, or torn by another writer.
    pub torn: Vec<(usize, String)>,
    /// Lines of other kinds, skipped.
    pub unknown: usize,
}

impl EngineLog {
    /// Compactions in the order of the file: profiled lines where there are any, which carry the true index.
    #[must_use]
    pub fn events(&self) -> &[CompactLine] {
        if self.profiled.is_empty() { &self.compactions } else { &self.profiled }
    }
}

/// Reads a log.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Line`] for a line that is too long and for NUL bytes in the middle.
pub fn read_log(path: &Path) -> Result<EngineLog, TraceError> {
    let mut lines = Lines::open(path)?;
    let mut log = EngineLog { path: path.to_owned(), ..EngineLog::default() };
    while let Some((line, text)) = lines.next()? {
        let text = String::from_utf8_lossy(text);
        if let Err(what) = log.take(line, &text) {
            log.torn.push((line, what));
        }
    }
    Ok(log)
}

/// Is this a line that [`read_log`] knows?
pub(super) fn is_known(text: &str) -> bool {
    tagged(text).is_some() || text.contains("[cuda_graph] Capture failed")
}

/// The part after `[trtf` or `[trtmc`, from its first byte on.
fn tagged(text: &str) -> Option<&str> {
    ["[trtf", "[trtmc"].iter().find_map(|tag| {
        let (_, rest) = text.split_once(tag)?;
        (rest.starts_with('.') || rest.starts_with(']')).then_some(rest)
    })
}

impl EngineLog {
    fn take(&mut self, line: usize, text: &str) -> Result<(), String> {
        if text.contains("TriAttention aborted after keep dump") {
            self.dump_aborts.push(line);
            return Ok(());
        }
        if text.contains("[cuda_graph] Capture failed") {
            self.graph_failures.push(line);
            return Ok(());
        }
        let Some((tag, rest)) = tagged(text).and_then(|rest| rest.split_once(']')) else {
            self.unknown += 1;
            return Ok(());
        };
        let rest = rest.trim_start();
        match tag {
            ".triattention" if rest.starts_with("init ") => self.inits.push(init(line, rest)?),
            ".triattention" if rest.starts_with("compact ") => {
                self.compactions.push(compact(line, None, rest)?);
            }
            ".triattention.profile" if rest.starts_with("compact#") => {
                let ordinal = ordinal(rest)?;
                self.profiled.push(compact(line, Some(ordinal), rest)?);
            }
            ".dataset_benchmark" if rest.starts_with("sample=") => {
                self.samples.push(sample(line, rest)?);
            }
            "" if rest.starts_with("KV cache rows=") => self.caches.push(cache(line, rest)?),
            "" if rest.starts_with("Decode: ") => self.decodes.push(decode(line, rest)?),
            _ => self.unknown += 1,
        }
        Ok(())
    }
}

fn init(line: usize, text: &str) -> Result<InitLine, String> {
    let words = Words::of(text);
    Ok(InitLine {
        line,
        kv_budget: words.count("kv_budget")?,
        divide_length: words.count("divide_length")?,
        recent_window: words.count("recent_window")?,
        per_layer_aggregation: words.get("per_layer_aggregation").map(str::to_owned),
        count_prompt_tokens: words.flag("count_prompt_tokens"),
        protect_prefill: words.flag("protect_prefill"),
        kv_heads: words.optional("kv_heads"),
        query_heads: words.optional("query_heads"),
        cache_heads: words.optional("cache_heads"),
        layers_with_stats: words.optional("layers_with_stats"),
    })
}

fn compact(line: usize, ordinal: Option<u32>, text: &str) -> Result<CompactLine, String> {
    let words = Words::of(text);
    Ok(CompactLine {
        line,
        ordinal,
        absolute_position: words.count("abs_pos")?,
        old_rows: words.count("old_rows")?,
        kept_rows: words.count("kept_rows")?,
        kept_prefix: words.optional("kept_prefix"),
    })
}

fn ordinal(text: &str) -> Result<u32, String> {
    let digits = text.trim_start_matches("compact#").split(' ').next().unwrap_or_default();
    digits.parse().map_err(|_| format!("`compact#{digits}` has no number"))
}

fn sample(line: usize, text: &str) -> Result<SampleLine, String> {
    let words = Words::of(text);
    Ok(SampleLine {
        line,
        sample_id: words.get("sample").ok_or("no `sample`")?.to_owned(),
        generated_tokens: words.number("generated_tokens")?,
        decode_ms: words.number("decode_ms")?,
        tokens_per_sec: words.number("tok/s")?,
    })
}

fn cache(line: usize, text: &str) -> Result<CacheLine, String> {
    let words = Words::of(text);
    let max = text.split_once("bundle max=").map(|(_, rest)| rest);
    let max = max.map(|rest| rest.split([',', ')']).next().unwrap_or_default().trim());
    Ok(CacheLine {
        line,
        rows: words.count("rows")?,
        bundle_max: max.and_then(|max| max.parse().ok()),
        clamped: text.contains("clamped-to-bundle-max"),
    })
}

fn decode(line: usize, text: &str) -> Result<DecodeLine, String> {
    let part =
        |unit: &str| number_before(text, unit).ok_or_else(|| format!("no number before `{unit}`"));
    let tokens: Option<u64> = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
    Ok(DecodeLine {
        line,
        tokens: tokens.ok_or("no number of tokens")?,
        ms: part("ms")?,
        tokens_per_sec: part("tok/s")?,
        cuda_graph: text.contains("CUDA Graph ON"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &[u8]) -> EngineLog {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stderr.txt");
        std::fs::write(&path, text).unwrap();
        read_log(&path).unwrap()
    }

    const TEXT: &str = "\
[TRT] engine loaded
[trtf.triattention] init kv_budget=256 divide_length=64 recent_window=128 per_layer_aggregation=mean count_prompt_tokens=1 protect_prefill=1 disable_mlr=0 disable_trig=0 kv_heads=8 query_heads=16 cache_heads=16 score_group=2 layers_with_stats=28
[trtf] KV cache rows=320 (bundle max=4096, row=112.00 KiB, cache=35.00 MiB, state=35.10 MiB) [requested=35M] [clamped-to-bundle-max]
\r 3/30 [trtf.triattention] compact abs_pos=320 old_rows=320 kept_rows=256 kept_prefix=41 first_pos=0 last_pos=319 dropped_pos=50,51
[trtmc.triattention.profile] compact#2 abs_pos=384 old_rows=320 kept_rows=256 reserved=169 candidates=151 sampled_layers=28 sampled_heads=448 host_copy_ms=0 score_ms=1.5
[trtf] Decode: 411 tokens, 5150.22 ms, 79.80 tok/s [CUDA Graph ON]
[trtf.dataset_benchmark] sample=toy_4 generated_tokens=412 decode_ms=5150.22 tok/s=79.99
[cuda_graph] Capture failed, disabling CUDA Graphs
terminate called: TriAttention aborted after keep dump
[trtf.other] something
[trtf.triattention] compact abs_pos=38";

    #[test]
    fn every_known_line_gives_its_facts() {
        let log = read_text(TEXT.as_bytes());
        let init = &log.inits[0];
        assert_eq!(
            (init.line, init.kv_budget, init.divide_length, init.recent_window),
            (2, 256, 64, 128)
        );
        assert_eq!(
            (init.count_prompt_tokens, init.kv_heads, init.query_heads),
            (Some(true), Some(8), Some(16))
        );
        assert_eq!(
            (log.caches[0].rows, log.caches[0].bundle_max, log.caches[0].clamped),
            (320, Some(4096), true)
        );
        let plain = &log.compactions[0];
        assert_eq!(
            (plain.line, plain.absolute_position, plain.old_rows, plain.kept_rows),
            (4, 320, 320, 256)
        );
        assert_eq!((plain.ordinal, plain.kept_prefix), (None, Some(41)));
        let profiled = &log.events()[0];
        assert_eq!((profiled.ordinal, profiled.absolute_position), (Some(2), 384));
        let decode = &log.decodes[0];
        assert_eq!(
            (decode.tokens, decode.ms, decode.tokens_per_sec, decode.cuda_graph),
            (411, 5150.22, 79.80, true)
        );
        let sample = &log.samples[0];
        assert_eq!(
            (sample.sample_id.as_str(), sample.generated_tokens, sample.tokens_per_sec),
            ("toy_4", 412, 79.99)
        );
        assert_eq!(
            (log.graph_failures.as_slice(), log.dump_aborts.as_slice()),
            ([8].as_slice(), [9].as_slice())
        );
    }

    #[test]
    fn unknown_lines_are_counted_and_torn_ones_named() {
        let log = read_text(TEXT.as_bytes());
        assert_eq!(log.unknown, 2);
        assert_eq!(log.torn, [(11, "`old_rows` is missing or no number".to_owned())]);
        let other = read_text(b"Downloading\n\xff\xfe\n[trtfx] KV cache rows=3\n");
        assert_eq!((other.unknown, other.torn.len(), other.caches.len()), (3, 0, 0));
    }

    #[test]
    fn without_profile_lines_the_plain_ones_are_the_events() {
        let log = read_text(TEXT.replace(".profile", ".other").as_bytes());
        assert_eq!(log.events().len(), 1);
        assert_eq!(log.events()[0].absolute_position, 320);
    }
}
