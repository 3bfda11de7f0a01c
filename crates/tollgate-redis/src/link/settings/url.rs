//! Settings from an address.
//!
//! An error repeats only what cannot be a part of a password: a password that is not percent-encoded
//! may end up in any part of a wrong address.

use super::{Address, Place, Secret, Settings, SettingsError, Tls};
use std::{path::PathBuf, str::FromStr, time::Duration};

const SCHEMES: &str = "redis://host, rediss://host, redis+unix:///path, redis+sentinel://host/name, redis+cluster://host";

/// The parameters that are not for TLS.
const PLAIN: [&str; 22] = [
    "deadline",
    "connect_timeout",
    "connections",
    "max_in_flight",
    "user",
    "password",
    "password_file",
    "sentinel_user",
    "sentinel_password",
    "sentinel_password_file",
    "database",
    "db",
    "protocol",
    "client_name",
    "breaker_failures",
    "breaker_window",
    "probe_min",
    "probe_max",
    "stall_timeout",
    "keepalive",
    "refresh",
    "max_bulk",
];

const TLS: [&str; 4] = ["ca", "cert", "key", "server_name"];

enum Form {
    One,
    Unix,
    Sentinel,
    Cluster,
}

pub(super) fn settings(url: &str) -> Result<Settings, SettingsError> {
    let Some((scheme, rest)) = url.split_once("://") else {
        // The whole may hold a password: it is not repeated.
        return wrong(format!("the address has no `://`; write one of {SCHEMES}"));
    };
    let (tls, form) = form(scheme)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    // Text that looks like a path or a query may be the rest of a password.
    let past_host = rest.find('/').map_or("", |at| &rest[at..]);
    let is_name = |pair: &str| pair.split('=').next().is_some_and(|name| name.contains('@'));
    if !matches!(form, Form::Unix) && past_host.contains('@') || query.split('&').any(is_name) {
        let text = "there is an `@` after the host; in a user or password write / as %2F, ? as \
                    %3F, & as %26 and @ as %40";
        return wrong(text.into());
    }
    // A password may hold an `@`, though it should be written %40: the last one ends it.
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    let mut database = None;
    let place = match form {
        Form::Unix if !hosts.is_empty() || path.len() < 2 => {
            let text = "the path of the socket is missing; write redis+unix:///path/of/socket";
            return wrong(text.into());
        }
        Form::Unix => Place::One(Address::Unix(PathBuf::from(decode(path)?))),
        Form::One => {
            database = number_of_path(path)?;
            Place::One(address(hosts, 6379)?)
        }
        Form::Cluster => {
            database = number_of_path(path)?;
            Place::Cluster(addresses(hosts, 6379)?)
        }
        Form::Sentinel => {
            let (name, rest) = path
                .get(1..)
                .unwrap_or("")
                .split_once('/')
                .unwrap_or((path.get(1..).unwrap_or(""), ""));
            if name.is_empty() {
                let text = "the name of the primary is missing; write redis+sentinel://host/name";
                return wrong(text.into());
            }
            database = number_of_path(&format!("/{rest}"))?;
            Place::Sentinel { sentinels: addresses(hosts, 26379)?, name: decode(name)? }
        }
    };
    let mut settings = Settings::at(place);
    settings.database = database.unwrap_or(0);
    settings.tls = tls.then(Tls::default);
    if let Some(login) = login {
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        settings.user = if user.is_empty() { None } else { Some(decode(user)?) };
        settings.password = password.map(decode).transpose()?.map(Secret::new);
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // Without a password before it, a name cannot be the rest of one.
        let shown = match settings.password.is_some() || settings.sentinel_password.is_some() {
            false => name,
            true => "..",
        };
        parameter(&mut settings, (name, shown), &decode(value)?)?;
    }
    settings.check()?;
    Ok(settings)
}

fn form(scheme: &str) -> Result<(bool, Form), SettingsError> {
    let (first, second) = scheme.split_once('+').unwrap_or((scheme, ""));
    let tls = match first {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        _ => {
            return wrong(format!("\"{scheme}://\" is not a known scheme; write one of {SCHEMES}"));
        }
    };
    let form = match second {
        "" => Form::One,
        "unix" if !tls => Form::Unix,
        "sentinel" => Form::Sentinel,
        "cluster" => Form::Cluster,
        _ => {
            return wrong(format!("\"{scheme}://\" is not a known scheme; write one of {SCHEMES}"));
        }
    };
    Ok((tls, form))
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>, SettingsError> {
    hosts.split(',').map(|host| address(host, port)).collect()
}

fn address(text: &str, default_port: u16) -> Result<Address, SettingsError> {
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, ""))) => (host, None),
        Some(Some((host, rest))) => match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None => return wrong(format!("\"[{host}]\" is not [address]:port")),
        },
        Some(None) => return wrong("a host has a [ without its ]".into()),
        None => match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                let text = match text.parse::<std::net::Ipv6Addr>() {
                    Ok(address) => format!("write an IPv6 address as [{address}]"),
                    Err(_) => {
                        "a host has two colons; write host:port, and `@` after a password (IPv6 as \
                         [::1])"
                            .into()
                    }
                };
                return wrong(text);
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == ',') {
        return wrong("the address names no host; write host:port, as in redis://host:6379".into());
    }
    let port = match port.map(u16::from_str) {
        None => default_port,
        Some(Ok(port)) if port > 0 => port,
        Some(_) => return wrong(format!("the port of \"{host}\" is out of range; use 1 to 65535")),
    };
    Ok(Address::Tcp { host: host.to_owned(), port })
}

