//! Grants of one target beyond its sandbox level, from options and files.

use std::path::{Path, PathBuf};

use serde_json::Value;
use toolpost_core::did_you_mean;
use toolpost_sandbox::{Granted, Grants, VariableGrant};

use crate::args::GrantArgs;
use crate::config::{Config, paths};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::target::grammar::installs;

/// The key of grants in every file.
pub(crate) const KEY: &str = "grants";

/// Reads the grants of options.
pub(crate) fn of_args(args: &GrantArgs) -> Result<Grants, Failure> {
    for (option, name) in args.env.iter().map(|name| ("--env", name)).chain(raw_names(args)) {
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
    grants.env = args.env.iter().map(VariableGrant::placeholder).collect();
    grants.env.extend(args.env_raw.iter().map(VariableGrant::raw));
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
    match args.env.first().filter(|_| is_rejected) {
        Some(name) => failure.hint(format!(
            "The proxy replaces the placeholder `{name}` in plain HTTP requests alone. For `https://`, pass `--env-raw {name}`."
        )),
        None => failure,
    }
}

fn raw_names(args: &GrantArgs) -> impl Iterator<Item = (&'static str, &String)> {
    args.env_raw.iter().map(|name| ("--env-raw", name))
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
    let variables = value.and_then(|grants| grants.get("env")).and_then(Value::as_array);
    variables.is_some_and(|variables| !variables.is_empty())
}

/// Resolves the variables of a target's grants, and checks their paths.
pub(crate) fn resolve(grants: &Grants, target: &str, config: &Config) -> Result<Granted, Failure> {
    grants.workdir.as_deref().map_or(Ok(()), |directory| config.check_directory(directory))?;
    let paths = grants.workdir.iter().chain(&grants.writable).chain(&grants.readable);
    paths.map(PathBuf::as_path).try_for_each(|path| config.check_reach(target, path))?;
    if let Some(variable) = grants.env.iter().find(|variable| env::variable(&variable.name).is_none()) {
        let message = format!("the variable `{}` for `{target}` is not set", variable.name);
        return Err(Failure::new(Exit::Credentials, "CREDENTIALS", message)
            .hint("Set it in the environment or in a file for `--env-file FILE`."));
    }
    // A raw variable may have any text. The client of the target masks it in the results.
    let is_raw = |name: &str| grants.env.iter().any(|variable| variable.raw && variable.name == name);
    let mut value = |name: &str| if is_raw(name) { env::variable(name) } else { env::secret(name) };
    let granted = grants.resolve(&mut value)?.no_network(config.flag("no_network"));
    Ok(granted.with_layers(paths::layers()).with_run_changes(crate::run_changes::current()))
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
        let args = GrantArgs { env_raw: vec!["KEY=hunter2".into()], ..GrantArgs::default() };
        let failure = of_args(&args).unwrap_err();
        assert!(
            failure.message.contains("`--env-raw`") && !failure.message.contains("hunter2"),
            "{failure:?}"
        );
    }
}
