//! Shared parts of the TLS tests: authorities, a server with all listeners, and clients.
#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(missing_docs, unreachable_pub, reason = "not a library")]

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tollgate::Clock;
use tollgate_server::{
    config::{Endpoint, ServerSettings, TlsSettings},
    net::{Listener, TrafficCounts},
    server::{Manager, Server, Shared, Source, StartError},
};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Signs a certificate for this machine, or for a client, whose name is not checked.
    pub fn sign(&self) -> Identity {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    /// Returns a client that trusts this authority.
    pub fn client(&self, identity: Option<&Identity>, alpn: &[&str]) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder
                .with_client_auth_cert(vec![der(&identity.certificate)], {
                    PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap()
                })
                .unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }
}

pub fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

/// A folder with a server's certificate, its key and the authority's certificate.
pub struct Files {
    pub folder: tempfile::TempDir,
}

impl Files {
    pub fn new(authority: &Authority) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(files.path("ca.pem"), &authority.pem).unwrap();
        files.replace(&authority.sign());
        files
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the server's certificate.
    pub fn replace(&self, identity: &Identity) {
        self.write("server", identity);
    }

    pub fn write(&self, name: &str, identity: &Identity) {
        fs::write(self.path(&format!("{name}.pem")), &identity.certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), &identity.key).unwrap();
    }

    pub fn settings(&self) -> TlsSettings {
        let (certificate, key) = (self.path("server.pem"), self.path("server.key"));
        TlsSettings { certificate, key, client_ca: None }
    }

    pub fn mutual(&self) -> TlsSettings {
        TlsSettings { client_ca: Some(self.path("ca.pem")), ..self.settings() }
    }
}

/// A server that runs.
pub struct Running {
    pub shared: Arc<Shared>,
    pub manager: Arc<Manager>,
    endpoints: Vec<(Listener, Endpoint)>,
    stop: mpsc::Sender<()>,
    task: JoinHandle<Result<(), StartError>>,
}

/// Returns flags for a server with the built-in example, whose listeners are on free ports.
pub fn flags(tls: Option<TlsSettings>) -> ServerSettings {
    let free: Option<Endpoint> = "127.0.0.1:0".parse().ok();
    ServerSettings {
        http: free.clone(),
        grpc: free.clone(),
        resp: free.clone(),
        admin: free,
        tls,
        workers: Some(1),
        // The server reloads only when a test triggers it.
        watch_interval: Some(Duration::ZERO),
        ..ServerSettings::default()
    }
}

impl Running {
    pub fn start(flags: ServerSettings) -> Self {
        Self::start_from(Source { paths: Vec::new(), flags })
    }

    pub fn start_from(source: Source) -> Self {
        let server = Server::bind(source, &Clock::monotonic()).unwrap();
        Self::run(server)
    }

    pub fn run(server: Server) -> Self {
        let (shared, manager) = (Arc::clone(server.shared()), Arc::clone(server.manager()));
        let (endpoints, (stop, stopped)) = (server.endpoints(), mpsc::channel(1));
        let task = tokio::spawn(server.run(stopped));
        Self { shared, manager, endpoints, stop, task }
    }

    pub fn address(&self, listener: Listener) -> SocketAddr {
        let found = self.endpoints.iter().find_map(|(its, endpoint)| match endpoint {
            Endpoint::Tcp(address) if *its == listener => Some(*address),
            _ => None,
        });
        found.unwrap()
    }

    pub async fn connect(
        &self,
        listener: Listener,
        client: &TlsConnector,
    ) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address(listener)).await?;
        client.connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    /// Connects, sends a request, and returns the response.
    pub async fn ask(
        &self,
        listener: Listener,
        client: &TlsConnector,
        text: &str,
    ) -> io::Result<String> {
        let mut stream = self.connect(listener, client).await?;
        say(&mut stream, text).await
    }

    /// Stops it, and returns its counts, which are then complete.
    pub async fn stop(self) -> Stopped {
        self.stop.send(()).await.unwrap();
        self.task.await.unwrap().unwrap();
        Stopped(self.shared)
    }
}

/// A server that has run.
pub struct Stopped(Arc<Shared>);

impl Stopped {
    pub fn counts(&self, listener: Listener) -> TrafficCounts {
        self.0.traffic(listener).counts()
    }
}

/// Sends a request and returns the first bytes of the response. Silence is an error.
pub async fn say(
    stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin),
    text: &str,
) -> io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await?;
    if length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    answer.truncate(length);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Runs a program and returns its output. `package` names the package that contains it.
pub async fn run(program: &str, package: &str, args: &[&str]) -> (bool, String) {
    let done = tokio::process::Command::new(program).args(args).output().await;
    let done = done.unwrap_or_else(|error| panic!("{program}: {error}; apt install {package}"));
    let mut text = String::from_utf8_lossy(&done.stdout).into_owned();
    text += &String::from_utf8_lossy(&done.stderr);
    (done.status.success(), text)
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
