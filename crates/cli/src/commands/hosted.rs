//! What a provider runs itself: its tools, the files that its code gets, and those that its code makes.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use toolpost_core::{Artifact, ArtifactData, Cancellation, did_you_mean};
use toolpost_llm::{
    Catalog, CodeExecutionMode, CodeExecutionTarget, FileRef, HostedTool, InlineFile, Item, Model, ModelId,
    ModelSpec, Part, SavedFile, Turn, inline_files, output_files, select_code_execution,
};

use super::agent::{at_most, media_type};
use super::files::upload_of;
use super::model::{fallbacks, provider_files};
use crate::args::AgentArgs;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::style::{GOOD, HINT, harmless, one_line, paint};
use crate::target::{CODE_EXECUTION, split};
use crate::workspace::{Store, Workspace};

/// The most files that are uploaded for a run.
const MOST_UPLOADS: usize = 100;
/// The most files that are downloaded after a run, and their bytes together, after which no other one is begun.
const MOST_DOWNLOADS: usize = 1_000;
const MOST_BYTES: u64 = 1 << 30;

/// What the words of a command want of the provider.
pub(super) struct Hosted {
    tools: Vec<HostedTool>,
    /// Where code should run, if the model has the tool for it.
    code: Option<CodeExecutionMode>,
    /// The models that may be asked in the place of the first.
    others: Vec<ModelSpec>,
}

/// Where code runs, and how that is told.
pub(super) struct Place {
    place: CodeExecutionTarget,
    pub(super) told: String,
}

impl Place {
    /// Whether it runs with the provider.
    pub(super) fn is_hosted(&self) -> bool {
        matches!(self.place, CodeExecutionTarget::Hosted(_))
    }
}

impl Hosted {
    /// Takes what the provider runs out of the words for tools; the others stay.
    pub(super) fn take(
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
        let is_usual = args.tools.is_empty() && config.texts("tools").is_empty();
        if args.code.is_some() && !rest.iter().any(|word| word == CODE_EXECUTION) {
            // Two tools for one thing would leave the model to guess.
            rest.retain(|word| !is_usual || word != "run_code");
            rest.push(CODE_EXECUTION.to_owned());
        }
        let has_code = rest.iter().any(|word| word == CODE_EXECUTION);
        let wanted = args.code.or_else(|| config.choice("code.place")).unwrap_or_default();
        *targets = rest;
        Ok(Self { tools, code: has_code.then_some(wanted), others: fallbacks(args, config)? })
    }

    /// Where the code of a model runs: with the provider only if every model that may be asked takes that.
    pub(super) fn place(&self, catalog: &Catalog, model: &dyn Model) -> Result<Option<Place>, Failure> {
        let Some(wanted) = self.code else { return Ok(None) };
        let place = select_code_execution(catalog, &catalog.find(model.id()), wanted)?;
        let mut chosen = Place { told: place.to_string(), place };
        for other in &self.others {
            let ModelSpec::Hosted { provider, name } = other else { continue };
            let id = ModelId::new(provider, name);
            let place = select_code_execution(catalog, &catalog.find(&id), wanted)?;
            if chosen.is_hosted() && matches!(place, CodeExecutionTarget::Local(_)) {
                chosen = Place { told: format!("{place} ({id}, which may be asked instead)"), place };
            }
        }
        Ok(Some(chosen))
    }

    /// The tools that the provider runs.
    pub(super) fn tools(&self, place: Option<&Place>) -> Vec<HostedTool> {
        let code = place.and_then(|place| match &place.place {
            CodeExecutionTarget::Hosted(tool) => Some(tool.clone()),
            CodeExecutionTarget::Local(_) => None,
        });
        self.tools.iter().cloned().chain(code).collect()
    }
}

/// Adds a tool of a provider. One that searches files searches all stores that are named.
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

/// A tool of a provider by the word for it: its name, and of one that searches files the store.
fn hosted_tool(word: &str) -> Result<HostedTool, Failure> {
    const STORE: &str =
        "Name the store: `hosted:file_search=STORE`, by the provider's id; once more for each other one.";
    let (name, store) = word.split_once('=').map_or((word, None), |(name, store)| (name, Some(store.trim())));
    let (max_uses, allowed_domains, blocked_domains) = (None, Vec::new(), Vec::new());
    let failure = Failure::usage(format!("there is no target `hosted:{word}`"));
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
        (CODE_EXECUTION, None) => {
            Err(failure.hint("Name it `code_execution`, and say where it runs with `--code hosted`."))
        }
        ("web_search" | "web_fetch" | "x_search", Some(_)) => {
            Err(failure.hint(format!("Write `hosted:{name}` alone: only `hosted:file_search` has a value.")))
        }
        _ => {
            let near =
                did_you_mean(name, ["web_search", "web_fetch", "x_search", "file_search", CODE_EXECUTION]);
            let all = "There are: `hosted:web_search`, `hosted:web_fetch`, `hosted:x_search`, \
                       `hosted:file_search=STORE`. \
                       `--provider-option` adds others, in the provider's own JSON.";
            Err(failure.hint(near.unwrap_or_else(|| all.to_owned())))
        }
    }
}

