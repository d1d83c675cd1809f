//! The report on a terminal: one screen, what passed is counted and not listed.

use lockstep_diff::report::{DiffReport, SplitAt};
use lockstep_traces::{Finding, Verdict};

use crate::escape::visible;
use crate::html::{check_name, place};
use crate::model::{Paragraph, ParagraphKind, PolicyRow, Report};
use crate::num::short;

/// How text is set.
#[derive(Debug, Clone, Copy)]
pub struct TextOptions {
    /// ANSI colours; only where the caller knows a terminal reads them.
    pub color: bool,
    /// Columns, at least 40.
    pub width: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { color: false, width: 100 }
    }
}

const BOLD: &str = "1";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";

struct Screen {
    out: String,
    options: TextOptions,
}

impl Screen {
    /// One paragraph, broken at blanks; `first` stands before its first line, as much blank before the others.
    fn paragraph(&mut self, first: &str, text: &str, style: Option<&str>) {
        let width = self.options.width.max(40);
        let indent = first.chars().count();
        let mut line = String::new();
        let mut lines = Vec::new();
        for word in visible(text.as_bytes()).split(' ').filter(|word| !word.is_empty()) {
            let long = line.chars().count() + word.chars().count() + 1 + indent;
            if !line.is_empty() && long > width {
                lines.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        lines.push(line);
        for (index, line) in lines.iter().enumerate() {
            let blank = " ".repeat(indent);
            self.out.push_str(if index == 0 { first } else { &blank });
            let styled = self.styled(line, style);
            self.out.push_str(&styled);
            self.out.push('\n');
        }
    }

    fn styled(&self, text: &str, style: Option<&str>) -> String {
        match style.filter(|_| self.options.color) {
            Some(code) => format!("\u{1b}[{code}m{text}\u{1b}[0m"),
            None => text.to_owned(),
        }
    }

    fn gap(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    /// Columns as wide as their widest cell, the first to the left, the others to the right.
    fn table(&mut self, rows: &[Vec<String>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide: Vec<usize> = (0..columns)
            .map(|column| {
                rows.iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        for row in rows {
            let mut line = String::from(" ");
            for (index, cell) in row.iter().enumerate() {
                let blank = " ".repeat(wide[index].saturating_sub(cell.chars().count()));
                line.push(' ');
                let parts = if index == 0 {
                    [cell.as_str(), blank.as_str()]
                } else {
                    [" ", blank.as_str()]
                };
                line.extend(parts);
                if index > 0 {
                    line.push_str(cell);
                }
            }
            self.out.push_str(line.trim_end());
            self.out.push('\n');
        }
    }
}

const fn verdict_color(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Identical | Verdict::WithinNoise | Verdict::Tie => GREEN,
        Verdict::Diverged => RED,
        Verdict::Incomparable { .. } => YELLOW,
    }
}

/// The story, what differs and what fails.
#[must_use]
pub fn render(report: &Report, options: TextOptions) -> String {
    let mut screen = Screen { out: String::new(), options };
    screen.paragraph("", &report.title, Some(BOLD));
    screen.paragraph("", &verdict_line(&report.verdict), Some(verdict_color(&report.verdict)));
    screen.gap();
    for paragraph in &report.story {
        story(&mut screen, paragraph);
    }
    for diff in &report.diffs {
        comparison(&mut screen, diff);
    }
    policies(&mut screen, &report.policy_table);
    checks(&mut screen, report);
    if !report.findings.is_empty() {
        screen.gap();
        for finding in &report.findings {
            self::finding(&mut screen, finding);
        }
    }
    if !report.limits.is_empty() {
        screen.gap();
        for limit in &report.limits {
            screen.paragraph("not shown: ", limit, None);
        }
    }
    screen.out
}

fn verdict_line(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Incomparable { why } => format!("verdict: incomparable ({why})"),
        other => format!("verdict: {}", other.word()),
    }
}

fn story(screen: &mut Screen, paragraph: &Paragraph) {
    let text = &paragraph.text;
    match paragraph.kind {
        ParagraphKind::Headline => screen.paragraph("", text, Some(BOLD)),
        ParagraphKind::Text => screen.paragraph("", text, None),
        ParagraphKind::Item => screen.paragraph("  - ", text, None),
        ParagraphKind::Problem => screen.paragraph("  ! ", text, Some(RED)),
        ParagraphKind::Passed => {}
    }
}

/// A comparison that found something: its summary and the four firsts.
fn comparison(screen: &mut Screen, diff: &DiffReport) {
    if matches!(diff.verdict, Verdict::Identical) {
        return;
    }
    screen.gap();
    let head = format!("{} against {}: {}", diff.left.label, diff.right.label, diff.verdict.word());
    screen.paragraph("", &head, Some(verdict_color(&diff.verdict)));
    screen.paragraph("  ", &diff.summary, None);
    let first = |name: &str, split: &Option<SplitAt>| {
        split.as_ref().map_or_else(
            || format!("{name} none"),
            |at| format!("{name} {} (fed at {}) in {}", at.position, at.fed_at, at.sample_id),
        )
    };
    let firsts = [
        first("structural", &diff.splits.structural),
        first("logit", &diff.splits.logit),
        first("argmax", &diff.splits.argmax),
        first("token", &diff.splits.token),
    ];
    screen.paragraph("  firsts: ", &firsts.join(", "), None);
    if let Some(pairing) = &diff.pairing {
        screen.paragraph("  ", &format!("{pairing}."), None);
    }
    for finding in &diff.findings {
        self::finding(screen, finding);
    }
}

fn policies(screen: &mut Screen, rows: &[PolicyRow]) {
    if rows.is_empty() {
        return;
    }
    screen.gap();
    let none = || "-".to_owned();
    let mut table =
        vec![["policy", "n", "exact", "right", "McNemar p", "against"].map(str::to_owned).to_vec()];
    for row in rows {
        table.push(vec![
            visible(row.policy.as_bytes()),
            row.n.to_string(),
            row.exact.to_string(),
            row.right.map_or_else(none, |right| right.to_string()),
            row.mcnemar_p.map_or_else(none, |p| short(p.0, 3)),
            row.against.as_deref().map_or_else(none, |name| visible(name.as_bytes())),
        ]);
    }
    screen.table(&table);
    for paired in rows.iter().filter_map(|row| row.paired.as_ref()) {
        screen.paragraph("  ", &format!("{paired}."), None);
    }
}

/// Checks that passed are counted; the others are listed.
fn checks(screen: &mut Screen, report: &Report) {
    if report.checks.is_empty() {
        return;
    }
    screen.gap();
    let failed = |verdict: &Verdict| verdict.exit_code() != 0;
    let passed = report.checks.iter().filter(|check| !failed(&check.verdict)).count();
    screen.paragraph("", &format!("checks: {passed} of {} passed", report.checks.len()), None);
    for check in report.checks.iter().filter(|check| failed(&check.verdict)) {
        let why = match &check.verdict {
            Verdict::Incomparable { why } => format!(" ({why})"),
            _ => String::new(),
        };
        let line = format!(
            "{}: {}{why}: {} of {} {} differ, {} skipped",
            check_name(check.kind),
            check.verdict.word(),
            check.different,
            check.compared,
            check.unit,
            check.skipped
        );
        screen.paragraph("  ! ", &line, Some(verdict_color(&check.verdict)));
        // Those that stand among the report's own findings are told there.
        for finding in check.findings.iter().filter(|finding| !report.findings.contains(finding)) {
            self::finding(screen, finding);
        }
    }
}

fn finding(screen: &mut Screen, finding: &Finding) {
    let name = finding.cause.map_or_else(String::new, |cause| format!("{}: ", cause.slug()));
    screen.paragraph("  ! ", &format!("{name}{}", finding.title), Some(RED));
    let place = place(&finding.location);
    if !place.is_empty() {
        screen.paragraph("    at ", &place, None);
    }
    let evidence: Vec<String> = finding
        .evidence
        .iter()
        .map(|evidence| {
            let value = match evidence.value.as_str() {
                Some(text) => text.to_owned(),
                None => evidence.value.to_string(),
            };
            format!("{} {value}", evidence.name)
        })
        .collect();
    if !evidence.is_empty() {
        screen.paragraph("    ", &evidence.join("; "), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_traces::{CheckKind, CheckReport, Location};

    fn check(kind: CheckKind, verdict: Verdict, different: u64) -> CheckReport {
        CheckReport {
            kind,
            verdict,
            compared: 8,
            different,
            skipped: 1,
            unit: "heads".into(),
            findings: Vec::new(),
            limits: Vec::new(),
            detail: serde_json::Value::Null,
        }
    }

    fn report() -> Report {
        let mut report = Report::new("Title", "", Verdict::Diverged);
        report.story.push(Paragraph::new(ParagraphKind::Passed, "all rows moved well"));
        report.story.push(Paragraph::new(ParagraphKind::Text, "one two \u{1b}[31mthree"));
        report.checks.push(check(CheckKind::Gather, Verdict::Identical, 0));
        report.checks.push(check(CheckKind::Selector, Verdict::Diverged, 2));
        report.findings.push(Finding {
            cause: Some(lockstep_traces::Cause::StaleRow),
            title: "a stale row".into(),
            location: Location { layer: Some(3), row: Some(17), ..Location::default() },
            evidence: Vec::new(),
        });
        report
    }

    #[test]
    fn what_passed_is_counted_and_not_listed() {
        let text = render(&report(), TextOptions::default());
        assert_eq!(
            text,
            "Title\nverdict: diverged\n\none two \\x1b[31mthree\n\nchecks: 1 of 2 passed\n  \
             ! selector: diverged: 2 of 8 heads differ, 1 skipped\n\n  \
             ! stale-row: a stale row\n    at layer 3, row 17\n"
        );
    }

    #[test]
    fn colours_come_only_when_asked_for() {
        assert!(!render(&report(), TextOptions::default()).contains('\u{1b}'));
        let text = render(&report(), TextOptions { color: true, width: 100 });
        assert!(text.contains("\u{1b}[31mverdict: diverged\u{1b}[0m"));
    }

    #[test]
    fn lines_are_no_longer_than_the_width() {
        let mut report = report();
        report.story.push(Paragraph::new(ParagraphKind::Item, "word ".repeat(60)));
        let text = render(&report, TextOptions { color: false, width: 60 });
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("\n    word word"));
    }
}