fn number_of_path(path: &str) -> Result<Option<u32>, SettingsError> {
    match path.trim_start_matches('/') {
        "" => Ok(None),
        text => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => wrong("the path is not the number of a database; leave it out for 0".into()),
        },
    }
}

fn parameter(
    settings: &mut Settings,
    (name, shown): (&str, &str),
    value: &str,
) -> Result<(), SettingsError> {
    let text = || Some(value.to_owned());
    match name {
        "deadline" => settings.deadline = duration(name, value)?,
        "connect_timeout" => settings.connect_timeout = duration(name, value)?,
        "connections" => settings.connections = number(name, value)?,
        "max_in_flight" => settings.max_in_flight = number(name, value)?,
        "user" => settings.user = text(),
        "password" => settings.password = Some(Secret::new(value)),
        "password_file" => settings.password = Some(Secret::in_file(value)),
        "sentinel_user" => settings.sentinel_user = text(),
        "sentinel_password" => settings.sentinel_password = Some(Secret::new(value)),
        "sentinel_password_file" => settings.sentinel_password = Some(Secret::in_file(value)),
        "database" | "db" => settings.database = number(name, value)?,
        "protocol" => settings.protocol = number(name, value)?,
        "client_name" => value.clone_into(&mut settings.client_name),
        "breaker_failures" => settings.breaker_failures = number(name, value)?,
        "breaker_window" => settings.breaker_window = number(name, value)?,
        "probe_min" => settings.probe_min = duration(name, value)?,
        "probe_max" => settings.probe_max = duration(name, value)?,
        "stall_timeout" => settings.stall_timeout = duration(name, value)?,
        "keepalive" => settings.keepalive = duration(name, value)?,
        "refresh" => settings.refresh = duration(name, value)?,
        "max_bulk" => settings.max_bulk = number(name, value)?,
        _ => return tls_parameter(settings, (name, shown), value),
    }
    Ok(())
}

fn tls_parameter(
    settings: &mut Settings,
    (name, shown): (&str, &str),
    value: &str,
) -> Result<(), SettingsError> {
    if !TLS.contains(&name) {
        let near = nearest(name, PLAIN.iter().chain(&TLS).copied());
        let hint = near.map_or_else(
            || format!("use one of {}, {}", PLAIN.join(", "), TLS.join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        return wrong(format!("the parameter \"{shown}\" is not known; {hint}"));
    }
    let Some(tls) = &mut settings.tls else {
        return wrong(format!("the parameter \"{name}\" is for TLS; write rediss:// before it"));
    };
    match name {
        "ca" => tls.ca = Some(value.into()),
        "cert" => tls.certificate = Some(value.into()),
        "key" => tls.key = Some(value.into()),
        _ => tls.server_name = Some(value.to_owned()),
    }
    Ok(())
}

fn number<N: FromStr>(name: &str, value: &str) -> Result<N, SettingsError> {
    value.parse().or_else(|_| wrong(format!("{name} \"{value}\" is not a whole number in range")))
}

fn duration(name: &str, value: &str) -> Result<Duration, SettingsError> {
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (count, unit) = value.split_at(digits);
    let nanos: Option<u64> = match unit {
        "us" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        _ => None,
    };
    let count = count.parse::<u64>().ok();
    match count.zip(nanos).and_then(|(count, nanos)| count.checked_mul(nanos)) {
        Some(nanos) => Ok(Duration::from_nanos(nanos)),
        None => wrong(format!("{name} \"{value}\" is not a duration; write 250ms, 2s or 1m")),
    }
}

/// Decodes `%40` and the like.
fn decode(text: &str) -> Result<String, SettingsError> {
    // The text may be a password: it is not repeated.
    let broken =
        || SettingsError("there is a `%` without two hexadecimal digits; write it as %25".into());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let mut digit = || {
            let digit = char::from(*rest.next().ok_or_else(broken)?).to_digit(16);
            digit.and_then(|digit| u8::try_from(digit).ok()).ok_or_else(broken)
        };
        let high = digit()?;
        bytes.push(high << 4 | digit()?);
    }
    String::from_utf8(bytes).map_err(|_| SettingsError("a part is not UTF-8 when decoded".into()))
}

/// Returns the known name that is nearest to a wrong one, if one is near.
fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wrong: Vec<char> = wrong.chars().take(64).collect();
    let all = known.map(|name| (distance(&wrong, name), name));
    all.filter(|(far, name)| *far <= (wrong.len().min(name.len()) / 3).min(3)).min().map(|it| it.1)
}

/// Counts the characters to insert, delete or replace.
fn distance(wrong: &[char], name: &str) -> usize {
    let mut row: Vec<usize> = (0..=wrong.len()).collect();
    for (i, to) in name.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, from) in wrong.iter().enumerate() {
            let replaced = diagonal + usize::from(*from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[wrong.len()]
}

fn wrong<T>(text: String) -> Result<T, SettingsError> {
    Err(SettingsError(text))
}
