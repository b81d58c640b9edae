//! The token store: one file per user, or memory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, MutexGuard};
use toolpost_core::{Secret, ToolError, newer_format};

/// The largest file, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// The version of the file.
const VERSION: u32 = 1;
/// The most entries; beyond it the oldest is dropped.
const MAX_ENTRIES: usize = 1_000;
/// The time to wait for another process that holds the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);

/// Stores tokens and what refreshing them needs. Clones share the store.
#[derive(Clone, Debug)]
pub struct TokenStore(Arc<Mutex<Backing>>);

#[derive(Debug)]
enum Backing {
    Memory(Vec<Entry>),
    File(PathBuf),
}

/// The tokens of one server from one authorization server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Entry {
    /// The URL of the server.
    pub(super) server: String,
    /// The authorization server.
    pub(super) issuer: String,
    /// The `resource` of token requests.
    pub(super) resource: Option<String>,
    pub(super) client: Registration,
    pub(super) token: Option<Token>,
    /// The requested scopes.
    pub(super) scopes: Vec<String>,
    /// The stored key that the token is bound to.
    #[serde(with = "plain")]
    pub(super) proof: Option<Secret>,
}

/// The registration of this client at an authorization server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Registration {
    pub(super) id: String,
    #[serde(with = "plain")]
    pub(super) secret: Option<Secret>,
    /// The authentication method, if the server names one.
    pub(super) method: Option<String>,
    /// The registered redirect URI.
    pub(super) redirect: Option<String>,
    /// When the registration expires, in seconds since the Unix epoch.
    pub(super) expires: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Token {
    #[serde(with = "plain::required")]
    pub(super) access: Secret,
    #[serde(with = "plain")]
    pub(super) refresh: Option<Secret>,
    /// When the token expires, in seconds since the Unix epoch.
    pub(super) expires: Option<u64>,
    /// Whether each request needs a `DPoP` proof.
    pub(super) is_bound: bool,
}

/// The format of the file. Secrets are in plain text.
#[derive(Deserialize, Serialize)]
struct Stored<Entries> {
    v: u32,
    entries: Entries,
}

/// Secrets in plain text, for the file only.
mod plain {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use toolpost_core::Secret;

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub(super) fn serialize<S: Serializer>(
        secret: &Option<Secret>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        secret.as_ref().map(Secret::expose).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Secret>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(Secret::new))
    }

    pub(super) mod required {
        use serde::{Deserialize as _, Deserializer, Serializer};
        use toolpost_core::Secret;

        pub(in super::super) fn serialize<S: Serializer>(
            secret: &Secret,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.serialize_str(secret.expose())
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Secret, D::Error> {
            String::deserialize(deserializer).map(Secret::new)
        }
    }
}

impl TokenStore {
    /// The version of the file.
    pub const FORMAT: u32 = VERSION;

    /// Stores tokens in memory, until the process exits.
    pub fn memory() -> Self {
        Self(Arc::new(Mutex::new(Backing::Memory(Vec::new()))))
    }

    /// Stores tokens in a file with mode 0600. Writes are atomic and locked across processes by a file with
    /// the suffix `.lock`. Creates the directory if it is missing.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Mutex::new(Backing::File(path.into()))))
    }

    /// The entries of a server, the latest last. Reads without the lock: the file is always complete.
    pub(super) async fn of_server(&self, server: &str) -> Result<Vec<Entry>, ToolError> {
        let backing = self.0.lock().await;
        LockedStore { backing, _lock: None }.of_server(server)
    }

    /// Locks the store against other tasks and processes.
    pub(super) async fn lock(&self) -> Result<LockedStore<'_>, ToolError> {
        let backing = self.0.lock().await;
        let lock = match &*backing {
            Backing::Memory(_) => None,
            Backing::File(path) => Some(lock_file(path).await?),
        };
        Ok(LockedStore { backing, _lock: lock })
    }
}

/// The store under its lock.
pub(super) struct LockedStore<'a> {
    backing: MutexGuard<'a, Backing>,
    _lock: Option<File>,
}

impl LockedStore<'_> {
    fn entries(&self) -> Result<Vec<Entry>, ToolError> {
        match &*self.backing {
            Backing::Memory(entries) => Ok(entries.clone()),
            Backing::File(path) => read(path),
        }
    }

    fn replace(&mut self, entries: Vec<Entry>) -> Result<(), ToolError> {
        match &mut *self.backing {
            Backing::Memory(known) => *known = entries,
            Backing::File(path) => write(path, &entries).map_err(|error| of_file(path, &error))?,
        }
        Ok(())
    }

    /// The entries of a server, the latest last.
    pub(super) fn of_server(&self, server: &str) -> Result<Vec<Entry>, ToolError> {
        Ok(self.entries()?.into_iter().filter(|entry| entry.server == server).collect())
    }

    /// Stores an entry as the latest of its server and drops the server's tokens from other authorization
    /// servers.
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

    /// Removes and returns the entries of a server.
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
    ToolError::precondition(format!("the token file `{}`: {error}", path.display()))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(suffix);
    path.with_file_name(name)
}

/// Opens a new file with mode 0600.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn create_directory(path: &Path) -> io::Result<()> {
    let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) else { return Ok(()) };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(parent)
}

