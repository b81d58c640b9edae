//! Where tokens are kept: one file for a user, or the memory of this process.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, MutexGuard};
use toolpost_core::{Secret, ToolError};

use super::key;

/// The largest file, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// The most entries; of more, the oldest goes.
const MAX_ENTRIES: usize = 1_000;
/// How long is waited for another process that uses the file.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where tokens are kept, with what is needed to get new ones. Clones share it.
#[derive(Clone, Debug)]
pub struct TokenStore(Arc<Mutex<Place>>);

#[derive(Debug)]
enum Place {
    Memory(Vec<Entry>),
    File(PathBuf),
}

/// What is known of a server and an authorization server together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The address of the server.
    pub(super) server: String,
    /// Who made the token.
    pub(super) issuer: String,
    /// How the token names the server.
    pub(super) resource: Option<String>,
    pub(super) client: Registration,
    pub(super) token: Option<Token>,
    /// What was asked for.
    pub(super) scopes: Vec<String>,
    /// The key that the token is bound to.
    pub(super) proof: Option<Secret>,
}

/// How the authorization server knows this client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) id: String,
    pub(super) secret: Option<Secret>,
    /// How it authenticates at the token endpoint, if the server has said so.
    pub(super) method: Option<String>,
    /// Where it has said that people come back to.
    pub(super) redirect: Option<String>,
    /// When the server forgets it, in seconds since 1970.
    pub(super) expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) access: Secret,
    pub(super) refresh: Option<Secret>,
    /// When it ends, in seconds since 1970.
    pub(super) expires: Option<u64>,
    /// Whether each request must prove that it has the key.
    pub(super) is_bound: bool,
}

/// The file, as it is written: what is a secret stands in it as it is.
#[derive(Deserialize, Serialize)]
struct Stored {
    v: u32,
    entries: Vec<StoredEntry>,
}

#[derive(Deserialize, Serialize)]
struct StoredEntry {
    server: String,
    issuer: String,
    resource: Option<String>,
    client_id: String,
    client_secret: Option<String>,
    client_method: Option<String>,
    client_redirect: Option<String>,
    client_expires: Option<u64>,
    access_token: Option<String>,
    refresh_token: Option<String>,
    expires: Option<u64>,
    #[serde(default)]
    is_bound: bool,
    #[serde(default)]
    scopes: Vec<String>,
    proof_key: Option<String>,
}

fn exposed(secret: Option<&Secret>) -> Option<String> {
    secret.map(|secret| secret.expose().to_owned())
}

impl From<&Entry> for StoredEntry {
    fn from(entry: &Entry) -> Self {
        let (client, token) = (&entry.client, entry.token.as_ref());
        Self {
            server: entry.server.clone(),
            issuer: entry.issuer.clone(),
            resource: entry.resource.clone(),
            client_id: client.id.clone(),
            client_secret: exposed(client.secret.as_ref()),
            client_method: client.method.clone(),
            client_redirect: client.redirect.clone(),
            client_expires: client.expires,
            access_token: exposed(token.map(|token| &token.access)),
            refresh_token: exposed(token.and_then(|token| token.refresh.as_ref())),
            expires: token.and_then(|token| token.expires),
            is_bound: token.is_some_and(|token| token.is_bound),
            scopes: entry.scopes.clone(),
            proof_key: exposed(entry.proof.as_ref()),
        }
    }
}

impl From<StoredEntry> for Entry {
    fn from(stored: StoredEntry) -> Self {
        let token = stored.access_token.map(|access| Token {
            access: Secret::new(access),
            refresh: stored.refresh_token.map(Secret::new),
            expires: stored.expires,
            is_bound: stored.is_bound,
        });
        Self {
            server: stored.server,
            issuer: stored.issuer,
            resource: stored.resource,
            client: Registration {
                id: stored.client_id,
                secret: stored.client_secret.map(Secret::new),
                method: stored.client_method,
                redirect: stored.client_redirect,
                expires: stored.client_expires,
            },
            token,
            scopes: stored.scopes,
            proof: stored.proof_key.map(Secret::new),
        }
    }
}

impl TokenStore {
    /// Keeps tokens for as long as this process lives.
    pub fn memory() -> Self {
        Self(Arc::new(Mutex::new(Place::Memory(Vec::new()))))
    }

