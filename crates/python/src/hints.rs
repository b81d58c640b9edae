//! Fixes of errors in the terms of Python: the only place where a hint of a library gets an argument.

use toolpost::ToolError;
use toolpost::error::Hint;
use toolpost::sandbox::SandboxHint;

/// The fix of a call's error.
pub(crate) fn of_error(error: &ToolError) -> Option<String> {
    match error.hint::<Hint>() {
        Some(Hint::Approve { .. }) => {
            return Some("Pass `approve=\"allow\"`, or a function that decides, to the call.".into());
        }
        Some(Hint::SetWorkingDirectory) => return Some("Pass `working_dir`.".into()),
        _ => {}
    }
    let own = error.hint::<SandboxHint>().map(|hint| of_sandbox(&hint));
    own.or_else(|| error.suggestion().map(str::to_owned))
}

/// The fix of an error of the sandbox.
pub(crate) fn of_sandbox(hint: &SandboxHint) -> String {
    match hint {
        SandboxHint::ChooseLevel => {
            "Run `toolpost doctor` to list the supported levels, or pass `allow_degraded=True`.".into()
        }
        SandboxHint::WriteLive | SandboxHint::OmitReview => {
            "Pass `live=True`, name a smaller directory, or allow namespaces.".into()
        }
        SandboxHint::ShowProgram => "Use an absolute path, or show its directory with `read_only`.".into(),
        SandboxHint::ShowInterpreter => "Show its interpreter and libraries with `read_only`.".into(),
        other => other.to_string(),
    }
}