async fn lock_file(path: &Path) -> Result<File, ToolError> {
    create_directory(path).map_err(|error| of_file(path, &error))?;
    let lock = with_suffix(path, ".lock");
    let file = private(OpenOptions::new().create(true).truncate(false).write(true)).open(&lock);
    let file = file.map_err(|error| of_file(&lock, &error))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(of_file(&lock, &error)),
            Err(TryLockError::WouldBlock) if begun.elapsed() > LOCK_TIMEOUT => {
                return Err(ToolError::overloaded(format!(
                    "another process has locked the token file `{}` for more than 30 s",
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
        return Err(ToolError::precondition(format!("other users may read the token file `{shown}`"))
            .suggest(format!("If you trust its content: `chmod 600 {shown}`.")));
    }
    if metadata.len() > MAX_FILE {
        return Err(ToolError::limit(format!("the token file `{}` is larger than 16 MiB", path.display())));
    }
    let mut text = String::new();
    let mut file = file.take(MAX_FILE);
    file.read_to_string(&mut text).map_err(|error| of_file(path, &error))?;
    // A parse error would quote the content, which holds tokens.
    let wrong = |error: serde_json::Error| {
        ToolError::precondition(format!(
            "the token file `{}` is invalid JSON at line {}, column {}",
            path.display(),
            error.line(),
            error.column()
        ))
        .suggest("Remove it, and log in again.")
    };
    // The version first: a newer file may have other entries.
    let Stored { v, .. } = serde_json::from_str::<Stored<IgnoredAny>>(&text).map_err(wrong)?;
    if v > VERSION {
        return Err(newer_format(
            format_args!("the token file `{}`", path.display()),
            v.into(),
            VERSION.into(),
        ));
    }
    let stored: Stored<Vec<Entry>> = serde_json::from_str(&text).map_err(wrong)?;
    Ok(stored.entries)
}

fn write(path: &Path, entries: &[Entry]) -> io::Result<()> {
    let text = serde_json::to_string_pretty(&Stored { v: VERSION, entries })?;
    let name = toolpost_core::random_hex(8).map_err(|error| io::Error::other(error.message().to_owned()))?;
    let temporary = with_suffix(path, &format!(".{name}"));
    let written =
        private(OpenOptions::new().create_new(true).write(true)).open(&temporary).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        });
    if written.is_err() {
        // The file may not exist.
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
        store.lock().await.unwrap().put(entry).unwrap();
    }

    #[tokio::test]
    async fn entries_are_stored_by_server_and_issuer() {
        let directory = tempfile::tempdir().unwrap();
        for store in [TokenStore::memory(), TokenStore::file(directory.path().join("a/tokens.json"))] {
            put(&store, entry("s", "one")).await;
            put(&store, entry("t", "one")).await;
            put(&store, entry("s", "two")).await;
            let of_server = store.lock().await.unwrap().of_server("s").unwrap();
            let without = Entry { token: None, ..entry("s", "one") };
            assert_eq!(of_server, [without, entry("s", "two")]);
            let gone = store.lock().await.unwrap().remove("s").unwrap();
            assert_eq!(gone.len(), 2);
            assert_eq!(store.lock().await.unwrap().of_server("s").unwrap(), []);
            assert_eq!(store.lock().await.unwrap().of_server("t").unwrap(), [entry("t", "one")]);
            assert!(!format!("{store:?}").contains("hunter2"));
        }
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn the_file_is_private_and_no_temporary_file_remains() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own/tokens.json");
        let store = TokenStore::file(&path);
        put(&store, entry("s", "one")).await;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let mut names: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(|found| found.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["tokens.json", "tokens.json.lock"]);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = store.lock().await.unwrap().of_server("s").unwrap_err();
        assert!(error.suggestion().unwrap().contains("chmod 600"), "{error}");
    }

    #[tokio::test]
    async fn an_invalid_file_is_an_error_that_does_not_quote_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        let store = TokenStore::file(&path);
        for text in ["{\"v\":1,\"entries\":\"hunter2\"}", "hunter2", "{\"v\":2,\"entries\":[]}"] {
            private(OpenOptions::new().create(true).truncate(true).write(true))
                .open(&path)
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            let error = store.lock().await.unwrap().put(entry("s", "one")).unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text, "nothing is lost");
        }
    }

    /// `tests/golden` has one file per format; every release must read all of them.
    ///
    /// A new format has no file yet: this test makes it, and fails once.
    #[tokio::test]
    async fn the_file_of_each_format_is_readable() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let name = |format: u32| format!("tokens-{format}.json");
        let newest = golden.join(name(VERSION));
        let expected = [entry("s", "one"), Entry { token: None, proof: None, ..entry("s", "two") }];
        if !newest.exists() {
            fs::create_dir_all(&golden).unwrap();
            write(&newest, &expected).unwrap();
            panic!("made `{}`: commit it", newest.display());
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        let put = |text: &str| {
            let mut file =
                private(OpenOptions::new().create(true).truncate(true).write(true)).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        for format in 1..=VERSION {
            put(&fs::read_to_string(golden.join(name(format))).unwrap());
            assert_eq!(read(&path).unwrap(), expected, "format {format}");
        }
        let text = "{\"v\":99,\"entries\":{\"later\":\"hunter2\"}}";
        put(text);
        let error = read(&path).unwrap_err();
        assert!(
            error.message().contains("has format 99, but this program supports formats up to 1"),
            "{error}"
        );
        assert_eq!(error.suggestion(), Some("Use the newer program that wrote it."));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }

    #[tokio::test]
    async fn concurrent_writers_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.json");
        // Separate stores share only the lock file, as processes do.
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
