//! Reading token sequences: `FILE`, or `FILE#/pointer` for a part of a JSON file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::pieces::{PieceStyle, Vocabulary};
use crate::TraceError;
use crate::logprobs::{Node, documents};

/// Longest plain text that is read.
const MOST_BYTES: u64 = 64 << 20;

/// A token sequence as far as a file gives it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenFile {
    /// Ids.
    pub ids: Option<Vec<u32>>,
    /// Bytes of each token.
    pub pieces: Option<Vec<Vec<u8>>>,
    /// Text of the whole.
    pub text: Option<String>,
    /// The pieces are SentencePiece's, whose first blank is put before the text and taken away again.
    pub synthetic_blank: bool,
    /// Start token, where the file names it.
    pub bos: Option<u32>,
}

/// Splits `FILE#/pointer`; a file whose whole name is there is taken as it is.
#[must_use]
pub fn locate(argument: &str) -> (PathBuf, Option<String>) {
    let whole = Path::new(argument);
    match argument.rsplit_once('#') {
        Some((path, pointer)) if !whole.exists() => (PathBuf::from(path), Some(pointer.to_owned())),
        _ => (whole.to_owned(), None),
    }
}

/// Reads a sequence. JSON: a list of ids, a list of pieces, a text, or an object with `ids` (or `token_ids`, `input_ids`,
/// `prompt_token_ids`, `tokens`), `pieces` (or `tokens`) and `text` (or `prompt`, `content`). Anything else: ids between
/// blanks, or a plain text.
///
/// # Errors
/// [`TraceError::Io`]; [`TraceError::Malformed`] where there is no sequence at that place.
pub fn read(argument: &str) -> Result<TokenFile, TraceError> {
    let (path, pointer) = locate(argument);
    let malformed = |what: String| TraceError::Malformed { path: path.clone(), what };
    if pointer.is_none() && !starts_as_json(&path)? {
        return plain(&path);
    }
    let node = node(&path, pointer.as_deref())?;
    let mut found = sequence(&node).map_err(malformed)?;
    if found.bos.is_none()
        && let Some(pointer) = &pointer
        && let Some((parent, _)) = pointer.rsplit_once('/')
    {
        let beside = self::node(&path, Some(parent))?;
        found.bos = beside.get("bos").or_else(|| beside.get("bos_token_id")).and_then(id);
    }
    Ok(found)
}

fn starts_as_json(path: &Path) -> Result<bool, TraceError> {
    use std::io::Read as _;
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let mut head = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(4096).read_to_end(&mut head).map_err(io)?;
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head).trim_ascii_start();
    Ok(head.starts_with(&[0x1f, 0x8b]) || matches!(head.first(), Some(b'{' | b'[' | b'"')))
}

fn node(path: &Path, pointer: Option<&str>) -> Result<Node, TraceError> {
    let documents = documents(path)?;
    let malformed = |what: String| TraceError::Malformed { path: path.to_owned(), what };
    let root = match documents.nodes.len() {
        1 => documents.nodes.into_iter().next(),
        _ => Some(Node::List(documents.nodes)),
    };
    let root = root.ok_or_else(|| malformed("the file is empty".to_owned()))?;
    let pointer = pointer.unwrap_or_default();
    let pointer = if pointer.is_empty() || pointer.starts_with('/') {
        pointer.to_owned()
    } else {
        format!("/{pointer}")
    };
    root.pointer(&pointer)
        .cloned()
        .ok_or_else(|| malformed(format!("nothing stands at `{pointer}`")))
}

fn id(node: &Node) -> Option<u32> {
    node.index().and_then(|id| u32::try_from(id).ok())
}

fn sequence(node: &Node) -> Result<TokenFile, String> {
    match node {
        Node::Text(text) => Ok(TokenFile { text: Some(text.clone()), ..TokenFile::default() }),
        Node::List(items) => list(items),
        Node::Object(_) => object(node),
        _ => Err("neither a list of ids or pieces nor a text".to_owned()),
    }
}

fn list(items: &[Node]) -> Result<TokenFile, String> {
    if let Some(ids) = items.iter().map(id).collect::<Option<Vec<_>>>() {
        return Ok(TokenFile { ids: Some(ids), ..TokenFile::default() });
    }
    let pieces: Option<Vec<&str>> = items.iter().map(Node::text).collect();
    let Some(pieces) = pieces else {
        let at = items.iter().position(|item| id(item).is_none()).unwrap_or(0);
        return Err(format!(
            "element {at} is neither an id of 0 ..= {} nor a piece of text",
            u32::MAX
        ));
    };
    let style = PieceStyle::of(pieces.iter().copied());
    let pieces = pieces.into_iter().map(|piece| style.bytes(piece)).collect();
    let synthetic_blank = style == PieceStyle::SentencePiece;
    Ok(TokenFile { pieces: Some(pieces), synthetic_blank, ..TokenFile::default() })
}

