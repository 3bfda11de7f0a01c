//! TLS of the listeners.

use super::Listener;
#[cfg(not(feature = "tls"))]
use super::Stream;
use crate::config::{ServerSettings, TlsSettings};
use std::{fmt, path::PathBuf};
#[cfg(not(feature = "tls"))]
use {
    std::time::Duration,
    tokio::net::{TcpStream, UnixStream},
};

/// Why the TLS of a listener cannot be set up.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    text: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS: {}: {}", self.path.display(), self.text)
    }
}

impl std::error::Error for TlsError {}

/// The TLS of each listener. Certificates can be replaced while connections come in.
#[derive(Debug, Default)]
pub struct TlsOf {
    #[cfg(feature = "tls")]
    of: [arc_swap::ArcSwapOption<rustls::ServerConfig>; Listener::ALL.len()],
}

/// The certificates and keys of all listeners, read and found sound.
#[derive(Debug)]
pub struct TlsFiles {
    #[cfg(feature = "tls")]
    of: Vec<Option<std::sync::Arc<rustls::ServerConfig>>>,
}

/// Returns what a listener's TLS is to be.
pub(crate) fn settings_of(settings: &ServerSettings, listener: Listener) -> Option<&TlsSettings> {
    let own = settings.tls_of.iter().find(|(name, _)| name == listener.name());
    own.map(|(_, tls)| tls).or(settings.tls.as_ref())
}

#[cfg(not(feature = "tls"))]
impl TlsOf {
    /// Refuses settings that ask for TLS: this program was built without it.
    ///
    /// # Errors
    ///
    /// When a listener is to have TLS.
    pub fn read(settings: &ServerSettings) -> Result<TlsFiles, TlsError> {
        let wanted = Listener::ALL.into_iter().find_map(|listener| settings_of(settings, listener));
        wanted.map_or(Ok(TlsFiles {}), |wanted| {
            let text = "this program was built without TLS; build it with the feature `tls`";
            Err(TlsError { path: wanted.certificate.clone(), text: text.into() })
        })
    }

    /// Has nothing to install.
    pub fn install(&self, _: TlsFiles) {}

    pub(super) async fn tcp(&self, _: Listener, stream: TcpStream, _: Duration) -> Option<Stream> {
        Some(Stream::Tcp(stream))
    }

    pub(super) async fn unix(
        &self,
        _: Listener,
        stream: UnixStream,
        _: Duration,
    ) -> Option<Stream> {
        Some(Stream::Unix(stream))
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    use super::{
        super::Stream, Listener, ServerSettings, TlsError, TlsFiles, TlsOf, TlsSettings,
        settings_of,
    };
    use crate::config::FILE_MAX;
    use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    use std::{path::Path, sync::Arc, time::Duration};
    use tokio::{
        io::{AsyncRead, AsyncWrite},
        net::{TcpStream, UnixStream},
        time::timeout,
    };
    use tokio_rustls::{TlsAcceptor, server::TlsStream};
    use tollgate_redis::read_regular;

    impl TlsOf {
        /// Reads the certificates and keys of all listeners.
        ///
        /// # Errors
        ///
        /// When a file cannot be read, or does not hold what it should.
        pub fn read(settings: &ServerSettings) -> Result<TlsFiles, TlsError> {
            let mut of = Vec::new();
            for listener in Listener::ALL {
                let tls = settings_of(settings, listener);
                of.push(tls.map(|tls| server_config(tls, listener)).transpose()?.map(Arc::new));
            }
            Ok(TlsFiles { of })
        }

        /// Uses what was read for connections from now on.
        pub fn install(&self, files: TlsFiles) {
            for (slot, config) in self.of.iter().zip(files.of) {
                slot.store(config);
            }
        }

        pub(in crate::net) async fn tcp(
            &self,
            listener: Listener,
            stream: TcpStream,
            limit: Duration,
        ) -> Option<Stream> {
            match self.of[listener as usize].load_full() {
                None => Some(Stream::Tcp(stream)),
                Some(config) => {
                    Some(Stream::TlsTcp(Box::new(shake_hands(config, stream, limit).await?)))
                }
            }
        }

        pub(in crate::net) async fn unix(
            &self,
            listener: Listener,
            stream: UnixStream,
            limit: Duration,
        ) -> Option<Stream> {
            match self.of[listener as usize].load_full() {
                None => Some(Stream::Unix(stream)),
                Some(config) => {
                    Some(Stream::TlsUnix(Box::new(shake_hands(config, stream, limit).await?)))
                }
            }
        }
    }

    async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
        config: Arc<ServerConfig>,
        stream: S,
        limit: Duration,
    ) -> Option<TlsStream<S>> {
        match timeout(limit, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!("a TLS handshake failed: {error}");
                None
            }
            Err(_) => None,
        }
    }

    fn server_config(tls: &TlsSettings, listener: Listener) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let wrong = |error: rustls::Error| failed(&tls.certificate, error);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(wrong)?;
        let builder = match &tls.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| failed(path, error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| failed(path, error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = certificates(&tls.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&pem(&tls.key)?)
            .map_err(|error| failed(&tls.key, error))?;
        let mut config = builder.with_single_cert(chain, key).map_err(wrong)?;
        config.alpn_protocols = match listener {
            Listener::Grpc => vec![b"h2".to_vec()],
            Listener::Http => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Listener::Admin => vec![b"http/1.1".to_vec()],
            Listener::Resp => Vec::new(),
        };
        Ok(config)
    }

    fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(path)?).collect();
        let all = all.map_err(|error| failed(path, error))?;
        if all.is_empty() {
            return Err(failed(path, "the file contains no certificate; a PEM file is expected"));
        }
        Ok(all)
    }

    fn pem(path: &Path) -> Result<Vec<u8>, TlsError> {
        read_regular(path, FILE_MAX).map_err(|error| failed(path, error))
    }

    fn failed(path: &Path, error: impl std::fmt::Display) -> TlsError {
        TlsError { path: path.into(), text: error.to_string() }
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use std::{pin::pin, time::Duration};
    use tokio::{net::UnixStream, time::timeout};

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_stalls_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = TlsOf::default();
        let settings = TlsSettings { certificate, key, client_ca: None };
        let settings = ServerSettings { tls: Some(settings), ..ServerSettings::default() };
        tls.install(TlsOf::read(&settings).unwrap());

        let (near, _far) = UnixStream::pair().unwrap();
        let limit = Duration::from_secs(10);
        let mut shaken = pin!(tls.unix(Listener::Http, near, limit));
        let early = limit - Duration::from_millis(10);
        assert!(timeout(early, &mut shaken).await.is_err(), "it may take its time");
        assert!(timeout(Duration::from_millis(20), shaken).await.unwrap().is_none());
    }
}
