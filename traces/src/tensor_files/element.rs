//! Element types that plain tensor files hold.

use crate::DType;

/// Element type of a tensor in a plain file. Floating-point names are those of safetensors in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Element {
    /// IEEE binary64.
    F64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// OCP FP8 with 4 exponent bits, no infinity, NaN at 0x7f and 0xff (`float8_e4m3fn`).
    F8E4M3,
    /// OCP FP8 with 5 exponent bits, IEEE-like.
    F8E5M2,
    /// FP8 with 4 exponent bits of bias 8, no negative zero, NaN at 0x80.
    F8E4M3Fnuz,
    /// FP8 with 5 exponent bits of bias 16, no negative zero, NaN at 0x80.
    F8E5M2Fnuz,
    /// Signed 64-bit.
    I64,
    /// Signed 32-bit.
    I32,
    /// Signed 16-bit.
    I16,
    /// Signed 8-bit.
    I8,
    /// Unsigned 64-bit.
    U64,
    /// Unsigned 32-bit.
    U32,
    /// Unsigned 16-bit.
    U16,
    /// Unsigned 8-bit.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl Element {
    /// Every type, in the order in which types are offered to a person.
    pub const ALL: [Self; 17] = [
        Self::F64,
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::F8E4M3,
        Self::F8E5M2,
        Self::F8E4M3Fnuz,
        Self::F8E5M2Fnuz,
        Self::I64,
        Self::I32,
        Self::I16,
        Self::I8,
        Self::U64,
        Self::U32,
        Self::U16,
        Self::U8,
        Self::Bool,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            _ => 1,
        }
    }

    /// Name as on the command line and in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F8E4M3 => "f8_e4m3",
            Self::F8E5M2 => "f8_e5m2",
            Self::F8E4M3Fnuz => "f8_e4m3fnuz",
            Self::F8E5M2Fnuz => "f8_e5m2fnuz",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::U64 => "u64",
            Self::U32 => "u32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        }
    }

    /// Name in the header of a safetensors file.
    #[must_use]
    pub const fn safetensors(self) -> &'static str {
        match self {
            Self::F64 => "F64",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::F8E4M3 => "F8_E4M3",
            Self::F8E5M2 => "F8_E5M2",
            Self::F8E4M3Fnuz => "F8_E4M3FNUZ",
            Self::F8E5M2Fnuz => "F8_E5M2FNUZ",
            Self::I64 => "I64",
            Self::I32 => "I32",
            Self::I16 => "I16",
            Self::I8 => "I8",
            Self::U64 => "U64",
            Self::U32 => "U32",
            Self::U16 => "U16",
            Self::U8 => "U8",
            Self::Bool => "BOOL",
        }
    }

    /// Type code of NumPy with its byte order; `None` for the types that NumPy does not have.
    #[must_use]
    pub const fn numpy(self) -> Option<&'static str> {
        Some(match self {
            Self::F64 => "<f8",
            Self::F32 => "<f4",
            Self::F16 => "<f2",
            Self::I64 => "<i8",
            Self::I32 => "<i4",
            Self::I16 => "<i2",
            Self::I8 => "|i1",
            Self::U64 => "<u8",
            Self::U32 => "<u4",
            Self::U16 => "<u2",
            Self::U8 => "|u1",
            Self::Bool => "|b1",
            _ => return None,
        })
    }

    /// A floating-point type?
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F64
                | Self::F32
                | Self::F16
                | Self::Bf16
                | Self::F8E4M3
                | Self::F8E5M2
                | Self::F8E4M3Fnuz
                | Self::F8E5M2Fnuz
        )
    }

    /// The same type among those of dumps and caches, if it is one of them.
    #[must_use]
    pub const fn dtype(self) -> Option<DType> {
        Some(match self {
            Self::F64 => DType::F64,
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
            Self::I64 => DType::I64,
            Self::I32 => DType::I32,
            Self::I16 => DType::I16,
            Self::U8 | Self::Bool => DType::U8,
            _ => return None,
        })
    }
}

impl std::str::FromStr for Element {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        let plain = match lower.as_str() {
            "fp64" | "float64" | "double" => "f64",
            "fp32" | "float32" | "float" => "f32",
            "fp16" | "float16" | "half" => "f16",
            "bfloat16" => "bf16",
            "f8e4m3" | "f8_e4m3fn" | "float8_e4m3fn" | "e4m3" => "f8_e4m3",
            "f8e5m2" | "float8_e5m2" | "e5m2" => "f8_e5m2",
            "float8_e4m3fnuz" => "f8_e4m3fnuz",
            "float8_e5m2fnuz" => "f8_e5m2fnuz",
            "int64" | "long" => "i64",
            "int32" | "int" => "i32",
            "int16" | "short" => "i16",
            "int8" => "i8",
            "uint64" => "u64",
            "uint32" => "u32",
            "uint16" => "u16",
            "uint8" => "u8",
            other => other,
        };
        let found = Self::ALL.into_iter().find(|element| element.name() == plain);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|element| element.name()).collect();
            format!("unknown element type `{text}`; there are {}", names.join(", "))
        })
    }
}
