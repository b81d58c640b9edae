//! Writes tar archives (POSIX ustar, with pax headers for long names) for files and images.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;

/// An archive in progress.
#[derive(Debug)]
pub(super) struct Writer<W: Write> {
    target: W,
}

fn put(header: &mut [u8; BLOCK], at: usize, bytes: &[u8]) {
    if let Some(place) = header.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

impl<W: Write> Writer<W> {
    pub(super) fn new(target: W) -> Self {
        Self { target }
    }

    fn header(&mut self, name: &str, kind: u8, mode: u32, size: u64, link: &str) -> io::Result<()> {
        if size >= 1 << 33 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file has 8 GiB or more"));
        }
        let is_long = name.len() > 100 || link.len() > 100;
        if is_long && kind != b'x' {
            let mut records = Vec::new();
            for (key, value) in [("path", name), ("linkpath", link)] {
                if !value.is_empty() {
                    records.extend_from_slice(record(key, value).as_bytes());
                }
            }
            self.header("pax", b'x', 0o644, records.len() as u64, "")?;
            self.content(&mut records.as_slice(), records.len() as u64)?;
        }
        let mut header = [0u8; BLOCK];
        let cut = |text: &str| text.as_bytes().get(..text.len().min(100)).unwrap_or_default().to_vec();
        put(&mut header, 0, &cut(name));
        put(&mut header, 100, format!("{mode:07o}\0").as_bytes());
        put(&mut header, 108, b"0000000\0");
        put(&mut header, 116, b"0000000\0");
        put(&mut header, 124, format!("{size:011o}\0").as_bytes());
        put(&mut header, 136, b"00000000000\0");
        put(&mut header, 148, b"        ");
        put(&mut header, 156, &[kind]);
        put(&mut header, 157, &cut(link));
        put(&mut header, 257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        put(&mut header, 148, format!("{sum:06o}\0 ").as_bytes());
        self.target.write_all(&header)
    }

    fn content(&mut self, source: &mut dyn Read, size: u64) -> io::Result<()> {
        let copied = io::copy(&mut source.take(size), &mut self.target)?;
        if copied != size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        let rest = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
        self.target.write_all([0u8; BLOCK].get(..rest).unwrap_or_default())
    }

    /// Adds a directory. All entries belong to root.
    pub(super) fn directory(&mut self, name: &str, mode: u32) -> io::Result<()> {
        self.header(&format!("{}/", name.trim_end_matches('/')), b'5', mode, 0, "")
    }

    /// A file whose size is known.
    pub(super) fn file(
        &mut self,
        name: &str,
        mode: u32,
        size: u64,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        self.header(name, b'0', mode, size, "")?;
        self.content(content, size)
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.header(name, b'2', 0o777, 0, target)
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.target.write_all(&[0u8; 2 * BLOCK])?;
        self.target.flush()?;
        Ok(self.target)
    }
}

/// Formats a pax record, whose length includes its own digits.
fn record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {key}={value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_can_read_the_archive() {
        let long = format!("{}/{}", "nested".repeat(20), "file".repeat(30));
        let mut archive = Writer::new(Vec::new());
        archive.directory("bin", 0o755).unwrap();
        archive.file("bin/tool", 0o555, 5, &mut &b"hello"[..]).unwrap();
        archive.file(&long, 0o644, 600, &mut &[b'x'; 600][..]).unwrap();
        archive.link("link", "bin/tool").unwrap();
        assert!(archive.file("short", 0o644, 9, &mut &b"x"[..]).is_err());
        let mut archive = Writer::new(archive.target.get(..512 * 9).unwrap().to_vec());
        archive.link("link", "bin/tool").unwrap();
        let bytes = archive.finish().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.tar");
        std::fs::write(&file, bytes).unwrap();
        #[expect(clippy::disallowed_methods, reason = "the system's tar is the judge")]
        let output = std::process::Command::new("tar").arg("tvf").arg(&file).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for wanted in ["drwxr-xr-x", "-r-xr-xr-x", " 600 ", &long, "link -> bin/tool"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }

    #[test]
    fn a_record_counts_its_own_digits() {
        assert_eq!(record("path", "x"), "9 path=x\n");
        let line = record("path", &"y".repeat(89));
        assert!(line.starts_with(&line.len().to_string()), "{line}");
        let line = record("path", &"y".repeat(90));
        assert!(line.starts_with(&line.len().to_string()), "{line}");
    }
}
