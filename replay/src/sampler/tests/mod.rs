//! Identification against draws that PyTorch made, and public reports as small files.

mod cases;
mod files;
mod torch;
