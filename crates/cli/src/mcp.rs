//! MCP servers as targets: URLs, commands, images, and names of configuration files.

pub(crate) mod entries;
pub(crate) mod files;
pub(crate) mod start;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{Code, Secret, StartCheck, ToolError, format_duration};
use toolpost_mcp::client::{Client, Endpoint, OAuth, TokenStore};
use toolpost_runtimes::{Installed, Launcher};
use toolpost_sandbox::{Cancel, Granted, Grants, Level, Sandbox};

use crate::args::ServerArgs;
use crate::config::{Config, paths};
use crate::crash;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::granted;
use crate::launcher;
use crate::packages::Sources;
use crate::target_grammar::{CONTAINER, words};

/// The timeout of the installation of a server's packages.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_mins(5);
/// Extra time for the first list, so that an error of the handshake comes before the timeout of the whole start.
const LIST_MARGIN: Duration = Duration::from_secs(1);
/// The maximum size of a token file, in bytes.
const MAX_TOKEN: u64 = 64 << 10;

/// An MCP server of a target.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
    /// The image of the program; the endpoint's command has its arguments.
    pub(crate) image: Option<String>,
    /// The check directly before each start of the program.
    pub(crate) check: Option<StartCheck>,
    /// The grants of the program.
    pub(crate) grants: Grants,
    /// Resolved variables of the configuration file, which has them as `${NAME}`.
    pub(crate) raw: Vec<(String, String)>,
}

impl Server {
    fn new(name: impl Into<String>, endpoint: Endpoint) -> Self {
        Self {
            name: name.into(),
            endpoint,
            image: None,
            check: None,
            grants: Grants::default(),
            raw: Vec::new(),
        }
    }
}

/// The server of a URL or command, which the operator wrote and so trusts.
pub(crate) fn of_address(target: &str, token: Option<&Secret>, level: Level) -> Result<Server, Failure> {
    if let Some(command) = target.strip_prefix("stdio:") {
        let argv: Vec<OsString> = words(command)?.into_iter().map(OsString::from).collect();
        let Some(program) = argv.first() else {
            return Err(Failure::usage("the target `stdio:` names no command")
                .hint("Write for example `stdio:./server --flag`."));
        };
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        let endpoint = Endpoint::Program { argv, env: Vec::new(), dir: None, level };
        return Ok(Server::new(name, endpoint));
    }
    if let Some(command) = target.strip_prefix(CONTAINER) {
        let mut words = words(command)?.into_iter();
        let Some(image) = words.next() else {
            return Err(Failure::usage("the target `docker:` names no image")
                .hint("Write for example `docker:mcp/time --local-timezone UTC`."));
        };
        let last = image.rsplit('/').next().unwrap_or(&image);
        let name = last.split([':', '@']).next().unwrap_or(last).to_owned();
        let argv = words.map(OsString::from).collect();
        let endpoint = Endpoint::Program { argv, env: Vec::new(), dir: None, level };
        return Ok(Server { image: Some(image), ..Server::new(name, endpoint) });
    }
    let headers = match token {
        None => Vec::new(),
        Some(token) => {
            vec![("Authorization".to_owned(), Secret::new(format!("Bearer {}", token.expose())))]
        }
    };
    let host =
        target.split("://").nth(1).unwrap_or_default().split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    let is_clear = target.starts_with("http://") || target.starts_with("ws://");
    if token.is_some() && is_clear && !is_this_machine(host) {
        return Err(Failure::usage(format!("the token would reach `{host}` without encryption"))
            .hint("Use the server's `https://` or `wss://` address."));
    }
    let url = target.to_owned();
    let endpoint = if target.starts_with("ws") {
        Endpoint::WebSocket { url, headers }
    } else {
        Endpoint::Http { url, headers }
    };
    Ok(Server::new(host, endpoint))
}

