//! Compiled programs on disk, named by the hash of everything that made them. A cache that cannot be used costs time and nothing else.

use std::path::PathBuf;

/// `LOCKSTEP_CACHE`, else the user's cache folder.
pub(super) fn folder() -> Option<PathBuf> {
    let set =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("LOCKSTEP_CACHE").or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .map(|cache| cache.join("lockstep"))
    })?;
    Some(base.join("kernels"))
}

/// File of a key, whether there or not.
pub(super) fn path(key: &str, extension: &str) -> Option<PathBuf> {
    Some(folder()?.join(format!("{key}.{extension}")))
}

/// Contents under a key. The last 64 bytes are the hash of the rest, in hex: a file that was cut or changed is no hit.
pub(super) fn read(key: &str, extension: &str) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path(key, extension)?).ok()?;
    let sum = bytes.split_off(bytes.len().checked_sub(64)?);
    (lockstep_traces::hash::sha256_hex(&bytes).as_bytes() == sum).then_some(bytes)
}

/// Puts contents under a key.
pub(super) fn write(key: &str, extension: &str, contents: &[u8]) {
    let Some(path) = path(key, extension) else { return };
    let Some(folder) = path.parent() else { return };
    let mut bytes = contents.to_vec();
    bytes.extend_from_slice(lockstep_traces::hash::sha256_hex(contents).as_bytes());
    let temporary = folder.join(format!("{key}.{}.tmp", std::process::id()));
    let _ = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&temporary, &bytes))
        .and_then(|()| std::fs::rename(&temporary, &path));
}
