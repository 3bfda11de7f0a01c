//! From an address to a connection that can be used: greeting, login, and what to know of the server.

use super::{
    scripts::Scripts,
    settings::{Address, Settings},
    stream::Stream,
    tls::Encryption,
};
use crate::{
    Command, Reply,
    wire::{ReplyBounds, ReplyParser},
};
use bytes::BytesMut;
use std::{io, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    time::timeout,
};

/// How connections are made: the same for all servers of a link.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) encryption: Encryption,
    pub(super) scripts: Scripts,
    /// One permit, so that one task at a time reads a file.
    pub(super) reading: Arc<Semaphore>,
}

/// The expected role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Any server, as the address says.
    Any,
    /// A primary, as a Sentinel said.
    Primary,
    /// A Sentinel: it has its own login and no databases.
    Sentinel,
}

/// A connection on which one command is sent at a time.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) parser: ReplyParser,
    pub(super) buffer: BytesMut,
}

impl Connector {
    /// Connects within the time of the settings. The error says what failed, without the address.
    pub(super) async fn connect(
        self: &Arc<Self>,
        address: &Address,
        role: Role,
    ) -> Result<Connection, String> {
        let limit = self.settings.connect_timeout;
        match timeout(limit, self.open(address, role)).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection within {limit:?}")),
        }
    }

    async fn open(&self, address: &Address, role: Role) -> Result<Connection, String> {
        let settings = &self.settings;
        let stream = Stream::connect(address, settings, &self.encryption).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        let bounds = ReplyBounds { bulk: settings.max_bulk, ..ReplyBounds::default() };
        let parser = ReplyParser::new(bounds);
        let mut connection = Connection { stream, parser, buffer: BytesMut::new() };
        let (user, password) = match role {
            Role::Sentinel => (&settings.sentinel_user, &settings.sentinel_password),
            _ => (&settings.user, &settings.password),
        };
        let password = match password {
            Some(secret) => Some(secret.read_beside(&self.reading).await?),
            None => None,
        };
        let greeted = connection.greet(settings, user.as_deref(), password.as_deref()).await;
        greeted.map_err(|error| without(&error, password.as_deref()))?;
        if role != Role::Sentinel && settings.database != 0 {
            let number = settings.database.to_string();
            connection.expect("SELECT", &[&number]).await?;
        }
        if role == Role::Primary {
            connection.expect_primary().await?;
        }
        if role != Role::Sentinel {
            for source in self.scripts.sources() {
                // A server that takes no scripts says so again when one is called.
                connection.call("SCRIPT", &["LOAD", &source]).await?;
            }
        }
        Ok(connection)
    }
}

impl Connection {
    /// Says which protocol, who, and what name; in the older way if the server knows no better.
    async fn greet(
        &mut self,
        settings: &Settings,
        user: Option<&str>,
        password: Option<&str>,
    ) -> Result<(), String> {
        let name = settings.client_name.as_str();
        if settings.protocol == 3 {
            let mut words = vec!["3"];
            if let Some(password) = password {
                words.extend(["AUTH", user.unwrap_or("default"), password]);
            }
            words.extend(["SETNAME", name]);
            match self.call("HELLO", &words).await? {
                Reply::Error(text) if !is_unknown(&text) => return Err(text),
                Reply::Error(_) => {}
                _ => return Ok(()),
            }
        }
        if let Some(password) = password {
            let words: Vec<&str> = user.into_iter().chain([password]).collect();
            self.expect("AUTH", &words).await?;
        } else {
            // Without a login, this is where a server that wants one says so.
            self.expect("PING", &[]).await?;
        }
        // Only a nicety: some services do not know it.
        self.call("CLIENT", &["SETNAME", name]).await?;
        Ok(())
    }

    async fn expect_primary(&mut self) -> Result<(), String> {
        let reply = self.expect("ROLE", &[]).await?;
        match reply.parts().and_then(|parts| parts.first()?.bytes()) {
            Some(b"master") => Ok(()),
            Some(role) => {
                let role = String::from_utf8_lossy(role).into_owned();
                Err(format!("the Sentinels report it as the primary, but its role is {role}"))
            }
            None => Err("the reply to ROLE is not valid".into()),
        }
    }

    /// Sends a command; an error reply is an error.
    pub(super) async fn expect(&mut self, name: &str, words: &[&str]) -> Result<Reply, String> {
        match self.call(name, words).await? {
            Reply::Error(text) => Err(text),
            reply => Ok(reply),
        }
    }

    /// Sends a command and waits for its reply.
    async fn call(&mut self, name: &str, words: &[&str]) -> Result<Reply, String> {
        let mut command = Command::new(name, words.len());
        words.iter().for_each(|word| command.push(word.as_bytes()));
        let lost = |error: io::Error| format!("lost while connecting: {error}");
        self.stream.write_all(&command.into_bytes()).await.map_err(lost)?;
        self.stream.flush().await.map_err(lost)?;
        loop {
            let reply = self.parser.next(&mut self.buffer);
            if let Some(reply) = reply.map_err(|error| error.to_string())? {
                return Ok(reply);
            }
            if self.stream.read_buf(&mut self.buffer).await.map_err(lost)? == 0 {
                return Err("the server closed the connection".into());
            }
        }
    }
}

/// Returns an error without the password: servers that do not know AUTH repeat its arguments.
fn without(error: &str, password: Option<&str>) -> String {
    let error = error.split(", with args").next().unwrap_or(error);
    match password.filter(|password| !password.is_empty()) {
        Some(password) => error.replace(password, ".."),
        None => error.to_owned(),
    }
}

/// Tells whether a server does not know HELLO, or not this version of the protocol.
fn is_unknown(error: &str) -> bool {
    let lower = error.to_ascii_lowercase();
    error.starts_with("NOPROTO")
        || lower.contains("unknown command")
        || lower.contains("syntax error")
}

#[cfg(test)]
mod tests {
    use super::without;

    #[test]
    fn what_a_server_repeats_is_cut() {
        let long = "ERR unknown command 'AUTH', with args beginning with: 'default' 's3cr";
        assert_eq!(without(long, Some("s3cret")), "ERR unknown command 'AUTH'");
        assert_eq!(without("ERR no s3cret here", Some("s3cret")), "ERR no .. here");
        assert_eq!(without("LOADING", None), "LOADING");
    }
}
