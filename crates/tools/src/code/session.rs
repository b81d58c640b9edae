//! Sessions: interpreters that stay from one call to the next of a run or a conversation.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost::{Artifact, ArtifactData, Ctx, ToolError, data};
use toolpost_sandbox::{CellLimits, Language, Sandbox, Session, SessionLimits, Source, Workspace};

use super::{CodeSettings, failure};
use crate::files::{self, Folder};

/// The most files of the working folder that a session begins with, and their bytes together.
const MOST_FILES: usize = 1_000;
const MOST_BYTES: u64 = 64 << 20;
/// The longest name of a session.
const LONGEST_NAME: usize = 64;

/// Which interpreter runs the code: one that stays, with its variables and files.
#[data]
#[derive(Clone, Debug, PartialEq)]
pub struct CodeSession {
    /// A name of your choice, such as "analysis". The first call with it begins the session; later ones go on with it.
    pub id: String,
    /// Begin it as a copy of this other session, with its variables and files as they are now.
    pub fork_of: Option<String>,
}

/// The sessions of one scope. They end with it.
#[derive(Default)]
struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An interpreter for a call, and what to remark on it.
pub(super) struct Held {
    sessions: Arc<Sessions>,
    id: String,
    pub(super) session: Arc<Session>,
    pub(super) notes: Vec<String>,
}

impl Held {
    /// The session that a call asks for, begun or forked if it is not there.
    pub(super) fn find(
        asked: &CodeSession,
        language: Language,
        settings: &CodeSettings,
        timeout: Option<f64>,
        ctx: &Ctx,
    ) -> Result<Self, ToolError> {
        check_name(&asked.id, "/session/id")?;
        let scope = ctx.scope().ok_or_else(|| {
            ToolError::precondition(
                "the call belongs to no run or conversation, and a session needs one to live in",
            )
            .suggest("Give the call a scope, or leave `session` out.")
        })?;
        let sessions = scope.own(Sessions::default);
        let mut notes = Vec::new();
        let known = sessions.lock().get(&asked.id).cloned();
        let session = match (known, &asked.fork_of) {
            (Some(_), Some(_)) => {
                return Err(ToolError::new(
                    toolpost::Code::Conflict,
                    format!("there is a session `{}` already", asked.id),
                )
                .with("pointer", "/session/id")
                .suggest("Fork into another name, or go on with this one without `fork_of`."));
            }
            (Some(session), None) => session,
            (None, parent) => {
                let made = match parent {
                    Some(parent) => fork(&sessions, parent, settings)?,
                    None => begin(&sessions, language, settings, timeout, ctx, &mut notes)?,
                };
                let made = Arc::new(made);
                sessions.lock().insert(asked.id.clone(), Arc::clone(&made));
                made
            }
        };
        if session.language() != language {
            return Err(ToolError::precondition(format!(
                "the session `{}` runs {}, and the code is {language}",
                asked.id,
                session.language()
            ))
            .with("pointer", "/language")
            .suggest("Name another session for it."));
        }
        check_level(&session, &asked.id, settings, ctx)?;
        Ok(Self { sessions, id: asked.id.clone(), session, notes })
    }

    /// The limits of one cell.
    pub(super) fn limits(
        settings: &CodeSettings,
        timeout: Option<f64>,
        ctx: &Ctx,
    ) -> Result<CellLimits, ToolError> {
        Ok(CellLimits::from(&settings.call_limits(ctx, timeout)?))
    }

    /// Puts the files that a cell has made into the working folder of its call, as code without a session leaves them
    /// there. What is to be remarked on it.
    pub(super) fn hand_back(artifacts: &[Artifact], ctx: &Ctx) -> Result<Vec<String>, ToolError> {
        let Some(folder) = Folder::find(ctx)? else { return Ok(Vec::new()) };
        let mut notes = Vec::new();
        for artifact in artifacts {
            let ArtifactData::Bytes(bytes) = &artifact.data else { continue };
            if let Err(error) = files::put(&folder, &artifact.name, bytes) {
                notes.push(format!(
                    "`{}` was not put into the working folder: {}.",
                    artifact.name,
                    error.message()
                ));
            }
        }
        Ok(notes)
    }

