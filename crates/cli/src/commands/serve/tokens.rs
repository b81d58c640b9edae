//! Bearer tokens of HTTP clients: the operator's, or a generated and stored one.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use toolpost_core::{Secret, ToolError, random_hex};

use crate::args::ServeArgs;
use crate::config::paths;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// The variable with the token.
const VARIABLE: &str = "TOOLPOST_SERVE_TOKEN";
/// The size of a generated token: 256 bits.
const TOKEN_BYTES: usize = 32;

/// A token, and the name of its client if it has one.
pub(super) struct Token {
    pub(super) client: Option<String>,
    pub(super) secret: Secret,
}

impl Token {
    fn unnamed(secret: Secret) -> Self {
        Self { client: None, secret }
    }
}

/// The tokens that a server accepts.
#[derive(Default)]
pub(super) struct Tokens {
    pub(super) accepted: Vec<Token>,
    /// The file of the generated token, if the server accepts it.
    pub(super) stored: Option<PathBuf>,
    /// Whether this start generated the token.
    pub(super) is_new: bool,
}

impl Tokens {
    /// Reads the tokens of `--token-file` or the environment.
    pub(super) fn read(args: &ServeArgs) -> Result<Self, Failure> {
        let accepted = match (&args.token_file, env::get(VARIABLE)) {
            _ if args.address().is_none() || args.no_token => Vec::new(),
            (Some(path), _) => listed(path)?,
            (None, Some(token)) => vec![Token::unnamed(Secret::new(token))],
            (None, None) => Vec::new(),
        };
        Ok(Self { accepted, ..Self::default() })
    }

    /// Whether the tokens are of several clients.
    pub(super) fn have_several_clients(&self) -> bool {
        let mut clients = self.accepted.iter().map(|token| &token.client);
        let first = clients.next();
        clients.any(|client| client.is_none() || Some(client) != first)
    }

    /// Without tokens, without OAuth and without `--no-token`, a server with an address accepts the stored token,
    /// which is generated if needed.
    pub(super) fn or_stored(self, args: &ServeArgs) -> Result<Self, Failure> {
        let is_complete = !self.accepted.is_empty() || args.no_token || args.oauth.oauth_issuer.is_some();
        let Some(address) = args.address().filter(|_| !is_complete) else { return Ok(self) };
        if !address.ip().is_loopback() && !args.beyond_loopback {
            // Rejected here, so that no token is generated for an address that the server rejects.
            let error = ToolError::permission(format!("`{address}` is reachable from other hosts"));
            return Err(Failure::from(error).hint("Pass `--beyond-loopback`."));
        }
        let path = paths::serve_token(&args.name, address).ok_or_else(|| {
            Failure::usage("there is no home directory for a token")
                .hint("Set HOME, or pass `--token-file FILE` or `--no-token`.")
        })?;
        let failed = |error: io::Error| Failure::file("the token file", &path, &error);
        let known = load(&path)?;
        let is_new = known.is_none();
        let token = match known {
            Some(token) => token,
            None => match generate(&path).map_err(failed)? {
                Some(token) => token,
                // A concurrent server of this name and address was faster.
                None => load(&path)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?,
            },
        };
        Ok(Self { accepted: vec![Token::unnamed(token)], stored: Some(path), is_new })
    }

    /// Prints how clients authenticate. A generated token is printed once.
    pub(super) fn notice(&self) -> Option<String> {
        let path = crate::style::label(&self.stored.as_ref()?.display().to_string());
        let token = self.accepted.first().filter(|_| self.is_new);
        Some(match token {
            Some(token) => format!(
                "clients must send this header; its token is stored in `{path}`:\n  Authorization: Bearer {}",
                token.secret.expose()
            ),
            None => format!("clients must send `Authorization: Bearer TOKEN` with the token of `{path}`"),
        })
    }
}

/// The tokens of a file, one a line.
fn listed(path: &Path) -> Result<Vec<Token>, Failure> {
    let text = super::read("the file with tokens", path)?;
    let mut tokens = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        tokens.push(match words.as_slice() {
            [] => continue,
            [token] => Token::unnamed(Secret::new(token)),
            [client, token] => Token { client: Some((*client).to_owned()), secret: Secret::new(token) },
            // A line may have a secret, so it is not repeated.
            _ => {
                let (path, line) = (path.display(), place + 1);
                return Err(Failure::usage(format!(
                    "line {line} of the file `{path}` has more than two words"
                ))
                .hint("Write a token, or the name of a client and its token."));
            }
        });
    }
    if tokens.is_empty() {
        return Err(Failure::usage(format!("the file `{}` has no token", path.display()))
            .hint("Write one per line, such as the output of `openssl rand -hex 32`."));
    }
    Ok(tokens)
}

/// The stored token of an earlier start.
///
/// # Errors
/// The file belongs to another user, has another mode, or holds no generated token.
fn load(path: &Path) -> Result<Option<Secret>, Failure> {
    let wrong = |why: &str| {
        Failure::new(Exit::Denied, "PERMISSION", format!("the token file `{}` {why}", path.display()))
            .hint("Delete it: the next start generates another token.")
    };
    let failed = |error: &io::Error| Failure::file("the token file", path, error);
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    if !is_private(&file).map_err(|error| failed(&error))? {
        return Err(wrong("is not a file of mode 0600 that you own"));
    }
    let mut text = String::new();
    file.take(1 << 10).read_to_string(&mut text).map_err(|error| failed(&error))?;
    let token = text.trim_end();
    if token.len() != 2 * TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(wrong("holds no generated token"));
    }
    Ok(Some(Secret::new(token)))
}

/// Generates and stores a token atomically; `None` if the file exists.
fn generate(path: &Path) -> io::Result<Option<Secret>> {
    let token = random_hex(TOKEN_BYTES).map_err(|error| io::Error::other(error.to_string()))?;
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(directory)?;
    // A temporary file is readable for its owner alone.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    writeln!(file, "{token}")?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(Some(Secret::new(token))),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error.error),
    }
}

/// Opens a file without following a link or waiting for a pipe.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags.bits() as i32);
    }
    options.read(true).open(path)
}

/// Whether a file is a regular one of this user with mode 0600.
#[cfg(unix)]
fn is_private(file: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = file.metadata()?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    Ok(metadata.is_file() && is_ours && metadata.mode() & 0o777 == 0o600)
}

#[cfg(not(unix))]
fn is_private(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.is_file())
}
