//! The text forms of Prometheus and OpenMetrics.

use super::{Format, family::Family};
use std::fmt::{Display, Write};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Writes families and their samples.
#[derive(Debug)]
pub(super) struct Writer {
    format: Format,
    text: String,
}

impl Writer {
    pub(super) fn new(format: Format, room: usize) -> Self {
        // The last sample may go over the end.
        Self { format, text: String::with_capacity(room + 512) }
    }

    pub(super) const fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Begins a family.
    pub(super) fn head(&mut self, family: &Family) {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        // The samples of a counter end in `_total`; OpenMetrics names the family without it.
        let name = match (self.format, family.kind) {
            (Format::OpenMetrics, Kind::Counter) => {
                family.name.strip_suffix("_total").unwrap_or(family.name)
            }
            _ => family.name,
        };
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
    }

    /// Writes a sample.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            self.text.push(if index == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            self.escape(text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    /// Ends the text.
    pub(super) fn end(&mut self) {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut writer = Writer::new(Format::Prometheus, 100);
        writer.sample("a_total", &[("p", "x\"\\\n{é}"), ("q", "")], 7);
        writer.sample("b", &[], 0.5);
        assert_eq!(writer.into_text(), "a_total{p=\"x\\\"\\\\\\n{é}\",q=\"\"} 7\nb 0.5\n");
    }

    #[test]
    fn openmetrics_is_written_for_those_who_ask() {
        for (accept, format) in [
            ("", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Format::Prometheus),
            ("application/openmetrics-text;version=1.0.0,text/plain", Format::OpenMetrics),
            ("text/plain, Application/OpenMetrics-Text; q=0.9", Format::OpenMetrics),
            ("application/openmetrics-text;q=0", Format::Prometheus),
        ] {
            assert_eq!(Format::accepted(accept), format, "{accept}");
        }
    }
}
