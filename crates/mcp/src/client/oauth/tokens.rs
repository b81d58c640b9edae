//! The token endpoint: client authentication, token requests and token responses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};
use reqwest::Url;
use serde::Deserialize;
use serde_json::Value;
use toolpost_core::{Secret, ToolError};

use super::key::{self, ProofKey};
use super::metadata::Issuer;
use super::store::{Registration, Token};
use super::web::{Reply, Web, form};
use super::words;
use crate::convert::inward::shortened;

/// The longest token, in bytes.
const MAX_TOKEN: usize = 64 << 10;

/// A client of one token endpoint.
pub(super) struct TokenClient<'a> {
    pub(super) web: &'a Web,
    pub(super) issuer: &'a Issuer,
    pub(super) client: &'a Registration,
    pub(super) proof: Option<&'a ProofKey>,
}

/// A token from a token endpoint.
pub(super) struct Granted {
    pub(super) token: Token,
    /// The scopes of the token, if the response names them.
    pub(super) scopes: Option<Vec<String>>,
}

/// The reason why a token endpoint issued no token.
#[derive(Debug)]
pub(super) enum TokenFailure {
    /// The code or the refresh token is invalid or expired.
    InvalidGrant(ToolError),
    Other(ToolError),
}

impl TokenFailure {
    pub(super) fn into_error(self) -> ToolError {
        match self {
            Self::InvalidGrant(error) | Self::Other(error) => error,
        }
    }
}

impl From<ToolError> for TokenFailure {
    fn from(error: ToolError) -> Self {
        Self::Other(error)
    }
}

/// The body of a successful response.
#[derive(Deserialize)]
struct TokenBody {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<f64>,
    refresh_token: Option<String>,
    scope: Option<String>,
}

/// A grant: its type and the fields that it needs.
pub(super) struct Grant<'a> {
    pub(super) kind: &'a str,
    pub(super) fields: Vec<(&'a str, &'a str)>,
}

impl TokenClient<'_> {
    /// Requests a token.
    pub(super) async fn token(&self, grant: Grant<'_>) -> Result<Granted, TokenFailure> {
        let url = self.issuer.token_endpoint(self.web)?;
        let reply = self.post("the token endpoint", &url, &grant).await?;
        let error = error_of(&reply);
        if reply.status.is_success() && error.is_none() {
            return parse(reply, self.proof.is_some()).map_err(TokenFailure::Other);
        }
        let shown = shortened(&self.issuer.issuer, 200);
        let code = error.unwrap_or_else(|| reply.status.to_string());
        let failed =
            ToolError::permission(format!("the authorization server `{shown}` issued no token: {code}"));
        Err(if code.starts_with("invalid_grant") {
            TokenFailure::InvalidGrant(failed)
        } else {
            TokenFailure::Other(failed)
        })
    }

    /// Revokes a token (RFC 7009). An unknown token counts as revoked.
    pub(super) async fn revoke(&self, token: &Secret) -> Result<bool, ToolError> {
        let Some(url) = self.issuer.revocation_endpoint(self.web)? else { return Ok(false) };
        let grant = Grant { kind: "", fields: vec![("token", token.expose())] };
        Ok(self.post("the revocation endpoint", &url, &grant).await?.status.is_success())
    }

    async fn post(&self, what: &str, url: &Url, grant: &Grant<'_>) -> Result<Reply, ToolError> {
        let mut nonce: Option<String> = None;
        loop {
            let mut headers = HeaderMap::new();
            let mut fields: Vec<(&str, &str)> = Vec::new();
            if !grant.kind.is_empty() {
                fields.push(("grant_type", grant.kind));
            }
            fields.extend(grant.fields.iter().copied());
            self.authenticate(&mut headers, &mut fields)?;
            if let Some(key) = self.proof {
                let proof = key.prove("POST", url, None, nonce.as_deref())?;
                headers.insert("dpop", header_value(&proof)?);
            }
            let reply = self.web.form(what, url, headers, &fields).await?;
            let required = nonce_of(&reply.headers);
            let wants_nonce = self.proof.is_some()
                && reply.json.as_ref().and_then(|json| json.get("error")?.as_str()) == Some("use_dpop_nonce");
            // Once: the second request already carries the nonce.
            if wants_nonce && nonce.is_none() && required.is_some() {
                nonce = required;
                continue;
            }
            return Ok(reply);
        }
    }

    /// Authenticates the client by the first method that both sides support.
    fn authenticate<'a>(
        &'a self,
        headers: &mut HeaderMap,
        fields: &mut Vec<(&'a str, &'a str)>,
    ) -> Result<(), ToolError> {
        let client = self.client;
        let Some(secret) = &client.secret else {
            fields.push(("client_id", &client.id));
            return Ok(());
        };
        let known = ["client_secret_basic", "client_secret_post", "none"];
        let method = match client.method.as_deref() {
            Some(method) => known.into_iter().find(|known| *known == method),
            None => known.into_iter().find(|method| self.issuer.supports_auth(method)),
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
                    "the authorization server `{}` supports no known client authentication, only {}",
                    shortened(&self.issuer.issuer, 200),
                    shortened(&methods.join(", "), 200)
                )));
            }
        }
        Ok(())
    }
}

