//! What one target gets beyond its sandbox level: read from options and files, with the values of the environment.

use std::path::Path;

use serde_json::Value;
use toolpost_core::did_you_mean;
use toolpost_sandbox::{Granted, Grants, VariableGrant};

use crate::args::GrantArgs;
use crate::config::{Config, toml_value};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mcp::files;
use crate::target;

/// The key of grants in every file.
pub(crate) const KEY: &str = "grants";

/// The grants of options.
pub(crate) fn of_args(args: &GrantArgs) -> Result<Grants, Failure> {
    for (option, name) in args.env.iter().map(|name| ("--env", name)).chain(raw_names(args)) {
        // The value is not repeated: it may be a secret.
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

/// How programs report that a service rejected their key.
const REJECTED: [&str; 5] = ["401", "403", "nauthorized", "nvalid API key", "nvalid api key"];

/// A failure with a hint where a service may have been sent a placeholder: over TLS the proxy replaces nothing.
pub(crate) fn explain_rejected_key(failure: Failure, args: &GrantArgs) -> Failure {
    let texts = || std::iter::once(&failure.message).chain(&failure.causes);
    let is_rejected = REJECTED.iter().any(|word| texts().any(|text| text.contains(word)));
    match args.env.first().filter(|_| is_rejected) {
        Some(name) => failure.hint(format!(
            "`{name}` is a placeholder, which the proxy replaces in plain HTTP requests alone. If the program uses \
             `https://`, pass `--env-raw {name}`."
        )),
        None => failure,
    }
}

fn raw_names(args: &GrantArgs) -> impl Iterator<Item = (&'static str, &String)> {
    args.env_raw.iter().map(|name| ("--env-raw", name))
}

/// The grants of a file, whose relative paths are beneath its directory.
///
/// # Errors
/// What is wrong, as part of a sentence.
pub(crate) fn read(value: &Value, folder: &Path) -> Result<Grants, String> {
    let grants: Grants = serde_json::from_value(value.clone()).map_err(|error| {
        let text = error.to_string();
        let unknown = text.split_once("unknown field `").and_then(|(_, rest)| rest.split_once('`'));
        let near = unknown.and_then(|(wrong, rest)| did_you_mean(wrong, rest.split('`').skip(1).step_by(2)));
        format!("`{KEY}`: {text}{}", near.map(|near| format!(". {near}")).unwrap_or_default())
    })?;
    Ok(grants.below(folder))
}

/// Whether a program with these grants holds secrets of its operator.
pub(crate) fn has_variables(value: Option<&Value>) -> bool {
    let variables = value.and_then(|grants| grants.get("env")).and_then(Value::as_array);
    variables.is_some_and(|variables| !variables.is_empty())
}

/// Grants with the values of their variables, for a target.
pub(crate) fn resolve(grants: &Grants, target: &str, config: &Config) -> Result<Granted, Failure> {
    if let Some(variable) = grants.env.iter().find(|variable| env::secret(&variable.name).is_none()) {
        let message = format!("the variable `{}` for `{target}` is not set", variable.name);
        return Err(Failure::new(Exit::Credentials, "CREDENTIALS", message)
            .hint("Set it in the environment, or name a file with it: `--env-file FILE`."));
    }
    Ok(grants.resolve(&mut env::secret)?.no_network(config.flag("no_network")))
}

/// Each target of a trusted file with its grants, for the person who trusts it.
pub(crate) fn described(path: &Path, content: &[u8]) -> Vec<String> {
    let servers = files::described(path, content);
    if !servers.is_empty() {
        return servers;
    }
    let Ok(text) = std::str::from_utf8(content) else { return Vec::new() };
    let folder = path.parent().unwrap_or(Path::new("."));
    let Ok(file) = toml_value(text) else { return Vec::new() };
    let mut lines = Vec::new();
    let mut add = |name: &str, target: &str, value: Option<&Value>| {
        let grants = value.and_then(|value| read(value, folder).ok()).unwrap_or_default();
        lines.extend(lines_of(name, target, &grants));
    };
    if let Some(program) = file.get("program").and_then(Value::as_str) {
        add(program, "", file.get(KEY));
    }
    for upstream in file.get("upstreams").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| upstream.get(key).and_then(Value::as_str).unwrap_or_default();
        add(text("name"), text("target"), upstream.get(KEY));
    }
    for (name, entry) in file.get("targets").and_then(Value::as_object).into_iter().flatten() {
        let target = entry.get("target").and_then(Value::as_str);
        add(name, target.unwrap_or_default(), entry.get(KEY));
    }
    lines
}

/// What a target installs and reaches, a line each; nothing for one without a launcher and grants.
pub(crate) fn lines_of(name: &str, target: &str, grants: &Grants) -> Vec<String> {
    let installs = target::installs(target).map(|packages| {
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
    fn a_value_is_no_name() {
        let args = GrantArgs { env_raw: vec!["KEY=hunter2".into()], ..GrantArgs::default() };
        let failure = of_args(&args).unwrap_err();
        assert!(
            failure.message.contains("`--env-raw`") && !failure.message.contains("hunter2"),
            "{failure:?}"
        );
    }

    #[test]
    fn trust_shows_what_each_target_reaches() {
        let shown = |text: &str| described(Path::new("/p/x.toml"), text.as_bytes()).join("\n");
        assert_eq!(
            shown("kind = \"command\"\nprogram = \"p\"\n[grants]\nenv = [{ name = \"K\", raw = true }]"),
            "p: gets the value of `K` (raw)"
        );
        assert_eq!(
            shown(
                "kind = \"gateway\"\n[[upstreams]]\nname = \"a\"\ntarget = \"stdio:npx -y @s/p@1\"\n\
                 grants = { allow_hosts = [\"a.example\"], writable = [\"out\"] }\n[[upstreams]]\nname = \"b\"\ntarget = \"./b\""
            ),
            "a: installs @s/p@1 without scripts\na: reaches a.example\na: writes `/p/out`"
        );
        assert_eq!(
            shown(
                "[targets]\nc = \"./c\"\nd = { target = \"stdio:uvx d\", grants = { install_scripts = true } }"
            ),
            "d: installs d with scripts\nd: runs scripts of packages while they are installed"
        );
    }
}
