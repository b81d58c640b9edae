//! Gateways: descriptions with `kind = "gateway"`, or several targets of a command.

pub(crate) mod missing;
mod namespaces;
pub(crate) mod renames;
pub(crate) mod stores;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{ToolError, ToolSource};
use toolpost_gateway::{
    Connect, Gateway, GatewayParts, GatewaySettings, MemoryPins, MergeSettings, ReconnectSettings,
    UpstreamSettings,
};
use toolpost_sandbox::Level;
use toolpost_toolbox::Toolbox;
use toolpost_tools::FileRoot;

pub(crate) use self::namespaces::Several;
use self::stores::{FileManifests, FilePins};
use crate::config::Config;
use crate::config::trust::{Pins, TrustState};
use crate::failure::Failure;
use crate::grants;
use crate::mcp::{INSTALL_TIMEOUT, start};
use crate::style::shell_word;
use crate::target::trail::{self, Trail};
use crate::target::{self, OpenOptions};
use crate::toml_text::toml_value;

/// The interval between checks of the description.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The timeout of an upstream's start, without the installation of its packages.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Extra time for the errors of the parts of a start, which say more than the error of the whole.
const START_MARGIN: Duration = Duration::from_secs(2);
/// The maximum size of a description, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Whether a description is one of a gateway.
pub(crate) fn is_gateway(text: &str) -> bool {
    toml_value(text).is_ok_and(|value| value.get("kind").and_then(Value::as_str) == Some("gateway"))
}

/// Parses the settings of a gateway. Paths are relative to its directory.
pub(crate) fn parse(path: &Path, text: &str) -> Result<GatewaySettings, Failure> {
    let wrong = |error: String| {
        Failure::usage(format!("the gateway `{}`: {}", path.display(), error.trim_end()))
            .hint("`toolpost help gateway` lists the keys.")
    };
    let mut value = toml_value(text).map_err(wrong)?;
    if let Some(fields) = value.as_object_mut() {
        fields.remove("kind");
    }
    let mut settings: GatewaySettings =
        serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
    settings.check().map_err(|error| wrong(error.message().to_owned()))?;
    let directory = crate::regular_file::directory_of(path);
    for upstream in &mut settings.upstreams {
        upstream.target = crate::target_grammar::all_below(directory, &upstream.target);
        let Some(value) = upstream.grants.take() else { continue };
        start::warn(&upstream.name, grants::former_key(&value).as_slice());
        let granted = grants::read(&value, directory);
        let granted = granted.map_err(|why| wrong(format!("the upstream `{}`: {why}", upstream.name)))?;
        upstream.grants = serde_json::to_value(granted).ok();
    }
    Ok(settings)
}

/// Opens a gateway with a trusted description, for one tool or for all.
///
/// It is returned at once, while its upstreams start.
pub(crate) async fn open(
    path: &Path,
    text: &str,
    config: &Config,
    level: Option<Level>,
    trail: &Trail,
    tool: Option<&str>,
) -> Result<Arc<Gateway>, Failure> {
    let mut settings = parse(path, text)?;
    if let Some(tool) = tool
        && settings.upstreams.iter().any(|upstream| upstream.may_have(tool))
    {
        // The tool of one upstream needs no other.
        settings.upstreams.retain(|upstream| upstream.may_have(tool));
    }
    let trail = trail.and(path)?;
    // The printed command works in every directory.
    let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let file = shell_word(&file.display().to_string());
    let parts = GatewayParts {
        pins: Arc::new(FilePins::new(path)),
        approval: Arc::new(move |upstream, tool| {
            format!("toolpost trust {file} --tool {}", shell_word(&format!("{upstream}/{tool}")))
        }),
        ..parts(config, level, trail)
    };
    let name = path.file_stem().map_or("gateway".into(), |stem| stem.to_string_lossy().into_owned());
    Ok(Arc::new(Gateway::open(name, &settings, parts).await?))
}

/// Opens a gateway and reloads trusted changes of its description while the command runs.
pub(crate) async fn followed(
    path: &Path,
    text: &str,
    config: &Config,
    level: Option<Level>,
    trail: &Trail,
    tool: Option<&str>,
) -> Result<Arc<Gateway>, Failure> {
    let gateway = open(path, text, config, level, trail, tool).await?;
    if tool.is_some() {
        return Ok(gateway);
    }
    tokio::spawn(follow(Arc::clone(&gateway), path.to_owned(), text.to_owned()));
    Ok(gateway)
}

