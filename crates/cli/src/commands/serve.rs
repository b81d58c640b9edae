//! `toolpost serve`

mod tokens;
mod workdir;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolpost_core::{Code, Secret, ToolSource, ToolSpec};
use toolpost_gateway::catalog::Catalog;
use toolpost_gateway::{Filter, Filtered, Gateway, Glob, MissingUpstream, SearchTools, Searchable};
use toolpost_mcp::server::{Certificate, Hints, ResourceServer, Server};
use toolpost_sandbox::Grants;
use toolpost_store::TaskFile;
use toolpost_toolbox::Toolbox;
use toolpost_tools::FileRoot;

use self::tokens::{Token, Tokens};
use self::workdir::Workdir;
use crate::args::{Format, Permission, ProgramAccess, SearchFor, ServeArgs};
use crate::call_records::Failures;
use crate::config::Config;
use crate::config::service::Service;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::gateway::renames::Starting;
use crate::gateway::{Several, missing};
use crate::print::Printer;
use crate::style::label;
use crate::target::trail::Trail;
use crate::target::{OpenOptions, Wait};
use crate::target_grammar::Target;
use crate::{grants, hints as fixes, interrupt, logs, target};

/// The time that the end of the command waits for the report of starting upstreams.
const REPORT_GRACE: Duration = Duration::from_millis(100);
/// Clients with a tool search of their own, by the names that they send.
const FINDERS: [&str; 1] = ["claude-code"];
/// The maximum size of a file with tokens, a certificate or a key, in bytes.
const MAX_FILE: u64 = 1 << 20;

pub(crate) fn run(
    args: &ServeArgs,
    log_file: Option<&Path>,
    config: &Config,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let filter = filter(args)?;
    let several = Several::new(&args.targets, config, args.lazy)?;
    let granted = grants::of_args(&args.grants)?;
    let targets = several.targets(config);
    target::check_takers(targets.iter(), &granted)?;
    let uses_directory = targets.iter().any(Target::works_in_directory);
    let tokens = Tokens::read(args)?;
    let workdir = Workdir::new(args, uses_directory, &tokens)?;
    let root = workdir.root();
    let service = service(args, log_file, config, root.clone());
    if uses_directory {
        service.check_root()?;
    }
    let service = service.own("the directories of clients", workdir.clients());
    let config = &config.serving(service);
    let runtime = crate::runtime::start()?;
    let mut opened = runtime.block_on(async {
        let bare = target::parse(&several.bare, config, &Trail::default());
        let mut of_bare = Grants::default();
        if bare.iter().any(|named| named.target.takes_grants()) {
            of_bare = granted.clone();
        } else if bare.iter().any(|named| named.target.runs_code()) {
            of_bare.readable.clone_from(&granted.readable);
        }
        let access = ProgramAccess { level: args.level, live: args.directory.live };
        let options = OpenOptions { access, granted: of_bare, wait: Wait::Nothing, ..OpenOptions::default() };
        let mut opened = target::open_named(bare, config, options).await?;
        opened.starting.extend(several.open(config, args.level, &granted).await?);
        opened.merged = Starting::new(&opened.starting, &opened.names()).await?;
        Ok::<_, Failure>(opened)
    })?;
    opened.warnings.iter().for_each(|warning| printer.warn(warning));
    let permission = Permission {
        approve: args.approve.clone(),
        ask: args.ask,
        yes: false,
        no_input: true,
        level: args.level,
        directory: args.directory.clone(),
    };
    let starting = (std::mem::take(&mut opened.starting), opened.merged.clone());
    let runs_code = opened.specs().iter().any(|spec| spec.name == "run_code");
    let pool = if runs_code { crate::toolbox::code_pool(config)? } else { None };
    let failures = Failures::new(config, runtime.handle().clone());
    let events = failures.sink(Arc::new(logs::event));
    let toolbox = crate::toolbox::build_in(opened, root, &permission, config, pool, events, None);
    let toolbox = runtime.block_on(toolbox)?;
    let report = runtime.spawn(report(starting, toolbox.clone(), args.approve.clone(), printer.clone()));
    let catalog = Catalog::new(&toolbox);
    let toolbox: Arc<dyn ToolSource> = Arc::new(toolbox);
    let source = if filter.is_empty() { toolbox } else { Arc::new(Filtered::new(toolbox, filter)) };
    let source = searched(args, source, catalog)?;
    let tokens = tokens.or_stored(args)?;
    let server = server(args, Arc::clone(&source), &tokens, &workdir)?;
    let ended = runtime.block_on(async {
        let asked = interrupt::watch()?;
        match args.address() {
            None => tokio::select! {
                done = server.stdio() => Ok::<_, Failure>(done?),
                () = asked.cancelled() => Ok(()),
            },
            Some(address) => {
                let running = server.http(address).await.map_err(|error| match error.code() {
                    Code::Permission => {
                        Failure::from(error).hint("Pass `--beyond-loopback`, and do not pass `--no-token`.")
                    }
                    _ => Failure::from(error),
                })?;
                let url = if args.ws.is_some() { running.websocket_url() } else { running.connection_url() };
                match printer.format {
                    Format::Text => printer.result(&url)?,
                    Format::Json | Format::Jsonl => printer.json(&json!({
                        "type": "ready",
                        "name": server.name(),
                        "url": url,
                        "health": running.health_url(),
                        "address": running.address().to_string(),
                        "token_file": tokens.stored.as_ref().map(|path| path.display().to_string()),
                        "sources": source.status(),
                    }))?,
                }
                if let Some(notice) = tokens.notice() {
                    printer.note(&notice);
                }
                if let Some(parent) = workdir.clients() {
                    printer.note(&format!("each client has its own directory in `{}`", parent.display()));
                }
                if args.no_token {
                    printer.warn("without a token, every user of this machine can call these tools");
                }
                printer.note(&format!("serving `{}`; Ctrl-C stops", server.name()));
                asked.cancelled().await;
                running.stop().await;
                Ok(())
            }
        }
    });
    runtime.block_on(async {
        // What has just been found is still printed.
        let _ = tokio::time::timeout(REPORT_GRACE, report).await;
        failures.settle().await;
    });
    crate::runtime::end(runtime);
    ended.map(|()| Exit::Ok)
}

