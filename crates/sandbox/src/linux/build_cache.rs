//! The cache of built programs, by the hash of their inputs.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crate::outcome::sha256;
use crate::{Cancel, Error};

/// The first words of every entry, with its format version.
const MAGIC: &str = "toolpost-build 1";
/// The maximum length of an entry's first line.
const MAX_HEADER: usize = 256;
/// The maximum number of files that eviction checks.
const MAX_ENTRIES: usize = 65_536;
/// The number of build locks. Builds of different code rarely share one.
const LOCKS: u8 = 64;

/// A directory of compiled programs, so that the same code is built once: [`crate::Sandbox::build_cache`].
///
/// The key of an entry is the SHA-256 of the code, the compiler's path, version, size and time, its arguments
/// and the level. An entry contains the hash of its content. Damaged entries, and those that another user
/// could have written, are rebuilt. Programs that share the directory also share concurrent builds.
#[derive(Debug, Clone)]
pub struct BuildCache {
    directory: PathBuf,
    max_bytes: u64,
}

/// The exclusive right to build an entry.
#[derive(Debug)]
pub struct Slot<'a> {
    cache: &'a BuildCache,
    path: PathBuf,
    /// Whether an existing entry was invalid.
    pub(super) was_damaged: bool,
    _lock: File,
}

/// The result of a cache lookup.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// The built program.
    Found(Arc<[u8]>),
    /// No entry, and the right to build it.
    Missing(Slot<'a>),
}

fn fail(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { action, path: path.clone(), source }
}

/// Opens a private directory (mode 0700) of this user, creating it if missing. Returns its real path.
///
/// # Errors
/// [`Error::File`] with `action` for a directory of another user, one that others can access, or a link.
pub fn private_directory(action: &'static str, directory: &Path) -> Result<PathBuf, Error> {
    let error = fail(action, directory);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(&error)?;
    let metadata = std::fs::symlink_metadata(directory).map_err(&error)?;
    if !metadata.is_dir() {
        return Err(error(io::Error::other("it is not a directory; use the directory itself, not a link")));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(error(io::Error::other("it belongs to another user; use your own directory")));
    }
    if metadata.mode().trailing_zeros() < 6 {
        return Err(error(io::Error::other("other users can access it; run `chmod 700`")));
    }
    directory.canonicalize().map_err(&error)
}

impl BuildCache {
    /// The default size of a cache: 1 GiB.
    pub const DEFAULT_BYTES: u64 = 1 << 30;

    /// Opens a private directory (mode 0700) as cache, creating it if missing.
    ///
    /// A directory of another user, or one that others can enter or write, is rejected: they could put
    /// programs there.
    pub fn at(directory: impl Into<PathBuf>) -> Result<Self, Error> {
        let directory = directory.into();
        let directory = private_directory("use build cache", &directory)?;
        Ok(Self { directory, max_bytes: Self::DEFAULT_BYTES })
    }

    /// Sets the maximum size of all entries. Default [`BuildCache::DEFAULT_BYTES`].
    ///
    /// The least recently used entries are evicted first.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Returns the entry of a key, or the right to build it. Waits for another builder until `cancel`, at
    /// most `wait`; then nothing is found or stored.
    pub fn lookup(&self, key: &str, cancel: &Cancel, wait: Duration) -> Result<Option<Lookup<'_>>, Error> {
        let path = self.directory.join(key);
        // Before the lock: entries appear atomically.
        if let Ok(Some(content)) = read(&path) {
            return Ok(Some(Lookup::Found(content)));
        }
        let number = u8::from_str_radix(key.get(..2).unwrap_or("0"), 16).unwrap_or(0) % LOCKS;
        let lock_path = self.directory.join(format!("lock-{number:02}"));
        let error = fail("lock build cache", &lock_path);
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&lock_path)
            .map_err(&error)?;
        let since = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if cancel.is_cancelled() || since.elapsed() > wait => {
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
                Err(TryLockError::Error(source)) => return Err(error(source)),
            }
        }
        let was_damaged = match read(&path) {
            Ok(Some(content)) => return Ok(Some(Lookup::Found(content))),
            Ok(None) => false,
            Err(_) => {
                // A directory in its place stays, and prevents storing this key.
                let _ = std::fs::remove_file(&path);
                true
            }
        };
        Ok(Some(Lookup::Missing(Slot { cache: self, path, was_damaged, _lock: lock })))
    }

    /// Evicts the least recently used entries until the rest fits.
    fn tidy(&self) {
        let Ok(entries) = self.directory.read_dir() else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .take(MAX_ENTRIES)
            .flatten()
            .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"lock-"))
            .filter_map(|entry| {
                let metadata = entry.metadata().ok()?;
                metadata.is_file().then(|| {
                    (metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), entry.path())
                })
            })
            .collect();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        files.sort();
        for (_, size, path) in files {
            if total <= self.max_bytes {
                break;
            }
            if std::fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }
}

impl Slot<'_> {
    /// Stores a built program, unless it exceeds the whole cache.
    pub fn keep(self, content: &[u8]) -> Result<(), Error> {
        if content.len() as u64 > self.cache.max_bytes {
            return Ok(());
        }
        // The lock holder is alone with this name.
        let begun = self.path.with_extension("new");
        let error = fail("write build cache", &begun);
        let _ = std::fs::remove_file(&begun);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&begun)
            .and_then(|mut file| {
                writeln!(file, "{MAGIC} {} {}", sha256(content), content.len())?;
                file.write_all(content)
            })
            .and_then(|()| std::fs::rename(&begun, &self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&begun);
        }
        written.map_err(error)?;
        self.cache.tidy();
        Ok(())
    }
}

