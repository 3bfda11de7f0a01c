//! Reads the `forward_auth` section.

use super::super::{
    AuthEntry, AuthKey, AuthSource, ForwardAuth,
    fields::{Fields, Reader},
    keys::AUTH_ENTRY,
    tree::{Kind, Node, Spot, shown},
};
use tollgate_tower::key::{ClientAddress, Key, KeyError, Trust};

pub(super) fn forward_auth(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<ForwardAuth> {
    let items = reader.inner_list(fields, "forward_auth");
    items.iter().map(|item| one(reader, item)).collect()
}

/// Paths of the HTTP listener that are taken, beside all below `/v1/`.
const OWN_PATHS: [&str; 5] = ["/", "/json", "/openapi.json", "/healthcheck", "/healthz"];

fn one(reader: &mut Reader<'_>, fields: &Fields<'_>) -> ForwardAuth {
    for (name, example) in [
        ("path", "path: /auth"),
        ("domain", "domain: shop"),
        ("descriptors", "descriptors: [[{key: ip, from: client-address}]]"),
    ] {
        reader.missing(fields, name, example);
    }
    let path = reader.text(fields, "path").unwrap_or_default();
    let spot = fields.get("path").map_or(fields.spot, |node| node.spot);
    if fields.entry("path").is_some() && !path.starts_with('/') {
        reader.error(spot, format!("the path '{}' must start with '/'", shown(&path)));
    }
    if OWN_PATHS.contains(&path.as_str()) || path.starts_with("/v1/") {
        let text = format!("the path '{}' is used by the server itself; use another", shown(&path));
        reader.error(spot, text);
    }
    let client = client(reader, fields);
    let descriptors = descriptors(reader, fields, &client);
    let keys = descriptors.iter().flatten().flat_map(|entry| entry.from.keys());
    let mut headers: Vec<String> = keys.map(|key| key.header.clone()).collect();
    headers.sort_unstable();
    headers.dedup();
    let domain = reader.text(fields, "domain").unwrap_or_default();
    ForwardAuth { at: reader.place(spot), path, domain, descriptors, headers }
}

/// Reads how the address of a client is found: by a list of addresses, and by a header that has one.
fn client(reader: &mut Reader<'_>, fields: &Fields<'_>) -> [AuthKey; 2] {
    let networks = reader.texts(fields, "trusted_networks");
    let by_networks = fields.entry("trusted_networks").is_some();
    let hops: Option<u8> = reader.small(fields, "trusted_hops");
    if hops.is_some() && by_networks {
        let text = "'trusted_hops' and 'trusted_networks' exclude each other; keep one";
        reader.error(fields.spot_of("trusted_networks"), text);
    }
    // The layer counts the requesting proxy, too.
    let hops = hops.unwrap_or(0).checked_add(1).unwrap_or_else(|| {
        reader.error(fields.spot_of("trusted_hops"), "'trusted_hops' must be at most 254, not 255");
        1
    });
    let trust = |hops| match by_networks {
        true => Trust::networks(networks.iter().map(|(text, _)| text)),
        false => Trust::hops(hops),
    };
    // A header with one address was written by the requesting proxy.
    let mut list = ClientAddress::x_forwarded_for(trust(hops));
    let mut single = ClientAddress::header("x-real-ip", trust(1));
    check(reader, fields.spot_of("trusted_networks"), &list);
    for (name, set) in PREFIXES {
        if let Some(bits) = reader.small(fields, name) {
            check(reader, fields.spot_of(name), &set(ClientAddress::peer(), bits));
            (list, single) = (set(list, bits), set(single, bits));
        }
    }
    [(list, "x-forwarded-for"), (single, "x-real-ip")]
        .map(|(address, header)| AuthKey { key: Key::client(address), header: header.to_owned() })
}

/// Sets how many bits of an address count.
type SetPrefix = fn(ClientAddress, u8) -> ClientAddress;

const PREFIXES: [(&str, SetPrefix); 2] =
    [("ipv4_prefix", ClientAddress::ipv4_prefix), ("ipv6_prefix", ClientAddress::ipv6_prefix)];

fn check(reader: &mut Reader<'_>, spot: Spot, address: &ClientAddress) {
    if let Err(error) = address.check() {
        reader.error(spot, error.to_string());
    }
}

fn descriptors(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    client: &[AuthKey; 2],
) -> Vec<Vec<AuthEntry>> {
    let Some(node) = fields.get("descriptors") else { return Vec::new() };
    let items = match &node.kind {
        Kind::List(items) if !items.is_empty() => items,
        _ => {
            let text = "'descriptors' must be a list of descriptors, each a list of entries";
            reader.error(node.spot, text);
            return Vec::new();
        }
    };
    let entries = |reader: &mut Reader<'_>, item: &Node| match &item.kind {
        Kind::List(entries) if entries.is_empty() => {
            reader.error(item.spot, "a descriptor needs at least one entry");
            Vec::new()
        }
        Kind::List(entries) => {
            entries.iter().filter_map(|node| entry(reader, node, client)).collect()
        }
        _ => entry(reader, item, client).into_iter().collect(),
    };
    items.iter().map(|item| entries(reader, item)).collect()
}

