//! Writes a report of made-up figures, to look at: `cargo run -p lockstep-reports --example gallery -- DIR`.

mod compared;
mod made_up;

use std::path::PathBuf;

fn main() -> Result<(), lockstep_reports::ReportError> {
    let dir = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "gallery".to_owned()));
    lockstep_reports::write_all(&made_up::report(), &dir)?;
    Ok(())
}
