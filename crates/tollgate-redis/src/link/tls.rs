//! TLS to the servers.

use super::settings::{Settings, SettingsError};

#[cfg(not(feature = "tls"))]
mod with {
    use super::{Settings, SettingsError};
    use crate::link::stream::Stream;
    use std::io;
    use tokio::net::TcpStream;

    /// No TLS: this program was built without it.
    #[derive(Clone, Debug)]
    pub(in crate::link) struct Encryption;

    impl Encryption {
        /// [`Settings::check`] has refused settings that ask for TLS.
        pub(in crate::link) fn load(_: &Settings) -> Result<Self, SettingsError> {
            Ok(Self)
        }

        #[allow(clippy::unused_async, reason = "it is async with TLS")]
        pub(in crate::link) async fn over(&self, _: TcpStream, _: &str) -> io::Result<Stream> {
            Err(io::Error::other("built without TLS"))
        }
    }
}

#[cfg(feature = "tls")]
mod with {
    use super::{Settings, SettingsError};
    use crate::{
        link::{settings::Tls, stream::Stream},
        read_regular,
    };
    use rustls::{ClientConfig, RootCertStore, crypto::ring};
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
    use std::{io, path::Path, sync::Arc};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    /// The TLS configuration, read once.
    #[derive(Clone, Debug)]
    pub(in crate::link) struct Encryption(Option<Arc<ClientConfig>>);

    impl Encryption {
        /// Reads the files that the settings name.
        pub(in crate::link) fn load(settings: &Settings) -> Result<Self, SettingsError> {
            let config = settings.tls.as_ref().map(client_config).transpose()?;
            Ok(Self(config.map(Arc::new)))
        }

        pub(in crate::link) async fn over(
            &self,
            stream: TcpStream,
            name: &str,
        ) -> io::Result<Stream> {
            let Some(config) = &self.0 else { return Ok(Stream::Tcp(stream)) };
            let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
            let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
            Ok(Stream::Tls(Box::new(stream)))
        }
    }

    fn client_config(tls: &Tls) -> Result<ClientConfig, SettingsError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| SettingsError(format!("TLS: {error}")))?
            .with_root_certificates(roots(tls)?);
        match (&tls.certificate, &tls.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_slice(&pem(key)?)
                    .map_err(|error| failed(key, &error))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| failed(certificate, &error))
            }
            _ => Ok(builder.with_no_client_auth()),
        }
    }

    fn roots(tls: &Tls) -> Result<RootCertStore, SettingsError> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = &tls.ca {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| failed(path, &error))?;
            }
            return Ok(roots);
        }
        // Systems have certificates that rustls does not take: those are passed over, as the system
        // does not depend on them either.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let text = "TLS: the system has no trusted certificates; name a file with `ca`";
            return Err(SettingsError(text.into()));
        }
        Ok(roots)
    }

    fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(path)?).collect();
        let all = all.map_err(|error| failed(path, &error))?;
        if all.is_empty() {
            return Err(failed(path, &"the file contains no certificate; a PEM file is expected"));
        }
        Ok(all)
    }

    /// The largest file with certificates or a key, in bytes.
    const PEM_MAX: usize = 16 << 20;

    fn pem(path: &Path) -> Result<Vec<u8>, SettingsError> {
        read_regular(path, PEM_MAX).map_err(|error| failed(path, &error))
    }

    fn failed(path: &Path, error: &dyn std::fmt::Display) -> SettingsError {
        SettingsError(format!("TLS: {}: {error}", path.display()))
    }
}

pub(super) use with::Encryption;
