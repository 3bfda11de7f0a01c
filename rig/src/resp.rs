//! The least of a client: one connection, one command at a time, replies as text.
//!
//! It is not the client under test, so that a bug there does not hide itself.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// How long a server may take for one command of the rig's.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where to send commands to.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Sends one command on a connection of its own, after `AUTH` if there is a password.
///
/// The inner result is what the server said: text as `redis-cli --raw` shows it, or an error.
pub(crate) fn exchange(
    endpoint: &Endpoint,
    password: Option<&str>,
    command: &[&str],
) -> io::Result<Result<String, String>> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_nodelay(true)?;
            talk(&stream, &stream, password, command)
        }
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            talk(&stream, &stream, password, command)
        }
    }
}

fn talk(
    reader: impl Read,
    mut writer: impl Write,
    password: Option<&str>,
    command: &[&str],
) -> io::Result<Result<String, String>> {
    let mut reader = BufReader::new(reader);
    if let Some(password) = password {
        writer.write_all(&encode(&["AUTH", password]))?;
        if let Err(refused) = read(&mut reader)? {
            return Ok(Err(refused));
        }
    }
    writer.write_all(&encode(command))?;
    read(&mut reader)
}

fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for part in command {
        bytes.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
    bytes
}

fn read(reader: &mut impl BufRead) -> io::Result<Result<String, String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::InvalidData)?;
    let number = || rest.parse::<i64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
    match kind {
        "+" | ":" => Ok(Ok(rest.to_owned())),
        "-" => Ok(Err(rest.to_owned())),
        "$" => {
            let Ok(length) = usize::try_from(number()?) else {
                return Ok(Ok(String::new()));
            };
            let mut bytes = vec![0; length + 2];
            reader.read_exact(&mut bytes)?;
            bytes.truncate(length);
            Ok(Ok(String::from_utf8_lossy(&bytes).into_owned()))
        }
        "*" => {
            let mut lines = Vec::new();
            for _ in 0..number()? {
                // An error inside an array is shown like text, as redis-cli does.
                lines.push(read(reader)?.unwrap_or_else(|error| error));
            }
            Ok(Ok(lines.join("\n")))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
