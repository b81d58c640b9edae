//! `toolpost files`

use std::path::{Path, PathBuf};

use serde_json::json;
use toolpost_llm::{ErrorKind, FileRef, ModelError, ModelSpec, ProviderFiles, StoredFile};

use crate::args::{AccountArgs, FilesCommand, Format};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupt;
use crate::model::{model_name, provider_files};
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, WARN, harmless, one_line, paint};
use crate::uploads::{check_upload, upload_of};
use crate::workspace::Store;

pub(crate) fn run(command: &FilesCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let (FilesCommand::Put { account, .. }
    | FilesCommand::Get { account, .. }
    | FilesCommand::Ls { account, .. }
    | FilesCommand::Rm { account, .. }) = command;
    let provider = provider(account, config)?;
    let account = Account { files: provider_files(&provider, config)?, provider, printer };
    let runtime = crate::runtime::start()?;
    let done = runtime.block_on(async {
        let stop = interrupt::watch()?;
        let work = async {
            match command {
                FilesCommand::Put { paths, .. } => account.put(paths).await,
                FilesCommand::Get { id, output, container, .. } => {
                    account.get(id, container.as_deref(), output.as_deref()).await
                }
                FilesCommand::Ls { limit, .. } => account.list(*limit as usize).await,
                FilesCommand::Rm { ids, .. } => account.remove(ids).await,
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Failure::new(Exit::Interrupted, "CANCELLED", "the transfer was cancelled")),
            done = work => done,
        }
    });
    crate::runtime::end(runtime);
    done.map(|()| Exit::Ok)
}

/// The provider of the option, else of the model of `run`.
fn provider(account: &AccountArgs, config: &Config) -> Result<String, Failure> {
    if let Some(provider) = &account.provider {
        return Ok(provider.clone());
    }
    let name = model_name(config)?;
    match ModelSpec::parse(&name)? {
        ModelSpec::Hosted { provider, .. } => Ok(provider),
        _ => Err(Failure::usage(format!("`{name}` has no provider with files"))
            .hint("Name the provider with `--provider`: anthropic, openai, gemini or xai.")),
    }
}

/// The files of one account.
struct Account<'a> {
    provider: String,
    files: ProviderFiles,
    printer: &'a Printer,
}

