//! An allowlist as data, for configuration in TOML, JSON or YAML.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{EgressLimits, HostPattern, Placeholder};

/// An allowlist as data.
///
/// Every field is optional; an unknown one is an error.
///
/// ```toml
/// allow = ["pypi.org", "*.pythonhosted.org", "example.org:8443"]
/// deny = ["upload.pypi.org"]
/// raw = ["git.example.org:22"]
/// addresses = ["127.0.0.1:3141"]
///
/// [[secrets]]
/// variable = "API_TOKEN"
/// hosts = ["api.example.org"]
///
/// [limits]
/// requests = 100
/// bytes_up = 1048576
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EgressPolicy {
    /// Allowed hosts; see [`HostPattern`].
    pub allow: Vec<HostPattern>,
    /// Denied hosts, even if another rule allows them.
    pub deny: Vec<HostPattern>,
    /// Hosts that are allowed with tunnels other than TLS.
    pub raw: Vec<HostPattern>,
    /// Addresses that the address rules block; see [`crate::Egress::allow_address`].
    pub addresses: Vec<SocketAddr>,
    /// Secrets for which the program gets placeholders, without their values.
    pub secrets: Vec<SecretPolicy>,
    /// The limits.
    pub limits: EgressLimits,
    /// The operator's HTTP proxy for all connections.
    pub upstream: Option<SocketAddr>,
}

/// A secret in an [`EgressPolicy`], without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct SecretPolicy {
    /// The variable of the placeholder in the program, and of the value in the host program.
    pub variable: String,
    /// The hosts that may receive the secret. They must be allowed separately.
    pub hosts: Vec<HostPattern>,
    /// The headers in which it is inserted. Default `authorization` and `x-api-key`.
    #[serde(default)]
    pub headers: Vec<String>,
    /// May be sent without TLS. Default no.
    #[serde(default)]
    pub plain_http: bool,
}

impl SecretPolicy {
    /// Creates the placeholder for a value.
    pub(crate) fn placeholder(self, value: String) -> Placeholder {
        let placeholder = Placeholder::new(self.variable, value).plain_http(self.plain_http);
        let placeholder = self.hosts.into_iter().fold(placeholder, Placeholder::host);
        self.headers.into_iter().fold(placeholder, Placeholder::header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Egress;

    #[test]
    fn a_policy_is_parsed_and_unknown_fields_are_errors() {
        let text = r#"{
            "allow": ["pypi.org", "*.Pythonhosted.org:443"], "deny": ["upload.pypi.org"], "raw": ["git.example.org:22"],
            "addresses": ["127.0.0.1:3141", "[::1]:80"],
            "secrets": [{"variable": "API_TOKEN", "hosts": ["api.example.org"], "headers": ["x-token"], "plain_http": true}],
            "limits": {"requests": 7, "bytes_per_second": 1000}, "upstream": "10.0.0.1:8080"
        }"#;
        let policy: EgressPolicy = serde_json::from_str(text).unwrap();
        assert_eq!(policy.allow[1].to_string(), "*.pythonhosted.org:443");
        assert_eq!((policy.limits.requests, policy.limits.connections), (7, 10_000));
        let again: EgressPolicy = serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
        assert_eq!(again, policy);
        let egress =
            Egress::from_policy(policy.clone(), &mut |name| Some(format!("value-of-{name}"))).unwrap();
        assert_eq!(egress.secrets.len(), 1);
        assert_eq!(egress.secrets[0].variable, "API_TOKEN");
        assert_eq!(egress.secrets[0].headers, ["x-token"]);
        assert!(egress.secrets[0].plain_http);
        let error = Egress::from_policy(policy, &mut |_| None).unwrap_err().to_string();
        assert!(error.contains("API_TOKEN"), "{error}");
        for wrong in [
            r#"{"alow": []}"#,
            r#"{"limits": {"request": 1}}"#,
            r#"{"allow": ["*"]}"#,
            r#"{"addresses": ["127.0.0.1"]}"#,
            r#"{"secrets": [{"variable": "A", "hosts": [], "value": "x"}]}"#,
        ] {
            assert!(serde_json::from_str::<EgressPolicy>(wrong).is_err(), "{wrong}");
        }
        let empty: EgressPolicy = serde_json::from_str(r#"{"limits": {"requests": 0}}"#).unwrap();
        assert!(Egress::from_policy(empty, &mut |_| None).is_err());
    }
}
