//! Draws the state.

use super::state::{Node, Policy, Remote, State};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Borders, Cell, Paragraph, Row, Table, TableState},
};

/// From this percentage of refusals on a policy is red.
const ALARMING: f64 = 95.0;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Lines of the head.
const HEAD: u16 = 3;

/// Lines of the list of policies beside those of policies: its title, and the names of columns.
const TABLE: u16 = 2;

/// Lines for the refused keys at most, with their title.
const KEYS: u16 = 11;

/// Returns how many lines the whole picture needs.
pub(super) fn height(state: &State) -> u16 {
    let policies = u16::try_from(state.picture.policies.policies.len()).unwrap_or(u16::MAX);
    policies.max(1).saturating_add(HEAD + TABLE + keys_height(state) + 1)
}

fn keys_height(state: &State) -> u16 {
    let keys = u16::try_from(state.picture.top.denied.len()).unwrap_or(KEYS);
    (keys.max(1) + 1).min(KEYS)
}

/// Returns how many seconds of the past there is room for.
const fn past(width: u16) -> u16 {
    match width {
        0..90 => 10,
        90..110 => 20,
        110.. => 30,
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let [head, body, keys, foot] = Layout::vertical([
        Constraint::Length(HEAD),
        Constraint::Fill(1),
        Constraint::Length(keys_height(state)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, state);
    draw_policies(frame, body, state);
    draw_keys(frame, keys, state);
    draw_foot(frame, foot, state);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let picture = &state.picture;
    let failed = picture.config.last_load.as_ref().and_then(|load| load.error.as_ref());
    let mut first = vec![
        Span::from("tollgate ").bold(),
        Span::from(state.server.clone()),
        Span::from(format!("  configuration {}", picture.config.version)),
    ];
    if let Some(error) = failed {
        first.push(Span::from(format!("  LOAD FAILED: {error}")).red());
    }
    let stores = picture.store.stores.iter().map(|store| {
        let keys = store.keys.map_or_else(String::new, |keys| format!(" {keys} keys"));
        let bytes = store.bytes.map_or_else(String::new, |bytes| format!(" {}", mebibytes(bytes)));
        let shared = store.shared.as_ref().map_or_else(String::new, remote);
        format!("{} ({}){keys}{bytes}{shared}", store.name, store.kind)
    });
    let stores = stores.collect::<Vec<_>>().join(", ");
    let mut second = vec![Span::from(format!("store {stores}"))];
    let mut degraded = picture.store.stores.iter().filter_map(|store| store.shared.as_ref());
    if let Some(why) = degraded.find_map(|shared| shared.degraded.as_ref()) {
        second.push(Span::from(format!("  DEGRADED: {why}")).red());
    }
    if picture.store.errors > 0 {
        let last = picture.store.last_error.as_deref().unwrap_or_default();
        let word = if picture.store.is_failing { "FAILING" } else { "errors" };
        let text = format!("  {word}: {} so far, last: {last}", picture.store.errors);
        second.push(Span::from(text).red());
    }
    let listeners = picture.store.listeners.iter().map(|(name, listener)| {
        format!("{name} {}/{} {} req", listener.open, listener.most, listener.requests)
    });
    let listeners = listeners.collect::<Vec<_>>().join("  ");
    let lines =
        vec![Line::from(first), Line::from(second), Line::from(format!("connections {listeners}"))];
    frame.render_widget(Paragraph::new(lines), area);
}

/// Servers in the head of the view; a cluster may have hundreds.
const SHOWN_NODES: usize = 4;

/// Returns how a shared store is, in short.
fn remote(shared: &Remote) -> String {
    let Remote { fleet_size, leased, calls, nodes, .. } = shared;
    let mut text = format!(" fleet {fleet_size} calls {calls} leased {leased}");
    for Node { address, state, in_flight } in nodes.iter().take(SHOWN_NODES) {
        text += &format!(" [{address} {state} {in_flight}]");
    }
    if nodes.len() > SHOWN_NODES {
        let up = nodes.iter().filter(|node| node.state == "up").count();
        text += &format!(" {up} of {} up", nodes.len());
    }
    text
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn draw_policies(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let policies = &state.picture.policies;
    let past = past(area.width);
    let last = format!("last {past} s");
    let names = ["policy", "limit", "allowed/s", "denied/s", "denied", "left", &last];
    let right = [2, 3, 4, 5];
    let header = Row::new(names.into_iter().enumerate().map(|(index, name)| {
        let side = if right.contains(&index) { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(name).alignment(side))
    }));
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(16),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(past),
    ];
    let shown = policies.policies.len();
    let mut title = format!(" {} policies by {} ", policies.total, state.sort().name());
    if shown < policies.total {
        title = format!(" {shown} of {} policies by {} ", policies.total, state.sort().name());
    }
    if !state.filter().is_empty() {
        title = format!("{title}with \"{}\" ", state.filter());
    }
    let table = Table::new(policies.policies.iter().map(|policy| row(policy, past)), widths)
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ")
        .block(Block::new().borders(Borders::TOP).title(title));
    let mut choice = TableState::new().with_selected(state.position());
    frame.render_stateful_widget(table, area, &mut choice);
}

fn row(policy: &Policy, past: u16) -> Row<'_> {
    let rate = &policy.rates.short;
    let percent = rate.denied_percent();
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let mut name = policy.label.clone();
    if let Some(until) = &policy.bypassed_until {
        name = format!("{name} (bypassed, {} s)", until.left_ms.div_ceil(1000));
    } else if policy.mode != "enforced" {
        name = format!("{name} ({})", policy.mode);
    }
    let older = policy.history.len().saturating_sub(usize::from(past));
    let limit = policy.limit.as_ref().map_or("unlimited", |limit| &limit.text);
    let row = Row::new([
        Cell::from(name),
        Cell::from(limit),
        right(format!("{:.1}", rate.allowed_per_second)),
        right(format!("{:.1}", rate.denied_per_second)),
        right(percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %"))),
        right(policy.level.map_or_else(|| "-".to_owned(), |level| level.to_string())),
        Cell::from(bars(&policy.history[older..])),
    ]);
    match percent {
        Some(percent) if percent >= ALARMING => row.style(Style::new().fg(Color::Red)),
        _ if policy.bypassed_until.is_some() => row.style(Style::new().fg(Color::Yellow)),
        _ => row,
    }
}

/// Draws decisions of the past, each second a bar; the highest is full. A second without any is
/// empty.
fn bars(history: &[[u32; 2]]) -> String {
    let all = history.iter().map(|[allowed, denied]| u64::from(*allowed) + u64::from(*denied));
    let highest = all.clone().max().unwrap_or(0).max(1);
    let bar = |count: u64| match count {
        0 => ' ',
        // From 1 to 8 eighths, rounded up.
        count => BARS[((count * 8).div_ceil(highest) as usize).clamp(1, 8) - 1],
    };
    all.map(bar).collect()
}

fn draw_keys(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let top = &state.picture.top;
    let title = format!(" most refused keys of {} ", top.policy);
    let lines: Vec<Line<'_>> = match &top.why {
        Some(why) => vec![Line::from(why.as_str())],
        None if top.denied.is_empty() => vec![Line::from("none")],
        None => {
            let line =
                |key: &super::state::TopKey| Line::from(format!("{:>12}  {}", key.cost, key.key));
            top.denied.iter().map(line).collect()
        }
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let line = match &state.error {
        Some(error) => Line::from(error.as_str()).red(),
        None if state.is_typing => Line::from(format!("/{}_", state.filter())),
        None if state.is_plain => Line::default(),
        None => Line::from("q quit  up/down choose  s sort  / filter").dim(),
    };
    frame.render_widget(Paragraph::new(line), area);
}
