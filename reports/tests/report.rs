//! The renderings of a made-up report: safe, self-contained, equal in their numbers, the same every time.

#![expect(
    clippy::unwrap_used,
    reason = "what cannot be unwrapped in a helper here is a failed test"
)]

#[path = "../examples/gallery/compared.rs"]
mod compared;
#[path = "../examples/gallery/made_up.rs"]
mod made_up;

use std::collections::BTreeSet;

use lockstep_reports::charts::figures;
use lockstep_reports::{Report, html, json, write_all};
use serde_json::Value;

fn page() -> String {
    html::page(&made_up::report()).unwrap()
}

/// A tag of the page: name, attributes as written, closing or not.
struct Tag {
    name: String,
    attributes: Vec<(String, String)>,
    closes: bool,
    alone: bool,
}

/// Reads tags the strict way: every attribute is quoted, every `<` opens a tag. Anything else is a failure.
fn tags(page: &str) -> Vec<Tag> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix("!DOCTYPE html>") {
            rest = after;
            continue;
        }
        let closes = rest.starts_with('/');
        rest = rest.trim_start_matches('/');
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).expect("a tag ends");
        let name = rest[..end].to_owned();
        assert!(!name.is_empty(), "`<` that opens no tag before {:?}", &rest[..rest.len().min(40)]);
        rest = &rest[end..];
        let mut attributes = Vec::new();
        let alone = loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix("/>") {
                rest = after;
                break true;
            }
            if let Some(after) = rest.strip_prefix('>') {
                rest = after;
                break false;
            }
            let equal = rest.find(['=', '>', ' ']).expect("an attribute");
            let key = rest[..equal].to_owned();
            rest = &rest[equal..];
            let mut value = String::new();
            if let Some(after) = rest.strip_prefix("=\"") {
                let quote = after.find('"').expect("a closing quote");
                after[..quote].clone_into(&mut value);
                rest = &after[quote + 1..];
            }
            attributes.push((key, value));
        };
        if name == "style" && !closes {
            rest = &rest[rest.find("</style>").expect("the style sheet ends")..];
        }
        tags.push(Tag { name, attributes, closes, alone });
    }
    tags
}

