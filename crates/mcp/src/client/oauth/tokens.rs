//! The token endpoint: how this client authenticates there, what it asks for, and what comes back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use toolpost_core::{Secret, ToolError};

use super::key::{self, Proof};
use super::metadata::Issuer;
use super::store::{Registration, Token};
use super::web::{Reply, Web, form};
use super::{Identity, words};
use crate::convert::inward::shortened;

/// The longest token, in bytes.
const MAX_TOKEN: usize = 64 << 10;
const ASSERTION_TYPE: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
pub(super) const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";

/// Who asks at a token endpoint.
pub(super) struct Asker<'a> {
    pub(super) web: &'a Web,
    pub(super) issuer: &'a Issuer,
    pub(super) client: &'a Registration,
    /// What the operator has registered, if that is what `client` is.
    pub(super) identity: Option<&'a Identity>,
    pub(super) proof: Option<&'a Proof>,
}

/// What a token endpoint gives.
pub(super) struct Given {
    pub(super) token: Token,
    /// What the token may be used for, if that was said.
    pub(super) scopes: Option<Vec<String>>,
}

/// Why a token endpoint gives nothing.
#[derive(Debug)]
pub(super) enum Refused {
    /// What was brought is worth nothing any more.
    Worthless(ToolError),
    Other(ToolError),
}

impl Refused {
    pub(super) fn into_error(self) -> ToolError {
        match self {
            Self::Worthless(error) | Self::Other(error) => error,
        }
    }
}

impl From<ToolError> for Refused {
    fn from(error: ToolError) -> Self {
        Self::Other(error)
    }
}

#[derive(Deserialize)]
struct Good {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<f64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// What one grant brings: the name of the grant, and its own fields.
pub(super) struct Brought<'a> {
    pub(super) grant: &'a str,
    pub(super) fields: Vec<(&'a str, &'a str)>,
}