fn is_this_machine(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The token of `--token-env` or `--token-file`.
pub(crate) fn token(args: &ServerArgs) -> Result<Option<Secret>, Failure> {
    let text = match (&args.token_env, &args.token_file) {
        (Some(name), _) => env::secret(name).ok_or_else(|| {
            Failure::new(
                Exit::Credentials,
                "CREDENTIALS",
                format!("the variable `{name}` of `--token-env` is not set"),
            )
        })?,
        (None, Some(path)) => {
            let wrong = |error: &io::Error| Failure::file("the file of `--token-file`", path, error);
            let mut text = String::new();
            let file = File::open(path).map_err(|error| wrong(&error))?;
            file.take(MAX_TOKEN).read_to_string(&mut text).map_err(|error| wrong(&error))?;
            text
        }
        (None, None) => return Ok(None),
    };
    let token = Secret::new(text);
    env::learn(token.clone());
    if token.expose().is_empty() {
        return Err(Failure::new(Exit::Credentials, "CREDENTIALS", "the token is empty"));
    }
    Ok(Some(token))
}

/// Connects to a server, or starts it. The timeout is for the start and the first list, without an installation.
pub(crate) async fn connect(
    server: Server,
    config: &Config,
    timeout: Option<Duration>,
) -> Result<Arc<Client>, Failure> {
    let Server { name, mut endpoint, image, check, grants, raw } = server;
    if image.is_some() {
        check_container(&grants)?;
    }
    let level = match &endpoint {
        Endpoint::Program { level, .. } if image.is_none() => Some(grants.level.unwrap_or(*level)),
        _ => None,
    };
    let granted = granted::resolve(&grants, &name, config)?;
    let mut granted = raw.into_iter().fold(granted, |granted, (name, value)| granted.with_raw(name, value));
    if let (None, Endpoint::Program { argv, dir, .. }) = (&image, &mut endpoint) {
        let here = || std::env::current_dir().unwrap_or_default();
        if let Some(dir) = dir.as_deref() {
            config.check_reach(&name, dir)?;
        }
        *argv = launcher::resolve(std::mem::take(argv), &dir.clone().unwrap_or_else(here))?;
        granted = started(argv, &name, granted, config).await?;
    }
    let mut backend = None;
    if let (Some(image), Endpoint::Program { argv, env, .. }) = (image, &mut endpoint) {
        let arguments: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        // The daemon's client blocks.
        let made = tokio::task::spawn_blocking(move || crate::container::server(&image, &arguments));
        let made = made.await.map_err(|error| Failure::from(ToolError::from(error)))??;
        *argv = made.argv.into_iter().map(OsString::from).collect();
        *env = made.variables.into_iter().map(|(name, value)| (name, value.into())).collect();
        backend = Some(made.backend);
    }
    let mut builder = Client::builder(endpoint).name(&name).no_network(config.settings.no_network);
    builder = builder.protect(config.protected(None)?).granted(granted);
    let (reported, timeout_name) = (name.clone(), name);
    builder = builder.on_start(move |event| start::report(&reported, event));
    if let Some(check) = check {
        builder = builder.start_check(check);
    }
    if let Some(backend) = backend {
        builder = builder.backend(backend);
    } else if let Some(path) = launcher::search_path() {
        builder = builder.search_path(path);
    }
    if let Some(home) = paths::home() {
        builder = builder.home(home);
    }
    // Without a home directory there is no login, and no server needs one.
    if let Ok(oauth) = oauth(config) {
        builder = builder.oauth(oauth);
    }
    let Some(limit) = timeout else {
        return builder.connect().await.map_err(|error| explained(error.into_inner(), level, &grants));
    };
    let connected = tokio::time::timeout(limit + LIST_MARGIN, builder.connect_timeout(limit).connect()).await;
    let connected = connected.unwrap_or_else(|_| {
        let limit = format_duration(limit);
        let message = format!("the server `{timeout_name}` did not list its tools within {limit}");
        Err(ToolError::timeout(message).into())
    });
    connected.map_err(|error| explained(error.into_inner(), level, &grants))
}

/// A container has no level, paths and working directory of this host.
fn check_container(grants: &Grants) -> Result<(), Failure> {
    let others = grants.level.is_some() || grants.workdir.is_some() || grants.install_scripts;
    if others || !grants.readable.is_empty() || !grants.writable.is_empty() {
        return Err(Failure::usage("a container takes only variables and hosts as grants")
            .hint("Remove the level, paths, working directory and install scripts."));
    }
    Ok(())
}

/// The command to start: installs a launcher's packages first, and resolves the program's path.
async fn started(
    argv: &mut Vec<OsString>,
    server: &str,
    granted: Granted,
    config: &Config,
) -> Result<Granted, Failure> {
    let grants = granted.grants();
    if let Some(launcher) = Launcher::parse(argv)? {
        let installed = install(&launcher, server, grants.install_scripts, config).await?;
        *argv = launcher.command(&installed)?;
        return Ok(granted.with_modules(installed));
    }
    if let (Some(program), Some(directory)) = (argv.first_mut(), &grants.workdir) {
        let path = Path::new(&*program);
        let is_relative = path.is_relative() && path.components().count() > 1;
        let own = directory.join(path.strip_prefix(".").unwrap_or(path));
        if is_relative && own.exists() {
            *program = own.into_os_string();
        }
    }
    Ok(granted)
}

/// Installs the packages of a launcher in a separate run, or finds them.
async fn install(
    launcher: &Launcher,
    server: &str,
    scripts: bool,
    config: &Config,
) -> Result<Installed, Failure> {
    /// Cancels the installation when its caller is dropped.
    struct Guard(Cancel);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.cancel();
        }
    }
    let cache = paths::cache().ok_or_else(paths::no_home)?;
    std::fs::create_dir_all(&cache).map_err(|error| Failure::file("the directory", &cache, &error))?;
    let requirements = launcher.requirements().clone();
    let sandbox = env::get_os("PATH").iter().fold(Sandbox::new(), Sandbox::search_path);
    let sandbox = paths::home().iter().fold(sandbox, Sandbox::home);
    let sources = Sources::read(config)?;
    let installer = sources.installer(requirements.language(), &sandbox).allow_build(scripts);
    let guard = Guard(Cancel::new());
    let (cancel, owner, packages) = (guard.0.clone(), server.to_owned(), cache.join("packages"));
    let work = move || match installer.installed(&requirements, &packages)? {
        Some(already) => Ok(already),
        None => {
            start::installing(&owner, requirements.packages());
            installer.install(&requirements, &packages, &cancel)
        }
    };
    let done = tokio::time::timeout(INSTALL_TIMEOUT, tokio::task::spawn_blocking(work)).await;
    let done = done.map_err(|_| {
        let packages = launcher.requirements().packages().join(", ");
        let limit = format_duration(INSTALL_TIMEOUT);
        let text = format!("`{server}`: installing {packages} took longer than {limit}");
        Failure::new(Exit::Unreachable, "TIMEOUT", text)
            .hint("Check the connection to the package index, then start again.")
    })?;
    let done = done.map_err(ToolError::from)?;
    done.map_err(|error| {
        let failure = sources.explained(error);
        if scripts {
            failure
        } else {
            failure.hint("If a package needs its scripts, pass `--install-scripts`.")
        }
    })
}

