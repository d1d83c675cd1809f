//! The page as it is being written. Numbers come out of the JSON of the report and nowhere else.

use serde_json::Value;

use crate::error::ReportError;
use crate::escape::escape;
use crate::num::short;

/// Significant digits of a figure on the page. `report.json` has them all.
const DIGITS: usize = 5;

/// Shown where `report.json` has `null`.
const NOTHING: &str = "\u{2013}";

/// The page so far, and the report as JSON.
pub(crate) struct View<'a> {
    json: &'a Value,
    out: String,
}

impl<'a> View<'a> {
    pub(crate) fn new(json: &'a Value) -> Self {
        Self { json, out: String::new() }
    }

    pub(crate) fn finish(self) -> String {
        self.out
    }

    /// Markup written by this crate itself; never outside text.
    pub(crate) fn raw(&mut self, markup: &str) {
        self.out.push_str(markup);
    }

    /// Outside text.
    pub(crate) fn text(&mut self, text: &str) {
        self.out.push_str(&escape(text));
    }

    /// An element around outside text. `tag` may carry attributes.
    pub(crate) fn element(&mut self, tag: &str, text: &str) {
        let name = tag.split(' ').next().unwrap_or(tag);
        self.raw("<");
        self.raw(tag);
        self.raw(">");
        self.text(text);
        self.raw("</");
        self.raw(name);
        self.raw(">");
    }

    /// The value at a JSON pointer of the report.
    pub(crate) fn value(&self, pointer: &str) -> Result<&'a Value, ReportError> {
        self.json
            .pointer(pointer)
            .ok_or_else(|| ReportError::NoSuchFigure { pointer: pointer.to_owned() })
    }

    /// True where the report has a value there that is not `null`.
    pub(crate) fn has(&self, pointer: &str) -> bool {
        self.json.pointer(pointer).is_some_and(|value| !value.is_null())
    }

    /// The figure at a pointer, marked with it.
    pub(crate) fn figure(&mut self, pointer: &str) -> Result<(), ReportError> {
        let shown = show(self.value(pointer)?);
        self.raw("<data data-key=\"");
        self.text(pointer);
        self.raw("\">");
        self.text(&shown);
        self.raw("</data>");
        Ok(())
    }

    /// A table cell with a figure.
    pub(crate) fn figure_cell(&mut self, pointer: &str) -> Result<(), ReportError> {
        self.raw("<td class=\"n\">");
        self.figure(pointer)?;
        self.raw("</td>");
        Ok(())
    }

    /// A table cell with outside text.
    pub(crate) fn text_cell(&mut self, text: Option<&str>) {
        self.element("td", text.unwrap_or(NOTHING));
    }

    /// Any JSON value: a figure where it is a number or `null`, a word where it is text, JSON otherwise.
    pub(crate) fn any(&mut self, pointer: &str) -> Result<(), ReportError> {
        match self.value(pointer)? {
            Value::String(text) => {
                let text = text.clone();
                self.text(&text);
            }
            Value::Bool(value) => self.text(if *value { "yes" } else { "no" }),
            Value::Number(_) | Value::Null => self.figure(pointer)?,
            other => {
                let text = other.to_string();
                self.element("code", &text);
            }
        }
        Ok(())
    }

    /// Opens a table with these column heads; those that begin with `#` are heads of numbers.
    pub(crate) fn open_table(&mut self, caption: &str, heads: &[&str]) {
        self.raw("<div class=\"scroll\"><table>");
        self.element("caption", caption);
        self.raw("<thead><tr>");
        for head in heads {
            match head.strip_prefix('#') {
                Some(head) => self.element("th scope=\"col\" class=\"n\"", head),
                None => self.element("th scope=\"col\"", head),
            }
        }
        self.raw("</tr></thead><tbody>\n");
    }

    pub(crate) fn close_table(&mut self) {
        self.raw("</tbody></table></div>\n");
    }

    /// A list of lines; nothing where there are none.
    pub(crate) fn lines(&mut self, class: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        self.raw("<ul class=\"");
        self.raw(class);
        self.raw("\">");
        for line in lines {
            self.element("li", line);
        }
        self.raw("</ul>\n");
    }
}

/// A JSON value as a figure.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Null => NOTHING.to_owned(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(|| number.to_string(), |value| short(value, DIGITS))
        }
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// One step of a JSON pointer.
pub(crate) fn step(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
