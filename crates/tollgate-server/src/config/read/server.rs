//! Reads the `server` and `stores` sections.

use super::super::{
    Endpoint, MemorySettings, RedisOptions, ReservationSettings, ServerSettings, SnapshotSettings,
    StoreKind, StoreSettings, TlsSettings, TokenSettings,
    fields::{Fields, Reader},
    keys::STORE,
    tree::{Kind, shown},
};
use crate::net::{Listener, Permission, Permissions};
use std::time::Duration;
use tollgate::store::MemoryStoreBuilder;
use tollgate_tower::answer::Legacy;

pub(super) fn server(reader: &mut Reader<'_>, fields: &Fields<'_>) -> ServerSettings {
    ServerSettings {
        http: endpoint(reader, fields, "http"),
        grpc: endpoint(reader, fields, "grpc"),
        resp: endpoint(reader, fields, "resp"),
        admin: endpoint(reader, fields, "admin"),
        tls: reader.inner(fields, "tls").and_then(|inner| tls(reader, &inner)),
        tls_of: tls_of(reader, fields),
        admin_token_file: reader.path(fields, "admin_token_file"),
        resp_password_file: reader.path(fields, "resp_password_file"),
        http_token_file: reader.path(fields, "http_token_file"),
        tokens: tokens(reader, fields),
        negative_hits: reader.flag(fields, "negative_hits"),
        hosts: names(reader, fields, "hosts", is_host, "a name, such as limits.example.com"),
        origins: names(
            reader,
            fields,
            "origins",
            is_origin,
            "an origin, such as https://ui.example.com",
        ),
        workers: at_least_one(reader, fields, "workers"),
        max_connections: at_least_one(reader, fields, "max_connections"),
        connection_memory_bytes: connection_memory(reader, fields),
        idle_timeout: reader.period(fields, "idle_timeout"),
        drain_delay: reader.period_or_zero(fields, "drain_delay"),
        drain_timeout: reader.period_or_zero(fields, "drain_timeout"),
        request_timeout: reader.period(fields, "request_timeout"),
        watch_interval: match Reader::is_off(fields, "watch_interval") {
            true => Some(Duration::ZERO),
            false => reader.period_or_zero(fields, "watch_interval"),
        },
        store: reader.parsed(fields, "store"),
        redis: redis(reader, fields),
        snapshot: snapshot(reader, fields),
        memory: memory(reader, fields),
        response_headers: reader.flag(fields, "response_headers"),
        x_ratelimit_headers: reader.word(fields, "x_ratelimit_headers", |word| match word {
            "delta" => Some(Legacy::Delta),
            "epoch" => Some(Legacy::Epoch),
            _ => None,
        }),
        dynamic_metadata: reader.flag(fields, "dynamic_metadata"),
        denial_log: match Reader::is_off(fields, "denial_log") {
            true => Some(0),
            false => reader.count(fields, "denial_log"),
        },
        log_keys: reader.flag(fields, "log_keys"),
        top_keys: reader.small(fields, "top_keys"),
    }
}

fn endpoint(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str) -> Option<Endpoint> {
    // YAML 1.1 takes `no` and `false` for the same as `off`.
    match fields.get(name)?.kind {
        Kind::Bool(false, _) => Some(Endpoint::Off),
        _ => reader.parsed(fields, name),
    }
}

fn at_least_one(reader: &mut Reader<'_>, fields: &Fields<'_>, name: &str) -> Option<usize> {
    let number = reader.small(fields, name)?;
    if number == 0 {
        reader.error(fields.spot_of(name), format!("'{name}' must be at least 1"));
        return None;
    }
    Some(number)
}

/// Less than this does not hold one request of the longest kind.
const LEAST_CONNECTION_MEMORY: usize = 4 << 20;

