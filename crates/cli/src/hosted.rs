//! Hosted tools of a provider, uploads for hosted code, and downloads of its files.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use toolpost_core::{Artifact, ArtifactData, Cancellation, did_you_mean};
use toolpost_llm::{
    CodeExecutionMode, CodeExecutionTarget, FileRef, HostedTool, InlineFile, Item, Model, ModelCatalog,
    ModelId, ModelSpec, Part, SavedFile, Turn, inline_files, output_files, select_code_execution,
};

use crate::args::AgentArgs;
use crate::artifacts::{media_type, truncate_notices};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::model::{fallbacks, provider_files};
use crate::print::Printer;
use crate::style::{GOOD, HINT, harmless, one_line, paint};
use crate::target_grammar::{CODE_EXECUTION, split};
use crate::uploads::upload_of;
use crate::workspace::{Store, Workspace};

/// The maximum number of uploaded files of a run.
const MAX_UPLOADS: usize = 100;
/// The maximum number of downloaded files of a run, and the total size that ends the downloads.
const MAX_DOWNLOADS: usize = 1_000;
const MAX_DOWNLOAD_BYTES: u64 = 1 << 30;

/// The hosted tools of a command.
pub(crate) struct Hosted {
    tools: Vec<HostedTool>,
    /// Where code shall run, if `code_execution` is among the tools.
    code: Option<CodeExecutionMode>,
    /// The fallback models.
    others: Vec<ModelSpec>,
}

/// Where code runs, with its notice.
pub(crate) struct Place {
    place: CodeExecutionTarget,
    pub(crate) notice: String,
}

impl Place {
    /// Whether code runs at the provider.
    pub(crate) fn is_hosted(&self) -> bool {
        matches!(self.place, CodeExecutionTarget::Hosted(_))
    }
}

impl Hosted {
    /// Takes hosted tools out of the targets.
    pub(crate) fn take(
        targets: &mut Vec<String>,
        args: &AgentArgs,
        config: &Config,
    ) -> Result<Self, Failure> {
        let (mut tools, mut rest) = (Vec::new(), Vec::new());
        for word in targets.iter().flat_map(|word| split(word)) {
            match word.strip_prefix("hosted:") {
                Some(name) => add(&mut tools, hosted_tool(name)?),
                None => rest.push(word.to_owned()),
            }
        }
        let is_default = args.tools.is_empty() && config.settings.tools.is_empty();
        if args.code.is_some() && !rest.iter().any(|word| word == CODE_EXECUTION) {
            // `code_execution` replaces `run_code`: a model needs only one of them.
            rest.retain(|word| !is_default || word != "run_code");
            rest.push(CODE_EXECUTION.to_owned());
        }
        let has_code = rest.iter().any(|word| word == CODE_EXECUTION);
        let requested = args.code.or(config.settings.code_place).unwrap_or_default();
        *targets = rest;
        Ok(Self { tools, code: has_code.then_some(requested), others: fallbacks(args, config)? })
    }

    /// Where code runs: at the provider only if every fallback model has hosted code too.
    pub(crate) fn place(&self, catalog: &ModelCatalog, model: &dyn Model) -> Result<Option<Place>, Failure> {
        let Some(requested) = self.code else { return Ok(None) };
        let place = select_code_execution(catalog, &catalog.find(model.id()), requested)?;
        let mut chosen = Place { notice: place.to_string(), place };
        for other in &self.others {
            let ModelSpec::Hosted { provider, name } = other else { continue };
            let id = ModelId::new(provider, name);
            let place = select_code_execution(catalog, &catalog.find(&id), requested)?;
            if chosen.is_hosted() && matches!(place, CodeExecutionTarget::Local(_)) {
                chosen = Place { notice: format!("{place} ({id}, a fallback)"), place };
            }
        }
        Ok(Some(chosen))
    }

    /// The tools of the request.
    pub(crate) fn tools(&self, place: Option<&Place>) -> Vec<HostedTool> {
        let code = place.and_then(|place| match &place.place {
            CodeExecutionTarget::Hosted(tool) => Some(tool.clone()),
            CodeExecutionTarget::Local(_) => None,
        });
        self.tools.iter().cloned().chain(code).collect()
    }
}

/// Adds a hosted tool; file searches merge their stores.
fn add(tools: &mut Vec<HostedTool>, tool: HostedTool) {
    if let HostedTool::FileSearch { stores: more, .. } = &tool
        && let Some(HostedTool::FileSearch { stores, .. }) =
            tools.iter_mut().find(|known| matches!(known, HostedTool::FileSearch { .. }))
    {
        for store in more {
            if !stores.contains(store) {
                stores.push(store.clone());
            }
        }
    } else if !tools.contains(&tool) {
        tools.push(tool);
    }
}

