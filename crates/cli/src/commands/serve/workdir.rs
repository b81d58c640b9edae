//! The working directory of a server: one for all clients, or one for each.

use std::path::{Path, PathBuf};

use toolpost_tools::FileRoot;

use super::tokens::Tokens;
use crate::args::ServeArgs;
use crate::failure::Failure;

/// The parent of the clients' directories, in the working directory.
const CLIENTS: &str = "clients";

/// The working directory of a server.
pub(super) enum Workdir {
    /// All clients share it.
    Shared(PathBuf),
    /// The parent of the clients' directories.
    Divided(PathBuf),
}

impl Workdir {
    /// The working directory of `--workdir`. Several clients of tools that use it have a directory each.
    pub(super) fn new(args: &ServeArgs, uses_directory: bool, tokens: &Tokens) -> Result<Self, Failure> {
        let directory = args
            .workdir
            .canonicalize()
            .map_err(|error| Failure::file("the directory", &args.workdir, &error))?;
        let is_several = tokens.have_several_clients() || args.oauth.oauth_issuer.is_some();
        if !is_several || !uses_directory || args.shared_workdir {
            return Ok(Self::Shared(directory));
        }
        Ok(Self::Divided(directory.join(CLIENTS)))
    }

    /// The root of the tools.
    pub(super) fn root(&self) -> FileRoot {
        match self {
            Self::Shared(directory) => FileRoot::new(directory),
            Self::Divided(parent) => FileRoot::new(parent).divided(),
        }
    }

    /// The parent of the clients' directories, if each client has one.
    pub(super) fn clients(&self) -> Option<&Path> {
        match self {
            Self::Shared(_) => None,
            Self::Divided(parent) => Some(parent),
        }
    }
}
