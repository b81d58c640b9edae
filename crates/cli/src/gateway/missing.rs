//! Upstreams that did not start: their errors as warnings and as one failure.

use toolpost_gateway::MissingUpstream;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::hints;
use crate::style::label;

/// A missing upstream as a warning.
pub(crate) fn warning(missing: &MissingUpstream) -> String {
    let MissingUpstream { name, error, .. } = missing;
    format!("the upstream `{}` is unavailable: {}", label(name), error.message())
}

/// The failure for missing upstreams: exit code 4, with the error of each.
pub(crate) fn failure(missing: &[MissingUpstream]) -> Failure {
    let new = |message: String| Failure::new(Exit::Unreachable, "DEPENDENCY", message);
    let hints = missing.iter().filter_map(|one| hints::of_error(&one.error));
    let mut failure = match missing {
        [only] => new(warning(only)),
        _ => {
            let names: Vec<String> = missing.iter().map(|one| format!("`{}`", label(&one.name))).collect();
            let failure = new(format!("{} upstreams are unavailable: {}", missing.len(), names.join(", ")));
            missing.iter().fold(failure, |failure, one| failure.cause(warning(one)))
        }
    };
    for hint in hints {
        if !failure.hints.contains(&hint) {
            failure.hints.push(hint);
        }
    }
    failure
}