/// Connects the upstreams of a command's targets; approvals last as long as the command.
fn parts(config: &Config, level: Option<Level>, trail: Trail) -> GatewayParts {
    let config = Arc::new(config.clone());
    let mut reconnect = ReconnectSettings::default();
    // The parts of a start have their own limits.
    reconnect.connect_timeout = START_TIMEOUT;
    reconnect.install_timeout = INSTALL_TIMEOUT + START_MARGIN;
    GatewayParts {
        connect: Arc::new(move |upstream: &UpstreamSettings| -> Arc<dyn Connect> {
            let (upstream, config, trail) = (upstream.clone(), Arc::clone(&config), trail.clone());
            let has_reported = Arc::new(AtomicBool::new(false));
            Arc::new(move || {
                let (upstream, config) = (upstream.clone(), Arc::clone(&config));
                connect(upstream, config, level, trail.clone(), Arc::clone(&has_reported))
            })
        }),
        pins: Arc::new(MemoryPins::default()),
        manifests: Arc::new(FileManifests::default()),
        approval: Arc::new(|upstream, tool| {
            format!(
                "restart `toolpost serve`, or name the target in a gateway file and run `toolpost trust FILE --tool {}`",
                shell_word(&format!("{upstream}/{tool}"))
            )
        }),
        reconnect,
        merge: MergeSettings::default(),
    }
}

/// Opens the target of an upstream. The first connection reports the warnings of the target.
async fn connect(
    upstream: UpstreamSettings,
    config: Arc<Config>,
    level: Option<Level>,
    trail: Trail,
    has_reported: Arc<AtomicBool>,
) -> Result<Arc<dyn ToolSource>, ToolError> {
    let start_timeout = upstream.start_limit()?.unwrap_or(START_TIMEOUT);
    let trail = trail.of_upstream(trail::Upstream { name: upstream.name.as_str().into(), start_timeout });
    let target_words = config.target(&upstream.target).unwrap_or(&upstream.target).to_owned();
    let nested =
        target_words.split(',').map(|part| Path::new(part.trim())).find(|part| is_gateway_file(part));
    if let Some(nested) = nested {
        return Err(ToolError::invalid_input(format!(
            "the upstream `{}` is a gateway itself: `{}`",
            upstream.name,
            nested.display()
        ))
        .suggest("Name the upstreams of that gateway here."));
    }
    let mut granted = config.target_grants(&upstream.target).cloned().unwrap_or_default();
    if let Some(value) = &upstream.grants {
        let own = grants::read(value, Path::new("")).map_err(ToolError::invalid_input)?;
        granted = granted.merge(own);
    }
    let targets = target::parse(&[target_words], &config, &trail);
    let options = OpenOptions { access: level.into(), granted, ..OpenOptions::default() };
    let opened = target::open_named(targets, &config, options).await.map_err(Failure::into_tool_error)?;
    if !has_reported.swap(true, Ordering::Relaxed) {
        start::warn(&upstream.name, &opened.warnings);
    }
    // A source reports its own state; a toolbox in front of it would hide that.
    if let Some(source) = opened.only_source() {
        return Ok(source);
    }
    let root = match config.tool_root() {
        Some(root) => root,
        None => FileRoot::new(std::env::current_dir()?),
    };
    let upstream = crate::toolbox::upstream(opened, root, &config, level).await;
    let toolbox: Toolbox = upstream.map_err(Failure::into_tool_error)?;
    Ok(Arc::new(toolbox))
}

/// Whether a target is a gateway's description.
fn is_gateway_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
        && read(path).is_ok_and(|text| is_gateway(&text))
}

fn read(path: &Path) -> std::io::Result<String> {
    crate::regular_file::read_text(path, MAX_FILE)
}

/// Reloads the description when a trusted change appears.
async fn follow(gateway: Arc<Gateway>, path: PathBuf, mut taken: String) {
    let mut reported: Option<String> = None;
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let Ok(text) = read(&path) else { continue };
        if text == taken {
            continue;
        }
        let trusted =
            Pins::load().is_ok_and(|pins| pins.standing_of(&path, text.as_bytes()) == TrustState::Trusted);
        if !trusted {
            if reported.as_ref() != Some(&text) {
                let shown = path.display();
                tracing::warn!(
                    "the gateway `{shown}` has changed; `toolpost trust {shown}` loads the change"
                );
                reported = Some(text);
            }
            continue;
        }
        match parse(&path, &text) {
            Ok(settings) => match gateway.reload(&settings).await {
                Ok(changed) => {
                    tracing::info!("the gateway `{}` has changed: {}", path.display(), changed.join(", "));
                }
                Err(error) => tracing::error!("the gateway `{}` is unchanged: {error}", path.display()),
            },
            Err(failure) => tracing::error!("{}; the gateway is unchanged", failure.message),
        }
        taken = text;
    }
}
