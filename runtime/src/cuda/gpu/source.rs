//! Kernel sources: one file an operation family, compiled with explicit options and element types.

use lockstep_traces::DType;
use lockstep_traces::hash::sha256_hex;

use super::GpuError;

const COMMON: &str = include_str!("../../../kernels/common.cuh");
pub(super) const EMULATE: &str = include_str!("../../../kernels/emulate.h");

/// A kernel file below `runtime/kernels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelFile {
    /// File name.
    pub name: &'static str,
    /// Text.
    pub text: &'static str,
}

macro_rules! kernel_files {
    ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
        impl KernelFile {
            $($(#[$doc])* pub const $constant: Self =
                Self { name: $name, text: include_str!(concat!("../../../kernels/", $name)) };)*
            /// Every kernel file.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

kernel_files! {
    /// Rows of the embedding, rotary tables, random weights.
    EMBED = "embed.cu";
    /// RMSNorm, residual sums, SwiGLU.
    NORM = "norm.cu";
    /// QK norm, rotary embedding and cache append of prefill rows.
    ROPE = "rope.cu";
    /// Matrix times a few columns: the projections of decode.
    LINEAR = "linear.cu";
    /// Attention of one new row a sequence over the live rows, QK norm, RoPE and append included.
    ATTENTION_DECODE = "attention_decode.cu";
    /// Attention of a chunk of new rows.
    ATTENTION_PREFILL = "attention_prefill.cu";
    /// What a step row says about its logits.
    LOGITS = "logits.cu";
    /// Filters and draws.
    SAMPLE = "sample.cu";
    /// Raw scores of cached rows.
    SELECT_SCORE = "select_score.cu";
    /// z-score and reductions over group and layers.
    SELECT_REDUCE = "select_reduce.cu";
    /// The best rows by the rule set's tie rule, in its order.
    SELECT_TOP = "select_top.cu";
    /// K, V and positions by keep-set.
    GATHER = "gather.cu";
}

/// Settings that a program is compiled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Build {
    /// Element type of activations and weights.
    pub elem: DType,
    /// Element type of the KV cache.
    pub cache: DType,
    /// Width of a head, where the file asks (`HEAD_DIM`); 0 leaves it out.
    pub head_dim: usize,
    /// Query heads of a KV head, where the file asks (`GROUP`); 0 leaves it out.
    pub group: usize,
}

impl Build {
    /// One element type, no attention shape.
    #[must_use]
    pub const fn of(elem: DType) -> Self {
        Self { elem, cache: elem, head_dim: 0, group: 0 }
    }
}

/// A source with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Program {
    /// Source.
    pub file: KernelFile,
    /// Settings.
    pub build: Build,
}

impl Program {
    /// `-D` options.
    #[must_use]
    pub fn defines(&self) -> Vec<String> {
        let Build { elem, cache, head_dim, group } = self.build;
        let mut list =
            vec![format!("-DELEM={}", element(elem)), format!("-DCACHE={}", element(cache))];
        for (name, value) in [("HEAD_DIM", head_dim), ("GROUP", group)] {
            if value > 0 {
                list.push(format!("-D{name}={value}"));
            }
        }
        list
    }

    /// Common part and file as one text.
    #[must_use]
    pub fn text(&self) -> String {
        format!(
            "#line 1 \"common.cuh\"\n{COMMON}\n#line 1 \"{}\"\n{}",
            self.file.name, self.file.text
        )
    }

    /// Name in the compile cache: hash over text, options, target and compiler.
    #[must_use]
    pub fn cache_key(&self, options: &[String], compiler: &str) -> String {
        let mut whole = self.text();
        for part in options.iter().map(String::as_str).chain([compiler]) {
            whole.push('\0');
            whole.push_str(part);
        }
        sha256_hex(whole.as_bytes())
    }

    /// Parameters of a kernel of the file, as they are declared.
    ///
    /// # Errors
    /// [`GpuError::NoKernel`].
    pub fn parameters(&self, kernel: &str) -> Result<Vec<Parameter>, GpuError> {
        let missing = || GpuError::NoKernel { file: self.file.name, kernel: kernel.to_owned() };
        let start = self.file.text.match_indices("KERNEL ").find_map(|(at, word)| {
            let rest = self.file.text[at + word.len()..].trim_start();
            let rest = rest.strip_prefix("LAUNCH_BOUNDS").map_or(rest, |rest| {
                rest.split_once(')').map_or("", |(_, rest)| rest).trim_start()
            });
            rest.strip_prefix(kernel)?.trim_start().strip_prefix('(')
        });
        let list = start.and_then(|rest| rest.split_once(')')).ok_or_else(missing)?.0;
        Ok(list
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(Parameter::read)
            .collect())
    }
}

/// Names of the kernels of a source.
pub(super) fn kernels(text: &str) -> Vec<&str> {
    text.match_indices("KERNEL ")
        .filter(|(at, _)| text[..*at].ends_with('\n') || *at == 0)
        .filter_map(|(at, word)| {
            let rest = text[at + word.len()..].trim_start();
            let rest = if rest.starts_with("LAUNCH_BOUNDS") {
                rest.split_once(')')?.1.trim_start()
            } else {
                rest
            };
            let end = rest.find('(')?;
            Some(rest[..end].trim())
        })
        .collect()
}

/// A declared parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// Address.
    Pointer,
    /// Four bytes.
    Word,
    /// Eight bytes.
    Long,
}

impl Parameter {
    fn read(text: &str) -> Self {
        if text.contains('*') {
            Self::Pointer
        } else if text.contains("u64") || text.contains("double") || text.contains("long long") {
            Self::Long
        } else {
            Self::Word
        }
    }
}

/// Value of `ELEM` and `CACHE`.
const fn element(dtype: DType) -> u8 {
    match dtype {
        DType::F16 => 1,
        DType::Bf16 => 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: KernelFile = KernelFile {
        name: "example.cu",
        text: "// KERNEL words in a comment\nKERNEL first(const float *x, u32 n, u64 seed) {\n}\n\
               KERNEL LAUNCH_BOUNDS(128, 2) second(elem *y, float scale) {}\n",
    };

    #[test]
    fn kernels_and_their_parameters_are_read_from_the_source() {
        let program = Program { file: FILE, build: Build::of(DType::Bf16) };
        assert_eq!(kernels(FILE.text), ["first", "second"]);
        assert_eq!(
            program.parameters("first").unwrap(),
            [Parameter::Pointer, Parameter::Word, Parameter::Long]
        );
        assert_eq!(program.parameters("second").unwrap(), [Parameter::Pointer, Parameter::Word]);
        assert!(matches!(program.parameters("third"), Err(GpuError::NoKernel { .. })));
    }

    #[test]
    fn every_option_and_byte_of_the_source_enters_the_cache_key() {
        let program = Program { file: FILE, build: Build::of(DType::Bf16) };
        let key = program.cache_key(&["-a".to_owned()], "1");
        assert_ne!(key, program.cache_key(&["-b".to_owned()], "1"));
        assert_ne!(key, program.cache_key(&["-a".to_owned()], "2"));
        let other = KernelFile { text: "KERNEL first() {}", ..FILE };
        assert_ne!(key, Program { file: other, ..program }.cache_key(&["-a".to_owned()], "1"));
    }

    #[test]
    fn every_shipped_file_has_kernels_and_begins_with_what_it_computes() {
        for file in KernelFile::ALL {
            assert!(!kernels(file.text).is_empty(), "{}", file.name);
            assert!(file.text.starts_with("// "), "{}", file.name);
        }
    }
}
