//! Metadata of protected resources (RFC 9728) and authorization servers (RFC 8414, `OpenID`).

use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use toolpost_core::ToolError;

use super::challenge::Challenge;
use super::web::Web;
use crate::convert::inward::shortened;

const RESOURCE_PATH: &str = "/.well-known/oauth-protected-resource";
const OAUTH_PATH: &str = "/.well-known/oauth-authorization-server";
const OPENID_PATH: &str = "/.well-known/openid-configuration";
/// The most authorization servers and scopes that are taken from one document.
const MAX_ITEMS: usize = 200;

/// The metadata of a server (a protected resource).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the fields are called as in the document")]
pub(super) struct Resource {
    /// The resource identifier, exactly as the document spells it.
    pub(super) resource: String,
    #[serde(default)]
    pub(super) authorization_servers: Vec<String>,
    pub(super) scopes_supported: Option<Vec<String>>,
}

/// The metadata of an authorization server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the fields are called as in the document")]
pub(super) struct Issuer {
    pub(super) issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
    #[serde(default)]
    pub(super) scopes_supported: Vec<String>,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
    pub(super) token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    pub(super) client_id_metadata_document_supported: bool,
    #[serde(default)]
    pub(super) authorization_response_iss_parameter_supported: bool,
    #[serde(default)]
    dpop_signing_alg_values_supported: Vec<String>,
}

impl Resource {
    /// Parses the metadata of a resource; `server` is the requested URL.
    pub(super) fn read(document: Value, server: &Url) -> Result<Self, ToolError> {
        let mut read: Self = serde_json::from_value(document).map_err(|error| {
            ToolError::dependency(format!(
                "the resource metadata of the server is invalid: {}",
                shortened(&error.to_string(), 200)
            ))
        })?;
        let resource = Url::parse(&read.resource).ok().filter(|resource| is_of(resource, server));
        if resource.is_none() {
            return Err(ToolError::permission(format!(
                "the server at `{server}` claims to be the resource `{}`, which is another server",
                shortened(&read.resource, 200)
            )));
        }
        read.authorization_servers.truncate(MAX_ITEMS);
        if let Some(scopes) = &mut read.scopes_supported {
            scopes.truncate(MAX_ITEMS);
            scopes.retain(|scope| is_scope(scope));
        }
        Ok(read)
    }
}

/// Whether a server URL is the resource or lies below it.
fn is_of(resource: &Url, server: &Url) -> bool {
    let (base, path) = (resource.path().trim_end_matches('/'), server.path().trim_end_matches('/'));
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a text is a valid scope (RFC 6749, section 3.3).
fn is_scope(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && text.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e))
}

impl Issuer {
    /// Parses the metadata of the authorization server `issuer`.
    pub(super) fn read(document: Value, issuer: &str) -> Result<Self, ToolError> {
        let mut read: Self = serde_json::from_value(document).map_err(|error| {
            ToolError::dependency(format!(
                "the metadata of the authorization server `{}` is invalid: {}",
                shortened(issuer, 200),
                shortened(&error.to_string(), 200)
            ))
        })?;
        if read.issuer != issuer {
            return Err(ToolError::permission(format!(
                "the metadata of the authorization server `{}` names another issuer: `{}`",
                shortened(issuer, 200),
                shortened(&read.issuer, 200)
            )));
        }
        read.scopes_supported.truncate(MAX_ITEMS);
        read.scopes_supported.retain(|scope| is_scope(scope));
        Ok(read)
    }

    fn endpoint(&self, what: &str, url: Option<&String>, web: &Web) -> Result<Url, ToolError> {
        let what = format!("the {what} endpoint of `{}`", shortened(&self.issuer, 200));
        let Some(url) = url else {
            return Err(ToolError::precondition(format!("{what} is missing from its metadata")));
        };
        let url = Url::parse(url).map_err(|error| ToolError::dependency(format!("{what}: {error}")))?;
        web.rules().url(&what, &url)?;
        Ok(url)
    }

    /// The authorization endpoint, if the server supports PKCE with S256.
    pub(super) fn authorization_endpoint(&self, web: &Web) -> Result<Url, ToolError> {
        if !self.code_challenge_methods_supported.iter().any(|method| method == "S256") {
            return Err(ToolError::precondition(format!(
                "the authorization server `{}` does not announce PKCE with S256",
                shortened(&self.issuer, 200)
            )));
        }
        self.endpoint("authorization", self.authorization_endpoint.as_ref(), web)
    }

    pub(super) fn token_endpoint(&self, web: &Web) -> Result<Url, ToolError> {
        self.endpoint("token", self.token_endpoint.as_ref(), web)
    }

    /// The registration endpoint, if there is one.
    pub(super) fn registration_endpoint(&self, web: &Web) -> Result<Option<Url>, ToolError> {
        let endpoint = self.registration_endpoint.as_ref();
        endpoint.map(|url| self.endpoint("registration", Some(url), web)).transpose()
    }

    /// The revocation endpoint, if there is one.
    pub(super) fn revocation_endpoint(&self, web: &Web) -> Result<Option<Url>, ToolError> {
        let endpoint = self.revocation_endpoint.as_ref();
        endpoint.map(|url| self.endpoint("revocation", Some(url), web)).transpose()
    }

    /// Whether the server supports `DPoP` with ES256.
    pub(super) fn supports_dpop(&self) -> bool {
        self.dpop_signing_alg_values_supported.iter().any(|algorithm| algorithm == "ES256")
    }

    /// Whether the token endpoint supports a client authentication method; the default is
    /// `client_secret_basic`.
    pub(super) fn supports_auth(&self, method: &str) -> bool {
        match &self.token_endpoint_auth_methods_supported {
            Some(methods) => methods.iter().any(|known| known == method),
            None => method == "client_secret_basic",
        }
    }
}

