use std::fs;
use std::path::Path;

use super::{ArtifactKind, Claim, Ledger, Scope, Window, cite, look};
use crate::TraceError;

/// sha256 of the three bytes `abc` (FIPS 180-2, appendix B.1).
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn claim(text: &str) -> Claim {
    Claim {
        text: text.to_owned(),
        scope: Scope {
            samples: vec!["s1".to_owned()],
            ordinals: vec![2],
            windows: vec![Window { first: 10, last: 20 }],
            modes: Vec::new(),
        },
        ..Claim::default()
    }
}

#[test]
fn records_are_appended_and_the_bytes_before_them_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims.toml");
    let first = claim("the gather is exact").sealed();
    Ledger::append(&path, &first).unwrap();
    let before = fs::read_to_string(&path).unwrap();
    let second =
        Claim { supersedes: vec![first.id.clone()], ..claim("say \"no\"\nto it") }.sealed();
    Ledger::append(&path, &second).unwrap();
    let after = fs::read_to_string(&path).unwrap();
    assert!(after.starts_with(&before) && after.len() > before.len());
    assert!(after.contains("windows = [\"10-20\"]"), "{after}");
    let ledger = Ledger::read(&path).unwrap();
    assert_eq!(ledger.claims, [first, second]);
    assert!(ledger.claims.iter().all(Claim::intact));
}

#[test]
fn an_edited_record_is_not_intact() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("claims.toml");
    Ledger::append(&path, &claim("holds for s1").sealed()).unwrap();
    let text = fs::read_to_string(&path).unwrap().replace("\"s1\"", "\"s1\", \"s2\"");
    assert!(!Ledger::parse(&text, &path).unwrap().claims[0].intact());
}

#[test]
fn records_that_do_not_fit_are_refused_with_their_place() {
    let path = Path::new("claims.toml");
    let refused = |text: &str| Ledger::parse(text, path).unwrap_err().to_string();
    let twice = "[[claim]]\nid = \"a\"\ntext = \"x\"\n[[claim]]\nid = \"a\"\ntext = \"y\"\n";
    assert!(refused(twice).contains("`a` is empty or stands twice"));
    let forward = "[[claim]]\nid = \"a\"\ntext = \"x\"\nsupersedes = [\"b\"]\n";
    assert!(refused(forward).contains("`a` supersedes `b`"));
    assert!(matches!(
        Ledger::parse("[[claim]]\nid = \"a\"\n\ntext = 5\n", path),
        Err(TraceError::Line { line: 4, .. })
    ));
    assert!(refused("[[claim]]\nid = \"a\"\ntext = \"x\"\nscoop = {}\n").contains("scoop"));
}

#[test]
fn artifacts_are_cited_by_content_and_by_a_path_from_the_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("notes");
    fs::create_dir_all(&base).unwrap();
    fs::write(dir.path().join("plain"), "abc").unwrap();
    let cited = cite(&base, &dir.path().join("plain")).unwrap();
    assert_eq!((cited.path.as_str(), cited.sha256.as_str()), ("../plain", ABC));
    assert_eq!(look(&base, &cited).sha256.as_deref(), Some(ABC));
    fs::remove_file(dir.path().join("plain")).unwrap();
    assert_eq!(look(&base, &cited).sha256, None);
    assert!(cite(&base, &dir.path().join("plain")).is_err());
}

#[test]
fn a_folder_is_hashed_as_the_list_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    fs::create_dir_all(run.join("b")).unwrap();
    fs::write(run.join("b/x"), "abc").unwrap();
    fs::write(run.join("a"), "abc").unwrap();
    let cited = cite(dir.path(), &run).unwrap();
    let lines = format!("{ABC}  a\n{ABC}  b/x\n");
    assert_eq!(cited.sha256, crate::hash::sha256_hex(lines.as_bytes()));
    assert_eq!(cited.kind, ArtifactKind::Folder);
    fs::write(run.join("b/x"), "abd").unwrap();
    assert_ne!(look(dir.path(), &cited).sha256, Some(cited.sha256.clone()));
}

#[test]
fn an_answer_says_its_verdict_its_voids_and_what_it_covers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("answer.json");
    let answer = serde_json::json!({
        "verdict": {"kind": "identical"},
        "left": {"policy": "triattention", "device": "cpu"},
        "samples": [
            {"sample_id": "s1", "verdict": {"kind": "identical"},
             "series": {"points": [{"position": 3}, {"position": 9}, {"position": 12, "dependent": true}],
                        "left_compactions": [{"position": 5, "ordinal": 1}]}},
            {"sample_id": "s2", "verdict": {"kind": "incomparable", "why": "no row"}},
        ],
    });
    fs::write(&path, answer.to_string()).unwrap();
    let cited = cite(dir.path(), &path).unwrap();
    assert_eq!((cited.kind, cited.verdict.as_deref()), (ArtifactKind::Answer, Some("identical")));
    let found = look(dir.path(), &cited);
    assert_eq!(found.covers.samples.iter().collect::<Vec<_>>(), ["s1"], "s2 was not compared");
    assert_eq!(found.covers.ordinals.iter().copied().collect::<Vec<_>>(), [1]);
    assert_eq!(found.covers.windows.first(), Some(&Window { first: 3, last: 9 }));
    assert!(found.covers.modes.contains("triattention") && found.voids.is_empty());

    let audits = r#"{"audits":[{"id":11,"name":"prompts","outcome":"void"},{"id":16,"outcome":"pass"}],"verdict":"flag"}"#;
    fs::write(&path, audits).unwrap();
    let found = look(dir.path(), &cited);
    assert_eq!(found.voids, ["11 prompts"]);
    assert_ne!(found.sha256, Some(cited.sha256.clone()));
    fs::write(&path, "{\"verdict\":\"no evidence\"}\n{\"verdict\":\"pass\"}\n").unwrap();
    assert!(look(dir.path(), &cited).proves_nothing, "the gravest of the lines");
}
