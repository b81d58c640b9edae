//! Functions that fuzz targets call without starting a program.

use std::ffi::OsString;
use std::path::PathBuf;

use super::admission::{Admission, Workspaces};
use super::interpreter::Reach;
use super::toolchain;
use crate::{Need, Origin, Program, Sandbox};

/// The paths that a run of a program would show besides the system directories, and those that it would hide.
/// None if the program does not start.
pub fn shown(
    sandbox: &Sandbox,
    words: &[OsString],
    is_operator: bool,
) -> Option<(Vec<PathBuf>, Vec<PathBuf>)> {
    let program = if is_operator { Program::operator_argv(words) } else { Program::argv(words) };
    let workspaces = Workspaces::from_sandbox(sandbox);
    let reach =
        Reach { with_package: true, as_other_user: false, is_confined: true, workspaces: workspaces.clone() };
    let ready = toolchain::ready(sandbox, &program, &reach).ok()?;
    let mut admission = Admission::new(sandbox, workspaces);
    let (derived, named): (Vec<&Need>, Vec<&Need>) =
        ready.needs.iter().chain(&sandbox.needs).partition(|need| need.origin == Origin::Derived);
    let mut shown = Vec::new();
    for need in named.into_iter().chain(derived) {
        shown.extend(admission.judge(need).ok()?.into_iter().map(|entry| entry.path));
    }
    Some((shown, admission.into_hidden()))
}
