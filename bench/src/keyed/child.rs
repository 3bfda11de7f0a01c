//! A fresh process for each figure.
//!
//! A store that is dropped leaves a million small free blocks behind, and the next store finds the
//! heap in that state: it is neither as large nor as slow as on its own. So the program starts
//! itself with [`FLAG`], the table, the peer and one more argument, and reads figures.

use super::{expiry, growth, insert, memory, quota_change};
use crate::{decisions, peers};
use std::process::{Command, ExitCode, Stdio};

/// The hidden argument.
const FLAG: &str = "--child";

/// The figures of a child process; a figure may be missing.
pub(crate) type Figures = Vec<Option<f64>>;

/// Runs a child process; `None` if it returns no figures.
pub(crate) fn ask(table: &str, peer: &str, argument: &str) -> Option<Figures> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args([FLAG, table, peer, argument]).stderr(Stdio::inherit());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(read(&String::from_utf8_lossy(&output.stdout)))
}

/// Does the work, if this process is a child.
pub(crate) fn answer(arguments: impl Iterator<Item = String>) -> Option<ExitCode> {
    let arguments: Vec<String> = arguments.collect();
    let (flag, rest) = arguments.split_first()?;
    if flag != FLAG {
        return None;
    }
    Some(match figures(rest) {
        Some(figures) => {
            println!("{}", write(&figures));
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    })
}

fn figures(arguments: &[String]) -> Option<Figures> {
    let [table, peer, argument] = arguments else {
        return None;
    };
    let (strings, numbers) = (peers::keyed::find(peer), peers::numbered::find(peer));
    match table.as_str() {
        "keyed" => super::child(&strings?, argument),
        "memory" => memory::child(&strings?, argument),
        "insert" => insert::child(&strings?, argument),
        "insert-u64" => insert::child(&numbers?, argument),
        "expiry" => expiry::child(&strings?, argument),
        "growth" => growth::child(&numbers?, argument),
        "quota-change" => quota_change::child(argument),
        "decisions" => decisions::keyed::child(peer, argument),
        _ => None,
    }
}

fn write(figures: &[Option<f64>]) -> String {
    let word = |figure: &Option<f64>| figure.map_or_else(|| "-".into(), |it| it.to_string());
    figures.iter().map(word).collect::<Vec<String>>().join(" ")
}

fn read(text: &str) -> Figures {
    text.split_whitespace().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_pass_through_text_unchanged() {
        let figures = vec![Some(1.25), None, Some(1e9 / 3.0)];
        assert_eq!(read(&write(&figures)), figures);
    }

    #[test]
    fn only_the_hidden_argument_makes_a_child() {
        let answer = |line: &str| answer(line.split_whitespace().map(String::from));
        assert!(answer("").is_none() && answer("keyed-memory").is_none());
        assert_eq!(answer("--child memory nobody 1000"), Some(ExitCode::FAILURE));
        assert_eq!(answer("--child"), Some(ExitCode::FAILURE));
    }
}
