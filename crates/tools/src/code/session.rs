//! Code sessions: interpreters that persist between the calls of a run or a conversation.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost::{Artifact, ArtifactData, Ctx, ToolError, data};
use toolpost_sandbox::{CellLimits, Language, Sandbox, Session, SessionLimits, Source, Workspace};

use super::{CodeSettings, failure};
use crate::files::{self, Directory};

/// Maximum number and total size of the files copied into a new session.
const MAX_FILES: usize = 1_000;
const MAX_BYTES: u64 = 64 << 20;
/// Maximum length of a session name, in bytes.
const MAX_NAME: usize = 64;

/// A persistent interpreter with its variables and files.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeSession {
    /// A name of your choice, such as "analysis". The first call starts the session; later calls resume it.
    pub id: String,
    /// Start it as a copy of this other session, with its current variables and files.
    pub fork_of: Option<String>,
}

/// The sessions of a scope, which end with it.
#[derive(Default)]
struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session for a call, with notes for the caller.
pub(super) struct SessionHandle {
    sessions: Arc<Sessions>,
    id: String,
    pub(super) session: Arc<Session>,
    pub(super) notes: Vec<String>,
}

impl SessionHandle {
    /// Finds, starts or forks the requested session.
    pub(super) fn find(
        request: &CodeSession,
        language: Language,
        settings: &CodeSettings,
        timeout: Option<f64>,
        ctx: &Ctx,
    ) -> Result<Self, ToolError> {
        check_name(&request.id, "/session/id")?;
        let scope = ctx.scope().ok_or_else(|| {
            ToolError::precondition("a session needs a run or a conversation, but the call has none")
                .suggest("Give the call a scope, or omit `session`.")
        })?;
        let sessions = scope.own(Sessions::default);
        let mut notes = Vec::new();
        let known = sessions.lock().get(&request.id).cloned();
        let session = match (known, &request.fork_of) {
            (Some(_), Some(_)) => {
                return Err(ToolError::new(
                    toolpost::Code::Conflict,
                    format!("the session `{}` already exists", request.id),
                )
                .with("pointer", "/session/id")
                .suggest("Choose another name, or resume the session without `fork_of`."));
            }
            (Some(session), None) => session,
            (None, parent) => {
                let session = match parent {
                    Some(parent) => fork(&sessions, parent, settings)?,
                    None => start(&sessions, language, settings, timeout, ctx, &mut notes)?,
                };
                let session = Arc::new(session);
                sessions.lock().insert(request.id.clone(), Arc::clone(&session));
                session
            }
        };
        if session.language() != language {
            return Err(ToolError::precondition(format!(
                "the session `{}` runs {}, but the code is {language}",
                request.id,
                session.language()
            ))
            .with("pointer", "/language")
            .suggest("Use another session for it."));
        }
        check_level(&session, &request.id, settings, ctx)?;
        Ok(Self { sessions, id: request.id.clone(), session, notes })
    }

    /// The limits of one call.
    pub(super) fn limits(
        settings: &CodeSettings,
        timeout: Option<f64>,
        ctx: &Ctx,
    ) -> Result<CellLimits, ToolError> {
        Ok(CellLimits::from(&settings.call_limits(ctx, timeout)?))
    }

    /// Writes the files of a call into its working directory, like code without a session. Returns notes.
    pub(super) fn write_back(artifacts: &[Artifact], ctx: &Ctx) -> Result<Vec<String>, ToolError> {
        let Some(directory) = Directory::find(ctx)? else { return Ok(Vec::new()) };
        let mut notes = Vec::new();
        for artifact in artifacts {
            let ArtifactData::Bytes(bytes) = &artifact.data else { continue };
            if let Err(error) = files::put(&directory, &artifact.name, bytes) {
                notes.push(format!(
                    "`{}` was not written to the working directory: {}.",
                    artifact.name,
                    error.message()
                ));
            }
        }
        Ok(notes)
    }

