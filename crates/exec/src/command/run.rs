//! Runs one call: builds its command line, runs it in the sandbox, parses its output.

use std::path::{Component, Path};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{
    Args, Artifact, BoxFuture, Ctx, Evidence, Hint, LogLevel, Output, OutputLog, Secret, StartCheck,
    Suggestion, Timeout, Tool, ToolError, ToolSpec,
};
use toolpost_sandbox::{
    Cancel, EgressHint, EgressLog, Error, Granted, Level, Outcome, Repeat, RunEvidence, Sandbox,
    SandboxEvent, Stdin, Verdict, Workspace,
};

use super::description::{Command, Program, VersionNeed, WorkingDirectory};
use super::exit::{self, Meaning};
use super::output::{ParseError, Parsed, Printed, Stream};
use super::paths;
use super::settings::CommandSettings;
use super::template::plain;
use crate::failure;

/// Wall time of a call without a timeout, the same as the call path's default.
const DEFAULT_WALL: Duration = Duration::from_mins(1);
/// Retained stderr, in bytes.
const MAX_STDERR: usize = 64 << 10;
/// Timeout of a version query.
const VERSION_WALL: Duration = Duration::from_secs(10);

impl Tool for Command {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        // Blocking is fine: the placement is `blocking`.
        Box::pin(async move { self.run(args, ctx) })
    }
}

impl Command {
    /// The command line for these arguments.
    pub(super) fn command_line(&self, args: &Args) -> Result<Vec<String>, ToolError> {
        let mut line = vec![self.program.name.clone()];
        line.extend(self.arguments.expand(&self.program.name, &self.parameters, args)?);
        Ok(line)
    }

