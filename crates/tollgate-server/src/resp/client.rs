//! Commands by which clients describe themselves.

use super::{
    about::REDIS_VERSION,
    command::{is, number},
    parse::Args,
    reply::Version,
    session::{Session, Wanted},
};

/// The longest name of a connection or library, in bytes.
const NAME_MAX: usize = 256;

/// Returns a name, if it is one: printable, and without spaces.
fn name(text: &[u8]) -> Option<&str> {
    let is_name = text.len() <= NAME_MAX && text.iter().all(|byte| (b'!'..=b'~').contains(byte));
    std::str::from_utf8(text).ok().filter(|_| is_name)
}

impl Session {
    /// `PING [message]`
    pub(super) fn ping(&mut self, args: &Args<'_>) {
        match args.len() {
            1 => self.replies.word("PONG"),
            2 => self.replies.bulk(args.at(1)),
            _ => self.wrong(format_args!("ERR wrong number of arguments for 'ping' command")),
        }
    }

    /// `SELECT 0`
    pub(super) fn select(&mut self, args: &Args<'_>) {
        match number(args.at(1)) {
            Some(0) => self.replies.word("OK"),
            Some(_) => self.wrong(format_args!("ERR DB index is out of range")),
            None => self.wrong(format_args!("ERR value is not an integer or out of range")),
        }
    }

    /// `AUTH [user] password`
    pub(super) fn auth(&mut self, args: &Args<'_>) {
        let (user, password) = match args.len() {
            2 if !self.has_password() => {
                return self.wrong(format_args!(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?"
                ));
            }
            2 => (&b"default"[..], args.at(1)),
            3 => (args.at(1), args.at(2)),
            _ => return self.wrong(format_args!("ERR syntax error")),
        };
        if self.knows(user, password) {
            self.replies.word("OK");
        }
    }

    /// Tells whether the password is right; if not, it has replied.
    fn knows(&mut self, user: &[u8], password: &[u8]) -> bool {
        let is_right = self.authenticate(user, password);
        if !is_right {
            self.wrong(format_args!(
                "WRONGPASS invalid username-password pair or user is disabled."
            ));
        }
        is_right
    }

    /// `HELLO [2|3 [AUTH user password] [SETNAME name]]`
    pub(super) fn hello(&mut self, args: &Args<'_>) {
        let version = match args.get(1).map(number) {
            None => self.replies.version(),
            Some(Some(2)) => Version::Two,
            Some(Some(3)) => Version::Three,
            Some(Some(_)) => {
                return self.wrong(format_args!("NOPROTO unsupported protocol version"));
            }
            Some(None) => {
                return self
                    .wrong(format_args!("ERR Protocol version is not an integer or out of range"));
            }
        };
        let (mut at, mut called) = (2, None);
        while at < args.len() {
            let (word, left) = (args.at(at), args.len() - at - 1);
            if is(word, "AUTH") && left >= 2 {
                if !self.knows(args.at(at + 1), args.at(at + 2)) {
                    return;
                }
                at += 3;
            } else if is(word, "SETNAME") && left >= 1 {
                called = Some(args.at(at + 1));
                at += 2;
            } else {
                let word = String::from_utf8_lossy(word);
                return self.wrong(format_args!("ERR Syntax error in HELLO option '{word:.128}'"));
            }
        }
        if self.is_stranger() {
            return self.wrong(format_args!(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
                 HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
                 select the RESP protocol version at the same time"
            ));
        }
        if called.is_some_and(|called| !self.call(called)) {
            return;
        }
        self.replies.set_version(version);
        let (id, replies) = (self.id, &mut self.replies);
        replies.map(7);
        for (key, value) in [("server", "tollgate"), ("version", REDIS_VERSION)] {
            replies.bulk(key);
            replies.bulk(value);
        }
        replies.bulk("proto");
        replies.int(version.number());
        replies.bulk("id");
        replies.count(id);
        for (key, value) in [("mode", "standalone"), ("role", "master")] {
            replies.bulk(key);
            replies.bulk(value);
        }
        replies.bulk("modules");
        replies.array(0);
    }

    /// Gives the connection a name; if it is none, it has replied.
    fn call(&mut self, called: &[u8]) -> bool {
        match name(called) {
            Some(called) => {
                called.clone_into(&mut self.name);
                true
            }
            None => {
                self.wrong(format_args!(
                    "ERR Client names cannot contain spaces, newlines or special characters, and \
                     are at most {NAME_MAX} bytes long."
                ));
                false
            }
        }
    }

    /// `CLIENT ...`
    pub(super) fn client(&mut self, args: &Args<'_>) {
        let verb = args.at(1).to_ascii_lowercase();
        match (&verb[..], args.len()) {
            (b"setname", 3) => {
                if self.call(args.at(2)) {
                    self.replies.word("OK");
                }
            }
            (b"getname", 2) if self.name.is_empty() => self.replies.null(),
            (b"getname", 2) => self.replies.bulk(&self.name),
            (b"setinfo", 4) => self.set_info(args.at(2), args.at(3)),
            (b"id", 2) => self.replies.count(self.id),
            // A client learns nothing of other connections.
            (b"info" | b"list", 2..) => {
                let line = self.line();
                self.replies.text(&line);
            }
            (b"no-evict" | b"no-touch", 3) if is(args.at(2), "ON") || is(args.at(2), "OFF") => {
                self.replies.word("OK");
            }
            (b"no-evict" | b"no-touch", 3) => self.wrong(format_args!("ERR syntax error")),
            (b"reply", 3) => self.reply_wanted(args.at(2)),
            _ => {
                let verb = String::from_utf8_lossy(args.at(1));
                self.wrong(format_args!(
                    "ERR unknown subcommand or wrong number of arguments for '{verb:.128}'. Use \
                     SETNAME, GETNAME, SETINFO, ID, INFO, LIST, NO-EVICT, NO-TOUCH and REPLY."
                ));
            }
        }
    }

    fn set_info(&mut self, what: &[u8], value: &[u8]) {
        let slot = match () {
            () if is(what, "lib-name") => &mut self.library.0,
            () if is(what, "lib-ver") => &mut self.library.1,
            () => {
                let what = String::from_utf8_lossy(what);
                return self.wrong(format_args!("ERR Unrecognized option '{what:.128}'"));
            }
        };
        match name(value) {
            Some(value) => {
                value.clone_into(slot);
                self.replies.word("OK");
            }
            None => self.wrong(format_args!(
                "ERR lib-name and lib-ver cannot contain spaces, newlines or special characters, \
                 and are at most {NAME_MAX} bytes long."
            )),
        }
    }

    fn reply_wanted(&mut self, what: &[u8]) {
        match () {
            () if is(what, "ON") => {
                self.wanted = Wanted::All;
                self.replies.word("OK");
            }
            () if is(what, "OFF") => self.wanted = Wanted::None,
            () if is(what, "SKIP") && self.wanted == Wanted::All => self.wanted = Wanted::Skip,
            () if is(what, "SKIP") => {}
            () => self.wrong(format_args!("ERR syntax error")),
        }
    }

    /// Returns what `CLIENT INFO` says of this connection.
    fn line(&self) -> String {
        let peer = self.client;
        format!(
            "id={} addr={peer} name={} db=0 resp={} user=default lib-name={} lib-ver={}\n",
            self.id,
            self.name,
            self.replies.version().number(),
            self.library.0,
            self.library.1,
        )
    }
}
