//! Element types of stored tensors.

use serde::{Deserialize, Serialize};

/// Element type of weights, caches and dumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE binary64 (reference only).
    F64,
    /// Signed 32-bit (positions, keep indices).
    I32,
    /// Signed 16-bit.
    I16,
    /// Signed 64-bit.
    I64,
    /// Unsigned 8-bit.
    U8,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Lower-case name as on the command line: `f32`, `bf16`, ...
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }
}

impl std::str::FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "f32" | "fp32" | "float32" => Self::F32,
            "f16" | "fp16" | "float16" => Self::F16,
            "bf16" | "bfloat16" => Self::Bf16,
            "f64" | "fp64" | "float64" => Self::F64,
            other => return Err(format!("unknown dtype `{other}`; use f32, f16, bf16 or f64")),
        })
    }
}
