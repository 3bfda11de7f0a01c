//! Pictures as SVG text: whole numbers only, so that every machine draws the same.

use super::scenario::{Kind, Member, Outcome, ROOT};
use std::fmt::Write;

const OWN: &str = "#2f6db3";
const BORROWED: &str = "#8fc1f0";
const REFUSED: &str = "#e4e0da";
const INK: &str = "#222222";
const PALE: &str = "#777777";
const COMMAND: &str = "cargo run --release -p tollgate-examples --bin hierarchy_picture";

/// Returns all pictures: file name and text.
pub(crate) fn pictures(outcomes: &[Outcome]) -> Vec<(&'static str, String)> {
    let borrowing: Vec<_> =
        outcomes.iter().filter(|outcome| outcome.case.kind == Kind::Borrowing).collect();
    let flood: Vec<_> =
        outcomes.iter().filter(|outcome| outcome.case.name.starts_with("T6")).collect();
    let mut pictures = vec![
        ("hierarchy-outcomes.svg", bars(&borrowing, "What a borrowing tree gives")),
        ("hierarchy-strict-or-borrowing.svg", bars(&flood, "One flood, two trees")),
    ];
    if let Some(outcome) = outcomes.iter().find(|outcome| outcome.case.name == "T3") {
        pictures.push(("hierarchy-tree.svg", tree(outcome)));
    }
    pictures
}

/// A picture while it is drawn.
struct Svg {
    body: String,
    width: u64,
}

/// The anchor of a text.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    fn new(width: u64) -> Self {
        Self { body: String::new(), width }
    }

    fn rect(&mut self, (x, y): (u64, u64), (width, height): (u64, u64), fill: &str) {
        let _ = writeln!(
            self.body,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>"
        );
    }

    fn line(&mut self, (x1, y1): (u64, u64), (x2, y2): (u64, u64), style: &str) {
        let _ =
            writeln!(self.body, "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" {style}/>");
    }

    fn text(&mut self, (x, y): (u64, u64), (size, fill): (u64, &str), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            self.body,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{fill}\" \
             text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn finish(mut self, height: u64, title: &str) -> String {
        self.text((20, height - 12), (11, PALE), Anchor::Start, COMMAND);
        let Self { body, width } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n<title>{title}</title>\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
        )
    }
}

/// Where the bars begin, and how many permits per second their width represents.
const LEFT: u64 = 60;
const SPAN: u64 = 500;
const SCALE: u64 = 2000;

/// A panel of stacked bars for each case.
fn bars(outcomes: &[&Outcome], title: &str) -> String {
    let mut svg = Svg::new(820);
    svg.text((20, 30), (18, INK), Anchor::Start, title);
    let mut x = 20;
    for (fill, what) in [(OWN, "own share"), (BORROWED, "borrowed"), (REFUSED, "refused")] {
        svg.rect((x, 44), (14, 14), fill);
        svg.text((x + 20, 56), (12, INK), Anchor::Start, what);
        x += 110;
    }
    let legend = "per second; | the guaranteed rate, dashed: what the root has";
    svg.text((x, 56), (12, PALE), Anchor::Start, legend);
    let mut y = 92;
    for outcome in outcomes {
        let heading = format!("{}: {}", outcome.case.name, outcome.case.title);
        svg.text((20, y), (14, INK), Anchor::Start, &heading);
        y += 10;
        let top = y;
        for (member, given) in outcome.case.members.iter().zip(&outcome.given) {
            bar(&mut svg, y, (member, outcome.case.kind), given.per_second());
            y += 24;
        }
        let at = LEFT + ROOT * SPAN / SCALE;
        let style = format!("stroke=\"{INK}\" stroke-dasharray=\"4 3\"");
        svg.line((at, top), (at, y - 2), &style);
        y += 30;
    }
    svg.finish(y + 4, title)
}

fn bar(svg: &mut Svg, y: u64, (member, kind): (&Member, Kind), [own, borrowed, refused]: [u64; 3]) {
    svg.text((LEFT - 10, y + 15), (13, INK), Anchor::End, member.name);
    let mut from = 0;
    for (amount, fill) in [(own, OWN), (borrowed, BORROWED), (refused, REFUSED)] {
        let (start, end) = (from.min(SCALE), (from + amount).min(SCALE));
        let (x, to) = (LEFT + start * SPAN / SCALE, LEFT + end * SPAN / SCALE);
        if x < to {
            svg.rect((x, y), (to - x, 20), fill);
        }
        from += amount;
    }
    if from > SCALE {
        // Cut short: two strokes across the end.
        for x in [LEFT + SPAN - 14, LEFT + SPAN - 8] {
            svg.line((x, y + 20), (x + 6, y), "stroke=\"#ffffff\" stroke-width=\"2\"");
        }
    }
    let told = if kind == Kind::Strict {
        format!("{own} of {}", member.demand)
    } else {
        let mark = LEFT + member.rate * SPAN / SCALE;
        let style = format!("stroke=\"{INK}\" stroke-width=\"2\"");
        svg.line((mark, y - 1), (mark, y + 21), &style);
        format!("{own} + {borrowed} of {}", member.demand)
    };
    svg.text((LEFT + SPAN + 12, y + 15), (12, INK), Anchor::Start, &told);
    let ceiling = format!("ceiling {}", member.ceiling);
    svg.text((800, y + 15), (12, PALE), Anchor::End, &ceiling);
}

/// The tree of a case with its flows.
fn tree(outcome: &Outcome) -> String {
    let mut svg = Svg::new(820);
    let title = format!("{}: {}", outcome.case.name, outcome.case.title);
    svg.text((20, 30), (18, INK), Anchor::Start, &title);
    let lent = outcome.lent / super::scenario::SECONDS;
    let root = [
        String::from("root"),
        format!("rate {ROOT}/s, ceiling {ROOT}/s, hard"),
        format!("lends {lent}/s"),
    ];
    class(&mut svg, (270, 50), &root);
    let members: Vec<_> = outcome.case.members.iter().zip(&outcome.given).collect();
    for (index, (member, given)) in members.iter().enumerate() {
        let x = 60 + 420 * index as u64;
        let [own, borrowed, refused] = given.per_second();
        let style = format!("stroke=\"{INK}\"");
        svg.line((410, 130), (x + 140, 220), &style);
        if borrowed > 0 {
            let style = format!("stroke=\"{BORROWED}\" stroke-width=\"10\" stroke-opacity=\"0.7\"");
            svg.line((410, 130), (x + 140, 220), &style);
            let told = format!("borrows {borrowed}/s");
            svg.text((x + 70, 165), (13, OWN), Anchor::Start, &told);
        }
        let lines = [
            String::from(member.name),
            format!("rate {}/s, ceiling {}/s", member.rate, member.ceiling),
            format!("passes {own}/s on its own share"),
        ];
        class(&mut svg, (x, 220), &lines);
        let asks = format!("asks for {}/s, is refused {refused}/s", member.demand);
        svg.text((x + 140, 325), (12, PALE), Anchor::Middle, &asks);
    }
    svg.finish(365, &title)
}

fn class(svg: &mut Svg, (x, y): (u64, u64), [name, rates, flow]: &[String; 3]) {
    svg.rect((x, y), (280, 80), "#f4f7fb");
    svg.rect((x, y), (280, 4), OWN);
    svg.text((x + 140, y + 26), (15, INK), Anchor::Middle, name);
    svg.text((x + 140, y + 47), (12, INK), Anchor::Middle, rates);
    svg.text((x + 140, y + 67), (12, INK), Anchor::Middle, flow);
}