fn object(node: &Node) -> Result<TokenFile, String> {
    let mut found = TokenFile::default();
    for key in
        ["ids", "token_ids", "input_ids", "prompt_token_ids", "generated_ids", "pieces", "tokens"]
    {
        let Some(items) = node.get(key).and_then(Node::list) else { continue };
        let part = list(items).map_err(|what| format!("`{key}`: {what}"))?;
        found.ids = found.ids.or(part.ids);
        found.synthetic_blank |= part.synthetic_blank;
        found.pieces = found.pieces.or(part.pieces);
    }
    found.text = ["text", "prompt", "content"]
        .iter()
        .find_map(|key| node.get(key)?.text())
        .map(str::to_owned);
    found.bos = ["bos", "bos_token_id"].iter().find_map(|key| node.get(key).and_then(id));
    if let (Some(ids), Some(pieces)) = (&found.ids, &found.pieces)
        && ids.len() != pieces.len()
    {
        return Err(format!("{} ids stand beside {} pieces", ids.len(), pieces.len()));
    }
    if found.ids.is_none() && found.pieces.is_none() && found.text.is_none() {
        return Err("no ids, pieces or text here; name a part of the file as FILE#/key".to_owned());
    }
    Ok(found)
}

fn plain(path: &Path) -> Result<TokenFile, TraceError> {
    use std::io::Read as _;
    let io = |source| TraceError::Io { path: path.to_owned(), source };
    let mut text = String::new();
    std::fs::File::open(path)
        .map_err(io)?
        .take(MOST_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(io)?;
    if text.len() as u64 > MOST_BYTES {
        let what = format!("more than {MOST_BYTES} bytes of text");
        return Err(TraceError::Malformed { path: path.to_owned(), what });
    }
    let ids: Option<Vec<u32>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    Ok(match ids.filter(|ids| !ids.is_empty()) {
        Some(ids) => TokenFile { ids: Some(ids), ..TokenFile::default() },
        None => TokenFile { text: Some(text), ..TokenFile::default() },
    })
}

/// Reads pieces by id: an object `{"id": "piece"}`, or a list by id.
///
/// # Errors
/// As [`read`].
pub fn read_vocabulary(argument: &str) -> Result<Vocabulary, TraceError> {
    let (path, pointer) = locate(argument);
    let node = node(&path, pointer.as_deref())?;
    let pairs: Option<BTreeMap<u32, String>> = match &node {
        Node::Object(members) => members
            .iter()
            .map(|(key, piece)| Some((key.parse().ok()?, piece.text()?.to_owned())))
            .collect(),
        Node::List(items) => {
            (0_u32..).zip(items).map(|(id, piece)| Some((id, piece.text()?.to_owned()))).collect()
        }
        _ => None,
    };
    pairs.map(Vocabulary::new).ok_or_else(|| TraceError::Malformed {
        path,
        what: "neither an object from id to piece nor a list of pieces".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.json");
        std::fs::write(&path, text).unwrap();
        let name = path.to_string_lossy().into_owned();
        (dir, name)
    }

    #[test]
    fn a_part_of_a_file_is_named_by_a_pointer_and_the_start_token_is_found_beside_it() {
        let (_dir, path) = written(
            r#"{"bos":1,"a":[1,450],"b":["x","->"],"c":{"ids":[5],"pieces":["y"],"text":"y"}}"#,
        );
        let a = read(&format!("{path}#/a")).unwrap();
        assert_eq!((a.ids, a.bos), (Some(vec![1, 450]), Some(1)));
        assert_eq!(
            read(&format!("{path}#b")).unwrap().pieces,
            Some(vec![b"x".to_vec(), b"->".to_vec()])
        );
        let c = read(&format!("{path}#/c")).unwrap();
        assert_eq!((c.ids, c.text.as_deref()), (Some(vec![5]), Some("y")));
        assert!(
            read(&format!("{path}#/d")).unwrap_err().to_string().contains("nothing stands at `/d`")
        );
        assert!(read(&path).unwrap_err().to_string().contains("FILE#/key"));
    }

    #[test]
    fn ids_between_blanks_and_plain_texts_are_told_apart() {
        let (_dir, path) = written("1 450\n7483\n");
        assert_eq!(read(&path).unwrap().ids, Some(vec![1, 450, 7483]));
        let (_dir, path) = written("1 of 450");
        assert_eq!(read(&path).unwrap().text.as_deref(), Some("1 of 450"));
    }

    #[test]
    fn lists_that_are_neither_ids_nor_pieces_are_refused_by_element() {
        for text in
            ["[1, -2]", "[1, 4294967296]", "[\"a\", 1.5]", "{\"ids\":[1,2],\"pieces\":[\"a\"]}"]
        {
            let (_dir, path) = written(text);
            assert!(read(&path).is_err(), "{text}");
        }
        let (_dir, path) = written("[1, -2]");
        assert!(read(&path).unwrap_err().to_string().contains("element 1"));
    }
}
