//! The key that proves the records of layers.
//!
//! Apply trusts a record: it names the directory and what may change there. Code can write files that look like a
//! layer, but the sandbox hides the key, which each directory for layers has. A record without a valid proof is never
//! applied.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

/// The name of the key in a directory for layers.
const NAME: &str = "key";
/// The block size of SHA-256 in bytes.
const BLOCK: usize = 64;
/// The size of a key in bytes.
const KEY: usize = 32;

/// A key of this user.
#[derive(Clone)]
pub(crate) struct RecordKey([u8; KEY]);

impl std::fmt::Debug for RecordKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("RecordKey")
    }
}

impl RecordKey {
    /// Reads the key of a directory for layers, and creates it if missing.
    pub(super) fn open(parent: &Path) -> io::Result<Self> {
        match Self::read(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&parent.join(NAME)),
            result => result,
        }
    }

    /// Reads the key of a directory for layers.
    pub(super) fn read(parent: &Path) -> io::Result<Self> {
        let path = parent.join(NAME);
        read(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("the key `{}`: {error}", path.display())))
    }

    /// The proof of a text: HMAC-SHA256 (RFC 2104) in hexadecimal digits.
    pub(super) fn proof(&self, text: &[u8]) -> String {
        self.hash(text).iter().fold(String::new(), |proof, byte| proof + &format!("{byte:02x}"))
    }

    /// Whether a proof is that of a text, in constant time.
    pub(super) fn proves(&self, proof: &str, text: &[u8]) -> bool {
        let expected = self.proof(text);
        let differences =
            expected.bytes().zip(proof.bytes()).fold(0, |all, (one, other)| all | (one ^ other));
        proof.len() == expected.len() && differences == 0
    }

    fn hash(&self, text: &[u8]) -> [u8; 32] {
        let pad = |filler: u8| {
            let mut block = [filler; BLOCK];
            block.iter_mut().zip(self.0).for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new().chain_update(pad(0x36)).chain_update(text).finalize();
        Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
    }
}

fn read(path: &Path) -> io::Result<RecordKey> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o777 == 0o600;
    if !metadata.is_file() || !is_own || metadata.len() != KEY as u64 {
        return Err(io::Error::other("it is not a file of 32 bytes that only this user reads; remove it"));
    }
    let mut key = [0u8; KEY];
    file.read_exact(&mut key)?;
    Ok(RecordKey(key))
}

/// Creates a key. Of several processes, the first one wins.
fn create(path: &Path) -> io::Result<RecordKey> {
    let mut key = [0u8; KEY];
    let mut name = [0u8; 8];
    for random in [key.as_mut_slice(), name.as_mut_slice()] {
        rustix::rand::getrandom(random, rustix::rand::GetRandomFlags::empty())?;
    }
    let next = path.with_extension(format!("key-{:016x}", u64::from_ne_bytes(name)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(&next, flags, Mode::from_raw_mode(0o600))?;
    let linked = std::fs::File::from(file).write_all(&key).and_then(|()| std::fs::hard_link(&next, path));
    let _ = std::fs::remove_file(&next);
    match linked {
        Ok(()) => Ok(RecordKey(key)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_proof_is_hmac_sha256() {
        // `printf 'what do ya want' | openssl dgst -sha256 -mac HMAC -macopt hexkey:0b…0b` (32 bytes).
        let key = RecordKey([0x0b; KEY]);
        let proof = key.proof(b"what do ya want");
        assert_eq!(proof, "b55f03085982b29d40e09bcec693995c05805846970c13fd6f351cb500dfb585");
        assert!(key.proves(&proof, b"what do ya want"));
        assert!(!key.proves(&proof, b"what do ya wanT"));
        assert!(!key.proves("", b"what do ya want"));
        assert!(!RecordKey([0x0c; KEY]).proves(&proof, b"what do ya want"));
    }

    #[test]
    fn a_key_is_private_and_created_once() {
        let place = tempfile::tempdir().unwrap();
        let layers = place.path();
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| RecordKey::open(layers).unwrap().0)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|key| *key == all[0] && *key != [0; KEY]));
        let path = layers.join("key");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(layers).unwrap().count(), 1);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(RecordKey::open(layers).is_err());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        assert!(RecordKey::open(layers).is_err());
    }
}
