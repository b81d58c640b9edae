//! Egress policy files in JSON or TOML, parsed strictly.

use std::path::Path;

use serde_json::{Map, Value};
use toolpost_core::did_you_mean;
use toolpost_sandbox::{Egress, EgressPolicy};

use crate::config::Config;
use crate::env;
use crate::failure::Failure;
use crate::toml_text::toml_value;

/// The maximum size of a policy file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Reads a policy file; the extension is `.toml` or `.json`. The values of its secrets are masked in all output from
/// now on.
pub(crate) fn read(path: &Path, config: &Config) -> Result<EgressPolicy, Failure> {
    let policy = parse(path, config)?;
    for secret in &policy.secrets {
        env::secret(&secret.variable);
    }
    Ok(policy)
}

fn parse(path: &Path, config: &Config) -> Result<EgressPolicy, Failure> {
    let text = config.read_text("the policy", path, MAX_SIZE)?;
    let form = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let value = match form {
        "json" => serde_json::from_str(&text).map_err(|error| error.to_string()),
        "toml" => toml_value(&text),
        _ => {
            let failure = Failure::usage(format!("the policy `{}` has an unknown extension", path.display()));
            return Err(failure.hint("Use the extension `.toml` or `.json`."));
        }
    };
    let name = if form == "json" { "JSON" } else { "TOML" };
    let value = value.map_err(|error| {
        Failure::usage(format!("the policy `{}` is invalid {name}: {}", path.display(), error.trim_end()))
    })?;
    check(&value).map_err(|wrong| {
        let place = if wrong.place.is_empty() { String::new() } else { format!("`{}`: ", wrong.place) };
        let failure = Failure::usage(format!("the policy `{}`: {place}{}", path.display(), wrong.reason));
        match wrong.hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    })
}

/// Builds the egress of a policy with secrets from the environment.
pub(crate) fn open(policy: &EgressPolicy, no_network: bool) -> Result<Egress, Failure> {
    let egress = Egress::from_policy(policy.clone(), &mut env::secret)?;
    Ok(egress.no_network(no_network))
}

/// An error with its key.
#[derive(Debug)]
struct Wrong {
    place: String,
    reason: String,
    hint: Option<String>,
}

/// Parses a policy key by key, so that an error has its key.
fn check(value: &Value) -> Result<EgressPolicy, Wrong> {
    let reads = |value: Value| serde_json::from_value::<EgressPolicy>(value);
    let Value::Object(entries) = value else {
        return Err(Wrong {
            place: String::new(),
            reason: format!("expected a table, found {value}"),
            hint: None,
        });
    };
    let alone = |name: &str, value: Value| Value::Object(Map::from_iter([(name.to_owned(), value)]));
    for (name, value) in entries {
        let Err(error) = reads(alone(name, value.clone())) else { continue };
        // The innermost invalid value.
        let (place, error) = match value {
            // A list with valid items is invalid as a whole.
            Value::Array(items) if reads(alone(name, Value::Array(Vec::new()))).is_ok() => items
                .iter()
                .enumerate()
                .find_map(|(index, item)| {
                    let error = reads(alone(name, Value::Array(vec![item.clone()]))).err()?;
                    Some((format!("{name}[{index}]"), error))
                })
                .unwrap_or((name.clone(), error)),
            Value::Object(fields) => fields
                .iter()
                .find_map(|(field, item)| {
                    let error = reads(alone(name, alone(field, item.clone()))).err()?;
                    Some((format!("{name}.{field}"), error))
                })
                .unwrap_or((name.clone(), error)),
            _ => (name.clone(), error),
        };
        let reason = error.to_string();
        return Err(Wrong { hint: hint(&reason), place, reason });
    }
    reads(value.clone()).map_err(|error| Wrong {
        place: String::new(),
        reason: error.to_string(),
        hint: None,
    })
}

/// The nearest valid name of an invalid one.
fn hint(reason: &str) -> Option<String> {
    let (_, rest) = reason.split_once("unknown field `")?;
    let (wrong, rest) = rest.split_once('`')?;
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let known_names = format!("Known are {}.", known.join(", "));
    Some(did_you_mean(wrong, known).unwrap_or(known_names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_has_its_key_and_the_expected_and_found_value() {
        for (value, place, said) in [
            (json!({ "alow": ["x.org"] }), "alow", "unknown field `alow`"),
            (json!({ "allow": "x.org" }), "allow", "expected a sequence"),
            (json!({ "allow": ["x.org", "*"] }), "allow[1]", "*"),
            (json!({ "addresses": ["127.0.0.1"] }), "addresses[0]", "address"),
            (
                json!({ "limits": { "requests": 1, "request": 1 } }),
                "limits.request",
                "unknown field `request`",
            ),
            (json!({ "limits": { "requests": "many" } }), "limits.requests", "\"many\""),
            (json!({ "secrets": [{ "variable": "A", "hosts": [], "value": "x" }] }), "secrets[0]", "value"),
            (json!({ "secrets": [{ "variable": "A" }] }), "secrets[0]", "missing field `hosts`"),
            (json!([]), "", "expected a table"),
        ] {
            let wrong = check(&value).unwrap_err();
            assert!(wrong.place == place && wrong.reason.contains(said), "{value}: {wrong:?}");
        }
        assert!(check(&json!({ "alow": [] })).unwrap_err().hint.unwrap().contains("`allow`"));
        let policy = check(&json!({ "allow": ["x.org"], "limits": { "requests": 7 } })).unwrap();
        assert_eq!((policy.allow.len(), policy.limits.requests), (1, 7));
    }
}
