//! `import` of tensor files and of the dumps that debuggers leave.

use std::path::Path;

use lockstep_traces::store::is_run;
use lockstep_traces::tensor_files::{ReadOptions, TensorSet, read, recognised};
use lockstep_traces::tensor_runs::{RunMap, TensorImport, import_tensors};

use super::guess;
use crate::cli::{ImportArgs, ImportKind};
use crate::exit::usage;

/// The kind that a set is of by what it holds.
fn kind_of(set: &TensorSet) -> ImportKind {
    match set.format {
        "SGLang dump" => ImportKind::SglangDump,
        "msProbe dump" => ImportKind::Msprobe,
        "TensorRT-LLM debug tensors" => ImportKind::TrtllmDebug,
        "Polygraphy run results" => ImportKind::Polygraphy,
        _ => ImportKind::Tensors,
    }
}

/// The kind of a file or folder of tensors; `None` where it is none.
pub(super) fn kind(path: &Path) -> Option<ImportKind> {
    if is_run(path) || !recognised(path) {
        return None;
    }
    read(path, &ReadOptions::default()).ok().map(|set| kind_of(&set))
}

/// Imports a set as `kind`, which it must be; any set may be imported as `tensors`.
pub(super) fn import(
    kind: ImportKind,
    path: &Path,
    args: &ImportArgs,
) -> anyhow::Result<Vec<String>> {
    let map = args.map.as_deref().map(RunMap::read).transpose()?.unwrap_or_default();
    let set = read(path, &ReadOptions { raw: args.raw.clone() })?;
    let found = kind_of(&set);
    // A lone file of SGLang's has nothing of its own but its name.
    let lone = kind == ImportKind::SglangDump && path.is_file() && set.format.starts_with("torch");
    if kind != ImportKind::Tensors && kind != found && !lone {
        return Err(usage(format!(
            "{}: holds {}, not what {} writes; import it as {}",
            path.display(),
            set.format,
            guess::name(kind),
            guess::name(found)
        )));
    }
    let options = TensorImport { map, prompt_len: args.prompt_len };
    Ok(import_tensors(&set, &options, &args.out)?)
}
