//! The keys of TLS and tokens.

use super::{
    Origin::Ours,
    Section,
    Shape::{Map, Path, Words},
    key,
};

pub(in crate::config) static LISTENERS: [&str; 4] = ["http", "grpc", "resp", "admin"];
pub(in crate::config) static PERMISSIONS: [&str; 4] = ["read", "check", "settle", "administer"];

pub(in crate::config) static TOKEN: Section = Section {
    name: "a token",
    keys: &[
        key("file", Path, Ours, "File with the token or password."),
        key("listeners", Words(&LISTENERS), Ours, "The listeners on which it is valid."),
        key("permissions", Words(&PERMISSIONS), Ours, "What it grants there."),
    ],
};

pub(in crate::config) static TLS_OF: Section = Section {
    name: "tls_of",
    keys: &[
        key("http", Map(&TLS), Ours, "TLS for HTTP."),
        key("grpc", Map(&TLS), Ours, "TLS for gRPC."),
        key("resp", Map(&TLS), Ours, "TLS for the Redis protocol."),
        key("admin", Map(&TLS), Ours, "TLS for the admin API."),
    ],
};

pub(in crate::config) static TLS: Section = Section {
    name: "tls",
    keys: &[
        key("certificate", Path, Ours, "PEM file of the certificate chain."),
        key("key", Path, Ours, "PEM file of the private key."),
        key(
            "client_ca",
            Path,
            Ours,
            "PEM file of the CA certificates that client certificates must be signed by.",
        ),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::{Listener, Permission};

    #[test]
    fn the_words_are_those_of_the_listeners() {
        assert_eq!(LISTENERS, Listener::ALL.map(Listener::name));
        assert_eq!(PERMISSIONS, Permission::ALL.map(Permission::name));
    }
}