fn entry(reader: &mut Reader<'_>, node: &Node, client: &[AuthKey; 2]) -> Option<AuthEntry> {
    let fields = reader.list_item(node, &AUTH_ENTRY)?;
    let key = reader.text(&fields, "key").unwrap_or_default();
    if key.is_empty() {
        reader.error(fields.spot, "descriptor has empty key; add 'key: NAME'");
    }
    let sources: Vec<&str> = ["header", "secret_header", "cookie", "value", "from"]
        .into_iter()
        .filter(|name| fields.entry(name).is_some())
        .collect();
    match sources[..] {
        [_] => {}
        [] => {
            let text = "an entry needs a source for its value: add 'header: NAME', 'value: TEXT' \
                        or 'from: client-address'";
            reader.error(fields.spot, text);
        }
        [first, second, ..] => {
            let text = format!("'{first}' and '{second}' exclude each other; keep one");
            reader.error(fields.spot_of(second), text);
        }
    }
    let from = source(reader, &fields, client)?;
    let default = reader.text(&fields, "default");
    if default.is_some() && matches!(from, AuthSource::Value(_)) {
        let text = "'default' has no effect with 'value', which is always present; remove it";
        reader.error(fields.spot_of("default"), text);
    }
    Some(AuthEntry { key, from, default })
}

fn source(
    reader: &mut Reader<'_>,
    fields: &Fields<'_>,
    client: &[AuthKey; 2],
) -> Option<AuthSource> {
    if let Some(header) = header(reader, fields, "header") {
        return header.map(AuthSource::Header);
    }
    if let Some(header) = header(reader, fields, "secret_header") {
        let header = header?;
        let key = AuthKey { key: Key::header(&header), header };
        return secret(reader, fields.spot_of("secret_header"), key);
    }
    if let Some(cookie) = reader.text(fields, "cookie") {
        let key = AuthKey { key: Key::cookie(cookie), header: "cookie".to_owned() };
        return secret(reader, fields.spot_of("cookie"), key);
    }
    if let Some(value) = reader.text(fields, "value") {
        return Some(AuthSource::Value(value));
    }
    let bearer = || AuthKey { key: Key::bearer(), header: "authorization".to_owned() };
    reader.word(fields, "from", |word| match word {
        "client-address" => Some(AuthSource::Client(client.clone())),
        "bearer" => Some(AuthSource::Key(bearer())),
        "path" => Some(AuthSource::Path),
        "method" => Some(AuthSource::Method),
        "host" => Some(AuthSource::Host),
        _ => None,
    })
}

/// Reads the name of a header, in lower case: `None` if the entry has no such key, `Some(None)` if it is no name.
fn header(reader: &mut Reader<'_>, fields: &Fields<'_>, key: &str) -> Option<Option<String>> {
    let header = reader.text(fields, key)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if header.is_empty() || !header.chars().all(is_name) {
        let text =
            format!("'{}' is not a header name; use letters, digits and '-'", shown(&header));
        reader.error(fields.spot_of(key), text);
        return Some(None);
    }
    Some(Some(header.to_ascii_lowercase()))
}

/// Returns a source that is a secret, if its key can be used.
fn secret(reader: &mut Reader<'_>, spot: Spot, key: AuthKey) -> Option<AuthSource> {
    if let Err(error) = key.key.check() {
        let text = match error {
            KeyError::ListAsValue { header } => format!(
                "'{header}' is a list whose first entries come from clients; use 'from: client-address'"
            ),
            error => error.to_string(),
        };
        reader.error(spot, text);
        return None;
    }
    Some(AuthSource::Key(key))
}
