//! The callers' observations, as a table and as a picture.

use super::{
    database::OUTAGE,
    load::{Answer, Call, PHASES, Phase, SECONDS, Seen},
};
use std::{fmt::Write, time::Duration};

/// Returns the table.
pub(crate) fn table(without: &Seen, with: &Seen) -> String {
    let mut out = String::from(
        "| | good | degraded | failed | half waited | 99 % waited | attempts per call |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (stacks, seen) in [("without", without), ("with", with)] {
        for (name, from, to) in PHASES {
            let Phase { calls, good, degraded, failed, p50, p99, attempts } = seen.during(from, to);
            let per_call = attempts as f64 / calls.max(1) as f64;
            let _ = writeln!(
                out,
                "| {stacks}, {name} | {good} % | {degraded} % | {failed} % | {} ms | {} ms | {per_call:.1} |",
                p50.as_millis(),
                p99.as_millis()
            );
        }
    }
    out
}

const WIDTH: u32 = 900;
const LEFT: u32 = 60;
const PANEL_WIDTH: u32 = 800;
const PANEL_HEIGHT: u32 = 180;
/// From one panel to the next.
const PITCH: u32 = 250;
const TOP: u32 = 100;
/// Bars for each second, and the height of the panel in calls for each of them.
const BARS: u32 = 2;
const MOST: u32 = 300;

const CAPTION: &str = "calls and attempts in a second, by the half second in which they began";
const COMMAND: &str = "cargo run -p tollgate-examples --features reqwest,testing --bin outage";
const INK: &str = "#222222";
const GRID: &str = "#e4e0da";
const OUT: &str = "#f3eee6";
const COLOURS: [(Answer, &str, &str); 3] = [
    (Answer::Good, "#2f6db3", "answered"),
    (Answer::Degraded, "#9cc5ee", "answered by the fallback (degraded)"),
    (Answer::Failed, "#c0392b", "failed after a second"),
];

/// Returns the picture.
pub(crate) fn svg(without: &Seen, with: &Seen) -> String {
    let height = TOP + 2 * PITCH;
    let title = "What callers of a service see when its database has an outage, from 4 s to 8 s";
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"{INK}\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"17\">{title}</text>\n"
    );
    let mut x = LEFT;
    for (_, colour, name) in COLOURS {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"44\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"54\">{name}</text>",
            x + 18
        );
        x += 50 + 7 * u32::try_from(name.len()).unwrap_or_default();
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{x}\" y1=\"50\" x2=\"{}\" y2=\"50\" stroke=\"{INK}\" stroke-width=\"2\"/>\
         <text x=\"{}\" y=\"54\">attempts sent</text>",
        x + 20,
        x + 26
    );
    panel(&mut svg, TOP + PANEL_HEIGHT, "Without the stacks: a timeout and three retries", without);
    panel(&mut svg, TOP + PITCH + PANEL_HEIGHT, "With ClientStack and ServerStack", with);
    for (y, text) in [(height - 30, CAPTION), (height - 12, COMMAND)] {
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{y}\" fill=\"#777777\">{text}</text>");
    }
    svg += "</svg>\n";
    svg
}

/// Draws calls by the time at which they began, and attempts by the time at which they were sent.
fn panel(svg: &mut String, bottom: u32, name: &str, seen: &Seen) {
    let top = bottom - PANEL_HEIGHT;
    let x = |at: Duration| {
        LEFT + u32::try_from(at.as_millis()).unwrap_or_default() * PANEL_WIDTH / (SECONDS * 1000)
    };
    let (from, to) = (x(OUTAGE.start), x(OUTAGE.end));
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"14\" font-weight=\"bold\">{name}</text>\n\
         <rect x=\"{from}\" y=\"{top}\" width=\"{}\" height=\"{PANEL_HEIGHT}\" fill=\"{OUT}\"/>\
         <text x=\"{}\" y=\"{}\">outage</text>",
        top - 10,
        to - from,
        from + 6,
        top + 16
    );
    for value in (0..=MOST).step_by(100) {
        let (y, right) = (bottom - PANEL_HEIGHT * value / MOST, LEFT + PANEL_WIDTH);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"{GRID}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 6,
            y + 4,
            value * BARS
        );
    }
    for second in (0..=SECONDS).step_by(2) {
        let (x, y) = (x(Duration::from_secs(second.into())), bottom + 16);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">{second} s</text>");
    }
    let width = PANEL_WIDTH / (SECONDS * BARS);
    let mut line = String::new();
    for bar in 0..SECONDS * BARS {
        let [from, to] = [bar, bar + 1].map(|bar| Duration::from_secs(1) * bar / BARS);
        let (left, phase) = (x(from), seen.during(from, to));
        let mut y = bottom;
        for (answer, colour, _) in COLOURS {
            let within = |call: &&Call| (from..to).contains(&call.begun) && call.answer() == answer;
            let count = seen.calls.iter().filter(within).count();
            let height = PANEL_HEIGHT * u32::try_from(count).unwrap_or_default() / MOST;
            y -= height;
            let _ = writeln!(
                svg,
                "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{height}\" fill=\"{colour}\"/>",
                left + 1,
                width - 2
            );
        }
        let attempts = u32::try_from(phase.attempts).unwrap_or_default().min(MOST);
        let y = bottom - PANEL_HEIGHT * attempts / MOST;
        let _ = write!(line, "{left},{y} {},{y} ", left + width);
    }
    let _ = writeln!(
        svg,
        "<polyline fill=\"none\" stroke=\"{INK}\" stroke-width=\"2\" points=\"{line}\"/>"
    );
}
