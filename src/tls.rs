//! TLS by rustls, for those who call and for Cassandra: certificates and keys from PEM files, checked
//! before anything is opened.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

/// Why files can't be used for TLS. What is in them is not repeated.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file can't be read, or holds no PEM. What is in it is not repeated, as the parser would.
    #[error("{what} {path} can't be read: {}", why(.error))]
    File {
        /// What it should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        error: pem::Error,
    },
    /// A file holds no certificate.
    #[error("{0} holds no certificate; it needs PEM, as in -----BEGIN CERTIFICATE-----")]
    Empty(PathBuf),
    /// Certificate and key don't fit together, or are of a sort that rustls does not know.
    #[error("the certificate {path} can't be used: {error}")]
    Unusable {
        /// The certificates' file.
        path: PathBuf,
        /// Why.
        error: rustls::Error,
    },
}

/// An error in words that hold nothing of the file.
fn why(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => error.to_string(),
        pem::Error::NoItemsFound => "it holds nothing of the kind in PEM".to_owned(),
        _ => "it is damaged PEM".to_owned(),
    }
}

/// The certificate that a listener shows, which can be replaced while it runs.
pub struct ServerTls {
    certificate: PathBuf,
    key: PathBuf,
    current: ArcSwap<ServerConfig>,
}

impl ServerTls {
    /// Reads a chain of certificates, the server's first, and its key.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn read(certificate: &Path, key: &Path) -> Result<ServerTls, TlsError> {
        let current = ArcSwap::from_pointee(server_config(certificate, key)?);
        Ok(ServerTls { certificate: certificate.to_owned(), key: key.to_owned(), current })
    }

    /// Reads the files anew, for connections from now on.
    ///
    /// # Errors
    /// [`TlsError`]: the certificate stays as it was.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.current.store(Arc::new(server_config(&self.certificate, &self.key)?));
        Ok(())
    }

    /// For one connection.
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

/// How to call a server that shows a certificate of this authority, with a certificate of one's own if
/// it asks for one. Its certificate must be for the name or address that is called.
///
/// # Errors
/// [`TlsError`].
pub fn client_config(
    authority: &Path,
    own: Option<(&Path, &Path)>,
) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the certificate authority", authority)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::Unusable { path: authority.to_owned(), error })?;
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("invariant: the provider knows TLS 1.2 and 1.3")
        .with_root_certificates(roots);
    let Some((certificate, key)) = own else { return Ok(config.with_no_client_auth()) };
    let chain = certificates("the certificate", certificate)?;
    let config = config.with_client_auth_cert(chain, private_key(key)?);
    config.map_err(|error| TlsError::Unusable { path: certificate.to_owned(), error })
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

/// Named, as rustls would otherwise ask which of those compiled in is the process's own.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
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
