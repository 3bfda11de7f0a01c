//! The texts of `COMMAND DOCS`: redis-cli shows them as help and as hints while one types.

use super::reply::Replies;

/// The documentation of a command, or of a subcommand (`client|id`), which follows its command.
#[derive(Debug)]
pub(super) struct Doc {
    /// The name, in small letters.
    pub(super) name: &'static str,
    group: &'static str,
    /// The arguments: a name in lower case is a value, one in capitals a word to be written so; `[..]` may be left
    /// out, and `...` after it may be repeated.
    arguments: &'static str,
    summary: &'static str,
}

const fn doc(
    name: &'static str,
    group: &'static str,
    arguments: &'static str,
    summary: &'static str,
) -> Doc {
    Doc { name, group, arguments, summary }
}

const LIMIT: &str = "rate-limit";

/// All commands, each followed by its subcommands.
#[rustfmt::skip]
pub(super) static DOCS: [Doc; 57] = [
    doc("cl.throttle", LIMIT, "[key] [max_burst] [count] [period] [quantity]", "Takes permits of a key by a limit that comes with the call, as redis-cell does."),
    doc("throttle", LIMIT, "[key] [max_burst] [count] [period] [quantity]", "Takes permits of a key by a limit that comes with the call, as throttlecrab does."),
    doc("tg.check", LIMIT, "policy key [cost]", "Takes permits of a key by a configured policy, or of several policies at once."),
    doc("tg.descriptor", LIMIT, "domain hits key value [key_value]...", "Decides about a descriptor, as Envoy asks."),
    doc("tg.peek", LIMIT, "policy key [cost]", "Tells what a check would reply, and takes nothing."),
    doc("tg.reserve", LIMIT, "policy key [cost] [LIFE milliseconds]", "Takes permits whose cost can be corrected later."),
    doc("tg.settle", LIMIT, "id actual [more]...", "Corrects the cost of a reservation."),
    doc("tg.cancel", LIMIT, "id", "Gives a reservation back."),
    doc("tg.refund", LIMIT, "policy key [cost]", "Gives permits of a key back that are still in use."),
    doc("tg.reset", LIMIT, "policy key", "Forgets what a key has used."),
    doc("tg.enter", LIMIT, "policy key [cost]", "Takes a slot of a concurrency rule, with a lease."),
    doc("tg.renew", LIMIT, "policy key id", "Extends a lease."),
    doc("tg.leave", LIMIT, "policy key id", "Ends a lease and frees its slot."),
    doc("tg.report", LIMIT, "policy outcome [latency] [count]", "Tells how calls ended, for a rule whose rate follows reports."),
    doc("tg.policies", LIMIT, "", "Lists the policies of the configuration."),
    doc("del", "generic", "key [key]...", "Forgets keys of CL.THROTTLE and THROTTLE."),
    doc("unlink", "generic", "key [key]...", "Forgets keys of CL.THROTTLE and THROTTLE."),
    doc("exists", "generic", "key [key]...", "Counts the keys that have not fully refilled."),
    doc("ttl", "generic", "key", "Returns the seconds until a key has fully refilled."),
    doc("pttl", "generic", "key", "Returns the milliseconds until a key has fully refilled."),
    doc("ping", "connection", "[message]", "Replies PONG, or the message."),
    doc("echo", "connection", "message", "Replies the message."),
    doc("hello", "connection", "[protocol] [AUTH username_password] [SETNAME name]", "Chooses the version of the protocol."),
    doc("auth", "connection", "[username] password", "Authenticates the connection."),
    doc("quit", "connection", "", "Closes the connection."),
    doc("reset", "connection", "", "Forgets everything that the connection has set."),
    doc("select", "connection", "index", "Accepts database 0, the only one."),
    doc("client", "connection", "subcommand", "Asks about this connection, or changes it."),
    doc("client|setname", "connection", "name", "Names the connection."),
    doc("client|getname", "connection", "", "Returns the name of the connection."),
    doc("client|setinfo", "connection", "attribute value", "Stores the name (lib-name) or version (lib-ver) of the client library."),
    doc("client|id", "connection", "", "Returns the number of the connection."),
    doc("client|info", "connection", "", "Describes this connection."),
    doc("client|list", "connection", "", "Describes this connection; others are not listed."),
    doc("client|no-evict", "connection", "on_or_off", "Accepts ON or OFF; no client is evicted."),
    doc("client|no-touch", "connection", "on_or_off", "Accepts ON or OFF; no command changes when a key is evicted."),
    doc("client|reply", "connection", "on_off_or_skip", "Switches replies on or off, or skips the next one."),
    doc("command", "server", "[subcommand]", "Describes all commands."),
    doc("command|count", "server", "", "Counts the commands."),
    doc("command|docs", "server", "[command]...", "Documents commands."),
    doc("command|info", "server", "[command]...", "Describes commands: arguments, flags and keys."),
    doc("command|list", "server", "", "Lists the names of the commands."),
    doc("info", "server", "[section]...", "Describes the server."),
    doc("config", "server", "subcommand", "Exists for clients that ask; the configuration is in files."),
    doc("config|get", "server", "name [more]...", "Replies that nothing can be configured here."),
    doc("dbsize", "server", "", "Counts the keys that have not fully refilled."),
    doc("time", "server", "", "Returns the time of the server: seconds and microseconds."),
    doc("cluster", "cluster", "subcommand", "Replies that this is not a cluster."),
    doc("subscribe", "pubsub", "channel [more]...", "Replies that there is no pub/sub."),
    doc("psubscribe", "pubsub", "pattern [more]...", "Replies that there is no pub/sub."),
    doc("ssubscribe", "pubsub", "channel [more]...", "Replies that there is no pub/sub."),
    doc("monitor", "server", "", "Replies that there is no pub/sub."),
    doc("multi", "transactions", "", "Begins a transaction: the commands that follow are queued."),
    doc("exec", "transactions", "", "Runs the queued commands in order."),
    doc("discard", "transactions", "", "Drops the queued commands."),
    doc("watch", "transactions", "key [key]...", "Replies that keys cannot be watched."),
    doc("unwatch", "transactions", "", "Watches no keys, as before."),
];

