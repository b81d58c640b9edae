//! Grants of one target beyond its sandbox level, from options and files.

use std::path::Path;

use serde_json::Value;
use toolpost_core::did_you_mean;
use toolpost_sandbox::{Grants, VariableGrant};

use crate::args::GrantArgs;
use crate::failure::Failure;
use crate::target_grammar::installs;

/// The key of grants in every file.
pub(crate) const KEY: &str = "grants";

/// Reads the grants of options.
pub(crate) fn of_args(args: &GrantArgs) -> Result<Grants, Failure> {
    for (option, name) in args.secret.iter().map(|name| ("--secret", name)).chain(raw_names(args)) {
        // The value may be a secret, so it is not repeated.
        if name.contains('=') {
            return Err(Failure::usage(format!("`{option}` takes the name of a variable, not its value"))
                .hint("Set the variable in the environment or in a file for `--env-file`."));
        }
    }
    let here = std::env::current_dir().unwrap_or_default();
    let mut grants = Grants::default();
    grants.level = args.target_level;
    grants.workdir.clone_from(&args.target_workdir);
    grants.readable.clone_from(&args.readable);
    grants.writable.clone_from(&args.writable);
    grants.secrets = args.secret.iter().map(VariableGrant::placeholder).collect();
    grants.secrets.extend(args.secret_raw.iter().map(VariableGrant::raw));
    grants.allow_hosts.clone_from(&args.allow_host);
    grants.allow_addresses.clone_from(&args.allow_address);
    grants.install_scripts = args.install_scripts;
    Ok(grants.below(&here))
}

/// Patterns of programs' output after a service rejected their key.
const REJECTED: [&str; 5] = ["401", "403", "nauthorized", "nvalid API key", "nvalid api key"];

/// A part of the proxy's answer for a host that is not allowed.
const BLOCKED: &str = "is not on the egress allowlist";

/// Adds a hint where a program may have sent a placeholder over TLS, which the proxy cannot replace.
pub(crate) fn explain_rejected_key(failure: Failure, args: &GrantArgs) -> Failure {
    let texts = || std::iter::once(&failure.message).chain(&failure.causes);
    let is_rejected = REJECTED.iter().any(|word| texts().any(|text| text.contains(word)));
    // The proxy answers 403 for a host that is not allowed: no service has seen the key.
    let is_rejected = is_rejected && !texts().any(|text| text.contains(BLOCKED));
    match args.secret.first().filter(|_| is_rejected) {
        Some(name) => failure.hint(format!(
            "The proxy replaces the placeholder `{name}` in plain HTTP requests alone. For `https://`, pass `--secret-raw {name}`."
        )),
        None => failure,
    }
}

fn raw_names(args: &GrantArgs) -> impl Iterator<Item = (&'static str, &String)> {
    args.secret_raw.iter().map(|name| ("--secret-raw", name))
}

/// Reads the grants of a file; relative paths are beneath its directory.
///
/// # Errors
/// The problem, as part of a sentence.
pub(crate) fn read(value: &Value, directory: &Path) -> Result<Grants, String> {
    let grants: Grants = serde_json::from_value(value.clone()).map_err(|error| {
        let text = error.to_string();
        let unknown = text.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
        let near = unknown.and_then(|(wrong, rest)| did_you_mean(wrong, rest.split('`').skip(1).step_by(2)));
        format!("`{KEY}`: {text}{}", near.map(|near| format!(". {near}")).unwrap_or_default())
    })?;
    Ok(grants.below(directory))
}

/// Whether the grants give a program secrets.
pub(crate) fn has_variables(value: Option<&Value>) -> bool {
    let lists = value.into_iter().flat_map(|grants| ["secrets", FORMER_SECRETS].map(|key| grants.get(key)));
    lists.flatten().filter_map(Value::as_array).any(|variables| !variables.is_empty())
}

/// The former key of secrets.
const FORMER_SECRETS: &str = "env";

/// The warning about a former key of grants.
pub(crate) fn former_key(value: &Value) -> Option<String> {
    value.get(FORMER_SECRETS).map(|_| format!("the key `{KEY}.{FORMER_SECRETS}` is now `{KEY}.secrets`"))
}

/// The installs and grants of a target, one a line.
pub(crate) fn lines_of(name: &str, target: &str, grants: &Grants) -> Vec<String> {
    let installs = installs(target).map(|packages| {
        let scripts = if grants.install_scripts { "with" } else { "without" };
        format!("installs {packages} {scripts} scripts")
    });
    installs.into_iter().chain(grants.describe()).map(|line| format!("{name}: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_unknown_grant_has_a_hint() {
        let error = read(&json!({ "alow_hosts": ["a.example"] }), Path::new("/p")).unwrap_err();
        assert!(error.contains("`alow_hosts`") && error.contains("Did you mean `allow_hosts`?"), "{error}");
        let read = read(&json!({ "readable": ["x", "/y"] }), Path::new("/p")).unwrap();
        assert_eq!(read.readable, [Path::new("/p/x"), Path::new("/y")]);
    }

    #[test]
    fn a_value_instead_of_a_name_is_rejected() {
        let args = GrantArgs { secret_raw: vec!["KEY=hunter2".into()], ..GrantArgs::default() };
        let failure = of_args(&args).unwrap_err();
        assert!(
            failure.message.contains("`--secret-raw`") && !failure.message.contains("hunter2"),
            "{failure:?}"
        );
    }
}
