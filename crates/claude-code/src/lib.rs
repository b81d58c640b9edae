//! The real Claude Code as an agent, with tools of a toolbox, in a sandbox, a container or a plain process.
//!
//! A [`ClaudeCode`] is a description; [`ClaudeCode::run`] starts
//! the program for one prompt, [`ClaudeCode::start`] gives a [`ClaudeCodeSession`] that stays warm for many. Connected toolboxes stay
//! in this process and are served to the program with a token that nobody else has, so that state, workers, approvals and
//! records are what they are everywhere.
//!
//! ```no_run
//! use std::sync::Arc;
//! use toolpost_claude_code::{ClaudeCode, Credential, Executor};
//! use toolpost_core::Secret;
//! use toolpost_toolbox::Toolbox;
//!
//! # async fn example(toolbox: Toolbox, token: String) -> Result<(), Box<dyn std::error::Error>> {
//! let claude = ClaudeCode::builder()
//!     .executor(Executor::sandbox("/opt/claude-code/claude"))
//!     .credential(Credential::OauthToken(Secret::new(token)))
//!     .model("sonnet")
//!     .connect("calc", Arc::new(toolbox))
//!     .build()?;
//! let mut session = claude.start().await?;
//! let first = session.turn("Count the orders of May.").await;
//! let second = session.turn("And of June?").await;
//! println!("{} {}", first.text(), second.text());
//! session.end().await;
//! # Ok(()) }
//! ```
//!
//! # Invariants
//!
//! - Nothing is started without a credential, with a wrong setting, or while a tool server is not well.
//! - The credential and the tokens of tool servers go to the program through its standard input alone, into descriptors
//!   that its children cannot read any more: they are in no argument, variable, file, record, event or log.
//! - The program's own tools are off, and permissions are never bypassed, unless the application says so.
//! - A container has no network and nothing of this host: what it may reach goes over the stream that it has anyway.
//! - Settings, instructions, tool servers and conversations of the user's own Claude Code are not read and not changed.
//! - What the program reports as success and is none is an error: a tool server that failed, a use of a tool that was
//!   denied, a login that is refused.
//! - Every line has a bound, and every wait a limit or a cancellation. The program dies with the session, and everything
//!   that it started dies with it.
//! - Deliberately absent: a loop of its own. The program runs the model; this crate starts it, serves it tools and folds
//!   its events.

#![forbid(unsafe_code)]

mod connection;
mod error;
mod event;
mod executor;
mod fold;
mod hooks;
mod process;
mod session;
mod settings;

use std::sync::Arc;

use toolpost_core::ToolSource;

pub use self::connection::Connection;
pub use self::error::{ClaudeCodeError, ClaudeCodeErrorKind, ErrorClass};
pub use self::executor::Executor;
pub use self::fold::{ClaudeCodeOutput, Subagent};
pub use self::hooks::{HookDecision, Hooks, ToolUse};
pub use self::session::{ClaudeCodeSession, ClaudeCodeTurn};
pub use self::settings::{ClaudeCodeBuilder, Credential, PermissionMode};

use self::settings::Settings;

/// A Claude Code that can be started, again and again and many times at once.
#[derive(Clone, Debug)]
pub struct ClaudeCode(Settings);

impl ClaudeCode {
    /// Starts a description. [`ClaudeCodeBuilder::build`] checks it.
    pub fn builder() -> ClaudeCodeBuilder {
        ClaudeCodeBuilder::new()
    }

    /// Connects the tools of a source under a name, for what is started from now on.
    ///
    /// # Errors
    /// The name cannot be used, or is taken.
    pub fn connect(
        &mut self,
        name: impl Into<String>,
        source: Arc<dyn ToolSource>,
    ) -> Result<&mut Self, ClaudeCodeError> {
        self.connect_to(name, Connection::source(source))
    }

    /// Connects anything that has tools under a name, for what is started from now on.
    ///
    /// # Errors
    /// The name cannot be used, or is taken.
    pub fn connect_to(
        &mut self,
        name: impl Into<String>,
        connection: Connection,
    ) -> Result<&mut Self, ClaudeCodeError> {
        let name = name.into();
        connection::check_server_name(&name)?;
        if self.0.connections.iter().any(|(other, _)| *other == name) {
            return Err(settings::taken(&name));
        }
        self.0.connections.push((name, connection));
        Ok(self)
    }

    /// The same with another model, for one run.
    ///
    /// # Errors
    /// The name cannot be one of a model.
    pub fn with_model(&self, model: impl Into<String>) -> Result<Self, ClaudeCodeError> {
        let model = model.into();
        settings::check_model(&model)?;
        let mut changed = self.clone();
        changed.0.model = Some(model);
        Ok(changed)
    }

    /// The same, more or less verbose, for one run: see [`ClaudeCodeBuilder::verbose`].
    #[must_use]
    pub fn with_verbose(&self, verbose: bool) -> Self {
        let mut changed = self.clone();
        changed.0.verbose = verbose;
        changed
    }

    /// Starts the program, connects it to every tool server, and waits until it is ready for the first turn. Nothing is
    /// asked of the provider yet.
    pub async fn start(&self) -> Result<ClaudeCodeSession, ClaudeCodeError> {
        ClaudeCodeSession::start(&self.0).await
    }

    /// Starts the program, lets it answer one prompt, and ends it.
    pub async fn run(&self, prompt: impl Into<String>) -> ClaudeCodeOutput {
        self.run_turn(ClaudeCodeTurn::new(prompt)).await
    }

    /// The same with more to say about the turn than the prompt.
    pub async fn run_turn(&self, turn: ClaudeCodeTurn) -> ClaudeCodeOutput {
        match tokio::select! {
            biased;
            () = turn.cancellation().cancelled() => Err(session::cancelled()),
            started = self.start() => started,
        } {
            Ok(mut session) => {
                let outcome = session.run(turn).await;
                session.end().await;
                outcome
            }
            Err(error) => ClaudeCodeOutput::not_started(&turn, &self.0, error),
        }
    }
}
