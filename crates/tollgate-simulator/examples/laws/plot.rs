//! Draws limit and calls in the server over time.

use super::scenario::{NamedLaw, Scenario};
use std::fmt::Write as _;
use tollgate::adaptive::law::LawError;

/// The drawing's size, and the place of the first panel in it.
const WIDTH: usize = 900;
const LEFT: usize = 50;
const TOP: usize = 60;
/// A panel is 800 wide, 150 high and shows up to 150 calls; 190 from one to the next.
const PANEL_WIDTH: usize = 800;
const PANEL_HEIGHT: usize = 150;
const PITCH: usize = 190;

/// Draws one panel for each law.
pub(crate) fn svg(scenario: &Scenario, laws: &[NamedLaw], seed: u64) -> Result<String, LawError> {
    let height = TOP + PITCH * laws.len() + 10;
    let title = "Limit (blue) and calls in the server (grey)";
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{title}: 0.7 load, 2x, 2x with half of the \
         workers, 2x, 0.7</text>\n"
    );
    for (number, law) in laws.iter().enumerate() {
        let bottom = TOP + PITCH * number + PANEL_HEIGHT;
        frame(&mut svg, bottom, scenario.seconds);
        let name = law.name.replace('*', "");
        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{name}</text>",
            bottom - PANEL_HEIGHT - 6
        );
        let report = scenario.run(seed, law)?;
        let (limits, in_flight): (Vec<_>, Vec<_>) = report.trace().iter().copied().unzip();
        line(&mut svg, bottom, "#b0aca6", &in_flight);
        line(&mut svg, bottom, "#2f6db3", &limits);
    }
    svg += "</svg>\n";
    Ok(svg)
}

fn frame(svg: &mut String, bottom: usize, seconds: usize) {
    for second in (0..=seconds).step_by(60) {
        let x = LEFT + PANEL_WIDTH * second / seconds;
        let (top, label) = (bottom - PANEL_HEIGHT, bottom + 14);
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#e4e0da\"/>\
             <text x=\"{x}\" y=\"{label}\" text-anchor=\"middle\">{second} s</text>"
        );
    }
    for calls in (0..=PANEL_HEIGHT).step_by(50) {
        let (y, right) = (bottom - calls, LEFT + PANEL_WIDTH);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#e4e0da\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{calls}</text>",
            LEFT - 6,
            y + 4
        );
    }
}

/// Draws the least and the greatest value of each second, so that no short dip or peak is lost.
fn line(svg: &mut String, bottom: usize, colour: &str, values: &[u64]) {
    let seconds = values.len().div_ceil(10);
    let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"");
    for (second, values) in values.chunks(10).enumerate() {
        let x = LEFT as f64 + PANEL_WIDTH as f64 * second as f64 / seconds as f64;
        for value in [values.iter().min(), values.iter().max()].into_iter().flatten() {
            let y = bottom - (*value as usize).min(PANEL_HEIGHT);
            let _ = write!(svg, "{x:.1},{y} ");
        }
    }
    *svg += "\"/>\n";
}
