//! Reads the `forward_auth` section.

use super::super::{
    AuthEntry, AuthSource, ForwardAuth,
    fields::{Fields, Reader},
    keys::AUTH_ENTRY,
    tree::{Kind, Node, shown},
};

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
    ForwardAuth {
        at: reader.place(spot),
        path,
        domain: reader.text(fields, "domain").unwrap_or_default(),
        descriptors: descriptors(reader, fields),
        trusted_hops: reader.small(fields, "trusted_hops").unwrap_or(0),
    }
}

fn descriptors(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Vec<Vec<AuthEntry>> {
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
        Kind::List(entries) => entries.iter().filter_map(|node| entry(reader, node)).collect(),
        _ => entry(reader, item).into_iter().collect(),
    };
    items.iter().map(|item| entries(reader, item)).collect()
}

fn entry(reader: &mut Reader<'_>, node: &Node) -> Option<AuthEntry> {
    let fields = reader.list_item(node, &AUTH_ENTRY)?;
    let key = reader.text(&fields, "key").unwrap_or_default();
    if key.is_empty() {
        reader.error(fields.spot, "descriptor has empty key; add 'key: NAME'");
    }
    let sources: Vec<&str> = ["header", "value", "from"]
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
    let from = source(reader, &fields)?;
    let default = reader.text(&fields, "default");
    if default.is_some() && matches!(from, AuthSource::Value(_)) {
        let text = "'default' has no effect with 'value', which is always present; remove it";
        reader.error(fields.spot_of("default"), text);
    }
    Some(AuthEntry { key, from, default })
}

fn source(reader: &mut Reader<'_>, fields: &Fields<'_>) -> Option<AuthSource> {
    if let Some(header) = reader.text(fields, "header") {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if header.is_empty() || !header.chars().all(is_name) {
            let text =
                format!("'{}' is not a header name; use letters, digits and '-'", shown(&header));
            reader.error(fields.spot_of("header"), text);
            return None;
        }
        return Some(AuthSource::Header(header.to_ascii_lowercase()));
    }
    if let Some(value) = reader.text(fields, "value") {
        return Some(AuthSource::Value(value));
    }
    reader.word(fields, "from", |word| match word {
        "client-address" => Some(AuthSource::ClientAddress),
        "path" => Some(AuthSource::Path),
        "method" => Some(AuthSource::Method),
        "host" => Some(AuthSource::Host),
        _ => None,
    })
}