/// What a prompt gives to the provider's code, and what is to be told of it.
#[derive(Default)]
pub(super) struct Given {
    pub(super) parts: Vec<Part>,
    pub(super) notices: Vec<String>,
}

/// Gives what is attached to the provider, where its code needs it and the command allows it.
pub(super) async fn give(
    args: &AgentArgs,
    place: Option<&Place>,
    model: &dyn Model,
    workspace: &Workspace,
    config: &Config,
    printer: &Printer,
) -> Result<Given, Failure> {
    let names = workspace.attached();
    if names.is_empty() || !place.is_some_and(Place::is_hosted) {
        return Ok(Given::default());
    }
    let provider = &model.id().provider;
    let mut given = Given::default();
    if !args.enable_file_support {
        given.notices.push(format!(
            "what is attached stays here, and {provider} runs the code, which cannot read it; \
             `--enable-file-support` uploads it, and `--code local` runs the code here"
        ));
        return Ok(given);
    }
    if names.len() > MOST_UPLOADS {
        let message = format!("{} files are attached, and at most {MOST_UPLOADS} are uploaded", names.len());
        return Err(Failure::new(Exit::Limit, "LIMIT", message)
            .hint("Attach an archive of them, or run the code here with `--code local`."));
    }
    let files = provider_files(provider, config)?;
    for name in names {
        // Providers have no folders.
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

/// A file that a provider's code has made.
pub(super) struct Made {
    provider: String,
    content: Content,
}

/// Where the file is.
enum Content {
    /// With the provider.
    Stored(FileRef),
    /// In the answer.
    Inline(InlineFile),
}

impl Made {
    /// What tells it from other files.
    fn key(&self) -> &str {
        match &self.content {
            Content::Stored(file) => &file.id,
            Content::Inline(file) => &file.data,
        }
    }

    /// Writes the file into a folder, over nothing.
    async fn save(&self, folder: &Path, config: &Config) -> Result<SavedFile, String> {
        let store = Store::new(folder);
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

    /// That it was not saved, and what gets it all the same.
    fn lost(&self, why: &str) -> String {
        let provider = &self.provider;
        match &self.content {
            Content::Stored(file) => {
                let place =
                    file.container.as_ref().map_or_else(String::new, |id| format!(" --container {id}"));
                let (id, name) = (&file.id, one_line(file.name.as_ref().unwrap_or(&file.id), 200));
                let lost = format!("`{name}` was not downloaded: {}", harmless(why));
                // What somebody else has named is pasted into a shell.
                if !is_plain(id) || !file.container.as_deref().is_none_or(is_plain) {
                    return lost;
                }
                format!("{lost}. `toolpost files get {id} --provider {provider}{place}` gets it")
            }
            Content::Inline(file) => {
                let kind = one_line(&file.media_type, 80);
                format!("a file of the answer ({kind}) was not saved: {}", harmless(why))
            }
        }
    }
}

/// Whether an id means nothing to a shell and is no option.
fn is_plain(id: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.');
    !id.is_empty() && id.len() <= 200 && !id.starts_with('-') && id.chars().all(is_plain)
}

/// The files that the code of providers has made in a conversation.
pub(super) fn made(turns: &[Turn]) -> Vec<Made> {
    let mut items: BTreeMap<&str, Vec<Item>> = BTreeMap::new();
    for turn in turns {
        if let Turn::Assistant(turn) = turn {
            items.entry(&turn.origin.provider).or_default().extend(turn.items.iter().cloned());
        }
    }
    let of_provider = |(provider, items): (&str, Vec<Item>)| {
        // Gemini's code gives its files within the answer; what it cites are stores that are searched.
        let stored = if provider == "gemini" { Vec::new() } else { output_files(&items) };
        let inline = inline_files(&items).into_iter().map(Content::Inline);
        let contents = inline.chain(stored.into_iter().map(Content::Stored));
        contents.map(|content| Made { provider: provider.to_owned(), content }).collect::<Vec<_>>()
    };
    items.into_iter().flat_map(of_provider).collect()
}

/// What was downloaded, and what is to be told of it.
#[derive(Default)]
pub(super) struct Fetched {
    pub(super) artifacts: Vec<Artifact>,
    pub(super) notices: Vec<String>,
}

/// Downloads what the provider's code has made and was not there before into a folder, over nothing.
pub(super) async fn fetch(
    turns: &[Turn],
    before: &[Made],
    folder: &Path,
    config: &Config,
    stop: &Cancellation,
) -> Fetched {
    let mut fetched = Fetched::default();
    let mut size = 0;
    let all = made(turns);
    let mut known: HashSet<&str> = before.iter().map(Made::key).collect();
    for made in all.iter().filter(|made| known.insert(made.key())) {
        let result = if fetched.artifacts.len() >= MOST_DOWNLOADS || size >= MOST_BYTES {
            Err("there are already 1,000 files or 1 GiB of this run".to_owned())
        } else {
            tokio::select! {
                biased;
                () = stop.cancelled() => Err("the run was stopped".to_owned()),
                saved = made.save(folder, config) => saved,
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
            Err(why) => fetched.notices.push(made.lost(&why)),
        }
    }
    fetched.notices = at_most(fetched.notices, "files were not downloaded");
    fetched
}
