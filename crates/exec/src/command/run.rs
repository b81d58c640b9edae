//! One call: arguments to a command line, a run in the sandbox, output to a result.

use std::path::{Component, Path};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Args, Artifact, BoxFuture, Ctx, Evidence, Output, Secret, StartCheck, Timeout, Tool, ToolError, ToolSpec,
    format_duration,
};
use toolpost_sandbox::{
    Cancel, EgressLog, Error, Event, Granted, Level, Outcome, Sandbox, Stdin, Verdict, Workspace,
};

use super::description::{Command, Program, VersionNeed, WorkingFolder};
use super::exit::{self, Meaning};
use super::line_log::LineLog;
use super::output::{Misfit, Parsed, Printed, Stream};
use super::paths;
use super::settings::CommandSettings;
use super::template::plain;

/// The time of a call that has no limit, as the call path's own default.
const WALL: Duration = Duration::from_mins(1);
/// What is kept of the time of a call for taking the sandbox down.
const RESERVED: Duration = Duration::from_millis(500);
/// Bytes of error output that are kept.
const STDERR_BYTES: usize = 64 << 10;
/// How long a program may take to tell its version.
const VERSION_WALL: Duration = Duration::from_secs(10);

impl Tool for Command {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.spec)
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        // It blocks: its placement says so.
        Box::pin(async move { self.run(args, ctx) })
    }
}

impl Command {
    /// The program and its arguments for these arguments of a call.
    pub(super) fn command_line(&self, args: &Args) -> Result<Vec<String>, ToolError> {
        let mut line = vec![self.program.name.clone()];
        line.extend(self.arguments.expand(&self.program.name, &self.parameters, args)?);
        Ok(line)
    }

