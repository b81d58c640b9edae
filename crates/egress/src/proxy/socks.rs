//! The SOCKS5 protocol (RFC 1928) with a client: no authentication, `CONNECT` only.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::host_pattern::{Host, Target};
use super::shared::Trouble;
use super::wire::Buffered;

const VERSION: u8 = 5;

/// A client's request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SocksRequest {
    /// A connection to this target.
    Target(Target),
    /// A rejected request: the answer's code, the target if the request names a valid one, and the reason.
    Wrong(u8, Option<Target>, &'static str),
}

/// Reads the greeting and the request, and answers the greeting.
pub(super) fn read<S: Read + Write>(client: &mut Buffered<S>) -> io::Result<SocksRequest> {
    let wrong = |reason| Ok(SocksRequest::Wrong(1, None, reason));
    let greeting = client.exactly(2)?;
    let methods = client.exactly(usize::from(greeting.get(1).copied().unwrap_or(0)))?;
    if !methods.contains(&0) {
        client.inner.write_all(&[VERSION, 0xff])?;
        return wrong("it offers no SOCKS connection without authentication");
    }
    client.inner.write_all(&[VERSION, 0])?;
    let request = client.exactly(4)?;
    let [version, command, reserved, kind] = *request else { return wrong("it is not a SOCKS5 request") };
    if version != VERSION || reserved != 0 {
        return wrong("it is not a SOCKS5 request");
    }
    let host = match kind {
        1 => {
            let bytes: [u8; 4] = client.exactly(4)?.try_into().unwrap_or_default();
            Ok(Host::Address(Ipv4Addr::from(bytes).into()))
        }
        3 => {
            let length = client.exactly(1)?.first().copied().unwrap_or(0);
            let name = client.exactly(usize::from(length))?;
            match name.first() {
                // A bracketed address has its own address type.
                Some(b'[') => Err("it has a character that no host name has"),
                _ => Host::parse(&name),
            }
        }
        4 => {
            let bytes: [u8; 16] = client.exactly(16)?.try_into().unwrap_or_default();
            Host::parse(format!("[{}]", Ipv6Addr::from(bytes)).as_bytes())
        }
        _ => return Ok(SocksRequest::Wrong(8, None, "its kind of address is unknown")),
    };
    let port: [u8; 2] = client.exactly(2)?.try_into().unwrap_or_default();
    let port = u16::from_be_bytes(port);
    let target = host.map(|host| Target { host, port });
    Ok(match target {
        _ if command != 1 => SocksRequest::Wrong(7, target.ok(), "only `CONNECT` is supported"),
        Err(reason) => SocksRequest::Wrong(2, None, reason),
        Ok(target) if port == 0 => {
            SocksRequest::Wrong(2, Some(target), "its port is not a number from 1 to 65535")
        }
        Ok(target) => SocksRequest::Target(target),
    })
}

/// The answer with a code; 0 is success.
pub(super) fn answer(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// The code that matches an error best.
pub(super) fn code(trouble: &Trouble) -> u8 {
    match trouble {
        Trouble::Refused { .. } => 2,
        Trouble::Failed { status: 504, .. } => 4,
        Trouble::Failed { .. } => 5,
        Trouble::Gone => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Both<'a>(&'a [u8], Vec<u8>);
    impl Read for Both<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }
    impl Write for Both<'_> {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.1.write(buffer)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn address(text: &str) -> Host {
        Host::Address(text.parse().unwrap())
    }

    fn ask(request: &[u8]) -> io::Result<SocksRequest> {
        let bytes = [&[5, 1, 0][..], request].concat();
        let mut client = Buffered::new(Both(&bytes, Vec::new()));
        let asked = read(&mut client);
        assert_eq!(client.inner.1, [5, 0]);
        asked
    }

    fn name(name: &[u8]) -> Vec<u8> {
        [&[5, 1, 0, 3, name.len() as u8][..], name, &[1, 187]].concat()
    }

    #[test]
    fn names_and_addresses_have_their_own_types() {
        let target = |host| SocksRequest::Target(Target { host, port: 443 });
        assert_eq!(ask(&name(b"Example.org")).unwrap(), target(Host::Name("example.org".into())));
        assert_eq!(ask(&name(b"127.0.0.1")).unwrap(), target(address("127.0.0.1")));
        assert_eq!(ask(&[5, 1, 0, 1, 127, 0, 0, 1, 1, 187]).unwrap(), target(address("127.0.0.1")));
        let six = [&[5, 1, 0, 4][..], &Ipv6Addr::LOCALHOST.octets(), &[1, 187]].concat();
        assert_eq!(ask(&six).unwrap(), target(address("::1")));
    }

    #[test]
    fn invalid_requests_are_rejected_with_their_reason() {
        let mapped =
            [&[5, 1, 0, 4][..], &"::ffff:127.0.0.1".parse::<Ipv6Addr>().unwrap().octets(), &[1, 187]]
                .concat();
        let rows = [
            (name(b"example.org\0.evil.example"), 2, "control"),
            (name(b""), 2, "empty"),
            (name(b"2130706433"), 2, "number"),
            (name(b"[::1]"), 2, "no host name has"),
            (name(b"example.org:80"), 2, "no host name has"),
            (mapped, 2, "IPv6 form"),
            (vec![5, 2, 0, 1, 1, 1, 1, 1, 0, 80], 7, "only `CONNECT`"),
            (vec![5, 3, 0, 1, 1, 1, 1, 1, 0, 80], 7, "only `CONNECT`"),
            (vec![5, 1, 0, 1, 1, 1, 1, 1, 0, 0], 2, "port"),
            (vec![5, 1, 0, 9, 1, 1, 1, 1, 0, 80], 8, "kind of address"),
            (vec![4, 1, 0, 1, 1, 1, 1, 1, 0, 80], 1, "not a SOCKS5"),
        ];
        for (request, expected_code, expected) in rows {
            match ask(&request).unwrap() {
                SocksRequest::Wrong(code, _, reason) => {
                    assert!(code == expected_code && reason.contains(expected), "{code} {reason} {expected}");
                }
                other @ SocksRequest::Target(_) => panic!("{other:?}"),
            }
        }
        assert!(ask(&[5, 1, 0, 3, 200, b'a']).is_err());
        let mut client = Buffered::new(Both(&[5, 1, 2], Vec::new()));
        assert!(matches!(read(&mut client).unwrap(), SocksRequest::Wrong(..)));
        assert_eq!(client.inner.1, [5, 0xff]);
    }
}
