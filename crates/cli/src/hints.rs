//! Fixes of errors in the terms of the command: the only place where a hint of a library gets an option.

use toolpost_core::{Hint, Suggestion, ToolError};
use toolpost_llm::{ErrorKind, ModelError, ModelSetting};
use toolpost_sandbox::{EgressHint, SandboxHint};

use crate::style::label;

/// The fix of a tool's error.
pub(crate) fn of_error(error: &ToolError) -> Option<String> {
    error.whole_suggestion().map(|suggestion| of_suggestion(&suggestion))
}

/// A suggestion: its hint in terms of the command, else its text.
pub(crate) fn of_suggestion(suggestion: &Suggestion) -> String {
    if let Some(hint) = suggestion.hint::<Hint>() {
        return of_hint(&hint);
    }
    suggestion.hint::<SandboxHint>().map_or_else(|| suggestion.text().to_owned(), |hint| of_sandbox(&hint))
}

fn of_hint(hint: &Hint) -> String {
    match hint {
        Hint::Approve { tool } => format!("Approve it with `--approve {}`.", label(tool)),
        Hint::NameModel => "Name a model for its completions: `--model MODEL`.".into(),
        Hint::SetWorkingDirectory => "Name a working directory with `--workdir DIR`.".into(),
        Hint::AllowHost { host: Some(host) } => allow_host(host),
        Hint::AllowHost { host: None } => {
            "Allow one: `--allow-host NAME`, or `allow_hosts` in `[grants]` of its description.".into()
        }
        Hint::AllowAddress { address } => allow_address(address),
        Hint::AllowPrivateHost { host } => {
            format!("If you trust it, allow the host: `--config http.allow_hosts={}`.", label(host))
        }
        Hint::SetClientId => "Register a client there by hand and set it with `--client-id`.".into(),
        Hint::SetIssuer => "If you trust it, set the authorization server with `--issuer`.".into(),
        Hint::ConfigureSearch => {
            "Set an engine: `toolpost config set search.searxng https://HOST`, or set BRAVE_API_KEY.".into()
        }
        Hint::RecordRun => "Run it again with `--record FILE`.".into(),
        Hint::ListFlowRuns => "`toolpost flow ls` lists the runs.".into(),
        Hint::ShowFlowRun { run } => format!("`toolpost flow show {}` shows the run.", label(run)),
        Hint::AnswerApproval { run, step } => {
            format!("Answer it: `toolpost flow approve {} {}`.", label(run), label(step))
        }
        Hint::StartFlowWorker => "Start one: `toolpost flow worker --register ADMIN_URL`.".into(),
        other => other.to_string(),
    }
}

/// The fix of an error or a denial of the sandbox.
pub(crate) fn of_sandbox(hint: &SandboxHint) -> String {
    match hint {
        SandboxHint::ChooseLevel => {
            "Run `toolpost doctor` to list the supported levels, or add `--allow-degraded`.".into()
        }
        SandboxHint::CheckHost => "Run `toolpost doctor` to check the sandbox on this host.".into(),
        SandboxHint::ShowProgram => "Use an absolute path, or show its directory with `--readable`.".into(),
        SandboxHint::ShowInterpreter => {
            "Show its interpreter and libraries with `--readable`, or with `readable` in a description.".into()
        }
        SandboxHint::WriteLive => {
            "Let the program write to the directory itself with `--live`, name a smaller one, or allow namespaces."
                .into()
        }
        SandboxHint::OmitReview => {
            "Omit `--review` and `--discard`, or choose a smaller directory.".into()
        }
        SandboxHint::AllowPlaceholder { name } => format!(
            "Allow a host with `--allow-host NAME`, or grant the value itself with `--secret-raw {}`.",
            label(name)
        ),
        SandboxHint::AllowProtected => "Allow a path with `--allow-protected PATH`.".into(),
        SandboxHint::TrustAgain => {
            "Edit the files on the host; then trust the file of the target again with `toolpost trust`.".into()
        }
        SandboxHint::OtherFileSystem => {
            "Run with the directory of that file system as `--workdir`.".into()
        }
        SandboxHint::ListHeld => "`toolpost apply` lists the runs with changes.".into(),
        SandboxHint::DiscardHeld => "`toolpost discard` removes them.".into(),
        SandboxHint::BuildImage { recipe } => match recipe.as_str() {
            "busybox" | "python" | "data" | "claude-code" => {
                format!("Build it: `toolpost image build {recipe} --docker`.")
            }
            _ => "No recipe builds it; `toolpost image ls` lists the images.".into(),
        },
        SandboxHint::PullImage { image } => {
            format!("Run `docker pull {}`, or set `--pull missing`.", label(image))
        }
        other => other.to_string(),
    }
}

/// The fix of a denied connection.
pub(crate) fn of_egress(hint: &EgressHint) -> String {
    match hint {
        EgressHint::AllowHost { host } => allow_host(host),
        EgressHint::AllowAddress { address } => allow_address(address),
        other => format!("To allow it, {other}."),
    }
}

/// The fix of a model's error.
pub(crate) fn of_model(error: &ModelError) -> Option<&'static str> {
    let of_command = match error.kind {
        ErrorKind::Script if error.details.model.as_ref().is_some_and(|model| model.provider == "replay") => {
            "`--record FILE` writes the recording of `replay:FILE`."
        }
        ErrorKind::Script => {
            "`toolpost help scripts` shows an example; `toolpost schema script` prints the format."
        }
        ErrorKind::Auth if error.details.setting == Some(ModelSetting::Key) => {
            "Set the key in the environment, or in a file for `--env-file FILE`."
        }
        ErrorKind::Configuration if error.details.setting != Some(ModelSetting::Name) => {
            "`toolpost help environment` lists the environment variables."
        }
        ErrorKind::Configuration | ErrorKind::Unsupported => {
            "`toolpost help models` lists the names of models."
        }
        _ => return error.hint(),
    };
    Some(error.hint().unwrap_or(of_command))
}

fn allow_host(host: &str) -> String {
    format!("Allow it: `--allow-host {}`.", label(host))
}

fn allow_address(address: &str) -> String {
    format!("Allow it: `--allow-address {}`.", label(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_rendered_and_a_text_is_not() {
        let hinted = ToolError::permission("no").suggest(Hint::Approve { tool: "rm".into() });
        assert_eq!(of_error(&hinted).as_deref(), Some("Approve it with `--approve rm`."));
        let own = ToolError::permission("no").suggest(Suggestion::new(&SandboxHint::AllowProtected));
        assert_eq!(of_error(&own).as_deref(), Some("Allow a path with `--allow-protected PATH`."));
        let text = ToolError::permission("no").suggest("Pass `approve`.");
        assert_eq!(of_error(&text).as_deref(), Some("Pass `approve`."));
        assert_eq!(of_error(&ToolError::permission("no")), None);
    }

    #[test]
    fn values_of_hints_are_escaped() {
        let hint = Hint::Approve { tool: "a\u{1b}[2J".into() };
        assert!(!of_hint(&hint).contains('\u{1b}'));
    }
}
