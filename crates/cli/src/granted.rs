//! Resolved grants: values of variables, and checked paths.

use std::path::PathBuf;

use toolpost_sandbox::{Granted, Grants};

use crate::config::{Config, paths};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// Resolves the variables of a target's grants, and checks their paths.
pub(crate) fn resolve(grants: &Grants, target: &str, config: &Config) -> Result<Granted, Failure> {
    grants.workdir.as_deref().map_or(Ok(()), |directory| config.check_directory(directory))?;
    let paths = grants.workdir.iter().chain(&grants.writable).chain(&grants.readable);
    paths.map(PathBuf::as_path).try_for_each(|path| config.check_reach(target, path))?;
    if let Some(variable) = grants.secrets.iter().find(|variable| env::variable(&variable.name).is_none()) {
        let message = format!("the variable `{}` for `{target}` is not set", variable.name);
        return Err(Failure::new(Exit::Credentials, "CREDENTIALS", message)
            .hint("Set it in the environment or in a file for `--env-file FILE`."));
    }
    // A raw variable may have any text. The client of the target masks it in the results.
    let is_raw = |name: &str| grants.secrets.iter().any(|variable| variable.raw && variable.name == name);
    let mut value = |name: &str| if is_raw(name) { env::variable(name) } else { env::secret(name) };
    let granted = grants.resolve(&mut value)?.no_network(config.settings.no_network);
    Ok(granted.with_layers(paths::layers()).with_run_changes(crate::run_changes::current()))
}
