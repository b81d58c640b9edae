//! What servers say of themselves: protected resources (RFC 9728) and authorization servers (RFC 8414, `OpenID`).

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
/// The most authorization servers and scopes of one document that are looked at.
const MAX_ITEMS: usize = 200;

/// What a server says of itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the fields are called as in the document")]
pub(super) struct Resource {
    /// How tokens name it, exactly as it is written there.
    pub(super) resource: String,
    #[serde(default)]
    pub(super) authorization_servers: Vec<String>,
    pub(super) scopes_supported: Option<Vec<String>>,
}

/// What an authorization server says of itself.
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
    pub(super) grant_types_supported: Vec<String>,
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
    /// Reads a document about a resource; `server` is what was asked for.
    pub(super) fn read(document: Value, server: &Url) -> Result<Self, ToolError> {
        let mut read: Self = serde_json::from_value(document).map_err(|error| {
            ToolError::dependency(format!(
                "what the server says of itself cannot be read: {}",
                shortened(&error.to_string(), 200)
            ))
        })?;
        let resource = Url::parse(&read.resource).ok().filter(|resource| is_of(resource, server));
        if resource.is_none() {
            return Err(ToolError::permission(format!(
                "the server at `{server}` says that it is `{}`: a token for that would be a token for somebody else",
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

/// Whether a server is the resource, or a part of it.
fn is_of(resource: &Url, server: &Url) -> bool {
    let (whole, part) = (resource.path().trim_end_matches('/'), server.path().trim_end_matches('/'));
    resource.origin() == server.origin()
        && resource.fragment().is_none()
        && part.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a text is one scope (RFC 6749, section 3.3).
fn is_scope(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && text.bytes().all(|byte| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e))
}

impl Issuer {
    /// Reads a document about the authorization server that is called so.
    pub(super) fn read(document: Value, issuer: &str) -> Result<Self, ToolError> {
        let mut read: Self = serde_json::from_value(document).map_err(|error| {
            ToolError::dependency(format!(
                "what the authorization server `{}` says of itself cannot be read: {}",
                shortened(issuer, 200),
                shortened(&error.to_string(), 200)
            ))
        })?;
        if read.issuer != issuer {
            return Err(ToolError::permission(format!(
                "the authorization server `{}` says that it is `{}`: nothing is sent to it",
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
            return Err(ToolError::precondition(format!("{what}: there is none")));
        };
        let url = Url::parse(url).map_err(|error| ToolError::dependency(format!("{what}: {error}")))?;
        web.rules().url(&what, &url)?;
        Ok(url)
    }

    /// Where a person is sent. It must know PKCE with S256.
    pub(super) fn authorization_endpoint(&self, web: &Web) -> Result<Url, ToolError> {
        if !self.code_challenge_methods_supported.iter().any(|method| method == "S256") {
            return Err(ToolError::precondition(format!(
                "the authorization server `{}` does not say that it knows PKCE with S256, without which a code could be stolen",
                shortened(&self.issuer, 200)
            )));
        }
        self.endpoint("authorization", self.authorization_endpoint.as_ref(), web)
    }

    pub(super) fn token_endpoint(&self, web: &Web) -> Result<Url, ToolError> {
        self.endpoint("token", self.token_endpoint.as_ref(), web)
    }

    /// Where clients register themselves; `None` if they cannot.
    pub(super) fn registration_endpoint(&self, web: &Web) -> Result<Option<Url>, ToolError> {
        let endpoint = self.registration_endpoint.as_ref();
        endpoint.map(|url| self.endpoint("registration", Some(url), web)).transpose()
    }

    /// Where tokens are given back; `None` if they cannot be.
    pub(super) fn revocation_endpoint(&self, web: &Web) -> Result<Option<Url>, ToolError> {
        let endpoint = self.revocation_endpoint.as_ref();
        endpoint.map(|url| self.endpoint("revocation", Some(url), web)).transpose()
    }

    /// Whether tokens can be bound to a key of ours.
    pub(super) fn knows_proofs(&self) -> bool {
        self.dpop_signing_alg_values_supported.iter().any(|algorithm| algorithm == "ES256")
    }

    /// Whether a client may authenticate so at the token endpoint; without a word only by `client_secret_basic`.
    pub(super) fn takes(&self, method: &str) -> bool {
        match &self.token_endpoint_auth_methods_supported {
            Some(methods) => methods.iter().any(|known| known == method),
            None => method == "client_secret_basic",
        }
    }
}

/// Asks a server what it says of itself; `None` if it says nothing.
pub(super) async fn resource(
    web: &Web,
    server: &Url,
    challenge: &Challenge,
) -> Result<Option<Resource>, ToolError> {
    let what = "what the server says of itself";
    if let Some(named) = &challenge.resource_metadata {
        let url = server.join(named).map_err(|error| ToolError::dependency(format!("{what}: {error}")))?;
        let document = web.document(what, url).await?;
        return match document {
            Some(document) => Resource::read(document, server).map(Some),
            None => Err(ToolError::dependency(format!(
                "{what}: there is nothing at `{}`, where it says that it is",
                shortened(named, 200)
            ))),
        };
    }
    for url in places(server, &[(RESOURCE_PATH, false)], true) {
        if let Some(document) = web.document(what, url).await? {
            return Resource::read(document, server).map(Some);
        }
    }
    Ok(None)
}

/// Asks an authorization server what it says of itself.
pub(super) async fn issuer(web: &Web, issuer: &str) -> Result<Issuer, ToolError> {
    let shown = shortened(issuer, 200);
    let what = format!("the authorization server `{shown}`");
    let url = Url::parse(issuer)
        .ok()
        .filter(|url| url.query().is_none() && url.fragment().is_none())
        .ok_or_else(|| ToolError::dependency(format!("{what}: that is no address of one")))?;
    web.rules().url(&what, &url)?;
    let ways = [(OAUTH_PATH, false), (OPENID_PATH, false), (OPENID_PATH, true)];
    for place in places(&url, &ways, false) {
        if let Some(document) = web.document(&what, place).await? {
            return Issuer::read(document, issuer);
        }
    }
    Err(ToolError::dependency(format!("{what}: it says nothing of itself at the places where it should")))
}

/// Where documents about an address may be: each way before its path, or behind it; and the first one at the root, too.
fn places(url: &Url, ways: &[(&str, bool)], with_root: bool) -> Vec<Url> {
    let path = url.path().trim_end_matches('/');
    let mut places = Vec::new();
    for (way, is_behind) in ways {
        if *is_behind && path.is_empty() {
            continue;
        }
        let mut place = url.clone();
        place.set_path(&if *is_behind { format!("{path}{way}") } else { format!("{way}{path}") });
        places.push(place);
    }
    if let (true, false, Some((way, _))) = (with_root, path.is_empty(), ways.first()) {
        let mut place = url.clone();
        place.set_path(way);
        places.push(place);
    }
    for place in &mut places {
        place.set_fragment(None);
        place.set_query(None);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_are_looked_for_where_the_rules_put_them() {
        let shown = |url: &str, ways: &[(&str, bool)], with_root| -> Vec<String> {
            let places = places(&Url::parse(url).unwrap(), ways, with_root);
            places.iter().map(|place| place.path().to_owned()).collect()
        };
        let ways = [(OAUTH_PATH, false), (OPENID_PATH, false), (OPENID_PATH, true)];
        assert_eq!(shown("https://a.example", &ways, false), [OAUTH_PATH, OPENID_PATH]);
        assert_eq!(
            shown("https://a.example/one/", &ways, false),
            [
                format!("{OAUTH_PATH}/one"),
                format!("{OPENID_PATH}/one"),
                "/one/.well-known/openid-configuration".to_owned()
            ]
        );
        let resource = [(RESOURCE_PATH, false)];
        assert_eq!(shown("https://a.example/", &resource, true), [RESOURCE_PATH]);
        assert_eq!(
            shown("https://a.example/mcp?x=1", &resource, true),
            [format!("{RESOURCE_PATH}/mcp"), RESOURCE_PATH.to_owned()]
        );
    }

    #[test]
    fn a_resource_is_the_server_or_what_holds_it() {
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
    fn an_issuer_is_known_by_its_exact_name() {
        let read = |issuer: &str, asked: &str| Issuer::read(json!({ "issuer": issuer }), asked);
        assert!(read("https://a.example", "https://a.example").is_ok());
        for other in ["https://a.example/", "https://A.example", "https://b.example", ""] {
            assert!(read(other, "https://a.example").is_err(), "{other}");
        }
        assert!(Issuer::read(json!([]), "https://a.example").is_err());
    }

    #[test]
    fn what_is_no_scope_is_left_out() {
        let server = Url::parse("https://a.example/mcp").unwrap();
        let document =
            json!({ "resource": "https://a.example/mcp", "scopes_supported": ["a", "b c", "", "\"", "d:e"] });
        let read = Resource::read(document, &server).unwrap();
        assert_eq!(read.scopes_supported.unwrap(), ["a", "d:e"]);
    }
}
