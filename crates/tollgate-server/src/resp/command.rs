//! The commands, by name.

use crate::net::Permission;

/// The commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    ClThrottle,
    Throttle,
    Check,
    Descriptor,
    Peek,
    Reserve,
    Settle,
    Cancel,
    Refund,
    Reset,
    Enter,
    Renew,
    Leave,
    Report,
    Policies,
    Del,
    Exists,
    Ttl,
    Pttl,
    Ping,
    Echo,
    Hello,
    Auth,
    Quit,
    ResetConnection,
    Select,
    Client,
    Commands,
    Info,
    Config,
    DbSize,
    Time,
    Cluster,
    Subscribe,
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

/// The properties of a command.
#[derive(Debug)]
pub(super) struct Spec {
    /// The name, in lower case.
    pub(super) name: &'static str,
    pub(super) command: Command,
    /// How many arguments it has, the name among them; if negative, the minimum.
    pub(super) arity: i64,
    /// The positions of its keys: the first, the last (negative from the end), and the step. Zeros
    /// for none.
    pub(super) keys: (i64, i64, i64),
    /// Whether it changes state.
    pub(super) writes: bool,
    /// Whether a client may send it before the password.
    pub(super) is_open: bool,
    /// The permission that the client needs.
    pub(super) needs: Option<Permission>,
}

const fn spec(name: &'static str, command: Command, arity: i64) -> Spec {
    Spec { name, command, arity, keys: (0, 0, 0), writes: false, is_open: false, needs: None }
}

impl Spec {
    const fn keys(mut self, keys: (i64, i64, i64)) -> Self {
        self.keys = keys;
        self
    }

    const fn writes(mut self) -> Self {
        self.writes = true;
        self
    }

    const fn needs(mut self, permission: Permission) -> Self {
        self.needs = Some(permission);
        self
    }

    const fn open(mut self) -> Self {
        self.is_open = true;
        self
    }

    /// Tells whether it takes this many arguments, the name among them.
    pub(super) fn takes(&self, count: usize) -> bool {
        let least = usize::try_from(self.arity.unsigned_abs()).unwrap_or(usize::MAX);
        if self.arity < 0 { count >= least } else { count == least }
    }
}

/// All commands, the time-critical ones first: [`find`] searches in this order.
pub(super) static COMMANDS: [Spec; 43] = [
    // Like redis-cell, it checks its arguments itself.
    spec("cl.throttle", Command::ClThrottle, -1).keys((1, 1, 1)).writes().needs(Permission::Check),
    spec("throttle", Command::Throttle, -1).keys((1, 1, 1)).writes().needs(Permission::Check),
    spec("tg.check", Command::Check, -3).writes().needs(Permission::Check),
    spec("tg.descriptor", Command::Descriptor, -5).writes().needs(Permission::Check),
    spec("tg.peek", Command::Peek, -3).needs(Permission::Read),
    spec("tg.reserve", Command::Reserve, -3).writes().needs(Permission::Check),
    spec("tg.settle", Command::Settle, -3).writes().needs(Permission::Settle),
    spec("tg.cancel", Command::Cancel, 2).writes().needs(Permission::Settle),
    spec("tg.refund", Command::Refund, -3).writes().needs(Permission::Settle),
    spec("tg.reset", Command::Reset, -3).writes().needs(Permission::Settle),
    spec("tg.enter", Command::Enter, -3).writes().needs(Permission::Check),
    spec("tg.renew", Command::Renew, -4).writes().needs(Permission::Check),
    spec("tg.leave", Command::Leave, -4).writes().needs(Permission::Check),
    spec("tg.report", Command::Report, -3).writes().needs(Permission::Settle),
    spec("tg.policies", Command::Policies, 1).needs(Permission::Read),
    spec("del", Command::Del, -2).keys((1, -1, 1)).writes().needs(Permission::Settle),
    spec("unlink", Command::Del, -2).keys((1, -1, 1)).writes().needs(Permission::Settle),
    spec("exists", Command::Exists, -2).keys((1, -1, 1)).needs(Permission::Read),
    spec("ttl", Command::Ttl, 2).keys((1, 1, 1)).needs(Permission::Read),
    spec("pttl", Command::Pttl, 2).keys((1, 1, 1)).needs(Permission::Read),
    spec("ping", Command::Ping, -1),
    spec("echo", Command::Echo, 2),
    spec("hello", Command::Hello, -1).open(),
    spec("auth", Command::Auth, -2).open(),
    spec("quit", Command::Quit, -1).open(),
    spec("reset", Command::ResetConnection, 1).open(),
    spec("select", Command::Select, 2),
    spec("client", Command::Client, -2),
    spec("command", Command::Commands, -1),
    spec("info", Command::Info, -1).needs(Permission::Read),
    spec("config", Command::Config, -2).needs(Permission::Read),
    spec("dbsize", Command::DbSize, 1).needs(Permission::Read),
    spec("time", Command::Time, 1),
    spec("cluster", Command::Cluster, -2),
    spec("subscribe", Command::Subscribe, -2),
    spec("psubscribe", Command::Subscribe, -2),
    spec("ssubscribe", Command::Subscribe, -2),
    spec("monitor", Command::Subscribe, 1),
    spec("multi", Command::Multi, 1),
    spec("exec", Command::Exec, 1),
    spec("discard", Command::Discard, 1),
    spec("watch", Command::Watch, -2).keys((1, -1, 1)),
    spec("unwatch", Command::Unwatch, 1),
];

/// Finds a command; the case of its name does not matter.
#[inline]
pub(super) fn find(name: &[u8]) -> Option<&'static Spec> {
    COMMANDS.iter().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Tells whether a word equals a name, in any case.
pub(super) const fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

/// Reads a whole number as Rust does: with any sign, and zeros in front.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<i64> {
    // OVERFLOW: 18 digits fit into 63 bits.
    if !text.is_empty() && text.len() <= 18 && text.iter().all(u8::is_ascii_digit) {
        return Some(text.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')));
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a number that is not negative.
pub(super) fn count(text: &[u8]) -> Option<u64> {
    match number(text) {
        Some(number) => u64::try_from(number).ok(),
        // Above the largest signed number.
        None => std::str::from_utf8(text).ok()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_and_told_once() {
        for (index, spec) in COMMANDS.iter().enumerate() {
            let found = find(spec.name.to_uppercase().as_bytes()).map(|found| found.name);
            assert_eq!(found, Some(spec.name));
            assert!(COMMANDS[..index].iter().all(|before| before.name != spec.name));
        }
        assert!(find(b"cl.throttl").is_none() && find(b"").is_none());
    }

    #[test]
    fn numbers_are_those_of_rust() {
        for text in
            ["0", "+7", "-7", "007", "", "-", "1.5", " 1", "1 ", "9223372036854775807", "1e3"]
        {
            assert_eq!(number(text.as_bytes()), text.parse().ok(), "{text:?}");
        }
        assert_eq!(number(b"9223372036854775808"), None);
        assert_eq!(count(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(count(b"-1"), None);
    }
}