/// Parses a hosted tool: its name, and the store of a file search.
fn hosted_tool(word: &str) -> Result<HostedTool, Failure> {
    const STORE: &str = "Name the store by its ID: `hosted:file_search=STORE`; repeat it for further stores.";
    let (name, store) = word.split_once('=').map_or((word, None), |(name, store)| (name, Some(store.trim())));
    let (max_uses, allowed_domains, blocked_domains) = (None, Vec::new(), Vec::new());
    let failure = Failure::usage(format!("unknown target `hosted:{word}`"));
    match (name, store) {
        ("web_search", None) => Ok(HostedTool::WebSearch { max_uses, allowed_domains, blocked_domains }),
        ("web_fetch", None) => Ok(HostedTool::WebFetch { max_uses, allowed_domains, blocked_domains }),
        ("x_search", None) => Ok(HostedTool::XSearch {
            allowed_handles: Vec::new(),
            blocked_handles: Vec::new(),
            from_date: None,
            to_date: None,
            images: false,
            videos: false,
        }),
        ("file_search", Some(store)) if !store.is_empty() => {
            Ok(HostedTool::FileSearch { stores: vec![store.to_owned()], max_results: None })
        }
        ("file_search", _) => Err(failure.hint(STORE)),
        (CODE_EXECUTION, None) => Err(failure.hint("Use `code_execution` with `--code hosted`.")),
        ("web_search" | "web_fetch" | "x_search", Some(_)) => {
            Err(failure.hint(format!("Write `hosted:{name}` alone: only `hosted:file_search` has a value.")))
        }
        _ => {
            let near =
                did_you_mean(name, ["web_search", "web_fetch", "x_search", "file_search", CODE_EXECUTION]);
            let all = "There are: `hosted:web_search`, `hosted:web_fetch`, `hosted:x_search`, \
                       `hosted:file_search=STORE`. \
                       The setting `provider_options` adds others, in the provider's JSON.";
            Err(failure.hint(near.unwrap_or_else(|| all.to_owned())))
        }
    }
}

/// Parts of a prompt for hosted code, and notices.
#[derive(Default)]
pub(crate) struct Uploads {
    pub(crate) parts: Vec<Part>,
    pub(crate) notices: Vec<String>,
}

/// Uploads the attachments for hosted code, with `--enable-file-support`.
pub(crate) async fn upload(
    args: &AgentArgs,
    place: Option<&Place>,
    model: &dyn Model,
    workspace: &Workspace,
    config: &Config,
    printer: &Printer,
) -> Result<Uploads, Failure> {
    let names = workspace.attached();
    if names.is_empty() || !place.is_some_and(Place::is_hosted) {
        return Ok(Uploads::default());
    }
    let provider = &model.id().provider;
    let mut given = Uploads::default();
    if !args.enable_file_support {
        given.notices.push(format!(
            "hosted code of {provider} cannot read the attachments; `--enable-file-support` uploads them, and `--code local` runs the code here"
        ));
        return Ok(given);
    }
    if names.len() > MAX_UPLOADS {
        let message = format!("{} attachments exceed the maximum of {MAX_UPLOADS} uploads", names.len());
        return Err(Failure::new(Exit::Limit, "LIMIT", message)
            .hint("Attach an archive of them, or run the code here with `--code local`."));
    }
    let files = provider_files(provider, config)?;
    for name in names {
        // Providers have no directories.
        let flat = name.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("_");
        let upload = upload_of(&workspace.path().join(name), &flat, files.max_upload_bytes())?;
        let stored = files.upload(upload).await?;
        let removes = if is_plain(&stored.id) {
            format!("; `toolpost files rm {} --provider {provider}` removes it", stored.id)
        } else {
            String::new()
        };
        let (flat, id) = (one_line(&flat, 200), one_line(&stored.id, 200));
        given.notices.push(format!("uploaded `{flat}` to {provider} as {id}{removes}"));
        let id = paint(HINT, one_line(&stored.id, 200));
        printer.note(&format!("{} {} as {id}", paint(GOOD, "uploaded"), one_line(&flat, 200)));
        given.parts.push(files.to_part(&stored));
    }
    Ok(given)
}

/// A file that hosted code wrote.
pub(crate) struct HostedFile {
    provider: String,
    content: Content,
}