impl Asker<'_> {
    /// Asks for a token.
    pub(super) async fn token(&self, brought: Brought<'_>) -> Result<Given, Refused> {
        let url = self.issuer.token_endpoint(self.web)?;
        let reply = self.ask("the token endpoint", &url, &brought).await?;
        let error = error_of(&reply);
        if reply.status.is_success() && error.is_none() {
            return good(reply, self.proof.is_some()).map_err(Refused::Other);
        }
        let shown = shortened(&self.issuer.issuer, 200);
        let code = error.unwrap_or_else(|| reply.status.to_string());
        let failed =
            ToolError::permission(format!("the authorization server `{shown}` gives no token: {code}"));
        Err(if code.starts_with("invalid_grant") {
            Refused::Worthless(failed)
        } else {
            Refused::Other(failed)
        })
    }

    /// Gives a token back. A server that does not know it says so by success.
    pub(super) async fn revoke(&self, token: &Secret) -> Result<bool, ToolError> {
        let Some(url) = self.issuer.revocation_endpoint(self.web)? else { return Ok(false) };
        let brought = Brought { grant: "", fields: vec![("token", token.expose())] };
        Ok(self.ask("the revocation endpoint", &url, &brought).await?.status.is_success())
    }

    async fn ask(&self, what: &str, url: &Url, brought: &Brought<'_>) -> Result<Reply, ToolError> {
        let mut nonce: Option<String> = None;
        loop {
            let mut headers = HeaderMap::new();
            let mut fields: Vec<(&str, &str)> = Vec::new();
            if !brought.grant.is_empty() {
                fields.push(("grant_type", brought.grant));
            }
            fields.extend(brought.fields.iter().copied());
            let assertion = self.authenticate(&mut headers, &mut fields)?;
            if let Some(assertion) = &assertion {
                fields.push(("client_assertion", assertion.expose()));
            }
            if let Some(proof) = self.proof {
                let made = proof.of_request("POST", url, None, nonce.as_deref())?;
                headers.insert("dpop", header_value(&made)?);
            }
            let reply = self.web.form(what, url, headers, &fields).await?;
            let wanted = nonce_of(&reply.headers);
            let wants_nonce = self.proof.is_some()
                && reply.json.as_ref().and_then(|json| json.get("error")?.as_str()) == Some("use_dpop_nonce");
            // Once: a server that asks again and again has got what it asked for.
            if wants_nonce && nonce.is_none() && wanted.is_some() {
                nonce = wanted;
                continue;
            }
            return Ok(reply);
        }
    }

    /// Says who asks, in the strongest way that both know. Gives an assertion that has to be sent as well.
    fn authenticate<'a>(
        &'a self,
        headers: &mut HeaderMap,
        fields: &mut Vec<(&'a str, &'a str)>,
    ) -> Result<Option<Secret>, ToolError> {
        let client = self.client;
        if let Some(key) = self.identity.and_then(|identity| identity.key.as_ref()) {
            fields.push(("client_id", &client.id));
            fields.push(("client_assertion_type", ASSERTION_TYPE));
            return key.assertion(&client.id, &self.issuer.issuer).map(Some);
        }
        let Some(secret) = &client.secret else {
            fields.push(("client_id", &client.id));
            return Ok(None);
        };
        let known = ["client_secret_basic", "client_secret_post", "none"];
        let method = match client.method.as_deref() {
            Some(method) => known.into_iter().find(|known| *known == method),
            None => known.into_iter().find(|method| self.issuer.takes(method)),
        };
        match method {
            Some("client_secret_basic") => {
                let encoded = |text: &str| form(&[("", text)]).trim_start_matches('=').to_owned();
                let both = format!("{}:{}", encoded(&client.id), encoded(secret.expose()));
                headers.insert(AUTHORIZATION, header_value(&format!("Basic {}", STANDARD.encode(both)))?);
            }
            Some("client_secret_post") => {
                fields.push(("client_id", &client.id));
                fields.push(("client_secret", secret.expose()));
            }
            Some(_) => fields.push(("client_id", &client.id)),
            None => {
                let methods =
                    self.issuer.token_endpoint_auth_methods_supported.as_deref().unwrap_or_default();
                return Err(ToolError::precondition(format!(
                    "the authorization server `{}` takes no secret of a client by Basic or in a form, but {}",
                    shortened(&self.issuer.issuer, 200),
                    shortened(&methods.join(", "), 200)
                )));
            }
        }
        Ok(None)
    }
}

/// Asks the identity provider of an enterprise for the grant that says who somebody is to another authorization server.
pub(super) async fn exchanged(
    web: &Web,
    enterprise: &super::Enterprise,
    issuer: &str,
    resource: &str,
    scope: &str,
) -> Result<Secret, ToolError> {
    let what = "the identity provider";
    let url = Url::parse(&enterprise.token_endpoint).map_err(|error| {
        ToolError::invalid_input(format!("{what}: its token endpoint is no address: {error}"))
    })?;
    let mut fields = vec![
        ("grant_type", TOKEN_EXCHANGE),
        ("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag"),
        ("subject_token", enterprise.id_token.expose()),
        ("subject_token_type", "urn:ietf:params:oauth:token-type:id_token"),
        ("audience", issuer),
        ("resource", resource),
        ("client_id", &enterprise.client_id),
    ];
    if let Some(secret) = &enterprise.client_secret {
        fields.push(("client_secret", secret.expose()));
    }
    if !scope.is_empty() {
        fields.push(("scope", scope));
    }
    let reply = web.form(what, &url, HeaderMap::new(), &fields).await?;
    let kind = reply.json.as_ref().and_then(|json| json.get("issued_token_type")?.as_str());
    let given = reply.json.as_ref().and_then(|json| json.get("access_token")?.as_str());
    match (given, kind) {
        (Some(given), Some("urn:ietf:params:oauth:token-type:id-jag")) if reply.status.is_success() => {
            Ok(Secret::new(given))
        }
        _ => {
            let why = error_of(&reply).unwrap_or_else(|| reply.status.to_string());
            Err(ToolError::permission(format!(
                "{what} gives no grant for `{}`: {why}",
                shortened(issuer, 200)
            )))
        }
    }
}