/// Reads an entry: none if it is missing, an error if it is invalid.
fn read(path: &Path) -> io::Result<Option<Arc<[u8]>>> {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let foreign = || io::Error::other("it is damaged, or another user's");
    let metadata = file.metadata()?;
    let is_ours = metadata.is_file()
        && metadata.nlink() == 1
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode().trailing_zeros() >= 6;
    if !is_ours {
        return Err(foreign());
    }
    let mut bytes = Vec::new();
    (&mut file).take(metadata.len()).read_to_end(&mut bytes)?;
    let end = bytes.iter().take(MAX_HEADER).position(|byte| *byte == b'\n').ok_or_else(foreign)?;
    let header = std::str::from_utf8(&bytes[..end]).map_err(|_| foreign())?;
    let content = &bytes[end + 1..];
    let expected = format!("{MAGIC} {} {}", sha256(content), content.len());
    if header != expected {
        return Err(foreign());
    }
    // The time of the last use decides the eviction order.
    let _ = file.set_modified(SystemTime::now());
    Ok(Some(content.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const KEY: &str = "00ab";

    fn find(cache: &BuildCache, key: &str) -> Option<Vec<u8>> {
        match cache.lookup(key, &Cancel::new(), Duration::from_secs(5)).unwrap().unwrap() {
            Lookup::Found(content) => Some(content.to_vec()),
            Lookup::Missing(_) => None,
        }
    }

    fn keep(cache: &BuildCache, key: &str, content: &[u8]) -> bool {
        match cache.lookup(key, &Cancel::new(), Duration::from_secs(5)).unwrap().unwrap() {
            Lookup::Found(_) => panic!("it is there"),
            Lookup::Missing(slot) => {
                let was_damaged = slot.was_damaged;
                slot.keep(content).unwrap();
                was_damaged
            }
        }
    }

    #[test]
    fn an_invalid_entry_is_not_returned() {
        let parent = tempfile::tempdir().unwrap();
        let cache = BuildCache::at(parent.path().join("a/b")).unwrap();
        assert_eq!(find(&cache, KEY), None);
        assert!(!keep(&cache, KEY, b"content"));
        assert_eq!(find(&cache, KEY).unwrap(), b"content");
        let path = cache.directory.join(KEY);
        let whole = std::fs::read(&path).unwrap();
        let spoil: [&dyn Fn(); 5] = [
            &|| {
                let mut bytes = whole.clone();
                *bytes.last_mut().unwrap() ^= 1;
                std::fs::write(&path, bytes).unwrap();
            },
            &|| std::fs::write(&path, &whole[..whole.len() - 2]).unwrap(),
            &|| std::fs::write(&path, "x".repeat(1000)).unwrap(),
            &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap(),
            &|| std::fs::hard_link(&path, cache.directory.join("other")).unwrap(),
        ];
        for (number, spoil) in spoil.into_iter().enumerate() {
            spoil();
            assert_eq!(find(&cache, KEY), None, "{number}");
            keep(&cache, KEY, b"content");
            assert_eq!(find(&cache, KEY).unwrap(), b"content", "{number}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(keep(&cache, KEY, b"content"), "the link counts as damage");
        assert_eq!(find(&cache, KEY).unwrap(), b"content");
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let parent = tempfile::tempdir().unwrap();
        let cache = BuildCache::at(parent.path().join("c")).unwrap().max_bytes(3500);
        let content = [7u8; 1000];
        for (number, key) in ["00", "01", "02"].into_iter().enumerate() {
            keep(&cache, key, &content);
            let time = SystemTime::now() - Duration::from_secs(100 - number as u64);
            File::options().write(true).open(cache.directory.join(key)).unwrap().set_modified(time).unwrap();
        }
        assert!(find(&cache, "00").is_some(), "used again, so no longer the oldest");
        keep(&cache, "03", &content);
        assert!(!cache.directory.join("01").exists());
        for key in ["00", "02", "03"] {
            assert!(find(&cache, key).is_some(), "{key}");
        }
        keep(&cache, "04", &[0; 5000]);
        assert!(find(&cache, "04").is_none() && find(&cache, "03").is_some(), "too large to keep");
    }

    #[test]
    fn a_directory_of_others_is_rejected() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = BuildCache::at(&open).unwrap_err().to_string();
        assert!(error.contains("chmod 700"), "{error}");
        std::os::unix::fs::symlink(parent.path(), parent.path().join("link")).unwrap();
        assert!(BuildCache::at(parent.path().join("link")).is_err());
    }

    #[test]
    fn builders_of_the_same_code_wait_until_cancelled() {
        let parent = tempfile::tempdir().unwrap();
        let cache = BuildCache::at(parent.path().join("c")).unwrap();
        let Some(Lookup::Missing(slot)) = cache.lookup(KEY, &Cancel::new(), Duration::ZERO).unwrap() else {
            panic!("nothing is there");
        };
        let cancel = Cancel::new();
        cancel.cancel();
        assert!(cache.lookup(KEY, &cancel, Duration::from_mins(1)).unwrap().is_none());
        assert!(cache.lookup(KEY, &Cancel::new(), Duration::from_millis(20)).unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| find(&cache, KEY));
            std::thread::sleep(Duration::from_millis(30));
            slot.keep(b"made").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), b"made");
        });
    }
}