fn header_value(text: &str) -> Result<HeaderValue, ToolError> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| ToolError::invalid_input("the client credentials are not visible ASCII"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The nonce that the next proof must carry.
pub(super) fn nonce_of(headers: &HeaderMap) -> Option<String> {
    let nonce = headers.get("dpop-nonce")?.to_str().ok()?;
    (!nonce.is_empty() && nonce.len() <= 1_000).then(|| nonce.to_owned())
}

/// The `error` and `error_description` of a response.
fn error_of(reply: &Reply) -> Option<String> {
    let json = reply.json.as_ref()?;
    let text = |name: &str| Some(shortened(json.get(name)?.as_str()?, 200));
    let code = text("error")?;
    Some(match text("error_description") {
        Some(description) => format!("{code} ({description})"),
        None => code,
    })
}

fn parse(reply: Reply, with_proof: bool) -> Result<Granted, ToolError> {
    let unusable =
        |why: &str| ToolError::dependency(format!("the token endpoint returned an unusable token: {why}"));
    // A parse error would quote the body, which may hold a token.
    let body: TokenBody = serde_json::from_value(reply.json.unwrap_or(Value::Null))
        .map_err(|_| unusable("expected a JSON object with `access_token`"))?;
    let is_text = |text: &str| {
        !text.is_empty() && text.len() <= MAX_TOKEN && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !is_text(&body.access_token) {
        return Err(unusable("expected visible ASCII of at most 64 KiB"));
    }
    let kind = body.token_type.as_deref().unwrap_or("Bearer");
    let is_bound = kind.eq_ignore_ascii_case("dpop");
    if !(kind.eq_ignore_ascii_case("bearer") || is_bound && with_proof) {
        return Err(unusable(&format!("expected the type `Bearer`, found `{}`", shortened(kind, 40))));
    }
    let lifetime = body.expires_in.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    Ok(Granted {
        token: Token {
            access: Secret::new(body.access_token),
            refresh: body.refresh_token.filter(|token| is_text(token)).map(Secret::new),
            expires: lifetime.map(|seconds| key::now().saturating_add(seconds.min(1e10) as u64)),
            is_bound,
        },
        scopes: body.scope.as_deref().map(words),
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
    fn only_a_valid_token_parses() {
        let granted = parse(
            reply(json!({ "access_token": "a", "token_type": "bearer", "expires_in": 60, "scope": "a b" })),
            false,
        )
        .ok()
        .unwrap();
        assert_eq!((granted.token.access.expose(), granted.token.is_bound), ("a", false));
        assert!(granted.token.expires.unwrap() > key::now() + 50);
        assert_eq!(granted.scopes.unwrap(), ["a", "b"]);
        assert!(
            parse(reply(json!({ "access_token": "a", "token_type": "DPoP" })), true)
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
            let error = parse(reply(bad), false).err().unwrap();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
