//! Draws lines over time, one panel below the other.

use std::fmt::Write as _;

/// The drawing's size, and the place of the first panel in it.
const WIDTH: usize = 900;
const LEFT: usize = 50;
const TOP: usize = 60;
/// A panel is 800 wide and 150 high; 190 from one to the next.
const PANEL_WIDTH: usize = 800;
const PANEL_HEIGHT: usize = 150;
const PITCH: usize = 190;

/// A drawing.
pub(crate) struct Plot {
    /// For screen readers, and in large letters.
    pub(crate) title: &'static str,
    pub(crate) heading: &'static str,
    /// Seconds from left to right, and between two marks.
    pub(crate) seconds: (usize, usize),
    /// The greatest value that is shown, and from one mark to the next.
    pub(crate) values: (usize, usize),
}

/// A name, and lines: colour and ten values for each second.
pub(crate) type Panel = (String, Vec<(&'static str, Vec<u64>)>);

impl Plot {
    pub(crate) fn svg(&self, panels: &[Panel]) -> String {
        let height = TOP + PITCH * panels.len() + 10;
        let Self { title, heading, .. } = self;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <title>{title}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{heading}</text>\n"
        );
        for (number, (name, lines)) in panels.iter().enumerate() {
            let bottom = TOP + PITCH * number + PANEL_HEIGHT;
            self.frame(&mut svg, bottom);
            let _ = writeln!(
                svg,
                "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{name}</text>",
                bottom - PANEL_HEIGHT - 6
            );
            for (colour, values) in lines {
                self.line(&mut svg, bottom, colour, values);
            }
        }
        svg += "</svg>\n";
        svg
    }

    fn frame(&self, svg: &mut String, bottom: usize) {
        let (seconds, mark) = self.seconds;
        for second in (0..=seconds).step_by(mark) {
            let x = LEFT + PANEL_WIDTH * second / seconds;
            let (top, label) = (bottom - PANEL_HEIGHT, bottom + 14);
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#e4e0da\"/>\
                 <text x=\"{x}\" y=\"{label}\" text-anchor=\"middle\">{second} s</text>"
            );
        }
        let (most, mark) = self.values;
        for value in (0..=most).step_by(mark) {
            let (y, right) = (bottom - PANEL_HEIGHT * value / most, LEFT + PANEL_WIDTH);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#e4e0da\"/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value}</text>",
                LEFT - 6,
                y + 4
            );
        }
    }

    /// Draws the least and the greatest value of each second, so that no short dip or peak is lost.
    fn line(&self, svg: &mut String, bottom: usize, colour: &str, values: &[u64]) {
        let (seconds, (most, _)) = (values.len().div_ceil(10), self.values);
        let _ = write!(svg, "<polyline fill=\"none\" stroke=\"{colour}\" points=\"");
        for (second, values) in values.chunks(10).enumerate() {
            let x = LEFT as f64 + PANEL_WIDTH as f64 * second as f64 / seconds as f64;
            for value in [values.iter().min(), values.iter().max()].into_iter().flatten() {
                let y = bottom - PANEL_HEIGHT * (*value as usize).min(most) / most;
                let _ = write!(svg, "{x:.1},{y} ");
            }
        }
        *svg += "\"/>\n";
    }
}