    fn run(&self, args: &Args, ctx: &Ctx) -> Result<Output, ToolError> {
        let name = &self.program.name;
        let granted = self.granted()?;
        if self.program.needs_network && !granted.reaches_hosts() {
            return Err(ToolError::permission(format!("`{name}` needs the network, and no host is allowed"))
                .suggest(
                    "Allow one: `--allow-host NAME`, or `allow_hosts` in `[grants]` of its description.",
                ));
        }
        self.refuse_nul(args)?;
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
        let asked = ctx.clone();
        let waker = cancel.waker(move || asked.is_cancelled());
        let mut cancelled = pin!(ctx.cancelled());
        // The future stays registered until the run is over, and its waker needs no thread of its own.
        if cancelled.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
            return Err(ToolError::cancelled(format!("the caller asked to stop before `{name}` started")));
        }
        let secrets = self.secrets(args, &granted);
        let mut log = LineLog::new(ctx, &secrets);
        let (mut bytes, mut records, mut has_enough) = (0, 0, false);
        self.program.check_start()?;
        let outcome = sandbox
            .run(&toolpost_sandbox::Program::argv(line), &cancel, &mut |event| {
                log.take(event);
                // A program without effects may be ended as soon as nothing more of its output is taken.
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
        log.finish();
        let is_ended_early = has_enough && !ctx.is_cancelled() && outcome.verdict == Verdict::Cancelled;
        self.answer(&outcome, is_ended_early, &secrets)
    }

    /// The piece of output that belongs to the stream that is read.
    fn read_piece<'e>(&self, event: Event<'e>) -> Option<&'e [u8]> {
        match (event, self.output.stream) {
            (Event::Stdout(bytes), Stream::Stdout) | (Event::Stderr(bytes), Stream::Stderr) => Some(bytes),
            _ => None,
        }
    }

    /// A NUL byte ends an argument for every program.
    fn refuse_nul(&self, args: &Args) -> Result<(), ToolError> {
        let has_nul = |name: &str| {
            args.get(name).is_some_and(|value| match value {
                Value::Array(items) => items.iter().any(|item| plain(item).contains('\0')),
                value => plain(value).contains('\0'),
            })
        };
        match self.parameters.iter().find(|parameter| has_nul(&parameter.name)) {
            None => Ok(()),
            Some(parameter) => Err(ToolError::invalid_input(format!(
                "/{}: expected text without a NUL character: no program can take it",
                parameter.name
            ))
            .with("pointer", format!("/{}", parameter.name))),
        }
    }

    /// The sensitive values of a call, and those of granted variables.
    fn secrets(&self, args: &Args, granted: &Granted) -> Vec<Secret> {
        let values = self.spec.sensitive.iter().filter_map(|name| args.get(name));
        values.flat_map(Secret::of_argument).chain(granted.values().map(Secret::new)).collect()
    }

    /// The grants with the values of variables, which only the operator can give.
    fn granted(&self) -> Result<Arc<Granted>, ToolError> {
        if let Some(granted) = &self.granted {
            return Ok(Arc::clone(granted));
        }
        let granted = self.program.grants.resolve(&mut |_| None);
        granted.map(Arc::new).map_err(|error| ToolError::permission(error.to_string()).caused_by(error))
    }

    /// Where the program works: what is granted, else the directory of the call.
    fn working_directory<'a>(&self, granted: &'a Granted, ctx: &'a Ctx) -> Option<&'a Path> {
        if let Some(directory) = &granted.grants().workdir {
            return Some(directory);
        }
        ctx.working_dir().filter(|_| self.working_folder != WorkingFolder::None)
    }

    /// The level, and where the program is looked up.
    fn base(&self, settings: &CommandSettings, granted: &Granted, ctx: &Ctx) -> Result<Sandbox, ToolError> {
        let asked = match ctx.level() {
            None => None,
            Some(name) => Some(
                name.parse::<Level>()
                    .map_err(|error| ToolError::invalid_input(error.to_string()).with("option", "level"))?,
            ),
        };
        let usual = self.program.level.max(settings.level.unwrap_or(self.program.level));
        let level = granted.grants().level.unwrap_or(usual);
        let mut sandbox = Sandbox::new()
            .level(asked.map_or(level, |asked| asked.max(level)))
            .allow_degraded(settings.allow_degraded);
        if let Some(path) = &settings.search_path {
            sandbox = sandbox.search_path(path);
        }
        sandbox = sandbox.protect(settings.protected.iter().cloned());
        if let Some(layers) = &settings.layers {
            sandbox = sandbox.layers(layers);
        }
        sandbox = granted.apply(sandbox);
        Ok(self.program.readable.iter().chain(&settings.readable).fold(sandbox, Sandbox::read_only))
    }

    /// The sandbox of a call.
    fn sandbox(
        &self,
        base: Sandbox,
        settings: &CommandSettings,
        folder: Option<&Path>,
        args: &Args,
        ctx: &Ctx,
    ) -> Result<Sandbox, ToolError> {
        let wall = ctx.remaining().map_or_else(
            || match self.spec.policy.timeout {
                Some(Timeout::After(timeout)) => timeout,
                _ => WALL,
            },
            // A little is kept for the end, so that the caller hears what was said and not only that time is over.
            |left| left.saturating_sub((left / 10).min(RESERVED)),
        );
        // Half of what is kept is the end of the output: a list is read from its beginning.
        let kept =
            |stream| if self.output.stream == stream { self.output.limit_bytes * 2 } else { STDERR_BYTES };
        let mut limits = settings
            .limits
            .clone()
            .with_wall(wall.max(Duration::from_millis(1)))
            .with_stdout(kept(Stream::Stdout))
            .with_stderr(kept(Stream::Stderr));
        if let Some(memory) = self.program.memory {
            limits = limits.with_memory(memory);
        }
        let mut sandbox = base.limits(limits);
        sandbox = match folder {
            Some(folder) if self.spec.annotations.read_only => {
                sandbox.workspace(Workspace::ReadOnlyHost(folder.to_owned()))
            }
            Some(folder) => sandbox.workspace(Workspace::Host(folder.to_owned())),
            None if self.working_folder == WorkingFolder::Required => {
                return Err(ToolError::precondition(format!(
                    "`{}` works in a folder, and the call has none",
                    self.spec.name
                ))
                .suggest(
                    "Give the call or its scope a `working_dir` (`--workdir DIR` on the command line).",
                ));
            }
            None => sandbox,
        };
        let text =
            |template: &super::template::Template| template.expand(&self.parameters, args).into_iter().next();
        if let Some(directory) = self.directory.as_ref().and_then(text).filter(|directory| directory != ".") {
            let directory = directory.trim_start_matches("./").trim_end_matches('/');
            // The sandbox would say only that it could not be entered. What lies outside is not even looked at: nobody
            // learns from the error which folders this machine has.
            if folder.is_some_and(|folder| !is_folder_beneath(folder, directory)) {
                return Err(ToolError::invalid_path(format!(
                    "`{directory}` is no folder beneath the working folder"
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
            _ => return Err(self.program.ended(&outcome.verdict)),
        };
        let refused = outcome.report.egress.as_ref().and_then(EgressLog::refusal);
        if let (1.., Some(refused)) = (status, refused) {
            let error = ToolError::permission(format!("`{name}` was blocked: {}", refused.message));
            return Err(
                error.suggest_maybe(refused.option.as_ref().map(|option| format!("Allow it: `{option}`.")))
            );
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
                is_cut: captured.dropped > 0 || is_ended_early,
            };
            self.output.parse(&printed).map_err(|misfit| match misfit {
                Misfit::TooLong => ToolError::limit(format!(
                    "`{name}` printed more than {} bytes, the limit of this tool",
                    self.output.limit_bytes
                ))
                .suggest("Ask for less at once."),
                Misfit::Nothing => {
                    ToolError::not_found(format!("`{name}` printed nothing that can be read: {misfit}"))
                }
                Misfit::Form(_) => ToolError::dependency(format!(
                    "the output of `{name}` is not what its description says: {misfit}"
                ))
                .suggest("Another version of the program may print another form; mend the description."),
            })?
        };
        let mut output = match parsed {
            Parsed::Text(text) => Output::text(text),
            Parsed::Value(value) => Output::json(value),
        };
        for file in &outcome.artifacts {
            let bytes = file.read().map_err(|error| self.program.failure(error))?;
            let mut artifact = Artifact::from_bytes(file.path.clone(), file.media_type, bytes);
            artifact.sha256 = Some(file.sha256.clone());
            output = output.with_artifact(artifact);
        }
        let facts = json!({ "verdict": outcome.verdict, "usage": outcome.usage, "report": outcome.report });
        Ok(output.with_evidence(Evidence { sandbox: Some(facts), ..Evidence::default() }))
    }
}

/// Whether a path leads to a folder within another one, links followed.
fn is_folder_beneath(folder: &Path, path: &str) -> bool {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let is_within = || {
        let (whole, folder) = (folder.join(path).canonicalize()?, folder.canonicalize()?);
        Ok::<_, std::io::Error>(whole.starts_with(folder) && whole.is_dir())
    };
    is_plain && is_within().unwrap_or(false)
}

impl Program {
    /// What an error of the sandbox means for a caller.
    fn failure(&self, error: Error) -> ToolError {
        let hint = error.hint();
        let message = error.to_string();
        let failed = match &error {
            Error::ProgramNotFound { .. } => {
                let install = self.install.as_ref().map(|install| format!("Install it: {install}."));
                return ToolError::dependency(format!("`{}` is not on this machine: {message}", self.name))
                    .suggest(
                        install
                            .unwrap_or_else(|| "Install it, or name its folder in the search path.".into()),
                    )
                    .with("program", self.name.clone())
                    .caused_by(error);
            }
            Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } => {
                ToolError::permission(message)
            }
            Error::InvalidName { .. } => ToolError::invalid_input(message),
            Error::TooLarge { .. } => ToolError::limit(message),
            Error::InvalidLimit { .. } | Error::Workspace { .. } => ToolError::precondition(message),
            Error::NotExecutable { .. }
            | Error::ProgramNotStarted { .. }
            | Error::File { .. }
            | Error::Setup { .. } => ToolError::dependency(message),
            _ => ToolError::internal(message),
        };
        failed.suggest_maybe(hint).caused_by(error)
    }

    /// The error of a run that was ended.
    fn ended(&self, verdict: &Verdict) -> ToolError {
        let name = &self.name;
        let time = |milliseconds: u64| format_duration(Duration::from_millis(milliseconds));
        match verdict {
            Verdict::Timeout { limit_ms } => {
                ToolError::timeout(format!("`{name}` was not done after {}", time(*limit_ms)))
                    .suggest("Ask for less at once, or raise the tool's timeout.")
            }
            Verdict::Cancelled => ToolError::cancelled(format!("`{name}` was stopped: the caller asked to")),
            Verdict::Cpu { limit_ms } => {
                ToolError::limit(format!("`{name}` used {} of processor time, the limit", time(*limit_ms)))
            }
            Verdict::Memory { limit } => {
                ToolError::limit(format!("`{name}` needed more memory than the limit of {limit} bytes"))
                    .suggest("Raise `memory_mib` in the description.")
            }
            Verdict::Processes { limit } => {
                ToolError::limit(format!("`{name}` started more processes than the limit of {limit}"))
            }
            Verdict::Disk { limit } => {
                ToolError::limit(format!("`{name}` wrote more than the limit of {limit} bytes"))
            }
            Verdict::Output { limit } => {
                ToolError::limit(format!("`{name}` printed more than the limit of {limit} bytes"))
            }
            Verdict::Denied { rule } => {
                ToolError::permission(format!("the sandbox stopped `{name}`: {rule} is not allowed"))
            }
            Verdict::Signal { signal } => {
                ToolError::dependency(format!("`{name}` was ended by signal {signal}"))
            }
            other => ToolError::dependency(format!("`{name}` ended badly: {other:?}")),
        }
    }

    /// Asks the program for its version, once.
    /// Whether the program may start now.
    fn check_start(&self) -> Result<(), ToolError> {
        self.start_check.as_ref().map_or(Ok(()), StartCheck::check)
    }

    fn check_version(&self, need: &VersionNeed, base: &Sandbox) -> Result<(), ToolError> {
        if need.is_met.get().is_some() {
            return Ok(());
        }
        let line = std::iter::once(&self.name).chain(&need.args).cloned();
        let limits = toolpost_sandbox::Limits::default().with_wall(VERSION_WALL).with_stdout(STDERR_BYTES);
        self.check_start()?;
        let outcome = base
            .clone()
            .limits(limits)
            .run(&toolpost_sandbox::Program::argv(line), &Cancel::new(), &mut |_| {})
            .map_err(|error| self.failure(error))?;
        let said = outcome.stdout.text() + &outcome.stderr.text();
        let found = need.pattern.captures(&said).and_then(|found| found.get(1)).map(|found| found.as_str());
        let install = self.install.as_ref().map(|install| format!("Install a newer one: {install}."));
        match found {
            Some(found) if is_at_least(found, &need.minimum) => {
                // Somebody else may have found the same meanwhile.
                let _ = need.is_met.set(());
                Ok(())
            }
            Some(found) => Err(ToolError::precondition(format!(
                "`{}` has version {found}, expected at least {}",
                self.name, need.minimum
            ))
            .suggest_maybe(install)),
            None => Err(ToolError::precondition(format!(
                "`{}` did not tell its version, expected at least {}",
                self.name, need.minimum
            ))
            .suggest_maybe(install)),
        }
    }
}

/// Compares versions by their numbers; what is no number ends them.
fn is_at_least(found: &str, minimum: &str) -> bool {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(['.', '-', '_']).map_while(|part| part.parse().ok()).collect()
    };
    numbers(found) >= numbers(minimum)
}

#[cfg(test)]
mod tests {
    use super::*;
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

    /// What a host that has every level cannot show by a run.
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
