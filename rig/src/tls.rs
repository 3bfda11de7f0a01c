//! An authority, a certificate for a server on this machine, and one for a client.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// An authority of its own, with a certificate for a server and one for a client, as PEM files.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The certificate of the authority: whoever trusts it trusts both others.
    pub authority: PathBuf,
    /// For `localhost` and `127.0.0.1`.
    pub server: Identity,
    /// For a client.
    pub client: Identity,
}

/// A certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The file with the certificate.
    pub certificate: PathBuf,
    /// The file with the key.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes new ones in a folder. Two calls make authorities that do not trust each other.
    ///
    /// # Panics
    ///
    /// If the files cannot be written.
    #[must_use]
    pub fn make(folder: &Path) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        let authority = write(folder, "authority.pem", &pem);
        let issuer = Issuer::new(params, key);
        let identity = |name: &str| {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let mut params = CertificateParams::new(names).expect("these are names");
            params.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate").pem();
            Identity {
                certificate: write(folder, &format!("{name}.pem"), &certificate),
                key: write(folder, &format!("{name}.key"), &key.serialize_pem()),
            }
        };
        Self { server: identity("server"), client: identity("client"), authority }
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    fs::write(&file, text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    file
}