    fn run(&self, args: &Args, ctx: &Ctx) -> Result<Output, ToolError> {
        let name = &self.program.name;
        let granted = self.granted()?;
        if self.program.needs_network && !granted.reaches_hosts() {
            return Err(ToolError::permission(format!("`{name}` needs the network, but no host is allowed"))
                .suggest(Hint::AllowHost { host: None }));
        }
        self.reject_nul(args)?;
        let directory = self.working_directory(&granted, ctx);
        paths::check(&self.parameters, args, directory, self.directory.as_ref())?;
        let line = self.command_line(args)?;
        let settings =
            ctx.inject::<CommandSettings>().map(|settings| (*settings).clone()).unwrap_or_default();
        let base = self.base(&settings, &granted, ctx)?;
        if let Some(need) = &self.program.version {
            self.program.check_version(need, &base)?;
        }
        let sandbox = self.sandbox(base, &settings, directory, args, ctx)?;

        let cancel = Cancel::new();
        let watched = ctx.clone();
        let waker = cancel.waker(move || watched.is_cancelled());
        let mut cancelled = pin!(ctx.cancelled());
        // The future stays registered until the run ends, and its waker needs no thread.
        if cancelled.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
            return Err(ToolError::cancelled(format!("the caller cancelled before `{name}` started")));
        }
        let secrets = self.secrets(args, &granted);
        let mut log = OutputLog::new(ctx, &secrets);
        let (mut bytes, mut records, mut has_enough) = (0, 0, false);
        self.program.check_start()?;
        let outcome = sandbox
            .run(&toolpost_sandbox::Program::operator_argv(line), &cancel, &mut |event| {
                match event {
                    SandboxEvent::Stdout(bytes) => log.write(LogLevel::Info, bytes),
                    SandboxEvent::Stderr(bytes) => log.write(LogLevel::Warn, bytes),
                    _ => {}
                }
                // A program without effects may be stopped as soon as its retained output is complete.
                if self.spec.annotations.read_only
                    && let Some(piece) = self.read_piece(event)
                {
                    bytes += piece.len();
                    records += self.output.count_records(piece);
                    if !has_enough && self.output.has_enough(bytes, records) {
                        has_enough = true;
                        cancel.cancel();
                    }
                }
            })
            .map_err(|error| self.program.failure(error))?;
        let is_ended_early = has_enough && !ctx.is_cancelled() && outcome.verdict == Verdict::Cancelled;
        let size = outcome.truncated_size().filter(|_| !is_ended_early);
        let whole = log.finish(size).map(Box::new);
        let mut output = self.answer(&outcome, is_ended_early, &secrets)?;
        output.whole = whole;
        Ok(output)
    }

    /// The piece of output if it belongs to the parsed stream.
    fn read_piece<'e>(&self, event: SandboxEvent<'e>) -> Option<&'e [u8]> {
        match (event, self.output.stream) {
            (SandboxEvent::Stdout(bytes), Stream::Stdout) | (SandboxEvent::Stderr(bytes), Stream::Stderr) => {
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Rejects NUL bytes, which no argument can contain.
    fn reject_nul(&self, args: &Args) -> Result<(), ToolError> {
        let has_nul = |name: &str| {
            args.get(name).is_some_and(|value| match value {
                Value::Array(items) => items.iter().any(|item| plain(item).contains('\0')),
                value => plain(value).contains('\0'),
            })
        };
        match self.parameters.iter().find(|parameter| has_nul(&parameter.name)) {
            None => Ok(()),
            Some(parameter) => Err(ToolError::invalid_input(format!(
                "/{}: expected text without a NUL character, which no program accepts",
                parameter.name
            ))
            .with("pointer", format!("/{}", parameter.name))),
        }
    }

    /// The sensitive arguments of a call and the values of granted variables.
    fn secrets(&self, args: &Args, granted: &Granted) -> Vec<Secret> {
        let values = self.spec.sensitive.iter().filter_map(|name| args.get(name));
        values.flat_map(Secret::of_argument).chain(granted.values().map(Secret::new)).collect()
    }

    /// The resolved grants. Only the operator can provide values of variables.
    fn granted(&self) -> Result<Arc<Granted>, ToolError> {
        if let Some(granted) = &self.granted {
            return Ok(Arc::clone(granted));
        }
        let granted = self.program.grants.resolve(&mut |_| None);
        granted.map(Arc::new).map_err(|error| ToolError::permission(error.to_string()).caused_by(error))
    }

    /// The granted working directory, else that of the call.
    fn working_directory<'a>(&self, granted: &'a Granted, ctx: &'a Ctx) -> Option<&'a Path> {
        if let Some(directory) = &granted.grants().workdir {
            return Some(directory);
        }
        ctx.working_dir().filter(|_| self.working_directory != WorkingDirectory::None)
    }

    /// The sandbox with its level, search path and grants.
    fn base(&self, settings: &CommandSettings, granted: &Granted, ctx: &Ctx) -> Result<Sandbox, ToolError> {
        let requested = match ctx.level() {
            None => None,
            Some(name) => Some(
                name.parse::<Level>()
                    .map_err(|error| ToolError::invalid_input(error.to_string()).with("option", "level"))?,
            ),
        };
        let usual = self.program.level.max(settings.level.unwrap_or(self.program.level));
        let level = granted.grants().level.unwrap_or(usual);
        let mut sandbox = Sandbox::new()
            .level(requested.map_or(level, |requested| requested.max(level)))
            .allow_degraded(settings.allow_degraded);
        if let Some(path) = &settings.search_path {
            sandbox = sandbox.search_path(path);
        }
        if let Some(home) = &settings.home {
            sandbox = sandbox.home(home);
        }
        sandbox = sandbox.protect(settings.protected.iter().cloned());
        if let Some(layers) = &settings.layers {
            sandbox = sandbox.layers(layers);
        }
        if let Some(changes) = &settings.changes {
            sandbox = sandbox.run_changes(changes.clone());
        }
        sandbox = granted.apply(sandbox);
        Ok(self.program.readable.iter().chain(&settings.readable).fold(sandbox, Sandbox::read_only))
    }

    /// The sandbox of a call.
    fn sandbox(
        &self,
        base: Sandbox,
        settings: &CommandSettings,
        workdir: Option<&Path>,
        args: &Args,
        ctx: &Ctx,
    ) -> Result<Sandbox, ToolError> {
        let wall = ctx.working_time().unwrap_or(match self.spec.policy.timeout {
            Some(Timeout::After(timeout)) => timeout,
            _ => DEFAULT_WALL,
        });
        // The sandbox retains half of this from the start and half from the end; a list needs the start.
        let retained =
            |stream| if self.output.stream == stream { self.output.limit_bytes * 2 } else { MAX_STDERR };
        let mut limits = settings
            .limits
            .clone()
            .with_wall(wall.max(Duration::from_millis(1)))
            .with_stdout(retained(Stream::Stdout))
            .with_stderr(retained(Stream::Stderr));
        if let Some(memory) = self.program.memory {
            limits = limits.with_memory(memory);
        }
        let mut sandbox = base.limits(limits);
        sandbox = match workdir {
            Some(workdir) if self.spec.annotations.read_only => {
                sandbox.workspace(Workspace::ReadOnlyHost(workdir.to_owned()))
            }
            Some(workdir) if settings.live => sandbox.workspace(Workspace::LiveHost(workdir.to_owned())),
            // Callers get the result alone; events are progress.
            Some(workdir) => sandbox.workspace(Workspace::Host(workdir.to_owned())).repeat(Repeat::Always),
            None if self.working_directory == WorkingDirectory::Required => {
                return Err(ToolError::precondition(format!(
                    "`{}` needs a working directory, but the call has none",
                    self.spec.name
                ))
                .suggest(Hint::SetWorkingDirectory));
            }
            None => sandbox,
        };
        let text =
            |template: &super::template::Template| template.expand(&self.parameters, args).into_iter().next();
        if let Some(directory) = self.directory.as_ref().and_then(text).filter(|directory| directory != ".") {
            let directory = directory.trim_start_matches("./").trim_end_matches('/');
            // Check this first for a better message. A path outside is not even inspected, so that the error reveals
            // nothing about the host's directories.
            if workdir.is_some_and(|workdir| !is_directory_beneath(workdir, directory)) {
                return Err(ToolError::invalid_path(format!(
                    "`{directory}` is not a directory beneath the working directory"
                )));
            }
            sandbox = sandbox.directory(directory);
        }
        if let Some(input) = self.stdin.as_ref().and_then(text) {
            sandbox = sandbox.stdin(Stdin::Bytes(input.into_bytes()));
        }
        for (name, template) in &self.environment {
            if let Some(value) = text(template) {
                sandbox = sandbox.env(name, value);
            }
        }
        Ok(sandbox)
    }

    fn answer(
        &self,
        outcome: &Outcome,
        is_ended_early: bool,
        secrets: &[Secret],
    ) -> Result<Output, ToolError> {
        let name = &self.program.name;
        let scrub = |text: String| secrets.iter().fold(text, |text, secret| secret.scrub(&text));
        let status = match outcome.verdict {
            Verdict::Ok => 0,
            Verdict::Exit { code } => code,
            Verdict::Cancelled if is_ended_early => 0,
            _ => return Err(self.program.stopped(&outcome.verdict)),
        };
        let refused = outcome.report.egress.as_ref().and_then(EgressLog::refusal);
        if let (1.., Some(refused)) = (status, refused) {
            let error = ToolError::permission(format!("`{name}` was blocked: {}", refused.message));
            return Err(error.suggest_maybe(refused.hint.as_ref().map(allowing)));
        }
        let stderr = scrub(outcome.stderr.text());
        let meaning = exit::judge(&self.exits, name, status, &stderr)?;
        let captured = match self.output.stream {
            Stream::Stdout => &outcome.stdout,
            Stream::Stderr => &outcome.stderr,
        };
        let parsed = if meaning == Meaning::Empty {
            self.output.nothing()
        } else {
            let head = if secrets.is_empty() {
                captured.head.clone()
            } else {
                scrub(String::from_utf8_lossy(&captured.head).into_owned()).into_bytes()
            };
            let printed = Printed {
                head: &head,
                text: scrub(captured.text()),
                is_truncated: captured.dropped > 0 || is_ended_early,
            };
            self.output.parse(&printed).map_err(|error| match error {
                ParseError::TooLong => ToolError::limit(format!(
                    "`{name}` printed more than {} bytes, the limit of this tool",
                    self.output.limit_bytes
                ))
                .suggest("Request less at once."),
                ParseError::Nothing => {
                    ToolError::not_found(format!("no useful output from `{name}`: {error}"))
                }
                ParseError::Form(_) => ToolError::dependency(format!(
                    "the output of `{name}` does not match its description: {error}"
                ))
                .suggest("Check the program's version, or fix the description."),
            })?
        };
        let truncated = self.output.truncation(&parsed, captured);
        let mut output = match parsed {
            Parsed::Text(text) => Output::text(text),
            Parsed::Value(value) => Output::json(value),
        }
        .with_truncated(truncated);
        for file in &outcome.artifacts {
            // The program has had its effects: a file that others changed meanwhile does not fail it.
            let Ok(bytes) = file.read() else { continue };
            let mut artifact = Artifact::from_bytes(file.path.clone(), file.media_type, bytes);
            artifact.sha256 = Some(file.sha256.clone());
            output = output.with_artifact(artifact);
        }
        let facts = RunEvidence::from(outcome).to_value();
        let output = output.with_evidence(Evidence { sandbox: Some(facts), ..Evidence::default() });
        failure::with_applied(output, outcome.applied.as_ref(), &format!("`{name}`"))
    }
}

/// The fix of a denied request.
fn allowing(hint: &EgressHint) -> Suggestion {
    match hint {
        EgressHint::AllowHost { host } => Hint::AllowHost { host: Some(host.clone()) }.into(),
        EgressHint::AllowAddress { address } => Hint::AllowAddress { address: address.clone() }.into(),
        other => format!("To allow it, {other}.").into(),
    }
}

/// Whether a path is a directory beneath another one, after following links.
fn is_directory_beneath(workdir: &Path, path: &str) -> bool {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let is_within = || {
        let (whole, workdir) = (workdir.join(path).canonicalize()?, workdir.canonicalize()?);
        Ok::<_, std::io::Error>(whole.starts_with(workdir) && whole.is_dir())
    };
    is_plain && is_within().unwrap_or(false)
}

impl Program {
    /// Converts an error of the sandbox.
    fn failure(&self, error: Error) -> ToolError {
        if !matches!(error, Error::ProgramNotFound { .. }) {
            return failure::of_sandbox(error);
        }
        let install = self.install.as_ref().map(|install| format!("Install it: {install}."));
        ToolError::dependency(format!("`{}` is not installed: {error}", self.name))
            .suggest(install.unwrap_or_else(|| "Install it, or add its directory to the search path.".into()))
            .with("program", self.name.clone())
            .caused_by(error)
    }

    /// The error of a run without a usable exit status.
    fn stopped(&self, verdict: &Verdict) -> ToolError {
        let error = failure::of_verdict(verdict, &format!("`{}`", self.name))
            .unwrap_or_else(|| ToolError::internal(format!("`{}` ended unexpectedly", self.name)));
        match verdict {
            Verdict::Timeout { .. } => error.suggest("Request less at once, or raise the tool's timeout."),
            Verdict::Memory { .. } => error.suggest("Raise `memory_mib` in the description."),
            _ => error,
        }
    }

    /// Whether the program may start now.
    fn check_start(&self) -> Result<(), ToolError> {
        self.start_check.as_ref().map_or(Ok(()), StartCheck::check)
    }

    /// Checks the program's version, once.
    fn check_version(&self, need: &VersionNeed, base: &Sandbox) -> Result<(), ToolError> {
        if need.is_met.get().is_some() {
            return Ok(());
        }
        let line = std::iter::once(&self.name).chain(&need.args).cloned();
        let limits = toolpost_sandbox::Limits::default().with_wall(VERSION_WALL).with_stdout(MAX_STDERR);
        self.check_start()?;
        let outcome = base
            .clone()
            .limits(limits)
            .run(&toolpost_sandbox::Program::operator_argv(line), &Cancel::new(), &mut |_| {})
            .map_err(|error| self.failure(error))?;
        let printed = outcome.stdout.text() + &outcome.stderr.text();
        let found =
            need.pattern.captures(&printed).and_then(|found| found.get(1)).map(|found| found.as_str());
        let install = self.install.as_ref().map(|install| format!("Install a newer one: {install}."));
        match found {
            Some(found) if is_at_least(found, &need.minimum) => {
                // A concurrent call may have set it already.
                let _ = need.is_met.set(());
                Ok(())
            }
            Some(found) => Err(ToolError::precondition(format!(
                "`{}` has version {found}, expected at least {}",
                self.name, need.minimum
            ))
            .suggest_maybe(install)),
            None => Err(ToolError::precondition(format!(
                "`{}` reported no version, expected at least {}",
                self.name, need.minimum
            ))
            .suggest_maybe(install)),
        }
    }
}

/// Compares versions by their leading numbers.
fn is_at_least(found: &str, minimum: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(['.', '-', '_']).map_while(|part| part.parse().ok()).collect()
    };
    numbers(found) >= numbers(minimum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use toolpost_core::{Call, tool_fn};
    use toolpost_toolbox::Toolbox;

    #[test]
    fn versions_are_compared_by_number() {
        for (found, minimum, enough) in [
            ("2.20", "2.20", true),
            ("2.9.1", "2.20", false),
            ("3", "2.20", true),
            ("1.7-rc1", "1.6", true),
            ("1.6", "1.6.1", false),
        ] {
            assert_eq!(is_at_least(found, minimum), enough, "{found} {minimum}");
        }
    }

    /// Covers a case that a host with every level cannot reach by a run.
    #[tokio::test]
    async fn the_operator_may_allow_a_lower_level() {
        let text = "kind = \"command\"\nv = 1\nprogram = \"p\"\n[[tool]]\nname = \"t\"\ndescription = \"T.\"";
        let command = Arc::clone(&super::super::CommandTools::from_toml(text, "t.toml").unwrap().commands[0]);
        let look = tool_fn(ToolSpec::new("look", "Look."), move |_, ctx| {
            let sandbox = |allow_degraded| {
                let settings = CommandSettings { allow_degraded, ..CommandSettings::default() };
                format!("{:?}", command.base(&settings, &Granted::default(), &ctx))
            };
            let seen = [false, true].map(sandbox);
            async move { Ok(Output::json(json!(seen))) }
        });
        let toolbox = Toolbox::builder().tool(look).build().unwrap();
        let seen = toolbox.call(Call::new("look", json!({}))).await.result.unwrap().structured.unwrap();
        for (seen, allowed) in [(&seen[0], "allow_degraded: false"), (&seen[1], "allow_degraded: true")] {
            assert!(seen.as_str().unwrap().contains(allowed), "{seen}");
        }
    }
}