#[test]
fn the_page_is_well_formed() {
    let mut open = Vec::new();
    for tag in tags(&page()) {
        if tag.alone || ["meta", "br"].contains(&tag.name.as_str()) {
            continue;
        }
        if tag.closes {
            assert_eq!(open.pop().as_deref(), Some(tag.name.as_str()));
        } else {
            open.push(tag.name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_page_loads_nothing_and_runs_nothing() {
    let page = page();
    for tag in tags(&page) {
        assert!(
            !["script", "img", "link", "iframe", "object", "embed", "base", "form", "image", "use"]
                .contains(&tag.name.as_str()),
            "<{}>",
            tag.name
        );
        for (key, value) in &tag.attributes {
            assert!(!key.starts_with("on"), "{key}");
            assert!(key != "src" && key != "srcset" && key != "style", "{key}={value}");
            assert!(key != "href" || value.starts_with('#'), "{key}={value}");
            assert!(!value.contains("http:") && !value.contains("https:"), "{key}={value}");
        }
    }
    let sheet = page.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
    assert!(!sheet.contains("url(") && !sheet.contains("@import"));
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn hostile_tokens_are_shown_and_do_nothing() {
    let page = page();
    for raw in ["<script", "<img", "\u{202e}", "\0", "onerror=y>"] {
        assert!(!page.contains(raw), "{raw:?}");
    }
    for shown in [
        "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;",
        "·&quot;quoted&quot;·&amp;·&#39;single&#39;",
        "\\xe2\\x82",
        "a\\u{202e}b",
        "nul\\x00byte",
        "title=\"bytes e282\"",
        "&lt;/svg&gt;&lt;img",
        "&lt;of rows&gt;",
        "no &lt;random&gt; numbers",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
}

/// The figures of the page: pointer and text.
fn shown(page: &str) -> Vec<(String, String)> {
    page.split("<data data-key=\"")
        .skip(1)
        .map(|part| {
            let (key, rest) = part.split_once("\">").unwrap();
            (key.to_owned(), rest.split_once("</data>").unwrap().0.to_owned())
        })
        .collect()
}

/// Half a unit of the last digit of a decimal text.
fn half_unit(text: &str) -> f64 {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let decimals = mantissa.split_once('.').map_or(0, |(_, part)| part.len());
    let exponent: i32 = exponent.parse().unwrap();
    // Trailing zeros are not printed, so that a text may be one digit more exact than it looks.
    0.5 * 10_f64.powi(exponent - i32::try_from(decimals).unwrap())
}

fn check_figures(report: &Report) -> usize {
    let bytes = json::to_bytes(report).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let page = html::page(report).unwrap();
    let shown = shown(&page);
    for (key, text) in &shown {
        let value = json.pointer(key).unwrap_or_else(|| panic!("{key} is not in report.json"));
        match value {
            Value::Null => assert_eq!(text, "–", "{key}"),
            Value::Number(number) => {
                let (exact, seen) = (number.as_f64().unwrap(), text.parse::<f64>().unwrap());
                assert!(
                    (exact - seen).abs() <= half_unit(text) * 1.000_001,
                    "{key}: {exact} {text}"
                );
                assert!((exact - seen).abs() <= exact.abs() * 5.1e-5, "{key}: {exact} {text}");
            }
            other => panic!("{key}: {other} is no figure"),
        }
    }
    shown.len()
}

#[test]
fn every_figure_of_the_page_is_a_value_of_report_json() {
    let report = made_up::report();
    assert!(check_figures(&report) > 100);
    let page = html::page(&report).unwrap();
    let keys: BTreeSet<String> = shown(&page).into_iter().map(|(key, _)| key).collect();
    for key in [
        "/runs/1/compactions",
        "/checks/0/compared",
        "/checks/1/detail/mean_jaccard",
        "/policy_table/2/mcnemar_p",
        "/findings/0/evidence/0/value",
        "/strips/0/cells/12/right/id",
        "/runs/0/config/model.rope_theta/value",
        "/diffs/0/splits/token/position",
        "/diffs/0/counts/rows_dependent",
        "/diffs/0/samples/1/rows_compared",
        "/diffs/0/pairing/p_value",
        "/noise/0/metrics/1/ratio",
        "/keep_reports/0/mean_jaccard",
    ] {
        assert!(keys.contains(key), "{key}");
    }
}

#[test]
fn parts_built_from_a_comparison_carry_its_figures() {
    use lockstep_reports::build::{
        Labels, TimelineInput, curve, split_view, timeline, timeline_of_diff,
    };
    use lockstep_traces::store::StepColumns;
    let diff = compared::diff();
    let sample = &diff.samples[0];
    let labels = Labels { left: "dense", right: "trt" };
    // 18 rows are held at position 17, 12 after it; then every six rows.
    let at: Vec<(u32, u32, u32)> = timeline_of_diff(sample, labels).runs[1]
        .compactions
        .iter()
        .map(|point| (point.position, point.rows_before, point.rows_after))
        .collect();
    assert_eq!(at, [(17, 18, 12), (23, 18, 12), (29, 18, 12), (35, 18, 12)]);
    let (dense, compressed) =
        (compared::rows("ledger_05", false), compared::rows("ledger_05", true));
    let events = compared::events(&compressed);
    let (dense, compressed) = (StepColumns::from_rows(&dense), StepColumns::from_rows(&compressed));
    let line = timeline(
        "ledger_05",
        &[
            TimelineInput { label: "dense", steps: &dense, events: &[] },
            TimelineInput { label: "trt", steps: &compressed, events: &events },
        ],
        Some((sample, labels)),
    );
    assert_eq!(line.runs[0].points, [(0, 1), (39, 40)]);
    assert_eq!(line.runs[1].points[..5], [(0, 1), (17, 18), (17, 12), (23, 18), (23, 12)]);
    let firsts = line.firsts;
    assert_eq!((firsts.structural, firsts.argmax, firsts.token), (Some(17), Some(24), Some(24)));
    let curve = curve(sample, labels);
    assert_eq!(curve.position.len(), 40);
    assert_eq!(curve.logit_diff[10].map(|value| value.0), Some(0.0));
    assert_eq!(curve.logit_diff[30], None, "rows after the split are not compared");
    let view = split_view("ledger_05", sample.splits.token.as_ref().unwrap(), labels, &|id| {
        format!("t{id}").into_bytes()
    });
    let sides = [view.left.unwrap(), view.right.unwrap()];
    assert_eq!(sides.each_ref().map(|side| side.chosen), [Some(1), Some(901)]);
    assert_eq!(sides[1].candidates[0].token.text, "t901");
    assert_eq!((view.row, view.fed_at, view.kind.as_str()), (24, 25, "token"));
}

#[test]
fn a_wrong_figure_would_be_noticed() {
    let page = page()
        .replace("data-key=\"/checks/0/compared\">1152<", "data-key=\"/checks/0/compared\">1153<");
    let json: Value = serde_json::from_slice(&json::to_bytes(&made_up::report()).unwrap()).unwrap();
    let wrong = shown(&page).into_iter().any(|(key, text)| {
        json.pointer(&key)
            .and_then(Value::as_f64)
            .is_some_and(|exact| (exact - text.parse::<f64>().unwrap()).abs() > half_unit(&text))
    });
    assert!(wrong);
}

/// Width, height and RGB pixels.
fn decode(png: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size()];
    let info = reader.next_frame(&mut pixels).unwrap();
    (info.width, info.height, pixels)
}

#[test]
fn pictures_have_their_size_and_are_not_blank() {
    let report = made_up::report();
    let drawn = figures(&report);
    let names: Vec<&str> = drawn.iter().map(|figure| figure.name.as_str()).collect();
    assert_eq!(names, ["timeline_1", "curves_1", "split_1", "drift_1", "keepmap_1", "keepmap_2"]);
    for figure in &drawn {
        let (width, height, pixels) = decode(&figure.png().unwrap());
        assert_eq!((width, height), (figure.size().0 * 2, figure.size().1 * 2), "{}", figure.name);
        assert_eq!(width, 2400);
        let colors: BTreeSet<&[u8]> = pixels.chunks(3).collect();
        assert!(colors.len() > 20, "{}: {} colours", figure.name, colors.len());
        let ink = pixels.chunks(3).filter(|pixel| pixel.iter().all(|part| *part < 80)).count();
        assert!(ink > 2_000, "{}: {ink} dark pixels", figure.name);
        let edge = (width * (height - 1) * 3) as usize;
        assert!(pixels[edge..].iter().all(|part| *part == 255), "{}: last line", figure.name);
    }
}

#[test]
fn svg_and_png_show_the_same_texts_and_stand_alone() {
    for figure in figures(&made_up::report()) {
        let svg = figure.svg().unwrap();
        assert!(svg.starts_with("<svg width=\"1200\"") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("role=\"img\" aria-label=\""), "{}", figure.name);
        assert!(!svg.contains("<script") && !svg.contains("<image") && !svg.contains('\0'));
        assert!(svg.contains("xmlns=\"http://www.w3.org/2000/svg\""));
        assert_eq!(figure.inline_svg().unwrap().matches("http").count(), 0);
    }
}

#[test]
fn equal_reports_give_equal_bytes() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let paths = write_all(&made_up::report(), one.path()).unwrap();
    write_all(&made_up::report(), two.path()).unwrap();
    assert_eq!(paths.len(), 2 + 2 * 6);
    assert!(paths[0].ends_with("report.html") && paths[1].ends_with("report.json"));
    for path in &paths {
        let name = path.file_name().unwrap();
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes, std::fs::read(two.path().join(name)).unwrap(), "{name:?}");
    }
    let files = std::fs::read_dir(one.path()).unwrap().count();
    assert_eq!(files, paths.len(), "nothing else is left behind");
}

/// Equal but for the last bit of a figure, which the JSON reader may miss; the writer is exact.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => {
            let (x, y) = (x.as_f64().unwrap(), y.as_f64().unwrap());
            (x - y).abs() <= x.abs() * f64::EPSILON
        }
        (Value::Array(x), Value::Array(y)) => {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| same(x, y))
        }
        (Value::Object(x), Value::Object(y)) => {
            x.keys().eq(y.keys()) && x.values().zip(y.values()).all(|(x, y)| same(x, y))
        }
        (x, y) => x == y,
    }
}

#[test]
fn a_report_is_read_back_from_its_json() {
    let report = made_up::report();
    let bytes = json::to_bytes(&report).unwrap();
    let back = json::from_bytes(&bytes).unwrap();
    let (one, two) = (serde_json::to_value(&report).unwrap(), serde_json::to_value(&back).unwrap());
    assert!(same(&one, &two));
    assert!(html::page(&back).unwrap() == html::page(&report).unwrap());
}

#[test]
fn a_directory_that_cannot_be_made_is_an_error_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("taken");
    std::fs::write(&file, b"x").unwrap();
    let error = write_all(&made_up::report(), &file).unwrap_err();
    assert!(error.to_string().contains("taken"), "{error}");
}
