//! How the command line's clients reach a server that requires a token or uses TLS.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Url};

use crate::pod::config::Secret;

/// See the [module documentation](self).
#[derive(Debug, Clone, Default, Args)]
pub struct ConnectArgs {
    /// Token for a server that requires one.
    #[arg(long, env = "ORDERFREE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<Secret>,
    /// File with the token.
    #[arg(long, env = "ORDERFREE_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// PEM file with the CA that signed the server's certificate [default: the system's CAs].
    #[arg(long, env = "ORDERFREE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// An address for messages: without a user name or a password in it.
pub(super) fn shown(url: &Url) -> Url {
    let mut url = url.clone();
    // This fails only for addresses that can't have a user or a password.
    let _ = (url.set_username(""), url.set_password(None));
    url
}

impl ConnectArgs {
    /// The builder of a client that sends the token with every request to this address.
    ///
    /// # Errors
    /// One sentence that names the file that can't be used. It does not repeat the token.
    pub fn builder(&self, url: &Url) -> anyhow::Result<ClientBuilder> {
        let mut builder = Client::builder();
        if let Some(token) = self.token()? {
            let value = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
            let mut value = value
                .ok()
                .context("the token has characters that no token can have; copy it again")?;
            value.set_sensitive(true);
            builder = builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        if url.scheme() != "https" {
            // Without TLS the system's CAs are not needed and can be missing.
            builder = builder.tls_certs_only([]);
        } else if let Some(path) = &self.ca {
            let what = || format!("the certificate authority {}", path.display());
            let pem = fs::read(path).with_context(what)?;
            builder =
                builder.tls_certs_only(Certificate::from_pem_bundle(&pem).with_context(what)?);
        }
        Ok(builder)
    }

    /// A client that sends the token with every request to this address.
    ///
    /// # Errors
    /// Those of [`ConnectArgs::builder`].
    pub fn client(&self, url: &Url) -> anyhow::Result<Client> {
        self.builder(url)?.build().context("the HTTP client can't be built")
    }

    fn token(&self) -> anyhow::Result<Option<Secret>> {
        let Some(path) = &self.token_file else { return Ok(self.token.clone()) };
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("the token file {}", path.display()))?;
        Ok(Some(text.trim().into()))
    }
}
