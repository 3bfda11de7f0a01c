//! Draws the state.

use super::{
    KEYS as HELP, PAST,
    state::{Node, Policy, RECENT, Remote, State},
};
use crate::{counted, text::fit};
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

/// Lines of the head, without that of the breakers.
const HEAD: u16 = 3;

/// Lines of the list of policies beside those of policies: its title, and the names of columns.
const TABLE: u16 = 2;

/// Policies that are shown before keys are.
const POLICIES_LEAST: u16 = 5;

/// Lines of the list of refused keys beside those of keys: its title, and the names of columns.
const KEYS_HEAD: u16 = 2;

/// Lines for the refused keys at most, with their head.
const KEYS: u16 = 12;

/// Returns how many lines the whole picture needs.
pub(super) fn height(state: &State) -> u16 {
    let rest = head_height(state) + TABLE + details_height(state) + keys_height(state) + 1;
    rows(state).saturating_add(rest)
}

/// Returns how many lines all policies need.
fn rows(state: &State) -> u16 {
    u16::try_from(state.picture.policies.policies.len()).unwrap_or(u16::MAX).max(1)
}

fn head_height(state: &State) -> u16 {
    HEAD + u16::from(nodes(state).next().is_some())
}

/// Returns the servers of all shared stores.
fn nodes(state: &State) -> impl Iterator<Item = &Node> {
    state
        .picture
        .store
        .stores
        .iter()
        .filter_map(|store| store.shared.as_ref())
        .flat_map(|it| &it.nodes)
}

fn details(state: &State) -> Vec<String> {
    state.choice(&state.picture.policies).map(Policy::details).unwrap_or_default()
}

fn details_height(state: &State) -> u16 {
    u16::try_from(details(state).len()).unwrap_or(0)
}

fn keys_height(state: &State) -> u16 {
    let keys = u16::try_from(state.picture.top.denied.len()).unwrap_or(KEYS);
    (keys.max(1) + KEYS_HEAD).min(KEYS)
}

pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let [head, body, about, keys, foot] = Layout::vertical([
        Constraint::Length(head_height(state)),
        // If the terminal is low, the keys shrink in favour of the policies.
        Constraint::Min(rows(state).min(POLICIES_LEAST) + TABLE),
        Constraint::Length(details_height(state)),
        Constraint::Length(keys_height(state)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(frame, head, state);
    if state.is_help {
        draw_help(frame, body);
    } else {
        draw_policies(frame, body, state);
    }
    let lines = details(state).into_iter().map(|line| Line::from(fit(&line, about.width)));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), about);
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
        let keys = store.keys.map_or_else(String::new, |keys| format!(" {}", counted(keys, "key")));
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
        format!("{name} {}/{} {}", listener.open, listener.most, listener.requests)
    });
    let listeners = listeners.collect::<Vec<_>>().join(", ");
    let third = vec![Span::from(format!("listeners (open/most, requests): {listeners}"))];
    let lines = [first, second, third, breakers(state)].map(|spans| fit_line(spans, area.width));
    frame.render_widget(Paragraph::new(lines.to_vec()), area);
}