/// Prints missing upstreams as soon as they fail, then renamed tools and unknown names of `--approve`.
async fn report(
    (gateways, merged): (Vec<Arc<Gateway>>, Option<Starting>),
    toolbox: Toolbox,
    approved: Vec<String>,
    printer: Printer,
) {
    let Some(merged) = merged else { return };
    let warn = |one: &MissingUpstream| printer.warn(&missing::warning(one));
    for gateway in gateways {
        gateway.settled_each(&warn).await;
    }
    merged.warnings().await.iter().for_each(|warning| printer.warn(warning));
    let Ok(specs) = toolbox.list().await else { return };
    let is_known = |name: &String| {
        specs.iter().any(|spec| spec.name == *name || spec.aliases.iter().any(|alias| alias.name == *name))
    };
    for name in approved.iter().filter(|name| !is_known(name)) {
        printer.warn(&format!("`--approve {}`: no upstream has this tool so far", label(name)));
    }
}

/// The server's own files, which no tool reaches.
fn service(args: &ServeArgs, log_file: Option<&Path>, config: &Config, root: FileRoot) -> Service {
    let service = Service::new(root)
        .own("the token file", args.token_file.as_ref())
        .own("the task store", args.tasks.task_store.as_ref())
        .own("the store", config.settings.store.clone())
        .own("the log file", log_file)
        .own("the certificate", args.tls_cert.as_ref())
        .own("the private key", args.tls_key.as_ref())
        .own("the key file of the issuer", args.oauth.oauth_keys.as_ref());
    // Over stdio the client is the operator's own program, and the tools are those of every command.
    if args.address().is_some() { service.own_directories() } else { service }
}

/// The filters for all clients and for single ones.
fn filter(args: &ServeArgs) -> Result<Filter, Failure> {
    let none: [&str; 0] = [];
    let mut filter = Filter::parse(&args.allow, &args.deny)?;
    for (option, rules) in [("--allow-for", &args.allow_for), ("--deny-for", &args.deny_for)] {
        for rule in rules {
            let Some((client, tool)) =
                rule.split_once('=').filter(|(client, tool)| !client.is_empty() && !tool.is_empty())
            else {
                return Err(Failure::usage(format!("`{option} {rule}`: expected CLIENT=TOOL"))
                    .hint(format!("Write for example `{option} 'token-2=read_*'`.")));
            };
            filter = if option == "--allow-for" {
                filter.client(client, [tool], none)?
            } else {
                filter.client(client, none, [tool])?
            };
        }
    }
    Ok(filter)
}