    /// Keeps tokens in a file that its owner alone may read, replaced in one step, and used by one process at a time. The
    /// folder is made if there is none. A lock lies beside it, with the ending `.lock`.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new(Place::File(path.into()))))
    }

    /// All that is known of a server, the latest last. Nothing is made and nobody is waited for: the file is always whole.
    pub(super) async fn of_server(&self, server: &str) -> Result<Vec<Entry>, ToolError> {
        let place = self.0.lock().await;
        Alone { place, _lock: None }.of_server(server)
    }

    /// Uses it alone, among tasks and processes.
    pub(super) async fn alone(&self) -> Result<Alone<'_>, ToolError> {
        let place = self.0.lock().await;
        let lock = match &*place {
            Place::Memory(_) => None,
            Place::File(path) => Some(locked(path).await?),
        };
        Ok(Alone { place, _lock: lock })
    }
}

/// The store, used by nobody else.
pub(super) struct Alone<'a> {
    place: MutexGuard<'a, Place>,
    _lock: Option<File>,
}

impl Alone<'_> {
    fn entries(&self) -> Result<Vec<Entry>, ToolError> {
        match &*self.place {
            Place::Memory(entries) => Ok(entries.clone()),
            Place::File(path) => read(path),
        }
    }

    fn replace(&mut self, entries: Vec<Entry>) -> Result<(), ToolError> {
        match &mut *self.place {
            Place::Memory(known) => *known = entries,
            Place::File(path) => write(path, &entries).map_err(|error| of_file(path, &error))?,
        }
        Ok(())
    }

    /// All that is known of a server, the latest last.
    pub(super) fn of_server(&self, server: &str) -> Result<Vec<Entry>, ToolError> {
        Ok(self.entries()?.into_iter().filter(|entry| entry.server == server).collect())
    }

    /// Keeps an entry, as the latest of its server. Tokens of others for the same server are kept no more.
    pub(super) fn put(&mut self, entry: Entry) -> Result<(), ToolError> {
        let mut entries = self.entries()?;
        entries.retain(|known| (&known.server, &known.issuer) != (&entry.server, &entry.issuer));
        for known in entries.iter_mut().filter(|known| known.server == entry.server) {
            known.token = None;
        }
        entries.push(entry);
        let excess = entries.len().saturating_sub(MAX_ENTRIES);
        entries.drain(..excess);
        self.replace(entries)
    }

    /// Forgets a server; gives what was known of it.
    pub(super) fn remove(&mut self, server: &str) -> Result<Vec<Entry>, ToolError> {
        let (gone, kept): (Vec<_>, Vec<_>) =
            self.entries()?.into_iter().partition(|entry| entry.server == server);
        if !gone.is_empty() {
            self.replace(kept)?;
        }
        Ok(gone)
    }
}