impl Account<'_> {
    async fn put(&self, paths: &[PathBuf]) -> Result<(), Failure> {
        // All files are checked before the first upload.
        for path in paths {
            check_upload(path, self.files.max_upload_bytes())?;
        }
        let mut stored = Vec::new();
        let mut done = Ok(());
        for path in paths {
            match self.upload(path).await {
                Ok(file) => {
                    self.print_file(&file)?;
                    stored.push(file);
                }
                Err(failure) => {
                    done = Err(failure);
                    break;
                }
            }
        }
        // Earlier uploads are printed before a failure.
        let is_total_failure = stored.is_empty() && done.is_err();
        if self.printer.format == Format::Json && !is_total_failure {
            self.printer.json(&json!({ "provider": self.provider, "files": stored }))?;
        }
        done
    }

    async fn upload(&self, path: &Path) -> Result<StoredFile, Failure> {
        let upload = upload_of(path, &name_of(path), self.files.max_upload_bytes())?;
        self.files.upload(upload).await.map_err(|error| self.failed(error, &path.display().to_string()))
    }

    async fn get(&self, id: &str, container: Option<&str>, output: Option<&Path>) -> Result<(), Failure> {
        let file = FileRef { id: id.to_owned(), container: container.map(str::to_owned), name: None };
        let saved = match output {
            Some(path) => {
                let size = self.write(&file, path).await?;
                json!({ "id": id, "path": path, "size": size })
            }
            None => {
                let here = Store::new(".");
                let saved = self.files.save(&file, &|name| here.create(name)).await;
                json!(saved.map_err(|error| self.download_failure(error, id))?)
            }
        };
        if !self.printer.is_text() {
            return self.printer.json(&json!({ "provider": self.provider, "saved": saved }));
        }
        let path = saved["path"].as_str().unwrap_or_default();
        self.printer.foreign_result(path.strip_prefix("./").unwrap_or(path))?;
        self.printer.note(&paint(FAINT, format!("{} bytes", saved["size"])));
        Ok(())
    }

    /// Writes a new file completely or not at all.
    async fn write(&self, file: &FileRef, path: &Path) -> Result<u64, Failure> {
        let wrong = |error: &std::io::Error| Failure::file("the file", path, error);
        if path.symlink_metadata().is_ok() {
            return Err(wrong(&std::io::ErrorKind::AlreadyExists.into()));
        }
        let directory = crate::regular_file::directory_of(path);
        let mut target = tempfile::NamedTempFile::new_in(directory).map_err(|error| wrong(&error))?;
        let size = self.files.download(file, target.as_file_mut()).await;
        let size = size.map_err(|error| self.download_failure(error, &file.id))?;
        target.persist_noclobber(path).map_err(|error| wrong(&error.error))?;
        Ok(size)
    }

    async fn list(&self, limit: usize) -> Result<(), Failure> {
        let all = self.files.list(limit + 1).await.map_err(|error| self.failed(error, "the list"))?;
        let (has_more, shown) = (all.len() > limit, all.get(..limit).unwrap_or(&all));
        shown.iter().try_for_each(|file| self.print_file(file))?;
        if self.printer.format == Format::Json {
            let files = json!({ "provider": self.provider, "files": shown, "has_more": has_more });
            return self.printer.json(&files);
        }
        if has_more {
            self.printer.note(&paint(WARN, "there are more files; `--limit N` lists more"));
        } else if shown.is_empty() {
            self.printer.note(&format!("{} has no files of this account", self.provider));
        }
        Ok(())
    }

    async fn remove(&self, ids: &[String]) -> Result<(), Failure> {
        let mut removed = Vec::new();
        let mut done = Ok(());
        for id in ids {
            if let Err(error) = self.files.delete(id).await {
                done = Err(self.failed(error, id));
                break;
            }
            self.printer.note(&format!("{} {}", paint(GOOD, "removed"), paint(HINT, harmless(id))));
            removed.push(id);
        }
        let is_total_failure = removed.is_empty() && done.is_err();
        if !(is_total_failure || self.printer.is_text()) {
            self.printer.json(&json!({ "provider": self.provider, "removed": removed }))?;
        }
        done
    }

    /// Prints one file, a line per field.
    fn print_file(&self, file: &StoredFile) -> Result<(), Failure> {
        match self.printer.format {
            Format::Json => Ok(()),
            Format::Jsonl => self.printer.json(file),
            Format::Text => self.printer.result(&line(file)),
        }
    }

    fn failed(&self, error: ModelError, what: &str) -> Failure {
        if !is_missing(&error) {
            return error.into();
        }
        let message = format!("{} has no file `{}`: {}", self.provider, harmless(what), error.message);
        Failure::new(Exit::Failed, "NOT_FOUND", message)
            .hint(format!("`toolpost files ls --provider {}` lists them.", self.provider))
    }

    fn download_failure(&self, error: ModelError, id: &str) -> Failure {
        let is_rejected =
            error.kind == ErrorKind::InvalidRequest && error.details.status.is_some() && !is_missing(&error);
        let failure = self.failed(error, id);
        if is_rejected {
            return failure.hint("Most providers allow downloads only of files that hosted code wrote.");
        }
        failure
    }
}

/// Whether an error means that the file is missing; providers differ.
fn is_missing(error: &ModelError) -> bool {
    error.kind == ErrorKind::NotFound || error.details.status == Some(404)
}

/// A file on one line: ID, name, size, times.
fn line(file: &StoredFile) -> String {
    let day = |time: toolpost_core::Timestamp| time.to_string().chars().take(10).collect::<String>();
    let mut facts = vec![file.size.map_or("size unknown".to_owned(), |size| format!("{size} bytes"))];
    facts.extend(file.created.map(day));
    facts.extend(file.expires.map(|end| format!("until {}", day(end))));
    format!(
        "{}  {}  {}",
        paint(HINT, one_line(&file.id, 200)),
        one_line(file.name.as_deref().unwrap_or("(no name)"), 100),
        paint(FAINT, facts.join(", "))
    )
}

/// The name of a file at its provider.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
