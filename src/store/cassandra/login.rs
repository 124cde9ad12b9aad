//! The user and the password for Cassandra, which can be replaced while the pod runs.

use std::fmt;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use scylla::authentication::{
    AuthError, AuthenticatorProvider, AuthenticatorSession, PlainTextAuthenticator,
};

/// The driver asks it for each new connection. Open connections stay as they are.
pub struct Login(ArcSwap<Credentials>);

struct Credentials {
    user: String,
    /// Never printed.
    password: String,
}

impl Login {
    #[must_use]
    pub fn new(user: String, password: String) -> Login {
        Login(ArcSwap::from_pointee(Credentials { user, password }))
    }

    /// Takes the user and the password of another one.
    pub fn replace_by(&self, new: &Login) {
        self.0.store(new.0.load_full());
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.0.load().user).finish_non_exhaustive()
    }
}

#[async_trait]
impl AuthenticatorProvider for Login {
    async fn start_authentication_session(
        &self,
        authenticator: &str,
    ) -> Result<(Option<Vec<u8>>, Box<dyn AuthenticatorSession>), AuthError> {
        let current = self.0.load_full();
        let (user, password) = (current.user.clone(), current.password.clone());
        PlainTextAuthenticator::new(user, password)
            .start_authentication_session(authenticator)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn new_connections_use_current_credentials_and_none_is_shown() {
        let login = Login::new("old".to_owned(), "secret".to_owned());
        let first = async || {
            let started = login.start_authentication_session("PasswordAuthenticator").await;
            started.map(|(response, _)| response).expect("a session").expect("a response")
        };
        assert_eq!(first().await, b"\0old\0secret");
        login.replace_by(&Login::new("new".to_owned(), "hidden".to_owned()));
        assert_eq!(first().await, b"\0new\0hidden");
        let shown = format!("{login:?}");
        assert!(shown.contains("new") && !shown.contains("hidden"), "{shown}");
    }
}