fn header_value(text: &str) -> Result<HeaderValue, ToolError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| {
        ToolError::invalid_input("who asks cannot be said in a header: expected visible ASCII")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The number that a proof must carry the next time.
pub(super) fn nonce_of(headers: &HeaderMap) -> Option<String> {
    let nonce = headers.get("dpop-nonce")?.to_str().ok()?;
    (!nonce.is_empty() && nonce.len() <= 1_000).then(|| nonce.to_owned())
}

/// What an authorization server says of an error.
fn error_of(reply: &Reply) -> Option<String> {
    let json = reply.json.as_ref()?;
    let text = |name: &str| Some(shortened(json.get(name)?.as_str()?, 200));
    let code = text("error")?;
    Some(match text("error_description") {
        Some(description) => format!("{code} ({description})"),
        None => code,
    })
}

fn good(reply: Reply, with_proof: bool) -> Result<Given, ToolError> {
    let unusable = |why: &str| {
        ToolError::dependency(format!("the token endpoint gave no token that can be used: {why}"))
    };
    // Its error would repeat what it could not read, which may be a token.
    let good: Good = serde_json::from_value(reply.json.unwrap_or(Value::Null))
        .map_err(|_| unusable("expected a JSON object with `access_token`"))?;
    let is_text = |text: &str| {
        !text.is_empty() && text.len() <= MAX_TOKEN && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !is_text(&good.access_token) {
        return Err(unusable("expected visible ASCII of at most 64 KiB"));
    }
    let kind = good.token_type.as_deref().unwrap_or("Bearer");
    let is_bound = kind.eq_ignore_ascii_case("dpop");
    if !(kind.eq_ignore_ascii_case("bearer") || is_bound && with_proof) {
        return Err(unusable(&format!("expected one of the type `Bearer`, found `{}`", shortened(kind, 40))));
    }
    let lives = good.expires_in.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    Ok(Given {
        token: Token {
            access: Secret::new(good.access_token),
            refresh: good.refresh_token.filter(|token| is_text(token)).map(Secret::new),
            expires: lives.map(|seconds| key::now().saturating_add(seconds.min(1e10) as u64)),
            is_bound,
        },
        scopes: good.scope.as_deref().map(words),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use serde_json::json;

    fn reply(json: Value) -> Reply {
        Reply { status: StatusCode::OK, headers: HeaderMap::new(), json: Some(json) }
    }

    #[test]
    fn only_a_token_that_can_be_sent_is_taken() {
        let given = good(
            reply(json!({ "access_token": "a", "token_type": "bearer", "expires_in": 60, "scope": "a b" })),
            false,
        )
        .ok()
        .unwrap();
        assert_eq!((given.token.access.expose(), given.token.is_bound), ("a", false));
        assert!(given.token.expires.unwrap() > key::now() + 50);
        assert_eq!(given.scopes.unwrap(), ["a", "b"]);
        assert!(
            good(reply(json!({ "access_token": "a", "token_type": "DPoP" })), true)
                .ok()
                .unwrap()
                .token
                .is_bound
        );
        let long = "x".repeat(MAX_TOKEN + 1);
        for bad in [
            json!({ "access_token": "hunter2\r\nHost: b" }),
            json!({ "access_token": "" }),
            json!({ "access_token": long }),
            json!({ "access_token": "hunter2", "token_type": "mac" }),
            json!({ "access_token": "hunter2", "token_type": "DPoP" }),
            json!({ "access_token": ["hunter2"] }),
            json!(null),
        ] {
            let error = good(reply(bad), false).err().unwrap();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