fn of_file(path: &Path, error: &io::Error) -> ToolError {
    ToolError::precondition(format!("the file of tokens `{}`: {error}", path.display()))
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// A file that its owner alone may use.
fn own(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

async fn locked(path: &Path) -> Result<File, ToolError> {
    make_folder(path).map_err(|error| of_file(path, &error))?;
    let lock = beside(path, ".lock");
    let file = own(OpenOptions::new().create(true).truncate(false).write(true)).open(&lock);
    let file = file.map_err(|error| of_file(&lock, &error))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(of_file(&lock, &error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() > PATIENCE => {
                return Err(ToolError::overloaded(format!(
                    "another process has used the file of tokens `{}` for more than 30 s",
                    path.display()
                )));
            }
            Err(TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, ToolError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(of_file(path, &error)),
    };
    let metadata = file.metadata().map_err(|error| of_file(path, &error))?;
    #[cfg(unix)]
    if std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o077 != 0 {
        let shown = path.display();
        return Err(ToolError::precondition(format!("others may read the file of tokens `{shown}`"))
            .suggest(format!("If you trust what is in it: `chmod 600 {shown}`.")));
    }
    if metadata.len() > MAX_FILE {
        return Err(ToolError::limit(format!(
            "the file of tokens `{}` is larger than 16 MiB",
            path.display()
        )));
    }
    let mut text = String::new();
    let mut file = file.take(MAX_FILE);
    file.read_to_string(&mut text).map_err(|error| of_file(path, &error))?;
    // The error of the reader shows where it failed, and no value.
    let stored: Stored = serde_json::from_str(&text).map_err(|error| {
        ToolError::precondition(format!(
            "the file of tokens `{}` cannot be read: line {}, column {}",
            path.display(),
            error.line(),
            error.column()
        ))
        .suggest("Remove it, and log in again.")
    })?;
    if stored.v != 1 {
        return Err(ToolError::precondition(format!(
            "the file of tokens `{}` has version {}: expected 1",
            path.display(),
            stored.v
        )));
    }
    Ok(stored.entries.into_iter().map(Entry::from).collect())
}

fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    let stored = Stored { v: 1, entries: entries.iter().map(StoredEntry::from).collect() };
    let text = serde_json::to_string_pretty(&stored)?;
    let name = key::random().map_err(|error| io::Error::other(error.message().to_owned()))?;
    let temporary = beside(path, &format!(".{name}"));
    let written =
        own(OpenOptions::new().create_new(true).write(true)).open(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        });
    if written.is_err() {
        // It may not have been made at all.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(server: &str, issuer: &str) -> Entry {
        Entry {
            server: server.to_owned(),
            issuer: issuer.to_owned(),
            resource: Some(server.to_owned()),
            client: Registration {
                id: "me".to_owned(),
                secret: Some(Secret::new("hunter2")),
                method: Some("client_secret_post".to_owned()),
                redirect: Some("http://127.0.0.1:5/callback".to_owned()),
                expires: Some(7),
            },
            token: Some(Token {
                access: Secret::new(format!("hunter2 of {issuer}")),
                refresh: Some(Secret::new("hunter2")),
                expires: Some(9),
                is_bound: true,
            }),
            scopes: vec!["a".to_owned()],
            proof: Some(Secret::new("hunter2")),
        }
    }

    async fn put(store: &TokenStore, entry: Entry) {
        store.alone().await.unwrap().put(entry).unwrap();
    }

    #[tokio::test]
    async fn entries_are_kept_by_server_and_issuer() {
        let folder = tempfile::tempdir().unwrap();
        for store in [TokenStore::memory(), TokenStore::file(folder.path().join("a/tokens.json"))] {
            put(&store, entry("s", "one")).await;
            put(&store, entry("t", "one")).await;
            put(&store, entry("s", "two")).await;
            let of_server = store.alone().await.unwrap().of_server("s").unwrap();
            let without = Entry { token: None, ..entry("s", "one") };
            assert_eq!(of_server, [without, entry("s", "two")]);
            let gone = store.alone().await.unwrap().remove("s").unwrap();
            assert_eq!(gone.len(), 2);
            assert_eq!(store.alone().await.unwrap().of_server("s").unwrap(), []);
            assert_eq!(store.alone().await.unwrap().of_server("t").unwrap(), [entry("t", "one")]);
            assert!(!format!("{store:?}").contains("hunter2"));
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn the_file_is_for_its_owner_alone_and_nothing_stays_beside_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("own/tokens.json");
        let store = TokenStore::file(&path);
        put(&store, entry("s", "one")).await;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let mut names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|found| found.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["tokens.json", "tokens.json.lock"]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = store.alone().await.unwrap().of_server("s").unwrap_err();
        assert!(error.suggestion().unwrap().contains("chmod 600"), "{error}");
    }

    #[tokio::test]
    async fn a_file_that_is_none_is_an_error_without_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        let store = TokenStore::file(&path);
        for text in ["{\"v\":1,\"entries\":\"hunter2\"}", "hunter2", "{\"v\":2,\"entries\":[]}"] {
            own(OpenOptions::new().create(true).truncate(true).write(true))
                .open(&path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            let error = store.alone().await.unwrap().put(entry("s", "one")).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "nothing is lost");
        }
    }

    #[tokio::test]
    async fn two_at_once_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.json");
        // Stores of their own share only the lock of the file, as processes do.
        let tasks: Vec<_> = (0..8)
            .map(|number| {
                let store = TokenStore::file(&path);
                tokio::spawn(async move {
                    for turn in 0..5 {
                        put(&store, entry(&format!("{number}/{turn}"), "one")).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(read(&path).unwrap().len(), 40);
    }
}
