//! TLS by rustls, for clients and for Cassandra. Certificates and keys come from PEM files, which are checked
//! before anything is opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
};
use thiserror::Error;

/// Why files can't be used for TLS. The messages never repeat a file's content.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file can't be read or holds no PEM. The parser's own message would repeat the file's content.
    #[error("{what} {path} can't be read: {}", why(.error))]
    File {
        /// What the file should hold.
        what: &'static str,
        path: PathBuf,
        error: pem::Error,
    },
    #[error(
        "{0} holds no certificate; write it as PEM, which begins with -----BEGIN CERTIFICATE-----"
    )]
    Empty(PathBuf),
    /// Certificate and key do not match, or rustls does not support their type.
    #[error("the certificate {path} can't be used: {error}")]
    Unusable { path: PathBuf, error: rustls::Error },
}

/// Describes an error without any content of the file.
fn why(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "it has no such PEM section".to_owned(),
        _ => "it is damaged PEM".to_owned(),
    }
}

/// A listener's certificate, which can be replaced while the listener runs.
pub struct ServerTls {
    certificate: PathBuf,
    key: PathBuf,
    current: ArcSwap<ServerConfig>,
}

impl ServerTls {
    /// Reads a certificate chain, the server's certificate first, and its key.
    pub fn read(certificate: &Path, key: &Path) -> Result<ServerTls, TlsError> {
        let current = ArcSwap::from_pointee(server_config(certificate, key)?);
        Ok(ServerTls { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files again, for new connections.
    ///
    /// # Errors
    /// [`TlsError`]; then the old certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(server_config(&self.certificate, &self.key)?));
        Ok(())
    }

    /// The configuration for one connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The configuration of a client that trusts the CA `authority`, and presents `own` if the server requires a
/// client certificate. The server's certificate must cover the name or address that the client calls.
pub fn client_config(
    authority: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    let roots = roots(authority)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("invariant: the provider knows TLS 1.2 and 1.3")
        .with_root_certificates(roots);
    let Some((certificate, key)) = own else { return Ok(config.with_no_client_auth()) };
    let chain = certificates("the certificate", certificate)?;
    let config = config.with_client_auth_cert(chain, private_key(key)?);
    config.map_err(|error| TlsError::Unusable { path: certificate.to_owned(), error })
}

/// The TLS of a client whose CA and own certificate can be replaced, for new connections.
#[derive(Clone)]
pub struct ClientTls {
    current: Arc<ArcSwap<Checks>>,
    config: Arc<ClientConfig>,
}

/// What a client trusts and presents.
#[derive(Debug)]
struct Checks {
    server: Arc<WebPkiServerVerifier>,
    own: Arc<dyn ResolvesClientCert>,
}

impl ClientTls {
    /// Reads the files, as [`client_config`] does.
    pub fn read(authority: &Path, own: Option<(&Path, &Path)>) -> Result<ClientTls, TlsError> {
        let server =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots(authority)?), provider());
        let server = server.build().expect("invariant: there is a root, and no revocation list");
        let own = client_config(authority, own)?.client_auth_cert_resolver;
        let current = Arc::new(ArcSwap::from_pointee(Checks { server, own }));
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("invariant: the provider knows TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Current(Arc::clone(&current))))
            .with_client_cert_resolver(Arc::new(Current(Arc::clone(&current))));
        // A resumed session is not checked again: the old CA would have let it in.
        config.resumption = Resumption::disabled();
        Ok(ClientTls { current, config: Arc::new(config) })
    }

    /// The configuration. Its connections follow each replacement.
    #[must_use]
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }

    /// Trusts and presents from now on what `new` does.
    pub fn replace_by(&self, new: &ClientTls) {
        self.current.store(new.current.load_full());
    }
}

/// Passes each question of a handshake on to the current checks.
#[derive(Debug)]
struct Current(Arc<ArcSwap<Checks>>);

impl ServerCertVerifier for Current {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let current = self.0.load();
        current.server.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().server.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.load().server.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.load().server.supported_verify_schemes()
    }
}

impl ResolvesClientCert for Current {
    fn resolve(
        &self,
        root_hint_subjects: &[&[u8]],
        schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.load().own.resolve(root_hint_subjects, schemes)
    }

    fn has_certs(&self) -> bool {
        self.0.load().own.has_certs()
    }
}

fn server_config(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = certificates("the certificate", certificate)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("invariant: the provider knows TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, private_key(key)?)
        .map_err(|error| TlsError::Unusable { path: certificate.to_owned(), error })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The provider is explicit: otherwise rustls needs a process-wide default among those compiled in.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(authority: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the certificate authority", authority)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::Unusable { path: authority.to_owned(), error })?;
    }
    Ok(roots)
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error| TlsError::File { what, path: path.to_owned(), error };
    let found = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let found: Vec<_> = found.collect::<Result<_, _>>().map_err(unreadable)?;
    if found.is_empty() {
        return Err(TlsError::Empty(path.to_owned()));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| TlsError::File {
        what: "the private key",
        path: path.to_owned(),
        error,
    })
}
