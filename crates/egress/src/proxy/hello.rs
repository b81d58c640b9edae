//! The server name in a TLS client hello.

use super::super::host_pattern::Host;

/// The maximum size of a hello in bytes; those with post-quantum keys have about 2 KiB.
const MAX_HELLO: usize = 32 << 10;
const MAX_RECORD: usize = 16 << 10;

/// The server name of a hello.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Hello {
    /// More bytes are needed.
    Unfinished,
    /// It names this host.
    Names(Host),
    /// It names no host.
    NamesNone,
}

/// Parses an incomplete or complete hello. The bytes are forwarded unchanged.
pub(super) fn read(bytes: &[u8]) -> Result<Hello, &'static str> {
    let mut message: Vec<u8> = Vec::new();
    let mut rest = bytes;
    loop {
        if let Some(needed) = length_of(&message)?
            && message.len() >= needed
        {
            // Bytes after the hello in the same record would be another message.
            return if message.len() == needed {
                parse(message.get(4..).unwrap_or_default()).ok_or("its TLS hello is malformed")?
            } else {
                Err("something follows its TLS hello")
            };
        }
        let [kind, major, minor, high, low, ..] = *rest else {
            return if rest.first().is_none_or(|kind| *kind == 22) {
                Ok(Hello::Unfinished)
            } else {
                Err("it does not begin with a TLS handshake")
            };
        };
        if kind != 22 || major != 3 || minor > 4 {
            return Err("it does not begin with a TLS handshake");
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > MAX_RECORD {
            return Err("its TLS hello is malformed");
        }
        let record = rest.get(5..).unwrap_or_default();
        let part = record.get(..length.min(record.len())).unwrap_or_default();
        message.extend_from_slice(part);
        if part.len() < length {
            length_of(&message)?;
            return Ok(Hello::Unfinished);
        }
        rest = record.get(length..).unwrap_or_default();
    }
}

/// The length of the whole message, once its header is complete.
fn length_of(message: &[u8]) -> Result<Option<usize>, &'static str> {
    match message {
        [1, a, b, c, ..] => {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if length > MAX_HELLO { Err("its TLS hello is larger than 32 KiB") } else { Ok(Some(length + 4)) }
        }
        [] | [1, ..] => Ok(None),
        _ => Err("it does not begin with a TLS hello"),
    }
}

/// A cursor over a part of the message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    /// A block with a length prefix of this many bytes.
    fn block(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let length = self.number(bytes)?;
        self.take(length)
    }
}

fn parse(body: &[u8]) -> Option<Result<Hello, &'static str>> {
    let mut reader = Reader(body);
    // Version and random.
    reader.take(2 + 32)?;
    // Session, cipher suites, compression.
    reader.block(1)?;
    reader.block(2)?;
    reader.block(1)?;
    if reader.0.is_empty() {
        return Some(Ok(Hello::NamesNone));
    }
    let mut extensions = Reader(reader.block(2)?);
    if !reader.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let content = extensions.block(2)?;
        if kind != 0 {
            continue;
        }
        if found.is_some() {
            return Some(Err("its TLS hello names a server twice"));
        }
        let mut outer = Reader(content);
        let mut names = Reader(outer.block(2)?);
        let kind = names.number(1)?;
        let name = names.block(2)?;
        if kind != 0 || !names.0.is_empty() || !outer.0.is_empty() {
            return Some(Err("its TLS hello names a server twice"));
        }
        found = match Host::parse(name) {
            Ok(host) => Some(host),
            Err(_) => return Some(Err("the server name in its TLS hello is not valid")),
        };
    }
    Some(Ok(found.map_or(Hello::NamesNone, Hello::Names)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds a client hello with these server names, in records of at most this size.
    pub(crate) fn hello(names: &[&[u8]], padding: usize, record: usize) -> Vec<u8> {
        let block = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
        let mut extensions = Vec::new();
        // Another extension first, as clients send.
        extensions.extend([0xab, 0xcd]);
        extensions.extend(block(&vec![0; padding]));
        for name in names {
            extensions.extend([0, 0]);
            extensions.extend(block(&block(&[&[0u8][..], &block(name)].concat())));
        }
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend(block(&extensions));
        let mut message = vec![1, 0, (body.len() >> 8) as u8, body.len() as u8];
        message.extend(body);
        message.chunks(record).flat_map(|part| [&[22u8, 3, 1][..], &block(part)].concat()).collect()
    }

    #[test]
    fn the_name_is_found_in_any_fragmentation() {
        let expected = Ok(Hello::Names(Host::Name("example.org".into())));
        for record in [1, 2, 3, 4, 5, 50, 16_384] {
            for padding in [0, 1, 2000] {
                let bytes = hello(&[b"Example.org"], padding, record);
                assert_eq!(read(&bytes), expected, "record {record} padding {padding}");
                for end in (0..bytes.len()).step_by(1 + padding / 100) {
                    assert_eq!(read(&bytes[..end]), Ok(Hello::Unfinished), "{end} of {}", bytes.len());
                }
            }
        }
        assert_eq!(read(&hello(&[], 0, 100)), Ok(Hello::NamesNone));
    }

    #[test]
    fn ambiguous_hellos_are_rejected() {
        let good = hello(&[b"example.org"], 0, 16_384);
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = good.clone();
            change(&mut bytes);
            bytes
        };
        let rows = [
            (hello(&[b"example.org", b"evil.example"], 0, 500), "twice"),
            (hello(&[b"example.org\0.evil.example"], 0, 500), "not valid"),
            (hello(&[b""], 0, 500), "not valid"),
            (hello(&[b"example.org."], 0, 500), "not valid"),
            (hello(&[b"example.org"], 40_000, 16_384), "32 KiB"),
            (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "handshake"),
            (b"SSH-2.0-x\r\n".to_vec(), "handshake"),
            (b"\x80\x2e\x01\x03\x01".to_vec(), "handshake"),
            (with(&|bytes| bytes[0] = 23), "handshake"),
            (with(&|bytes| bytes[1] = 2), "handshake"),
            (with(&|bytes| bytes[5] = 2), "hello"),
            (vec![22, 3, 1, 0, 0], "malformed"),
            (vec![22, 3, 1, 0xff, 0xff], "malformed"),
            // Inconsistent inner lengths.
            (with(&|bytes| bytes[44] = 200), "malformed"),
            // A second message in the same record.
            (
                with(&|bytes| {
                    bytes.extend([1, 0, 0, 0]);
                    bytes[4] += 4;
                }),
                "follows",
            ),
        ];
        for (bytes, expected) in rows {
            let found = read(&bytes);
            assert!(found.as_ref().is_err_and(|reason| reason.contains(expected)), "{expected}: {found:?}");
        }
    }
}
