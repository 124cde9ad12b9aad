//! An authority and its certificates, made by the command `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// A complete configuration, so that the machine's own does not matter.
const SETTINGS: &str = "[req]\ndistinguished_name = name\nx509_extensions = authority\n[name]\n[authority]\n\
                        basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign\n\
                        subjectKeyIdentifier = hash\n";

/// An authority, which signs certificates.
pub(crate) struct Authority {
    folder: PathBuf,
    pub(crate) certificate: PathBuf,
}

/// A certificate and its key, as files.
pub(crate) struct Signed {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(folder: &Path) -> Authority {
        fs::create_dir(folder).expect("a folder");
        fs::write(folder.join("settings"), SETTINGS).expect("a file can be written");
        let authority =
            Authority { folder: folder.to_owned(), certificate: folder.join("authority.pem") };
        authority.openssl(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config settings -days 2 \
             -subj /CN=authority -keyout authority.key -out authority.pem",
        );
        authority
    }

    /// A certificate for these names, such as `DNS:localhost`.
    pub(crate) fn sign(&self, file: &str, names: &str) -> Signed {
        fs::write(self.folder.join(format!("{file}.names")), format!("subjectAltName = {names}\n"))
            .expect("a file can be written");
        self.openssl(&format!(
            "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -config settings \
             -subj /CN={file} -keyout {file}.key -out {file}.csr"
        ));
        self.openssl(&format!(
            "x509 -req -in {file}.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
             -extfile {file}.names -out {file}.pem"
        ));
        let path = |end: &str| self.folder.join(format!("{file}.{end}"));
        Signed { certificate: path("pem"), key: path("key") }
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split_whitespace())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .output()
            .expect(
                "the command `openssl` must be installed, as this test makes certificates with it",
            );
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {arguments}: {said}");
    }
}

impl Signed {
    /// The certificate's bytes.
    pub(crate) fn der(&self) -> Vec<u8> {
        CertificateDer::from_pem_file(&self.certificate).expect("a certificate").to_vec()
    }

    /// Replaces the contents of these files.
    pub(crate) fn replace_by(&self, other: &Signed) {
        fs::copy(&other.certificate, &self.certificate).expect("a copy");
        fs::copy(&other.key, &self.key).expect("a copy");
    }
}
