//! `toolpost login` and `toolpost logout`

use serde_json::json;
use toolpost_core::{Code, Secret, ToolError};
use toolpost_mcp::client::Identity;

use crate::args::{LoginArgs, LogoutArgs};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{GOOD, HINT, harmless, paint};
use crate::{env, interrupt, mcp};

pub(crate) fn run(args: &LoginArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let output = printer.clone();
    let mut oauth = mcp::oauth(config)?.interactive(move |url| {
        // The user must see it, also with `--quiet`.
        output.write_stderr(&format!("Open this URL in a browser of this machine:\n\n  {}\n", harmless(url)));
    });
    for scope in &args.scope {
        oauth = oauth.scope(scope);
    }
    if let Some(id) = &args.client_id {
        let mut identity = Identity::new(id);
        if let Some(name) = &args.client_secret_env {
            let secret = env::secret(name).ok_or_else(|| {
                let why = format!("the variable `{name}` of `--client-secret-env` is not set");
                Failure::new(Exit::Credentials, "CREDENTIALS", why)
            })?;
            identity = identity.secret(Secret::new(secret));
        }
        if let Some(issuer) = &args.issuer {
            identity = identity.issuer(issuer);
        }
        oauth = oauth.identity(identity);
    }
    if let Some(document) = &args.client_document {
        oauth = oauth.metadata_document(document);
    }
    if let Some(port) = args.callback_port {
        oauth = oauth.callback_port(port);
    }
    if let Some(timeout) = args.timeout {
        oauth = oauth.login_timeout(timeout);
    }
    let login = done(async { Ok(oauth.login(&args.url, config.settings.no_network).await?) })?;
    printer.note(&format!(
        "{} {} by {}",
        paint(GOOD, "logged in to"),
        paint(HINT, &args.url),
        harmless(&login.issuer)
    ));
    if !printer.is_text() {
        printer.json(&json!({
            "server": args.url,
            "issuer": login.issuer,
            "scopes": login.scopes,
            "expires_in_ms": login.expires_in.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            "renewable": login.is_refreshable,
        }))?;
    }
    Ok(Exit::Ok)
}

pub(crate) fn logout(args: &LogoutArgs, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let oauth = mcp::oauth(config)?;
    let had = done(async { Ok(oauth.logout(&args.url, config.settings.no_network).await?) })?;
    if !had {
        return Err(Failure::usage(format!("there is no login to `{}`", harmless(&args.url)))
            .hint("Use the URL of the login."));
    }
    printer.note(&format!("{} {}", paint(GOOD, "logged out of"), paint(HINT, &args.url)));
    if !printer.is_text() {
        printer.json(&json!({ "server": args.url }))?;
    }
    Ok(Exit::Ok)
}

/// Awaits a future unless Ctrl-C cancels it.
fn done<T>(work: impl Future<Output = Result<T, ToolError>>) -> Result<T, Failure> {
    let runtime = crate::runtime::start()?;
    let result = runtime.block_on(async {
        let interrupted = interrupt::watch()?;
        tokio::select! {
            result = work => result.map_err(rejected),
            () = interrupted.cancelled() => {
                Err(Failure::new(Exit::Interrupted, "CANCELLED", "cancelled: no login changed"))
            }
        }
    });
    crate::runtime::end(runtime);
    result
}

/// A rejected login has the exit code of credentials, a blocked URL that of a denial.
fn rejected(error: ToolError) -> Failure {
    let is_denial = error.context().contains_key("rule");
    let is_refusal = error.code() == Code::Permission && !is_denial;
    let mut failure = Failure::from(error);
    if is_refusal {
        failure.exit = Exit::Credentials;
        "CREDENTIALS".clone_into(&mut failure.code);
    }
    failure
}
