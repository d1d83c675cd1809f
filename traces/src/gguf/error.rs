//! What can be wrong with a GGUF file.

/// A GGUF file contradicts itself or the format. The file's name is added by whoever opened it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Other first bytes.
    #[error("no GGUF file: it begins with {0:?} instead of \"GGUF\"")]
    Magic(String),
    /// A version that is not read.
    #[error("GGUF version {0} cannot be read; versions 1, 2 and 3 can")]
    Version(u32),
    /// The version reads as one with its bytes swapped.
    #[error("a big-endian GGUF file; convert it to little-endian")]
    BigEndian,
    /// The file ends inside the header.
    #[error(
        "cut at byte {at} inside {what}: {wanted} bytes wanted, {left} left; download it again"
    )]
    Cut {
        /// Where the item starts.
        at: usize,
        /// What was being read.
        what: String,
        /// Bytes that it takes.
        wanted: u64,
        /// Bytes that are there.
        left: usize,
    },
    /// A count or length that cannot be true.
    #[error("{what} at byte {at} is {count}, more than {bound}; the header is damaged")]
    Count {
        /// Where it stands.
        at: usize,
        /// What is counted.
        what: String,
        /// As written.
        count: u64,
        /// What it exceeds.
        bound: String,
    },
    /// A name or text that is no UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Text {
        /// Where it starts.
        at: usize,
        /// What was being read.
        what: String,
    },
    /// A key that is wrong: unknown value type, given twice, nested too deeply.
    #[error("key `{key}` at byte {at}: {what}")]
    Key {
        /// Key.
        key: String,
        /// Where the pair starts.
        at: usize,
        /// What is wrong.
        what: String,
    },
    /// A tensor that contradicts itself, the file or another tensor.
    #[error("tensor `{tensor}`: {what}")]
    Tensor {
        /// Name.
        tensor: String,
        /// What is wrong, with offsets from the start of the data.
        what: String,
    },
    /// Bytes that no tensor has, at the end.
    #[error(
        "{bytes} bytes after the data of the last tensor, `{last}`; the count of tensors is too low or the file is damaged"
    )]
    Trailing {
        /// How many.
        bytes: u64,
        /// The tensor that ends last.
        last: String,
    },
}
