//! The real Claude Code as an agent, with tools of a toolbox, in a sandbox, a container or a plain process.
//!
//! [`ClaudeCode::run`] starts the program for one prompt, [`ClaudeCode::start`] starts a [`ClaudeCodeSession`] for many.
//! Connected toolboxes stay in this process, with their state, workers, approvals and records; the program calls their
//! tools over loopback with a private token.
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
//! - Nothing starts without a credential, with an invalid setting, or without every tool server.
//! - The program gets the credential and the tokens of tool servers through standard input and private descriptors: they
//!   are in no argument, variable, file, record, event or log.
//! - Own tools of the program are off, and permissions are enforced, unless the application opts out.
//! - A container has no network and no files of this host: its standard streams carry the allowed connections.
//! - The settings, instructions, tool servers and conversations of the user's Claude Code are neither read nor changed.
//! - A failure that the program reports as success is an error: a failed tool server, a denied tool, a rejected login.
//! - Every line has a maximum size, and every wait a limit or a cancellation. The program and its children die with the
//!   session.
//! - Deliberately absent: a loop, which is that of the program, and other MCP servers, which a toolbox connects.

#![forbid(unsafe_code)]

mod error;
mod event;
mod executor;
mod output;
mod process;
mod session;
mod settings;
mod tool_server;

use std::sync::Arc;

use toolpost_core::ToolSource;

pub use self::error::{ClaudeCodeError, ClaudeCodeErrorKind, ErrorClass};
pub use self::executor::Executor;
pub use self::output::ClaudeCodeOutput;
pub use self::session::{ClaudeCodeSession, ClaudeCodeTurn};
pub use self::settings::{ClaudeCodeBuilder, Credential, PermissionMode};

use self::settings::Settings;

/// Claude Code as an agent. Cheap to clone; it can run many times at once.
#[derive(Clone, Debug)]
pub struct ClaudeCode(Settings);

impl ClaudeCode {
    /// Starts a builder.
    pub fn builder() -> ClaudeCodeBuilder {
        ClaudeCodeBuilder::new()
    }

    /// Connects a source for later runs; see [`ClaudeCodeBuilder::connect`].
    ///
    /// # Errors
    /// The name is invalid or taken.
    pub fn connect(
        &mut self,
        name: impl Into<String>,
        source: Arc<dyn ToolSource>,
    ) -> Result<&mut Self, ClaudeCodeError> {
        let name = name.into();
        settings::check_source_name(&name, &self.0.sources)?;
        self.0.sources.push((name, source));
        Ok(self)
    }

    /// This agent with another model.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn with_model(&self, model: impl Into<String>) -> Result<Self, ClaudeCodeError> {
        let model = model.into();
        settings::check_model(&model)?;
        Ok(Self(Settings { model: Some(model), ..self.0.clone() }))
    }

    /// This agent with other verbosity; see [`ClaudeCodeBuilder::verbose`].
    #[must_use]
    pub fn with_verbose(&self, verbose: bool) -> Self {
        Self(Settings { verbose, ..self.0.clone() })
    }

    /// Starts the program and connects it to every tool server. Sends nothing to the provider.
    ///
    /// # Errors
    /// The credential, the program or a tool server is missing or invalid.
    pub async fn start(&self) -> Result<ClaudeCodeSession, ClaudeCodeError> {
        ClaudeCodeSession::start(&self.0).await
    }

    /// Runs one prompt in a new process.
    pub async fn run(&self, prompt: impl Into<String>) -> ClaudeCodeOutput {
        self.run_turn(ClaudeCodeTurn::new(prompt)).await
    }

    /// Runs one turn in a new process.
    pub async fn run_turn(&self, turn: ClaudeCodeTurn) -> ClaudeCodeOutput {
        match tokio::select! {
            biased;
            () = turn.cancellation.cancelled() => Err(session::cancelled()),
            started = self.start() => started,
        } {
            Ok(mut session) => {
                let output = session.run(turn).await;
                session.end().await;
                output
            }
            Err(error) => ClaudeCodeOutput::not_started(&turn, &self.0, error),
        }
    }
}