/// Returns the documentation of commands, with that of their subcommands.
pub(super) fn commands() -> impl Iterator<Item = (&'static Doc, &'static [Doc])> {
    let is_command = |(_, doc): &(usize, &'static Doc)| !doc.name.contains('|');
    DOCS.iter().enumerate().filter(is_command).map(|(index, doc)| (doc, subcommands(index)))
}

/// Returns the documentation of the subcommands of the command with that number.
fn subcommands(index: usize) -> &'static [Doc] {
    let rest = DOCS.get(index + 1..).unwrap_or_default();
    let count = rest.iter().take_while(|doc| doc.name.contains('|')).count();
    &rest[..count]
}

/// Returns the documentation of the subcommands of a command.
pub(super) fn subcommands_of(name: &str) -> &'static [Doc] {
    DOCS.iter().position(|doc| doc.name == name).map_or(&[], subcommands)
}

/// Finds a subcommand (`client|id`); its name may be in letters of any size.
pub(super) fn find_subcommand(name: &[u8]) -> Option<&'static Doc> {
    let is_named = |doc: &&Doc| doc.name.as_bytes().eq_ignore_ascii_case(name);
    DOCS.iter().filter(|doc| doc.name.contains('|')).find(is_named)
}

/// One argument.
#[derive(Debug, PartialEq, Eq)]
struct Argument {
    name: &'static str,
    /// A word that comes before the value.
    token: Option<&'static str>,
    is_optional: bool,
    is_multiple: bool,
}

impl Doc {
    fn arguments(&self) -> impl Iterator<Item = Argument> + use<> {
        let mut rest = self.arguments;
        std::iter::from_fn(move || {
            let (text, is_optional, is_multiple);
            if let Some(inner) = rest.strip_prefix('[') {
                let (inside, after) = inner.split_once(']')?;
                let behind = after.strip_prefix("...");
                (text, is_optional, is_multiple) = (inside, true, behind.is_some());
                rest = behind.unwrap_or(after);
            } else {
                let end = rest.find(' ').unwrap_or(rest.len());
                (text, is_optional, is_multiple) = (&rest[..end], false, false);
                rest = &rest[end..];
            }
            rest = rest.trim_start();
            let (token, name) = match text.split_once(' ') {
                Some((token, name)) => (Some(token), name),
                None => (None, text),
            };
            (!text.is_empty()).then_some(Argument { name, token, is_optional, is_multiple })
        })
    }