/// Returns the circuit breakers of the servers of shared stores, those that are not closed first.
fn breakers(state: &State) -> Vec<Span<'static>> {
    let is_up = |node: &&Node| node.state == "up";
    let (up, away): (Vec<_>, Vec<_>) = nodes(state).partition(is_up);
    let mut spans = vec![Span::from("breakers: ")];
    for Node { address, state, last_error, .. } in &away {
        let why = last_error.as_ref().map_or_else(String::new, |error| format!(" ({error})"));
        spans.push(Span::from(format!("{address} {}{why}  ", state.to_uppercase())).red());
    }
    let shown = up
        .iter()
        .take(SHOWN_NODES)
        .map(|node| format!("{} closed, {} in flight", node.address, node.in_flight));
    let mut text = shown.collect::<Vec<_>>().join("  ");
    if up.len() > SHOWN_NODES {
        text += &format!("  {} more closed", up.len() - SHOWN_NODES);
    }
    spans.push(Span::from(text));
    spans
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP.lines().map(|line| Line::from(fit(line, area.width))).collect();
    let block = Block::new().borders(Borders::TOP).title(" help ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// Cuts the last of the spans that fit.
fn fit_line(spans: Vec<Span<'_>>, width: u16) -> Line<'static> {
    let mut left = width;
    let mut line = Line::default();
    for span in spans {
        if left == 0 {
            break;
        }
        let shown = Span::styled(fit(&span.content, left), span.style);
        left = left.saturating_sub(u16::try_from(shown.width()).unwrap_or(u16::MAX));
        line.push_span(shown);
    }
    line
}

/// Servers in the head of the view; a cluster may have hundreds.
const SHOWN_NODES: usize = 4;

/// Returns how a shared store is, in short.
fn remote(shared: &Remote) -> String {
    let Remote { fleet_size, leased, calls, .. } = shared;
    format!(" fleet {fleet_size} calls {calls} leased {leased}")
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The widths of columns that depend on the terminal and on what is shown.
#[derive(Clone, Copy, Debug)]
struct Widths {
    name: u16,
    limit: u16,
    /// Seconds of the past, a cell each; 0 if there is no space for them.
    past: u16,
}

impl Widths {
    /// Cells of the four numbers, of the gaps before and between them, and of the mark of the choice.
    const NUMBERS: u16 = 9 + 9 + 6 + 8 + 5 + 2;

    /// The fewest seconds of the past that are worth a column, and the widest limit.
    const PAST_LEAST: u16 = 10;
    const LIMIT_MOST: u16 = 30;

    /// Names of this width are not cut for the past.
    const NAME_WHOLE: u16 = 24;

    /// Gives names and limits the cells that they need, and the past the rest. If that is too
    /// little, names get two thirds, so that a long one does not take all cells of the past. In a
    /// narrow terminal, the past is dropped first.
    fn of(policies: &[Policy], width: u16) -> Self {
        let cells = |text: &str| u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX);
        let longest = policies.iter().map(|policy| cells(&name_of(policy, u16::MAX))).max();
        let limit = policies.iter().map(|policy| cells(&policy.limit_text())).max();
        let room = width.saturating_sub(Self::NUMBERS);
        let limit = limit.unwrap_or(0).clamp(5, Self::LIMIT_MOST).min(room / 2);
        let room = room - limit;
        let longest = longest.unwrap_or(0).max(6);
        let past_beside = |name: u16| {
            let left = room.saturating_sub(name + 1);
            (left >= Self::PAST_LEAST).then_some(left.min(PAST))
        };
        let cut = longest.min((room / 3 * 2).max(Self::NAME_WHOLE));
        let past = past_beside(longest).or_else(|| past_beside(cut)).unwrap_or(0);
        Self { name: room - past - u16::from(past > 0), limit, past }
    }
}

/// Returns the name of a policy with how it is enforced; the name is cut first.
fn name_of(policy: &Policy, width: u16) -> String {
    let mode = match &policy.bypassed_until {
        Some(until) => format!(" (bypassed, {} s)", until.left_ms.div_ceil(1000)),
        None if policy.mode != "enforced" => format!(" ({})", fit(&policy.mode, 16)),
        None => String::new(),
    };
    let cells = u16::try_from(Span::raw(&*mode).width()).unwrap_or(u16::MAX);
    let label = fit(&policy.label, width.saturating_sub(cells).max(4));
    fit(&(label + &mode), width)
}

fn draw_policies(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let policies = &state.picture.policies;
    let widths = Widths::of(&policies.policies, area.width);
    let last = format!("last {} s", widths.past);
    let names = ["policy", "limit", "allowed/s", "denied/s", "denied", "left", &last];
    let right = [2, 3, 4, 5];
    let header = Row::new(names.into_iter().enumerate().map(|(index, name)| {
        let side = if right.contains(&index) { Alignment::Right } else { Alignment::Left };
        Cell::from(Line::from(name).alignment(side))
    }));
    let Widths { name, limit, past } = widths;
    let mut columns = [name, limit, 9, 9, 6, 8].map(Constraint::Length).to_vec();
    columns.extend((past > 0).then_some(Constraint::Length(past)));
    let (shown, total) = (policies.policies.len() as u64, policies.total as u64);
    let count = counted(total, "policy");
    let count = if shown < total { format!("{shown} of {count}") } else { count };
    let mut title = format!(" {count} by {}, rates of the last {RECENT} s ", state.sort().name());
    if !state.filter().is_empty() {
        title = format!("{title}with \"{}\" ", state.filter());
    }
    let table = Table::new(policies.policies.iter().map(|policy| row(policy, widths)), columns)
        .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ")
        .block(Block::new().borders(Borders::TOP).title(fit(&title, area.width)));
    let mut choice = TableState::new().with_selected(state.position());
    frame.render_stateful_widget(table, area, &mut choice);
}

fn row(policy: &Policy, widths: Widths) -> Row<'_> {
    let rate = policy.rate();
    let percent = rate.denied_percent();
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let older = policy.history.len().saturating_sub(usize::from(widths.past));
    let row = Row::new([
        Cell::from(name_of(policy, widths.name)),
        Cell::from(fit(&policy.limit_text(), widths.limit)),
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
    let title = fit(&format!(" most denied keys of {} ", top.policy), area.width);
    let lines: Vec<Line<'_>> = match &top.why {
        Some(why) => vec![Line::from(fit(why, area.width))],
        None if top.denied.is_empty() => vec![Line::from("none")],
        None => {
            let line = |cost: &str, key: &str| fit(&format!("{cost:>12}  {key}"), area.width);
            let head = Line::from(line("denied", "key")).bold();
            let keys = top.denied.iter().map(|top| line(&top.cost.to_string(), &top.key));
            std::iter::once(head).chain(keys.map(Line::from)).collect()
        }
    };
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let line = match &state.error {
        Some(error) => Line::from(fit(error, area.width)).red(),
        None if state.is_typing => Line::from(fit(&format!("/{}_", state.filter()), area.width)),
        None if state.is_plain => Line::default(),
        None => Line::from("q quit  up/down select  s sort  / filter  ? help").dim(),
    };
    frame.render_widget(Paragraph::new(line), area);
}
