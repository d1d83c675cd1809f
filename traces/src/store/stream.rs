//! The running Arrow IPC stream: append whole batches, and find them again in a file whose end may be cut.
//!
//! Layout (Arrow columnar format, "IPC streaming format"): messages of `FF FF FF FF`, an `i32` length, a
//! flatbuffer of that length, and a body whose length the flatbuffer gives. A writer that is killed leaves at
//! most one message cut, the last; anything else that does not parse is damage. Each message carries a checksum
//! (see `sums`), so that a batch is read as it was written or not at all.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use arrow::ipc::{MessageHeader, root_as_message};

use super::fail::{arrow, guard, io, malformed};
use super::sums::{seal, sealed};
use crate::TraceError;

const MARKER: [u8; 4] = [0xFF; 4];
/// A flatbuffer beyond this is a lie: those of the tables here have a few kilobytes.
const HEADER_LIMIT: u64 = 16 << 20;

/// Appends batches to a stream, each in one write.
pub(crate) struct StreamFile {
    path: PathBuf,
    file: File,
    encoder: StreamWriter<Vec<u8>>,
    good: u64,
    broken: bool,
}

impl StreamFile {
    /// A new stream that holds the schema and no batch. The file must not exist.
    pub(crate) fn create(path: &Path, schema: &Schema) -> Result<Self, TraceError> {
        let file = OpenOptions::new().create_new(true).append(true).open(path).map_err(io(path))?;
        let encoder = StreamWriter::try_new(Vec::new(), schema).map_err(arrow(path))?;
        let mut stream = Self { path: path.to_path_buf(), file, encoder, good: 0, broken: false };
        stream.flush_encoder()?;
        Ok(stream)
    }

    /// Takes the file for this process, so that two writers never append to one run.
    pub(crate) fn lock(&self) -> Result<(), TraceError> {
        match self.file.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => Err(malformed(
                &self.path,
                "another process is writing this run; wait for it or stop it",
            )),
            // A file system without locks is no reason not to record.
            Err(std::fs::TryLockError::Error(_)) | Ok(()) => Ok(()),
        }
    }

    /// Appends one batch. After a failure the file ends where it ended before, and nothing more is accepted.
    pub(crate) fn append(&mut self, batch: &RecordBatch) -> Result<(), TraceError> {
        if self.broken {
            return Err(malformed(&self.path, "an earlier write failed; resume the run to go on"));
        }
        self.encoder.write(batch).map_err(arrow(&self.path))?;
        self.flush_encoder()
    }

    fn flush_encoder(&mut self) -> Result<(), TraceError> {
        let bytes = self.encoder.get_mut();
        seal(bytes).ok_or_else(|| malformed(&self.path, "the encoder wrote no message"))?;
        let written = self.file.write_all(bytes);
        if let Err(error) = written {
            self.broken = true;
            // Without this a reader sees a cut tail, which it also accepts.
            let _cut = self.file.set_len(self.good);
            return Err(io(&self.path)(error));
        }
        self.good += bytes.len() as u64;
        bytes.clear();
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub(super) fn write_to(&mut self, file: File) {
        self.file = file;
    }

    /// Moves the file; appending goes on.
    pub(crate) fn rename(&mut self, to: &Path) -> Result<(), TraceError> {
        std::fs::rename(&self.path, to).map_err(io(to))?;
        self.path = to.to_path_buf();
        Ok(())
    }
}

/// Where a whole batch lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    offset: u64,
    pub(crate) len: u64,
}

/// The whole batches of a stream at the moment of opening.
#[derive(Debug)]
pub(crate) struct StreamIndex {
    path: PathBuf,
    schema: Option<Frame>,
    frames: Vec<Frame>,
    tail: u64,
}

enum Message {
    Schema(Frame),
    Batch(Frame),
    End(Frame),
    Cut,
    Bad(&'static str),
}

impl StreamIndex {
    /// Finds the whole batches. A cut last message is noted ([`StreamIndex::remark`]), not an error.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::Malformed`] where something other than the last message is damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, TraceError> {
        let mut file = File::open(path).map_err(io(path))?;
        let end = file.metadata().map_err(io(path))?.len();
        let mut index =
            Self { path: path.to_path_buf(), schema: None, frames: Vec::new(), tail: 0 };
        let mut offset = 0;
        while offset < end {
            let bad = |what: &str, batch: usize| {
                malformed(
                    path,
                    format!(
                        "batch {batch} at byte {offset} is damaged ({what}); the rows before it are whole, but what follows is not"
                    ),
                )
            };
            let number = index.frames.len() + 1;
            let frame = match message(&mut file, offset, end).map_err(io(path))? {
                Message::Schema(frame) if index.schema.is_none() => {
                    index.schema = Some(frame);
                    frame
                }
                Message::Batch(frame) if index.schema.is_some() => {
                    index.frames.push(frame);
                    frame
                }
                Message::End(frame) if offset + frame.len == end => frame,
                Message::Schema(_) | Message::Batch(_) | Message::End(_) => {
                    return Err(bad("message out of order", number));
                }
                Message::Bad(what) => return Err(bad(what, number)),
                Message::Cut => {
                    if batch_follows(&mut file, offset, end).map_err(io(path))? {
                        return Err(bad("its length reaches past a later batch", number));
                    }
                    index.tail = end - offset;
                    break;
                }
            };
            offset += frame.len;
        }
        Ok(index)
    }