/// Fetches the metadata of a server; `None` if there is none.
pub(super) async fn resource(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<Resource>, ToolError> {
    let what = "the resource metadata of the server";
    if let Some(named) = &challenge.resource_metadata {
        let url = server.join(named).map_err(|error| ToolError::dependency(format!("{what}: {error}")))?;
        let document = web.document(what, url).await?;
        return match document {
            Some(document) => Resource::read(document, server).map(Some),
            None => Err(ToolError::dependency(format!(
                "{what} is not at `{}`, where the challenge points to",
                shortened(named, 200)
            ))),
        };
    }
    for url in candidates(server, &[(RESOURCE_PATH, false)], true) {
        if let Some(document) = web.document(what, url).await? {
            return Resource::read(document, server).map(Some);
        }
    }
    Ok(None)
}

/// Fetches the metadata of an authorization server.
pub(super) async fn issuer(web: &Web, issuer: &str) -> Result<Issuer, ToolError> {
    let shown = shortened(issuer, 200);
    let what = format!("the authorization server `{shown}`");
    let url = Url::parse(issuer)
        .ok()
        .filter(|url| url.query().is_none() && url.fragment().is_none())
        .ok_or_else(|| ToolError::dependency(format!("{what}: the issuer is not a valid URL")))?;
    web.rules().url(&what, &url)?;
    let paths = [(OAUTH_PATH, false), (OPENID_PATH, false), (OPENID_PATH, true)];
    for candidate in candidates(&url, &paths, false) {
        if let Some(document) = web.document(&what, candidate).await? {
            return Issuer::read(document, issuer);
        }
    }
    Err(ToolError::dependency(format!("{what} publishes no metadata at the well-known paths")))
}

/// The well-known URLs for a server: each path before the server's path or, with `true`, after it; with
/// `with_root` also the first path at the root.
fn candidates(url: &Url, paths: &[(&str, bool)], with_root: bool) -> Vec<Url> {
    let mut base = url.clone();
    base.set_fragment(None);
    base.set_query(None);
    let at = |path: &str| {
        let mut candidate = base.clone();
        candidate.set_path(path);
        candidate
    };
    let path = url.path().trim_end_matches('/');
    let mut candidates: Vec<Url> = paths
        .iter()
        .filter(|(_, is_suffix)| !(*is_suffix && path.is_empty()))
        .map(|(known, is_suffix)| {
            at(&if *is_suffix { format!("{path}{known}") } else { format!("{known}{path}") })
        })
        .collect();
    if let (true, false, Some((known, _))) = (with_root, path.is_empty(), paths.first()) {
        candidates.push(at(known));
    }
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn well_known_urls_follow_the_specifications() {
        let found = |url: &str, paths: &[(&str, bool)], with_root| -> Vec<String> {
            let found = candidates(&Url::parse(url).unwrap(), paths, with_root);
            found.iter().map(|candidate| candidate.path().to_owned()).collect()
        };
        let paths = [(OAUTH_PATH, false), (OPENID_PATH, false), (OPENID_PATH, true)];
        assert_eq!(found("https://a.example", &paths, false), [OAUTH_PATH, OPENID_PATH]);
        assert_eq!(
            found("https://a.example/one/", &paths, false),
            [
                format!("{OAUTH_PATH}/one"),
                format!("{OPENID_PATH}/one"),
                "/one/.well-known/openid-configuration".to_owned()
            ]
        );
        let resource = [(RESOURCE_PATH, false)];
        assert_eq!(found("https://a.example/", &resource, true), [RESOURCE_PATH]);
        assert_eq!(
            found("https://a.example/mcp?x=1", &resource, true),
            [format!("{RESOURCE_PATH}/mcp"), RESOURCE_PATH.to_owned()]
        );
    }

    #[test]
    fn a_resource_is_the_server_or_a_parent_of_it() {
        let server = Url::parse("https://a.example/team/mcp").unwrap();
        for (resource, is_good) in [
            ("https://a.example/team/mcp", true),
            ("https://a.example/team/mcp/", true),
            ("https://a.example/team", true),
            ("https://a.example", true),
            ("https://a.example:443/", true),
            ("https://a.example/te", false),
            ("https://a.example/team/mcp/more", false),
            ("https://evil.example/team/mcp", false),
            ("http://a.example/team/mcp", false),
            ("https://a.example:444/team/mcp", false),
            ("https://a.example/team/mcp#x", false),
            ("nonsense", false),
        ] {
            let read = Resource::read(json!({ "resource": resource }), &server);
            assert_eq!(read.is_ok(), is_good, "{resource}");
            if let Ok(read) = read {
                assert_eq!(read.resource, resource);
            }
        }
    }

    #[test]
    fn an_issuer_must_match_exactly() {
        let read = |issuer: &str, asked: &str| Issuer::read(json!({ "issuer": issuer }), asked);
        assert!(read("https://a.example", "https://a.example").is_ok());
        for other in ["https://a.example/", "https://A.example", "https://b.example", ""] {
            assert!(read(other, "https://a.example").is_err(), "{other}");
        }
        assert!(Issuer::read(json!([]), "https://a.example").is_err());
    }

    #[test]
    fn invalid_scopes_are_dropped() {
        let server = Url::parse("https://a.example/mcp").unwrap();
        let document =
            json!({ "resource": "https://a.example/mcp", "scopes_supported": ["a", "b c", "", "\"", "d:e"] });
        let read = Resource::read(document, &server).unwrap();
        assert_eq!(read.scopes_supported.unwrap(), ["a", "d:e"]);
    }
}
