//! How the clients of the command line reach a server that asks for a token or speaks TLS.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Certificate, Client, ClientBuilder, Url};

use crate::config::Secret;

/// See the [module documentation](self).
#[derive(Debug, Clone, Default, Args)]
pub struct ConnectArgs {
    /// Token for a server that asks for one.
    #[arg(long, env = "ORDERFREE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<Secret>,
    /// File that holds it.
    #[arg(long, env = "ORDERFREE_TOKEN_FILE", value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// PEM file of the authority that signed the server's certificate; by default the system's.
    #[arg(long, env = "ORDERFREE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

/// An address as it is shown: without the name and the password that may stand in it.
pub(super) fn shown(url: &Url) -> Url {
    let mut url = url.clone();
    // Those that can't have any have none.
    let _ = (url.set_username(""), url.set_password(None));
    url
}

impl ConnectArgs {
    /// A client that sends the token with every request, to this address.
    ///
    /// # Errors
    /// One sentence that names the file which can't be used. The token is not repeated.
    pub fn builder(&self, url: &Url) -> anyhow::Result<ClientBuilder> {
        let mut builder = Client::builder();
        if let Some(token) = self.token()? {
            let value = HeaderValue::try_from(format!("Bearer {}", token.reveal()));
            let mut value = value.ok().context("the token has characters that no token has")?;
            value.set_sensitive(true);
            builder = builder.default_headers(HeaderMap::from_iter([(AUTHORIZATION, value)]));
        }
        if url.scheme() != "https" {
            // The system's authorities need not be there for that.
            builder = builder.tls_certs_only([]);
        } else if let Some(path) = &self.ca {
            let what = || format!("the certificate authority {}", path.display());
            let pem = fs::read(path).with_context(what)?;
            builder =
                builder.tls_certs_only(Certificate::from_pem_bundle(&pem).with_context(what)?);
        }
        Ok(builder)
    }

    /// The same, made.
    ///
    /// # Errors
    /// Those of [`ConnectArgs::builder`].
    pub fn client(&self, url: &Url) -> anyhow::Result<Client> {
        self.builder(url)?.build().context("no HTTP client can be made")
    }

    fn token(&self) -> anyhow::Result<Option<Secret>> {
        let Some(path) = &self.token_file else { return Ok(self.token.clone()) };
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("the token file {}", path.display()))?;
        Ok(Some(text.trim().into()))
    }
}
