//! Foreign trace files, and one door for everything that holds a trace.