    /// Returns the arity as Redis counts it: with the name, and negative if there may be more.
    pub(super) fn arity(&self) -> i64 {
        let words = self.name.split('|').count();
        let needed = words + self.arguments().filter(|argument| !argument.is_optional).count();
        let needed = i64::try_from(needed).unwrap_or(i64::MAX);
        if self.arguments().any(|argument| argument.is_optional) { -needed } else { needed }
    }

    /// Writes the documentation as the value of its name.
    pub(super) fn write(&self, subcommands: &[Self], replies: &mut Replies) {
        let arguments: Vec<Argument> = self.arguments().collect();
        let (has_arguments, has_more) = (!arguments.is_empty(), !subcommands.is_empty());
        replies.map(3 + usize::from(has_arguments) + usize::from(has_more));
        let since = env!("CARGO_PKG_VERSION");
        for (key, value) in [("summary", self.summary), ("since", since), ("group", self.group)] {
            replies.bulk(key);
            replies.bulk(value);
        }
        if has_arguments {
            replies.bulk("arguments");
            replies.array(arguments.len());
            arguments.iter().for_each(|argument| argument.write(replies));
        }
        if has_more {
            replies.bulk("subcommands");
            replies.map(subcommands.len());
            for doc in subcommands {
                replies.bulk(doc.name);
                doc.write(&[], replies);
            }
        }
    }
}

impl Argument {
    fn write(&self, replies: &mut Replies) {
        let flags = [(self.is_optional, "optional"), (self.is_multiple, "multiple")];
        let flags: Vec<&str> = flags.iter().filter(|(is, _)| *is).map(|(_, flag)| *flag).collect();
        replies.map(2 + usize::from(self.token.is_some()) + usize::from(!flags.is_empty()));
        for (key, value) in
            [("name", Some(self.name)), ("type", Some("string")), ("token", self.token)]
        {
            if let Some(value) = value {
                replies.bulk(key);
                replies.bulk(value);
            }
        }
        if !flags.is_empty() {
            replies.bulk("flags");
            replies.array(flags.len());
            flags.iter().for_each(|flag| replies.word(flag));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::command::COMMANDS, *};

    #[test]
    fn every_command_is_documented_once_and_its_arguments_have_its_arity() {
        let documented: Vec<&str> = commands().map(|(doc, _)| doc.name).collect();
        let names: Vec<&str> = COMMANDS.iter().map(|spec| spec.name).collect();
        assert_eq!(documented, names);
        for (spec, (doc, _)) in COMMANDS.iter().zip(commands()) {
            // Commands that refuse what they cannot do take any arguments.
            let takes = |count: i64| spec.takes(usize::try_from(count).unwrap());
            assert!(takes(doc.arity().abs()), "{}", doc.name);
            assert!(!doc.summary.is_empty() && doc.summary.ends_with('.'), "{}", doc.name);
        }
        for (doc, subcommands) in commands() {
            for subcommand in subcommands {
                assert_eq!(subcommand.name.split('|').next(), Some(doc.name));
            }
        }
    }

    #[test]
    fn arguments_are_read_from_their_short_form() {
        let reserve = DOCS.iter().find(|doc| doc.name == "tg.reserve").unwrap();
        let argument =
            |name, token, is_optional| Argument { name, token, is_optional, is_multiple: false };
        let expected = [
            argument("policy", None, false),
            argument("key", None, false),
            argument("cost", None, true),
            argument("milliseconds", Some("LIFE"), true),
        ];
        assert_eq!(reserve.arguments().collect::<Vec<_>>(), expected);
        assert_eq!(reserve.arity(), -3);
        let settle = DOCS.iter().find(|doc| doc.name == "tg.settle").unwrap();
        assert!(settle.arguments().last().is_some_and(|last| last.is_multiple && last.is_optional));
    }
}