    /// Removes an ended session, so that the next call starts a new one. Returns whether it ended.
    pub(super) fn remove_if_ended(&self) -> bool {
        let has_ended = self.session.ended().is_some();
        if has_ended {
            self.sessions.lock().remove(&self.id);
        }
        has_ended
    }
}

fn check_name(id: &str, pointer: &str) -> Result<(), ToolError> {
    if !id.is_empty() && id.len() <= MAX_NAME && !id.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ToolError::invalid_input(format!(
        "a session name has 1 to {MAX_NAME} bytes and no control characters"
    ))
    .with("pointer", pointer))
}

/// Rejects a call that requests a stricter level than its session has.
fn check_level(session: &Session, id: &str, settings: &CodeSettings, ctx: &Ctx) -> Result<(), ToolError> {
    let Some(requested) = settings.requested_level(ctx)? else { return Ok(()) };
    let given = match session.report() {
        Ok(report) => report.effective,
        // A busy or ended session fails later, with a better message.
        Err(_) => return Ok(()),
    };
    if given >= requested {
        return Ok(());
    }
    Err(ToolError::permission(format!(
        "the session `{id}` runs at level {given}, but the call requests {requested}"
    ))
    .with("pointer", "/session/id")
    .suggest("Use another session, which starts at the requested level."))
}

fn check_limit(sessions: &Sessions, settings: &CodeSettings) -> Result<(), ToolError> {
    let max = settings.sessions;
    if sessions.lock().len() < max {
        return Ok(());
    }
    Err(ToolError::limit(format!("this run reached its limit of {max} sessions"))
        .suggest("Resume one of them."))
}

fn fork(sessions: &Sessions, parent: &str, settings: &CodeSettings) -> Result<Session, ToolError> {
    let found = sessions.lock().get(parent).cloned();
    let Some(found) = found else {
        let names: Vec<String> = sessions.lock().keys().cloned().collect();
        let hint = toolpost::did_you_mean(parent, names.iter().map(String::as_str));
        return Err(ToolError::not_found("this run has no such session")
            .with("pointer", "/session/fork_of")
            .suggest_maybe(hint.or_else(|| Some("Start it by running code in it.".to_owned()))));
    };
    check_limit(sessions, settings)?;
    let mut forks = found.fork(1).map_err(failure::of_sandbox)?;
    forks.pop().ok_or_else(|| ToolError::internal("the sandbox returned no fork"))
}

/// Starts a session with a copy of the working directory's files.
fn start(
    sessions: &Sessions,
    language: Language,
    settings: &CodeSettings,
    timeout: Option<f64>,
    ctx: &Ctx,
    notes: &mut Vec<String>,
) -> Result<Session, ToolError> {
    check_limit(sessions, settings)?;
    // Sessions and their forks have directories of their own, so that they do not affect each other.
    let mut sandbox = settings.sandbox(ctx, timeout)?.workspace(Workspace::Fresh);
    if let Some(directory) = Directory::find(ctx)? {
        let copied = files::contents(&directory, MAX_FILES, MAX_BYTES, &|| ctx.is_cancelled())?;
        let mut omitted = copied.omitted;
        let mut names = HashSet::new();
        for (name, bytes) in copied.files {
            // A name that the sandbox rejects must not prevent the start.
            let alone = Sandbox::new().file(name.clone(), Source::Bytes(Vec::new())).check_settings();
            if alone.is_err() || !names.insert(name.to_lowercase()) {
                omitted += 1;
                continue;
            }
            sandbox = sandbox.file(name, Source::Bytes(bytes));
        }
        if omitted > 0 {
            notes.push(format!(
                "{omitted} files of the working directory are not in the session: it starts with at most {MAX_FILES} \
                 files and {} MiB, and without invalid names",
                MAX_BYTES >> 20
            ));
        }
    }
    let limits = SessionLimits::default();
    Session::start_with(&sandbox, language, &limits).map_err(failure::of_sandbox)
}