    /// Forgets a session that has ended, so that the next call begins a new one. Whether it has.
    pub(super) fn forget_if_ended(&self) -> bool {
        let has_ended = self.session.ended().is_some();
        if has_ended {
            self.sessions.lock().remove(&self.id);
        }
        has_ended
    }
}

fn check_name(id: &str, pointer: &str) -> Result<(), ToolError> {
    if !id.is_empty() && id.len() <= LONGEST_NAME && !id.chars().any(char::is_control) {
        return Ok(());
    }
    Err(ToolError::invalid_input(format!(
        "the name of a session: expected 1 to {LONGEST_NAME} bytes without control characters"
    ))
    .with("pointer", pointer))
}

/// A call may be stricter than the session only by naming another one.
fn check_level(session: &Session, id: &str, settings: &CodeSettings, ctx: &Ctx) -> Result<(), ToolError> {
    let Some(asked) = settings.asked_level(ctx)? else { return Ok(()) };
    let given = match session.report() {
        Ok(report) => report.effective,
        // A busy or ended one says so when it is to run.
        Err(_) => return Ok(()),
    };
    if given >= asked {
        return Ok(());
    }
    Err(ToolError::permission(format!(
        "the session `{id}` runs at level {given}, and the call asks for {asked}"
    ))
    .with("pointer", "/session/id")
    .suggest("Name another session: it begins at the level that the call asks for."))
}

fn check_room(sessions: &Sessions, settings: &CodeSettings) -> Result<(), ToolError> {
    let (there, most) = (sessions.lock().len(), settings.sessions);
    if there < most {
        return Ok(());
    }
    Err(ToolError::limit(format!("this run may have {most} sessions, and has {there}"))
        .suggest("Go on with one of them; the operator can raise `CodeSettings::sessions`."))
}

fn fork(sessions: &Sessions, parent: &str, settings: &CodeSettings) -> Result<Session, ToolError> {
    let found = sessions.lock().get(parent).cloned();
    let Some(found) = found else {
        let names: Vec<String> = sessions.lock().keys().cloned().collect();
        let hint = toolpost::did_you_mean(parent, names.iter().map(String::as_str));
        return Err(ToolError::not_found("there is no such session in this run")
            .with("pointer", "/session/fork_of")
            .suggest_maybe(hint.or_else(|| Some("Begin it by running code in it.".to_owned()))));
    };
    check_room(sessions, settings)?;
    let mut forks = found.fork(1).map_err(failure::of_sandbox)?;
    forks.pop().ok_or_else(|| ToolError::internal("the sandbox gave no fork"))
}

/// A new session, with the files of the working folder.
fn begin(
    sessions: &Sessions,
    language: Language,
    settings: &CodeSettings,
    timeout: Option<f64>,
    ctx: &Ctx,
    notes: &mut Vec<String>,
) -> Result<Session, ToolError> {
    check_room(sessions, settings)?;
    // A folder of its own: a fork has its own, too, and what one session does to a file the others do not see.
    let mut sandbox = settings.sandbox(ctx, timeout)?.workspace(Workspace::Fresh);
    if let Some(folder) = Folder::find(ctx)? {
        let copied = files::contents(&folder, MOST_FILES, MOST_BYTES, &|| ctx.is_cancelled())?;
        let mut left_out = copied.left_out;
        let mut names = HashSet::new();
        for (name, bytes) in copied.files {
            // A name that the sandbox refuses shall not keep the session from beginning.
            let alone = Sandbox::new().file(name.clone(), Source::Bytes(Vec::new())).check_settings();
            if alone.is_err() || !names.insert(name.to_lowercase()) {
                left_out += 1;
                continue;
            }
            sandbox = sandbox.file(name, Source::Bytes(bytes));
        }
        if left_out > 0 {
            notes.push(format!(
                "{left_out} files of the working folder are not in the session: it begins with at most {MOST_FILES} \
                 files of {} MiB together, with names that the sandbox takes",
                MOST_BYTES >> 20
            ));
        }
    }
    let limits = SessionLimits::default();
    Session::start_with(&sandbox, language, &limits).map_err(failure::of_sandbox)
}
