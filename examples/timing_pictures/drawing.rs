//! Timing pictures as SVG text: whole numbers only, so that every machine draws the same.

use std::fmt::Write;

const INK: &str = "#222222";
const PALE: &str = "#777777";
const GRID: &str = "#e4e0da";
const IN: &str = "#8a6d3b";
const RUN: &str = "#2f6db3";
const SPAN: &str = "#cfe3f7";
const BAD: &str = "#c0392b";
const COMMAND: &str = "cargo run -p tollgate-examples --bin timing_pictures";

/// A picture: rows over one axis of time.
pub(crate) struct Picture {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Milliseconds from the left to the right edge, and between two lines of the grid.
    pub(crate) length: u64,
    pub(crate) grid: u64,
    pub(crate) rows: Vec<Row>,
}

/// One row: inputs, events, or a waiting call.
pub(crate) struct Row {
    pub(crate) label: String,
    pub(crate) marks: Vec<Mark>,
    /// From, to.
    pub(crate) spans: Vec<(u64, u64)>,
    /// Some space above.
    pub(crate) is_first_of_group: bool,
}

/// A mark at a time.
pub(crate) struct Mark {
    pub(crate) at: u64,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A trigger, an add, an arrival.
    In,
    /// A run, a flush, a pass.
    Run,
    /// Refused, or dropped.
    Bad,
}

impl Row {
    pub(crate) fn new(label: impl Into<String>) -> Self {
        Self { label: label.into(), marks: Vec::new(), spans: Vec::new(), is_first_of_group: false }
    }

    /// Adds a mark for each time, with its text.
    pub(crate) fn marked<T: ToString>(mut self, kind: Kind, marks: &[(u64, T)]) -> Self {
        let marks = marks.iter().map(|(at, text)| Mark { at: *at, kind, text: text.to_string() });
        self.marks.extend(marks);
        self
    }

    pub(crate) fn spanned(mut self, from: u64, to: u64) -> Self {
        self.spans.push((from, to));
        self
    }

    pub(crate) fn grouped(mut self) -> Self {
        self.is_first_of_group = true;
        self
    }
}

/// Where the axis begins, and how long it is.
const LEFT: u64 = 230;
const WIDTH: u64 = 640;
const ROW: u64 = 30;

/// Returns a picture as SVG.
pub(crate) fn svg(picture: &Picture) -> String {
    let mut body = String::new();
    let x = |at: u64| LEFT + at * WIDTH / picture.length;
    let mut y = 78;
    let mut rows = String::new();
    for row in &picture.rows {
        y += if row.is_first_of_group { ROW + 12 } else { ROW };
        draw(&mut rows, row, y, x);
    }
    let bottom = y + 16;
    for at in (0..=picture.length).step_by(usize::try_from(picture.grid).unwrap_or(1)) {
        let x = x(at);
        let _ = writeln!(
            body,
            "<line x1=\"{x}\" y1=\"72\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"{GRID}\"/>"
        );
        text(&mut body, (x, 66), (11, PALE), "middle", &at.to_string());
    }
    text(&mut body, (20, 30), (18, INK), "start", picture.title);
    text(&mut body, (20, 66), (11, PALE), "start", "milliseconds");
    let height = bottom + 34;
    text(&mut rows, (20, height - 10), (11, PALE), "start", COMMAND);
    let (width, title) = (LEFT + WIDTH + 40, picture.title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n<title>{title}</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}{rows}</svg>\n"
    )
}

fn draw(out: &mut String, row: &Row, y: u64, x: impl Fn(u64) -> u64) {
    text(out, (LEFT - 16, y + 4), (13, INK), "end", &row.label);
    let (start, end) = (LEFT, LEFT + WIDTH);
    let _ = writeln!(
        out,
        "<line x1=\"{start}\" y1=\"{y}\" x2=\"{end}\" y2=\"{y}\" stroke=\"{GRID}\"/>"
    );
    for (from, to) in &row.spans {
        let (from, width, top) = (x(*from), x(*to) - x(*from), y - 7);
        let _ = writeln!(
            out,
            "<rect x=\"{from}\" y=\"{top}\" width=\"{width}\" height=\"14\" fill=\"{SPAN}\"/>"
        );
    }
    for Mark { at, kind, text: label } in &row.marks {
        let x = x(*at);
        let _ = match kind {
            Kind::In => {
                let (top, low) = (y - 8, y + 8);
                writeln!(
                    out,
                    "<line x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{low}\" stroke=\"{IN}\" \
                     stroke-width=\"2\"/>"
                )
            }
            Kind::Run => writeln!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"6\" fill=\"{RUN}\"/>"),
            Kind::Bad => {
                let (left, right, top, low) = (x - 5, x + 5, y - 5, y + 5);
                writeln!(
                    out,
                    "<path d=\"M{left} {top}L{right} {low}M{left} {low}L{right} {top}\" \
                     stroke=\"{BAD}\" stroke-width=\"2\"/>"
                )
            }
        };
        let fill = match kind {
            Kind::In => IN,
            Kind::Run => RUN,
            Kind::Bad => BAD,
        };
        text(out, (x, y - 10), (10, fill), "middle", label);
    }
}

fn text(out: &mut String, (x, y): (u64, u64), (size, fill): (u64, &str), anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\" \
         text-anchor=\"{anchor}\">{text}</text>"
    );
}
