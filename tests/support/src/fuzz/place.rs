//! Where a reader that wants a path finds the bytes of an input.

use std::path::{Component, Path};

use tempfile::TempDir;

/// Memory, where the system has a file system in it and `TMPDIR` names no other place: a fuzzer writes some thousand files a second.
const MEMORY: &str = "/dev/shm";
/// Starts the line that names a file of a tree; see [`pack`].
const MARK: &[u8] = b"\n>>>";
/// Files of one tree at most.
const MOST_FILES: usize = 64;
/// Longest path inside a tree.
const MOST_NAME: usize = 160;

/// A new empty folder.
///
/// # Panics
/// Where none can be made: nothing was tested then.
#[must_use]
pub fn folder() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("lockstep-fuzz-");
    let made = if std::env::var_os("TMPDIR").is_none() && Path::new(MEMORY).is_dir() {
        builder.tempdir_in(MEMORY).or_else(|_| builder.tempdir())
    } else {
        builder.tempdir()
    };
    made.expect("a temporary folder")
}

/// Calls `read` with a file of that name that holds `data`, in a folder of its own.
///
/// # Panics
/// Where the file cannot be written.
pub fn file<T>(name: &str, data: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let home = folder();
    let path = home.path().join(name);
    std::fs::write(&path, data).expect("an input is written");
    read(&path)
}

/// Calls `read` with a folder that holds the files of [`unpack`].
pub fn tree<T>(data: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let home = folder();
    lay(home.path(), &unpack(data));
    read(home.path())
}

/// Writes files below `dir`. A path that cannot be made (a file where a folder should be) is left out.
pub fn lay(dir: &Path, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = dir.join(name);
        if path.parent().is_some_and(|parent| std::fs::create_dir_all(parent).is_ok()) {
            let _ = std::fs::write(&path, bytes);
        }
    }
}

/// Several files as one input: before each a line `>>>path`. Made for mutation: no length and no count can be wrong.
#[must_use]
pub fn pack<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        let mark = if out.is_empty() { &MARK[1..] } else { MARK };
        out.extend_from_slice(mark);
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
        out.extend_from_slice(bytes);
    }
    out
}

/// The files of an input; those whose path leaves the folder are left out.
#[must_use]
pub fn unpack(data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let first = data.strip_prefix(&MARK[1..]);
    let mut rest = match first {
        Some(rest) => Some(rest),
        None => split(data, MARK).map(|(_, rest)| rest),
    };
    let mut files = Vec::new();
    while let Some(part) = rest {
        let (one, next) = match split(part, MARK) {
            Some((one, next)) => (one, Some(next)),
            None => (part, None),
        };
        rest = next;
        let (name, bytes) = split(one, b"\n").unwrap_or((one, b""));
        if let Some(name) = std::str::from_utf8(name).ok().filter(|name| plain(name)) {
            files.push((name.to_owned(), bytes.to_vec()));
        }
        if files.len() == MOST_FILES {
            break;
        }
    }
    files
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let start = bytes.windows(at.len()).position(|window| window == at)?;
    Some((&bytes[..start], &bytes[start + at.len()..]))
}

fn plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MOST_NAME
        && !name.contains('\0')
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

/// Every file below `dir` as one input.
///
/// # Panics
/// Where `dir` cannot be read.
#[must_use]
pub fn pack_folder(dir: &Path) -> Vec<u8> {
    let mut files = Vec::new();
    collect(dir, "", &mut files);
    pack(files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())))
}

fn collect(dir: &Path, below: &str, files: &mut Vec<(String, Vec<u8>)>) {
    let entries =
        std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let name = if below.is_empty() { name.to_owned() } else { format!("{below}/{name}") };
        if path.is_dir() {
            collect(&path, &name, files);
        } else {
            files.push((name, std::fs::read(&path).expect("a file")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_back_and_cannot_leave_its_folder() {
        let files = [("a.json", b"{}\n".as_slice()), ("b/c.bin", b"\x00>>>\n>>".as_slice())];
        let packed = pack(files);
        let back = unpack(&packed);
        assert_eq!(back.len(), 2);
        for ((name, bytes), (left, right)) in files.iter().zip(&back) {
            assert_eq!((*name, *bytes), (left.as_str(), right.as_slice()));
        }
        tree(&packed, |dir| assert_eq!(pack_folder(dir), packed));
        for name in ["../a", "/a", "a/../../b", "", "a\0b", "."] {
            assert!(unpack(format!(">>>{name}\nx").as_bytes()).is_empty(), "{name:?}");
        }
        assert!(unpack(b"no mark at all").is_empty());
    }
}