/// Where the file is.
enum Content {
    /// At the provider.
    Stored(FileRef),
    /// In the answer.
    Inline(InlineFile),
}

impl HostedFile {
    /// The identity of the file.
    fn key(&self) -> &str {
        match &self.content {
            Content::Stored(file) => &file.id,
            Content::Inline(file) => &file.data,
        }
    }

    /// Writes the file to a directory without overwriting.
    async fn save(&self, directory: &Path, config: &Config) -> Result<SavedFile, String> {
        let store = Store::new(directory);
        let create = |name: &str| store.create(name);
        let saved = match &self.content {
            Content::Stored(file) => {
                let files = provider_files(&self.provider, config).map_err(|failure| failure.message)?;
                files.save(file, &create).await
            }
            Content::Inline(file) => file.save(&create),
        };
        saved.map_err(|error| error.to_string())
    }

    /// The notice of a failed download, with a command that repeats it.
    fn failed_download(&self, why: &str) -> String {
        let provider = &self.provider;
        match &self.content {
            Content::Stored(file) => {
                let place =
                    file.container.as_ref().map_or_else(String::new, |id| format!(" --container {id}"));
                let (id, name) = (&file.id, one_line(file.name.as_ref().unwrap_or(&file.id), 200));
                let lost = format!("`{name}` was not downloaded: {}", harmless(why));
                // An untrusted name could be pasted into a shell.
                if !is_plain(id) || !file.container.as_deref().is_none_or(is_plain) {
                    return lost;
                }
                format!("{lost}. `toolpost files get {id} --provider {provider}{place}` downloads it")
            }
            Content::Inline(file) => {
                let kind = one_line(&file.media_type, 80);
                format!("a file of the answer ({kind}) was not saved: {}", harmless(why))
            }
        }
    }
}

/// Whether an ID has no meaning in a shell and is not an option.
fn is_plain(id: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    !id.is_empty() && id.len() <= 200 && !id.starts_with('-') && id.chars().all(is_plain)
}

/// The files that hosted code wrote in a conversation.
pub(crate) fn hosted_files(turns: &[Turn]) -> Vec<HostedFile> {
    let mut items: BTreeMap<&str, Vec<Item>> = BTreeMap::new();
    for turn in turns {
        if let Turn::Assistant(turn) = turn {
            items.entry(&turn.origin.provider).or_default().extend(turn.items.iter().cloned());
        }
    }
    let of_provider = |(provider, items): (&str, Vec<Item>)| {
        // Gemini returns files within the answer; its citations are searched stores.
        let stored = if provider == "gemini" { Vec::new() } else { output_files(&items) };
        let inline = inline_files(&items).into_iter().map(Content::Inline);
        let contents = inline.chain(stored.into_iter().map(Content::Stored));
        contents.map(|content| HostedFile { provider: provider.to_owned(), content }).collect::<Vec<_>>()
    };
    items.into_iter().flat_map(of_provider).collect()
}

/// Downloaded files, and notices.
#[derive(Default)]
pub(crate) struct Fetched {
    pub(crate) artifacts: Vec<Artifact>,
    pub(crate) notices: Vec<String>,
}

/// Downloads the new files of hosted code without overwriting.
pub(crate) async fn fetch(
    turns: &[Turn],
    before: &[HostedFile],
    directory: &Path,
    config: &Config,
    stop: &Cancellation,
) -> Fetched {
    let mut fetched = Fetched::default();
    let mut size = 0;
    let all = hosted_files(turns);
    let mut known: HashSet<&str> = before.iter().map(HostedFile::key).collect();
    for made in all.iter().filter(|made| known.insert(made.key())) {
        let result = if fetched.artifacts.len() >= MAX_DOWNLOADS || size >= MAX_DOWNLOAD_BYTES {
            Err("the run already has 1,000 files or 1 GiB".to_owned())
        } else {
            tokio::select! {
                biased;
                () = stop.cancelled() => Err("the run was cancelled".to_owned()),
                saved = made.save(directory, config) => saved,
            }
        };
        match result {
            Ok(saved) => {
                size += saved.size;
                fetched.artifacts.push(Artifact {
                    name: saved.path.display().to_string(),
                    media_type: saved.media_type.unwrap_or_else(|| media_type(&saved.path).to_owned()),
                    size: saved.size,
                    sha256: None,
                    data: ArtifactData::Path(saved.path),
                });
            }
            Err(why) => fetched.notices.push(made.failed_download(&why)),
        }
    }
    fetched.notices = truncate_notices(fetched.notices, "files were not downloaded");
    fetched
}
