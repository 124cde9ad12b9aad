//! Where a cluster is and how to use it.

use std::fmt;
use std::sync::Arc;

use orderfree_core::protocol::Constants;
use orderfree_core::protocol::consistency::Levels;
use rustls::ClientConfig;

use super::Login;
use crate::store::RequestLimits;

#[derive(Clone)]
pub struct CassandraConfig {
    /// Some of the nodes, as `host:port`. The driver finds the others through them.
    pub contact_points: Vec<String>,
    /// The keyspace that holds the table `shards`.
    pub keyspace: String,
    /// For clusters that require a user and a password.
    pub login: Option<Arc<Login>>,
    /// The TLS configuration for connections to the nodes. `None` means no TLS.
    pub tls: Option<Arc<ClientConfig>>,
    /// The data centre whose replicas answer local levels. `None` means the only one with replicas.
    pub local_datacenter: Option<String>,
    pub levels: Levels,
    /// The protocol's times.
    pub constants: Constants,
    /// How shard writes are combined into requests.
    pub request_limits: RequestLimits,
}

impl fmt::Debug for CassandraConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CassandraConfig")
            .field("contact_points", &self.contact_points)
            .field("keyspace", &self.keyspace)
            .field("login", &self.login)
            .field("local_datacenter", &self.local_datacenter)
            .field("levels", &self.levels)
            .field("constants", &self.constants)
            .field("request_limits", &self.request_limits)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let config = CassandraConfig {
            contact_points: vec!["127.0.0.1:9042".into()],
            keyspace: "orderfree".into(),
            login: Some(Arc::new(Login::new("someone".into(), "secret".into()))),
            tls: None,
            local_datacenter: None,
            levels: Levels::default(),
            constants: Constants::resolve(Default::default()).expect("defaults"),
            request_limits: RequestLimits::default(),
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("someone") && !shown.contains("secret"), "{shown}");
    }
}
