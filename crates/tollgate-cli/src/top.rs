//! `tollgate top`: the activity of a server, live in a terminal.
//!
//! All numbers, including the rates, come from the server's admin API: [`state`] holds the
//! responses and the user's choices, [`view`] draws them. `--once` draws one picture into memory
//! and prints it as plain text.

mod state;
#[cfg(test)]
mod tests;
mod view;

use crate::{
    client::{Client, ClientError, encoded},
    complain,
    plan::InputError,
    target::Target,
    tls::TlsArgs,
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Buffer,
    crossterm::event::{self, Event, KeyEventKind},
};
use state::{Picture, State, Then};
use std::{
    io::{self, ErrorKind, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};
use tollgate::{Clock, Tick};
use tollgate_server::config::parse_duration;

/// How many policies to request: more than fit on any screen.
const MOST_POLICIES: usize = 200;

/// How many keys to request.
const MOST_KEYS: usize = 10;

/// The width of the picture of `--once` if there is no terminal.
const WIDTH: u16 = 110;

/// Seconds of history to request: the server keeps a minute.
const PAST: u16 = 60;

const KEYS: &str = "\
Keys:
  q          quit
  up, down   select a policy; its most denied keys are shown below
  s          sort by denied, allowed, name, or as in the files
  /          filter policies by name; Enter applies the filter, Esc clears it
  ?          show this list; any key closes it";

#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct TopArgs {
    /// Admin address of the server: HOST:PORT, https://HOST:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6070")]
    admin: String,

    /// File with the admin token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// How often to refresh
    #[arg(long, value_name = "TIME", default_value = "1s")]
    interval: String,

    /// Show only policies whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print the current state once as plain text, and exit
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    tls: TlsArgs,
}

/// Runs the command.
pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, InputError> {
    let target = Target::new(&args.admin, &args.tls, b"http/1.1");
    let target = target.map_err(|error| InputError(format!("--admin: {error}")))?;
    let interval = parse_duration(&args.interval)
        .map_err(|error| InputError(format!("--interval: {error}")))?;
    if interval < Duration::from_millis(100) {
        let text = "--interval must be at least 100ms; 1s is usual, because the server samples \
                    once a second";
        return Err(InputError(text.into()));
    }
    let token = args.token_file.as_ref().map(|path| {
        let read = std::fs::read_to_string(path);
        let wrong = |error| InputError(format!("--token-file {}: {error}", path.display()));
        read.map(|text| text.trim_end().to_owned()).map_err(wrong)
    });
    let client = Client::new(target, token.transpose()?);
    let client = client.map_err(|error| InputError(error.to_string()))?;
    let mut state = State::new(client.target().to_string(), args.filter.clone());
    let done = if args.once {
        once(&client, &mut state).and_then(|text| match io::stdout().write_all(text.as_bytes()) {
            // The reader has closed the pipe: it needs no more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(Failure::Terminal),
        })
    } else {
        watch(&client, &mut state, interval).map_err(Failure::Terminal)
    };
    Ok(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Server(error)) => {
            complain(format_args!("{error}"));
            ExitCode::FAILURE
        }
        Err(Failure::Terminal(error)) => {
            complain(format_args!("cannot use the terminal: {error}; try --once"));
            ExitCode::FAILURE
        }
    })
}

enum Failure {
    Server(ClientError),
    Terminal(io::Error),
}

/// Requests everything on the screen.
fn ask(client: &Client, state: &State) -> Result<Picture, ClientError> {
    let (sort, filter) = (state.sort().name(), encoded(state.filter()));
    let path =
        format!("/policies?sort={sort}&filter={filter}&limit={MOST_POLICIES}&history={PAST}");
    let policies: state::Policies = client.get(&path)?;
    let top = match state.choice(&policies) {
        Some(policy) => {
            client.get(&format!("/top?policy={}&n={MOST_KEYS}", encoded(&policy.id)))?
        }
        None => state::Top::default(),
    };
    let (store, config) = (client.get("/store")?, client.get("/config")?);
    Ok(Picture { policies, top, store, config })
}

/// Returns one picture as text.
fn once(client: &Client, state: &mut State) -> Result<String, Failure> {
    state.show(Ok(ask(client, state).map_err(Failure::Server)?));
    state.is_plain = true;
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || ratatui::crossterm::terminal::size().map_or(WIDTH, |(columns, _)| columns);
    let width = match columns {
        Some(columns) => columns,
        None if io::stdout().is_terminal() => terminal(),
        None => WIDTH,
    };
    let mut terminal = Terminal::new(TestBackend::new(width, view::height(state)))
        .map_err(|error| Failure::Terminal(io::Error::other(error)))?;
    let drawn = terminal.draw(|frame| view::draw(frame, state));
    let drawn = drawn.map_err(|error| Failure::Terminal(io::Error::other(error)))?;
    Ok(text(drawn.buffer))
}

/// Returns the drawn text, without colours and trailing spaces.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut text = String::new();
    for row in buffer.content().chunks(width) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn watch(client: &Client, state: &mut State, interval: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let clock = Clock::monotonic();
    let mut due = Tick::ZERO;
    let done = loop {
        if clock.now() >= due {
            state.show(ask(client, state));
            due = clock.now().saturating_add(interval);
        }
        if let Err(error) = terminal.draw(|frame| view::draw(frame, state)) {
            break Err(error);
        }
        let event = match event::poll(due.since(clock.now())) {
            Ok(true) => event::read(),
            Ok(false) => continue,
            Err(error) => break Err(error),
        };
        match event {
            Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => match state.press(key) {
                Then::Quit => break Ok(()),
                Then::Ask => due = Tick::ZERO,
                Then::Draw => {}
            },
            Ok(_) => {}
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore()?;
    done
}