    /// What was read around, if anything.
    pub(crate) fn remark(&self) -> Option<String> {
        let name = self.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        (self.tail > 0).then(|| {
            let (tail, whole) = (self.tail, self.frames.len());
            format!("{name}: the last {tail} bytes are a cut batch and were left out; {whole} whole batches before it")
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// A reader of these batches that checks their columns against `expected`.
    pub(crate) fn reader(&self, expected: &SchemaRef) -> Result<BatchReader<'_>, TraceError> {
        let mut reader = BatchReader {
            index: self,
            file: File::open(&self.path).map_err(io(&self.path))?,
            decoder: StreamDecoder::new(),
            expected: expected.clone(),
        };
        if let Some(frame) = self.schema {
            let mut buffer = reader.load(frame)?;
            let decoded = guard(&self.path, || {
                let decoded = reader.decoder.decode(&mut buffer);
                decoded.map_err(|error| damaged(&self.path, frame, &error))
            });
            decoded?;
        }
        Ok(reader)
    }
}

/// Decodes batches of a [`StreamIndex`] in any order.
pub(crate) struct BatchReader<'a> {
    index: &'a StreamIndex,
    file: File,
    decoder: StreamDecoder,
    expected: SchemaRef,
}

impl BatchReader<'_> {
    /// Batch `number`, 0-based.
    pub(crate) fn read(&mut self, number: usize) -> Result<RecordBatch, TraceError> {
        let frame = *self
            .index
            .frames
            .get(number)
            .ok_or_else(|| malformed(&self.index.path, format!("no batch {number}")))?;
        let mut buffer = self.load(frame)?;
        let path = &self.index.path;
        let decoder = &mut self.decoder;
        let batch = guard(path, || {
            decoder.decode(&mut buffer).map_err(|error| damaged(path, frame, &error))
        })?;
        let batch = batch.filter(|batch| batch.schema().fields() == self.expected.fields());
        batch.ok_or_else(|| {
            malformed(
                &self.index.path,
                format!(
                    "batch {} at byte {} has other columns than this build's",
                    number + 1,
                    frame.offset
                ),
            )
        })
    }

    fn load(&mut self, frame: Frame) -> Result<Buffer, TraceError> {
        let path = &self.index.path;
        let len = usize::try_from(frame.len).map_err(|_| malformed(path, "batch too large"))?;
        // The index has seen that the file holds this many bytes.
        let mut bytes = vec![0_u8; len];
        self.file.seek(SeekFrom::Start(frame.offset)).map_err(io(path))?;
        self.file.read_exact(&mut bytes).map_err(io(path))?;
        if !sealed(&bytes) {
            return Err(damaged(path, frame, &"its checksum differs"));
        }
        Ok(Buffer::from_vec(bytes))
    }
}

fn damaged(path: &Path, frame: Frame, error: &dyn std::fmt::Display) -> TraceError {
    malformed(path, format!("the batch at byte {} is damaged: {error}", frame.offset))
}

fn message(file: &mut File, offset: u64, end: u64) -> std::io::Result<Message> {
    let room = end - offset;
    if room < 8 {
        return Ok(Message::Cut);
    }
    let mut prefix = [0_u8; 8];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut prefix)?;
    let [m0, m1, m2, m3, l0, l1, l2, l3] = prefix;
    if [m0, m1, m2, m3] != MARKER {
        return Ok(Message::Bad("no message starts here"));
    }
    let header = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
    if header == 0 {
        return Ok(Message::End(Frame { offset, len: 8 }));
    }
    if header > HEADER_LIMIT {
        return Ok(Message::Bad("header length is absurd"));
    }
    if header > room - 8 {
        return Ok(Message::Cut);
    }
    let mut bytes = vec![0_u8; usize::try_from(header).unwrap_or(0)];
    file.read_exact(&mut bytes)?;
    let Ok(parsed) = root_as_message(&bytes) else {
        return Ok(Message::Bad("header does not parse"));
    };
    let Ok(body) = u64::try_from(parsed.bodyLength()) else {
        return Ok(Message::Bad("body length is negative"));
    };
    let Some(len) = body.checked_add(8 + header) else {
        return Ok(Message::Bad("body length overflows"));
    };
    if len > room {
        return Ok(Message::Cut);
    }
    let frame = Frame { offset, len };
    Ok(match parsed.header_type() {
        MessageHeader::Schema => Message::Schema(frame),
        MessageHeader::RecordBatch if parsed.header_as_record_batch().is_some() => {
            Message::Batch(frame)
        }
        _ => Message::Bad("neither schema nor batch"),
    })
}

/// Does a whole batch start after `offset`? Then the message at `offset` is not cut but damaged.
fn batch_follows(file: &mut File, offset: u64, end: u64) -> std::io::Result<bool> {
    // Messages are aligned to eight bytes.
    const CHUNK: usize = 1 << 20;
    let mut chunk = vec![0_u8; CHUNK];
    let mut at = offset + 8;
    while at + 8 <= end {
        let len = usize::try_from((end - at).min(CHUNK as u64)).unwrap_or(CHUNK) & !7;
        let Some(window) = chunk.get_mut(..len) else { break };
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(window)?;
        for (number, word) in (0_u64..).zip(window.chunks_exact(8)) {
            if word.starts_with(&MARKER) {
                let found = message(file, at + 8 * number, end)?;
                if matches!(found, Message::Batch(_)) {
                    return Ok(true);
                }
            }
        }
        at += len as u64;
    }
    Ok(false)
}
