//! The run directory: writer, reader, stream.
