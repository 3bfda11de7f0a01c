//! TLS to a server, with the flags that curl and redis-cli have for it.

use crate::target::Stream;
use std::{io, path::PathBuf};

// Each flag names it: what `next_help_heading` says goes on behind these flags.
const HEADING: &str = "TLS";

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct TlsArgs {
    /// Use TLS; implied by https://, rediss:// or grpcs:// in the address and by the flags below
    #[arg(long, help_heading = HEADING)]
    tls: bool,

    /// CA certificates to trust (PEM) [default: those of the system]
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Client certificate (PEM)
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM)
    #[arg(long, help_heading = HEADING, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,

    /// Name that the server's certificate must have [default: the host of the address]
    #[arg(long, help_heading = HEADING, value_name = "NAME")]
    sni: Option<String>,
}

impl TlsArgs {
    /// Tells whether a flag asks for TLS.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.tls || self.cacert.is_some() || self.cert.is_some() || self.sni.is_some()
    }
}

#[cfg(not(feature = "tls"))]
mod with {
    use super::{Stream, TlsArgs, io};

    /// There is none: this program was built without TLS.
    #[derive(Clone, Debug)]
    pub(crate) enum Tls {}

    impl Tls {
        pub(crate) fn new(_: &TlsArgs, _: &str, _: &[u8]) -> Result<Self, String> {
            Err("this program was built without TLS; build it with the feature `tls`".into())
        }

        pub(crate) async fn over(&self, _: Stream) -> io::Result<Stream> {
            match *self {}
        }
    }
}

#[cfg(feature = "tls")]
mod with {
    use super::{Stream, TlsArgs, io};
    use rustls::{ClientConfig, RootCertStore, crypto::ring};
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
    use std::{fmt, path::Path, sync::Arc};
    use tokio_rustls::TlsConnector;

    /// The configuration of handshakes; the files are read once.
    #[derive(Clone, Debug)]
    pub(crate) struct Tls {
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    }

    impl Tls {
        /// Reads the files. `protocol` goes into ALPN, unless it is empty.
        pub(crate) fn new(args: &TlsArgs, host: &str, protocol: &[u8]) -> Result<Self, String> {
            let name = args.sni.as_deref().unwrap_or(host).to_owned();
            let name = ServerName::try_from(name.clone()).map_err(|_| {
                format!("\"{name}\" is not a valid name for TLS; set one with --sni")
            })?;
            let provider = Arc::new(ring::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| format!("TLS: {error}"))?
                .with_root_certificates(roots(args)?);
            let mut config = match (&args.cert, &args.key) {
                (Some(cert), Some(key)) => {
                    let secret = PrivateKeyDer::from_pem_file(key)
                        .map_err(|error| failed("--key", key, error))?;
                    builder
                        .with_client_auth_cert(certificates("--cert", cert)?, secret)
                        .map_err(|error| failed("--cert", cert, error))?
                }
                _ => builder.with_no_client_auth(),
            };
            if !protocol.is_empty() {
                config.alpn_protocols = vec![protocol.to_vec()];
            }
            Ok(Self { config: Arc::new(config), name })
        }

        /// Shakes hands over a stream.
        pub(crate) async fn over(&self, stream: Stream) -> io::Result<Stream> {
            let connector = TlsConnector::from(Arc::clone(&self.config));
            let stream = connector.connect(self.name.clone(), stream).await.map_err(|error| {
                let text = format!("the TLS handshake failed: {error}");
                io::Error::new(error.kind(), text)
            })?;
            Ok(Stream::Tls(Box::new(stream)))
        }
    }

    fn roots(args: &TlsArgs) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &args.cacert {
            for certificate in certificates("--cacert", path)? {
                roots.add(certificate).map_err(|error| failed("--cacert", path, error))?;
            }
            return Ok(roots);
        }
        // Certificates of the system that rustls does not take are passed over.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("the system has no trusted certificates; pass --cacert FILE".into());
        }
        Ok(roots)
    }

    fn certificates(flag: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let read = CertificateDer::pem_file_iter(path);
        let read = read.and_then(Iterator::collect::<Result<Vec<_>, _>>);
        match read {
            Ok(all) if all.is_empty() => {
                Err(failed(flag, path, "the file contains no certificate"))
            }
            read => read.map_err(|error| failed(flag, path, error)),
        }
    }

    fn failed(flag: &str, path: &Path, error: impl fmt::Display) -> String {
        format!("{flag} {}: {error}", path.display())
    }
}

pub(crate) use with::Tls;