fn connection_memory(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<usize> {
    const NAME: &str = "connection_memory_bytes";
    let bytes = reader.small(fields, NAME)?;
    if bytes < LEAST_CONNECTION_MEMORY {
        let text = format!("'{NAME}' is {bytes}; it must be at least {LEAST_CONNECTION_MEMORY}");
        reader.error(fields.spot_of(NAME), text);
        return None;
    }
    Some(bytes)
}

fn tls(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<TlsSettings> {
    reader.missing(fields, "certificate", "certificate: cert.pem");
    reader.missing(fields, "key", "key: key.pem");
    let (certificate, key) = (reader.path(fields, "certificate"), reader.path(fields, "key"));
    let client_ca = reader.path(fields, "client_ca");
    Some(TlsSettings { certificate: certificate?, key: key?, client_ca })
}

fn tls_of(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<(String, TlsSettings)> {
    let Some(fields) = reader.inner(fields, "tls_of") else { return Vec::new() };
    let mut all = Vec::new();
    for key in fields.section.keys {
        let inner = reader.inner(&fields, key.name);
        let settings = inner.and_then(|inner| tls(reader, &inner));
        all.extend(settings.map(|settings| (key.name.to_owned(), settings)));
    }
    all
}

fn tokens(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<TokenSettings> {
    let mut tokens: Vec<TokenSettings> = Vec::new();
    for fields in reader.inner_list(fields, "tokens") {
        for (name, example) in [
            ("file", "file: token"),
            ("listeners", "listeners: [http]"),
            ("permissions", "permissions: [read, check]"),
        ] {
            reader.missing(&fields, name, example);
        }
        let listeners = reader.words(&fields, "listeners", |text| {
            Listener::ALL.into_iter().find(|listener| listener.name() == text)
        });
        let permissions = reader.words(&fields, "permissions", |text| text.parse().ok());
        let has_admin = listeners.contains(&Listener::Admin);
        let has_other = listeners.iter().any(|listener| *listener != Listener::Admin);
        for permission in &permissions {
            let is_used = match permission {
                Permission::Read => true,
                Permission::Check | Permission::Settle => has_other,
                Permission::Administer => has_admin,
            };
            if !is_used && !listeners.is_empty() {
                let text = format!("'{permission}' has no effect on these listeners; remove it");
                reader.error(fields.spot_of("permissions"), text);
            }
        }
        let Some(file) = reader.path(&fields, "file") else { continue };
        let is_common = |known: &TokenSettings| {
            known.file == file && known.listeners.iter().any(|one| listeners.contains(one))
        };
        if tokens.iter().any(is_common) {
            let text = "this listener already has a token from this file; merge the two entries, \
                        or remove one";
            reader.error(fields.spot_of("file"), text);
        }
        let permissions = permissions.into_iter().fold(Permissions::NONE, Permissions::with);
        tokens.push(TokenSettings { file, listeners, permissions });
    }
    tokens
}

/// Reads texts of one kind.
fn names(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    name: &str,
    is_one: fn(&str) -> bool,
    example: &str,
) -> Vec<String> {
    let mut names = Vec::new();
    for (text, spot) in reader.texts(fields, name) {
        if is_one(&text) {
            names.push(text);
        } else {
            let text = shown(&text);
            reader.error(spot, format!("'{text}' is not valid in '{name}'; write {example}"));
        }
    }
    names
}

fn is_host(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '*' | '@'))
}

fn is_origin(text: &str) -> bool {
    let authority = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    authority.is_some_and(is_host)
}

fn snapshot(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<SnapshotSettings> {
    let fields = reader.inner(fields, "snapshot")?;
    reader.missing(&fields, "path", "path: tollgate.snapshot");
    reader.missing(&fields, "every", "every: 30s");
    let (path, every) = (reader.path(&fields, "path"), reader.period(&fields, "every"));
    Some(SnapshotSettings { path: path?, every: every? })
}

fn memory(reader: &mut Reader<'_>, fields: &Fields<'_>) -> MemorySettings {
    let Some(fields) = reader.inner(fields, "memory") else { return MemorySettings::default() };
    let (bounded, max_keys) = (reader.count(&fields, "bounded"), reader.count(&fields, "max_keys"));
    for (name, keys) in [("bounded", bounded), ("max_keys", max_keys)] {
        if keys == Some(0) {
            reader.error(fields.spot_of(name), format!("'{name}' must be at least 1"));
        }
    }
    if bounded.is_some() && max_keys.is_some() {
        let text = "bounded and max_keys exclude each other: a bounded table has a fixed size; \
                    remove one of them";
        reader.error(fields.spot_of("max_keys"), text);
    }
    let max_permits = at_least_one(reader, &fields, "max_permits");
    let max_permits = max_permits.map(|most| most as u64);
    let reservations = reservations(reader, &fields);
    MemorySettings { bounded, max_keys, reservations, max_permits }
}

fn reservations(reader: &mut Reader<'_>, fields: &Fields<'_>) -> ReservationSettings {
    let names = ["max_reservations_per_key", "max_reservations_per_policy", "max_reservations"];
    let numbers = names.map(|name| at_least_one(reader, fields, name));
    let total = numbers[2].unwrap_or(MemoryStoreBuilder::MAX_RESERVATIONS);
    let of_policy = MemoryStoreBuilder::MAX_RESERVATIONS_PER_POLICY.min(total);
    let outer = [numbers[1].unwrap_or(of_policy), total];
    for (at, most) in outer.into_iter().enumerate() {
        let (inner, outer) = (names[at], names[at + 1]);
        if let Some(own) = numbers[at].filter(|own| *own > most) {
            let text = format!(
                "'{inner}' is {own}, above '{outer}', which is {most}; lower the first or raise \
                 the second"
            );
            reader.error(fields.spot_of(inner), text);
        }
    }
    let [per_key, per_policy, total] = numbers;
    ReservationSettings { total, per_policy, per_key }
}

/// Reads the stores of a file, by name.
pub(super) fn stores(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<StoreSettings> {
    let Some(node) = fields.get("stores") else { return Vec::new() };
    let Kind::Map(entries) = &node.kind else {
        let found = node.described();
        reader.error(node.spot, format!("'stores' must map names to stores, not {found}"));
        return Vec::new();
    };
    let mut stores = Vec::new();
    for entry in entries {
        let (at, name) = (reader.place(entry.spot), entry.key.to_string());
        if name == "default" || name.is_empty() {
            let text = "the store 'default' is set by 'server'; give this one another name";
            reader.error(entry.spot, text);
        }
        let mut store = StoreSettings {
            at,
            name,
            kind: StoreKind::Memory,
            redis: RedisOptions::default(),
            memory: MemorySettings::default(),
            snapshot: None,
        };
        if let Some(text) = entry.value.text() {
            // The short form: only where it is.
            match text.parse() {
                Ok(kind) => store.kind = kind,
                Err(error) => reader.error(entry.value.spot, format!("'{}': {error}", store.name)),
            }
        } else if !entry.value.is_null()
            && let Some(inner) = reader.section(&entry.value, &STORE)
        {
            store.kind = reader.parsed(&inner, "url").unwrap_or_default();
            store.redis = redis(reader, &inner);
            store.memory = memory(reader, &inner);
            store.snapshot = snapshot(reader, &inner);
        }
        stores.push(store);
    }
    stores
}

/// Braces decide in which slot of a cluster a key is.
fn is_prefix(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '}');
    !text.is_empty() && !text.contains(is_odd)
}

fn redis(reader: &mut Reader<'_>, fields: &Fields<'_>) -> RedisOptions {
    let Some(fields) = reader.inner(fields, "redis") else { return RedisOptions::default() };
    let prefix = reader.text(&fields, "prefix");
    if prefix.as_deref().is_some_and(|prefix| !is_prefix(prefix)) {
        let text =
            "'prefix' must be a string without spaces, '{' and '}', for example prefix: tollgate";
        reader.error(fields.spot_of("prefix"), text);
    }
    RedisOptions {
        password_file: reader.path(&fields, "password_file"),
        fleet_size: reader.parsed(&fields, "fleet_size"),
        deadline: reader.period(&fields, "deadline"),
        startup_wait: reader.period_or_zero(&fields, "startup_wait"),
        prefix,
        key_secret_file: reader.path(&fields, "key_secret_file"),
        failure: super::domain::failure(reader, &fields),
    }
}