/// Puts the tools behind search tools, with `--search`.
fn searched(
    args: &ServeArgs,
    source: Arc<dyn ToolSource>,
    catalog: Catalog,
) -> Result<Arc<dyn ToolSource>, Failure> {
    let Some(search) = args.search else { return Ok(source) };
    let always = args.core_tool.iter().map(|pattern| pattern.parse()).collect::<Result<Vec<Glob>, _>>()?;
    let mut tools = SearchTools::new(catalog).always(always);
    if search == SearchFor::Auto {
        tools = tools.whole_for(FINDERS.iter().map(|name| name.parse()).collect::<Result<Vec<Glob>, _>>()?);
    }
    Ok(Arc::new(Searchable::new(source, tools)))
}

/// The `_meta` of a tool for Claude Code's own search.
fn hints(spec: &ToolSpec, core: &[Glob]) -> Hints {
    if core.iter().any(|glob| glob.matches(&spec.name)) {
        return Hints::new().always_load();
    }
    let words = spec.category.iter().chain(&spec.group).chain(&spec.tags);
    let words: Vec<&str> = words.map(String::as_str).collect();
    if words.is_empty() { Hints::new() } else { Hints::new().search_hint(words.join(" ")) }
}

fn server(
    args: &ServeArgs,
    source: Arc<dyn ToolSource>,
    tokens: &Tokens,
    workdir: &Workdir,
) -> Result<Server, Failure> {
    let mut builder = Server::builder(source).name(&args.name).version(env!("CARGO_PKG_VERSION"));
    if args.search.is_some() {
        let core = args.core_tool.iter().map(|pattern| pattern.parse()).collect::<Result<Vec<Glob>, _>>()?;
        builder = builder.hints(move |spec| hints(spec, &core));
    }
    for Token { client, secret } in &tokens.accepted {
        builder = match client {
            None => builder.bearer(secret.clone()),
            Some(name) => builder.client(name, secret.clone()).map_err(|error| {
                Failure::usage(format!("{}: `{}`", error.message(), label(name)))
                    .hint(fixes::of_error(&error).unwrap_or_default())
            })?,
        };
    }
    if let Some(parent) = workdir.clients() {
        builder = builder.client_directories(parent);
    }
    for host in &args.host {
        builder = builder.host(host);
    }
    for origin in &args.origin {
        builder = builder.origin(origin);
    }
    if args.beyond_loopback {
        builder = builder.beyond_loopback();
    }
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let certificate = read("the certificate", certificate)?;
        let key = Secret::new(read("the key", key)?);
        builder = builder.tls(Certificate::from_pem(&certificate, &key)?);
    }
    let oauth = &args.oauth;
    if let (Some(issuer), Some(keys), Some(resource)) =
        (&oauth.oauth_issuer, &oauth.oauth_keys, &oauth.oauth_resource)
    {
        let rules = ResourceServer::new(resource, issuer, keys)?;
        builder = builder.oauth(oauth.oauth_scope.iter().fold(rules, ResourceServer::scope));
    }
    let tasks = &args.tasks;
    if let Some(path) = &tasks.task_store {
        builder = builder.task_store(Arc::new(TaskFile::open(path)?));
    }
    builder = builder.limits(|limits| {
        limits.task_after = tasks.task_after.unwrap_or(limits.task_after);
        limits.task_ttl = tasks.task_ttl.unwrap_or(limits.task_ttl);
    });
    Ok(builder.build()?)
}

fn read(what: &str, path: &Path) -> Result<String, Failure> {
    let failed = |error: &std::io::Error| Failure::file(what, path, error);
    let size = path.metadata().map_err(|error| failed(&error))?.len();
    if size > MAX_FILE {
        return Err(failed(&std::io::Error::new(
            std::io::ErrorKind::FileTooLarge,
            "it is larger than 1 MiB",
        )));
    }
    std::fs::read_to_string(path).map_err(|error| failed(&error))
}
