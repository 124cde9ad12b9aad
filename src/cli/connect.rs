//! How the command line's clients reach a server that requires a token or uses TLS.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Chain, Context};
use clap::Args;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, ClientBuilder, Url};

use crate::pod::config::Secret;

/// Longest time to find out whether a server speaks TLS.
const TLS_LOOK_TIME_MAX: Duration = Duration::from_secs(5);

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

/// Why a request has no answer.
pub(super) struct NoAnswer {
    /// One sentence that says what to do.
    pub(super) error: anyhow::Error,
    /// Whether the server can have understood the request.
    pub(super) may_have_arrived: bool,
    /// Whether the same request can have an answer later.
    pub(super) may_pass: bool,
}

/// Explains why a request to this address has no answer.
pub(super) async fn explain(url: &Url, error: reqwest::Error) -> NoAnswer {
    let address = shown(url);
    if let Some(wrong) = wrong_address(url, &error).await {
        // A port can take both, so a request in clear text may have arrived in spite of the hint.
        let may_have_arrived = !error.is_connect() && !error.is_redirect();
        return NoAnswer { error: with_cause(wrong, error), may_have_arrived, may_pass: false };
    }
    let (is_connect, is_timeout) = (error.is_connect(), error.is_timeout());
    let error = anyhow::Error::from(error);
    if !is_connect {
        let error = match is_timeout {
            true => anyhow::anyhow!("the server at {address} did not answer in time"),
            false => error,
        };
        return NoAnswer { error, may_have_arrived: true, may_pass: true };
    }
    let is_of_certificate = format!("{error:#}").to_lowercase().contains("certificate");
    let error = if is_of_certificate {
        error.context(format!(
            "the certificate of {address} is not accepted, so the request was not sent; set its CA with --ca, and use an \
             address that the certificate covers"
        ))
    } else {
        anyhow::anyhow!(
            "no server answers at {address}, so the request was not sent; start one with `orderfree serve`, or set its \
             address with --url http://…"
        )
    };
    NoAnswer { error, may_have_arrived: false, may_pass: !is_of_certificate }
}

/// The cause of a failure to connect is only that nothing was understood, so it is left out.
fn with_cause(wrong: String, error: reqwest::Error) -> anyhow::Error {
    match error.is_connect() {
        true => anyhow::anyhow!(wrong),
        false => anyhow::Error::from(error).context(wrong),
    }
}

/// Says which address to write instead, if a request failed because the server takes the other one of `http`
/// and `https`, or is elsewhere.
async fn wrong_address(url: &Url, error: &reqwest::Error) -> Option<String> {
    let address = shown(url);
    if error.is_redirect() {
        return Some(format!(
            "{address} redirects to another address, so nothing was counted; write that one instead"
        ));
    }
    if error.is_connect() {
        let is_clear_text =
            Chain::new(error).any(|cause| cause.to_string().contains("corrupt message"));
        return is_clear_text.then(|| {
            format!(
                "{address} does not speak TLS, so the request was not sent; write http:// instead of https://"
            )
        });
    }
    let may_be_tls = url.scheme() == "http" && !error.is_timeout();
    (may_be_tls && speaks_tls(url).await)
        .then(|| format!("{address} speaks TLS; write https:// instead of http://"))
}

/// Checks that a server does not take the other one of `http` and `https`. A server that does not answer yet
/// passes.
///
/// # Errors
/// One sentence that says which address to write.
pub(super) async fn check_address(url: &Url) -> anyhow::Result<()> {
    let Ok(look) = url.join("livez") else { return Ok(()) };
    let sent = unchecked()?.get(look).timeout(TLS_LOOK_TIME_MAX).send().await;
    match sent {
        Ok(_) => Ok(()),
        Err(error) => {
            wrong_address(url, &error).await.map_or(Ok(()), |wrong| Err(with_cause(wrong, error)))
        }
    }
}

/// Whether the port of an `http` address answers in TLS.
async fn speaks_tls(url: &Url) -> bool {
    let mut secure = url.clone();
    let port = url.port_or_known_default();
    if secure.set_scheme("https").is_err() || secure.set_port(port).is_err() {
        return false;
    }
    let Ok(client) = unchecked() else { return false };
    let request = client.get(secure).timeout(TLS_LOOK_TIME_MAX);
    request.send().await.map_or_else(|error| !error.is_connect() && !error.is_timeout(), |_| true)
}

/// A client that checks no certificate and sends no token, for requests without secrets.
pub(super) fn unchecked() -> reqwest::Result<Client> {
    builder().tls_certs_only([]).tls_danger_accept_invalid_certs(true).build()
}

/// A builder of clients that follow no redirect, because most redirects turn an update into a read.
fn builder() -> ClientBuilder {
    Client::builder().redirect(Policy::custom(|attempt| {
        let address = shown(attempt.url());
        attempt.error(format!("to {address}"))
    }))
}

impl ConnectArgs {
    /// The builder of a client that sends the token with every request to this address.
    ///
    /// # Errors
    /// One sentence that names the file that can't be used. It does not repeat the token.
    pub fn builder(&self, url: &Url) -> anyhow::Result<ClientBuilder> {
        let mut builder = builder();
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
    /// As for [`ConnectArgs::builder`].
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
