//! `toolpost state`

use serde_json::{Value, json};
use toolpost_core::{Change, DocStore as _, Document};
use toolpost_store::Store;

use crate::args::{Format, StateCommand};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::store;
use crate::style::{FAINT, HINT, harmless, paint};

/// The page size of documents and changes.
const PAGE: usize = 1000;

pub(crate) fn run(command: &StateCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let store = open(config)?;
    let runtime = crate::runtime::start()?;
    runtime.block_on(async {
        match command {
            StateCommand::Show { id: None, prefix } => list(&store, prefix, printer).await,
            StateCommand::Show { id: Some(id), .. } => {
                let document = store.load(id).await?;
                if document.version == 0 {
                    return Err(unknown(id));
                }
                show(&document, printer)
            }
            StateCommand::At { id, version } => show(&store.at(id, *version).await?, printer),
            StateCommand::Log { id, after, limit } => log(&store, id, *after, *limit, printer).await,
        }
    })?;
    Ok(Exit::Ok)
}

/// Opens an existing store; viewing never creates one.
fn open(config: &Config) -> Result<Store, Failure> {
    let path = store::path(config)?;
    if !path.exists() {
        return Err(Failure::new(
            Exit::Failed,
            "NOT_FOUND",
            format!("there is no state in `{}`", path.display()),
        )
        .hint("A tool with state creates it; `--store FILE` names another file."));
    }
    Ok(Store::open(path)?)
}

fn unknown(id: &str) -> Failure {
    Failure::new(Exit::Failed, "NOT_FOUND", format!("there is no document `{id}`"))
        .hint("`toolpost state show` lists the documents.")
}

async fn list(store: &Store, prefix: &str, printer: &Printer) -> Result<(), Failure> {
    let mut documents = Vec::new();
    loop {
        let after = documents.last().map(|(id, _): &(String, u64)| id.clone());
        let page = store.list(prefix, after.as_deref(), PAGE).await?;
        let last = page.len() < PAGE;
        documents.extend(page);
        if last {
            break;
        }
    }
    let to_json = |(id, version): &(String, u64)| json!({ "id": id, "version": version });
    let to_text = |(id, version): &(String, u64)| {
        format!("{} {}", paint(HINT, harmless(id)), paint(FAINT, format!("(version {version})")))
    };
    printer.list("documents", &documents, to_json, to_text)
}

fn show(document: &Document, printer: &Printer) -> Result<(), Failure> {
    if !printer.is_text() {
        return printer.foreign_json(
            &json!({ "id": document.id, "version": document.version, "value": *document.value }),
        );
    }
    printer.note(&paint(FAINT, format!("version {}", document.version)));
    printer.foreign_result(&pretty(&document.value))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

async fn log(store: &Store, id: &str, after: u64, limit: usize, printer: &Printer) -> Result<(), Failure> {
    let mut changes: Vec<Change> = Vec::new();
    while changes.len() < limit {
        let from = changes.last().map_or(after, |change| change.version);
        let page = store.log(id, from, PAGE.min(limit - changes.len())).await?;
        if page.is_empty() {
            break;
        }
        changes.extend(page);
    }
    if changes.is_empty() && store.load(id).await?.version == 0 {
        return Err(unknown(id));
    }
    match printer.format {
        Format::Json => printer.foreign_json(&json!({ "id": id, "changes": changes })),
        Format::Jsonl => changes.iter().try_for_each(|change| printer.foreign_json(change)),
        Format::Text => {
            let lines: Vec<String> = changes
                .iter()
                .map(|change| {
                    let call = change.call.map(|call| format!(" by {call}")).unwrap_or_default();
                    let event = change.event.as_ref().map(|event| format!(" {event}")).unwrap_or_default();
                    format!(
                        "{} {}{}\n    {}",
                        paint(HINT, format!("version {}", change.version)),
                        paint(FAINT, format!("{}{call}", change.at)),
                        harmless(&event),
                        harmless(&change.patch.to_string())
                    )
                })
                .collect();
            printer.result(&lines.join("\n"))
        }
    }
}