/// The user's logins, for commands that open no browser.
pub(crate) fn oauth(config: &Config) -> Result<OAuth, Failure> {
    let path = paths::tokens().ok_or_else(paths::no_home)?;
    let oauth = OAuth::new(TokenStore::file(path));
    Ok(config.settings.http_allow_hosts.clone().into_iter().fold(oauth, OAuth::allow_host))
}

fn explained(error: ToolError, level: Option<Level>, grants: &Grants) -> Failure {
    if error.context().contains_key("unauthorized") {
        let failure = Failure::new(Exit::Credentials, "CREDENTIALS", error.message());
        let server = error.context().get("server").and_then(Value::as_str).unwrap_or("URL");
        return failure
            .hint(format!("Log in with `toolpost login {server}`."))
            .hint("Or name a token with `--token-env NAME` or `--token-file FILE`.");
    }
    let has_cause = crash::hint(&error).is_some();
    let is_confined =
        level.is_some_and(Level::is_boundary) && [Code::Dependency, Code::Timeout].contains(&error.code());
    let failure = Failure::from(error);
    if is_confined && !has_cause {
        return failure.hint(needs(grants));
    }
    failure
}

/// Grants that a failed server may need.
fn needs(grants: &Grants) -> String {
    let missing = [
        ("files", "--readable PATH", grants.readable.is_empty()),
        ("the network", "--allow-host NAME", grants.allow_hosts.is_empty()),
        ("a key", "--secret-raw KEY", grants.secrets.is_empty()),
    ];
    let missing = missing.into_iter().filter(|(_, _, is_missing)| *is_missing);
    let options: Vec<String> = missing.map(|(what, option, _)| format!("{what} (`{option}`)")).collect();
    match options.as_slice() {
        [] => "`toolpost help grants` lists the grants of a server.".to_owned(),
        options => format!("If the server needs it, grant {}.", options.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_to_its_server_and_never_in_the_clear() {
        let token = Secret::new("hunter2");
        for (target, is_good) in [
            ("https://a.example/mcp", true),
            ("http://127.0.0.1:80/mcp", true),
            ("http://localhost:80/mcp", true),
            ("http://[::1]:80/mcp", true),
            ("wss://a.example/ws", true),
            ("ws://127.0.0.1:80/ws", true),
            ("ws://a.example/ws", false),
            ("http://a.example/mcp", false),
            ("http://127.0.0.1.a.example/mcp", false),
            ("http://localhost@a.example/mcp", false),
        ] {
            let made = of_address(target, Some(&token), Level::Standard);
            assert_eq!(made.is_ok(), is_good, "{target}");
            if let Ok(Server { endpoint: Endpoint::Http { headers, .. }, .. }) = &made {
                assert_eq!(headers[0].1.expose(), "Bearer hunter2");
            }
            assert!(!format!("{made:?}").contains("hunter2"));
        }
        let named = of_address("stdio:./bin/srv --x", None, Level::Minimal).unwrap();
        assert_eq!((named.name.as_str(), named.endpoint.to_string().as_str()), ("srv", "./bin/srv --x"));
        assert!(of_address("stdio: ", None, Level::Minimal).is_err());
        for (target, name, image, arguments) in [
            ("docker:mcp/time", "time", "mcp/time", ""),
            ("docker:host:5000/a/b@sha256:0 --x 'y z'", "b", "host:5000/a/b@sha256:0", "--x y z"),
        ] {
            let server = of_address(target, None, Level::Standard).unwrap();
            assert_eq!((server.name.as_str(), server.image.as_deref()), (name, Some(image)));
            assert_eq!(server.endpoint.to_string(), arguments);
        }
        assert!(of_address("docker: ", None, Level::Standard).is_err());
    }
}
