//! The secrets of a run: their placeholders, and their insertion into requests and removal from responses.

use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::host_pattern::Target;
use super::super::secret::Placeholder;
use super::text::percent;

/// A secret with its placeholder in this run.
#[derive(Debug)]
struct Entry {
    placeholder: Placeholder,
    text: String,
}

/// The secrets of one run.
#[derive(Debug)]
pub(super) struct Vault(Vec<Entry>);

impl Vault {
    /// Creates an unguessable placeholder for each secret.
    pub(super) fn new(placeholders: &[Placeholder]) -> io::Result<Self> {
        let mut entries = Vec::new();
        for placeholder in placeholders {
            let mut random = [0u8; 16];
            let size = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            if size < random.len() {
                return Err(io::Error::other("the kernel returned too few random bytes"));
            }
            let text = format!("placeholder-{:032x}", u128::from_ne_bytes(random));
            entries.push(Entry { placeholder: placeholder.clone(), text });
        }
        Ok(Self(entries))
    }

    /// The program's variables.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        self.0.iter().map(|entry| (entry.placeholder.variable.clone(), entry.text.clone())).collect()
    }

    fn bound(&self, target: &Target) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|entry| entry.placeholder.hosts.iter().any(|host| host.matches(target)))
    }

    /// Whether a secret is bound to a target, and whether all of them may be sent without TLS.
    pub(super) fn binding(&self, target: &Target) -> Option<Plain> {
        let mut bound = self.bound(target).peekable();
        bound.peek()?;
        let is_plain = |placeholder: &Placeholder| {
            placeholder.plain_http || placeholder.plain_hosts.iter().any(|host| host.matches(target))
        };
        Some(if bound.all(|entry| is_plain(&entry.placeholder)) { Plain::Allowed } else { Plain::Refused })
    }

    /// Inserts the secrets of a target into a header value. Returns their variables.
    pub(super) fn fill(&self, target: &Target, name: &str, value: &mut String) -> Vec<String> {
        let name = name.to_ascii_lowercase();
        let mut filled = Vec::new();
        for entry in self.bound(target).filter(|entry| entry.placeholder.has_header(&name)) {
            let secret = entry.placeholder.secret.reveal();
            if value.contains(&entry.text) {
                *value = value.replace(&entry.text, secret);
                filled.push(entry.placeholder.variable.clone());
            } else if let Some((scheme, credentials)) = value.split_once(' ')
                && scheme.eq_ignore_ascii_case("basic")
                && let Some(plain) =
                    STANDARD.decode(credentials.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok())
                && plain.contains(&entry.text)
            {
                *value = format!("{scheme} {}", STANDARD.encode(plain.replace(&entry.text, secret)));
                filled.push(entry.placeholder.variable.clone());
            }
        }
        filled
    }

    /// The filter that removes a target's secrets from its responses. `sent` are the sent header values with
    /// secrets.
    pub(super) fn filter(&self, target: &Target, sent: &[String]) -> Filter {
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for entry in self.bound(target) {
            let secret = entry.placeholder.secret.reveal();
            let mut add = |form: String| pairs.push((form.into_bytes(), entry.text.clone().into_bytes()));
            add(secret.to_owned());
            add(percent(secret));
            // Inside other base64 the letters depend on the offset: three cases, without the letters that
            // share bits with a neighbor.
            for before in 0..3usize {
                let encoded = STANDARD.encode([&vec![0; before][..], secret.as_bytes()].concat());
                let first = (before * 8).div_ceil(6);
                let last = ((before + secret.len()) * 8) / 6;
                if let Some(inner) = encoded.get(first..last).filter(|inner| inner.len() >= 8) {
                    add(inner.to_owned());
                }
            }
            // The whole credentials too, so that nothing around the secret remains.
            for value in sent.iter().filter_map(|value| value.split_once(' ')).map(|(_, rest)| rest.trim()) {
                if value.len() >= 8 {
                    add(value.to_owned());
                }
            }
        }
        pairs.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        pairs.dedup();
        Filter { pairs }
    }
}

/// Whether secrets may be sent without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plain {
    Allowed,
    Refused,
}

/// The texts to replace, longest first.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    pairs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Filter {
    /// A filter that changes nothing.
    pub(super) fn none() -> Self {
        Self { pairs: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Replaces everything in a text.
    pub(super) fn whole(&self, text: &str) -> String {
        let mut out = Vec::new();
        self.push(&mut text.as_bytes().to_vec(), true, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Replaces in `held` and moves it to `out`. Unless this is the end, a possible start of a match stays
    /// held.
    fn push(&self, held: &mut Vec<u8>, is_end: bool, out: &mut Vec<u8>) {
        let longest = self.pairs.first().map_or(0, |(form, _)| form.len());
        let mut at = 0;
        while let Some(rest) = held.get(at..).filter(|rest| !rest.is_empty()) {
            if !is_end && rest.len() < longest {
                break;
            }
            match self.pairs.iter().find(|(form, _)| rest.starts_with(form)) {
                Some((form, replacement)) => {
                    out.extend_from_slice(replacement);
                    at += form.len();
                }
                None => {
                    out.extend(rest.first());
                    at += 1;
                }
            }
        }
        held.drain(..at);
    }
}

/// A reader that removes secrets.
pub(super) struct Filtered<'a, R> {
    inner: R,
    filter: &'a Filter,
    held: Vec<u8>,
    ready: Vec<u8>,
    ended: bool,
}

impl<'a, R: Read> Filtered<'a, R> {
    pub(super) fn new(inner: R, filter: &'a Filter) -> Self {
        Self { inner, filter, held: Vec::new(), ready: Vec::new(), ended: false }
    }
}

impl<R: Read> Read for Filtered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.filter.is_empty() {
            return self.inner.read(buffer);
        }
        while self.ready.is_empty() {
            if self.ended {
                return Ok(0);
            }
            let mut block = [0u8; 4096];
            let size = self.inner.read(&mut block)?;
            self.ended = size == 0;
            self.held.extend_from_slice(block.get(..size).unwrap_or_default());
            self.filter.push(&mut self.held, self.ended, &mut self.ready);
        }
        let size = self.ready.len().min(buffer.len());
        let rest = self.ready.split_off(size);
        if let Some(place) = buffer.get_mut(..size) {
            place.copy_from_slice(&self.ready);
        }
        self.ready = rest;
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostPattern;

    const SECRET: &str = "s3cr3t/value+long";

    fn vault() -> Vault {
        let host = HostPattern::new("api.example.org").unwrap();
        Vault::new(&[Placeholder::new("API_TOKEN", SECRET).host(host)]).unwrap()
    }

    fn target(text: &str) -> Target {
        Target::parse(text.as_bytes(), None).unwrap()
    }

    #[test]
    fn a_placeholder_is_replaced_only_for_its_host_and_in_its_headers() {
        let vault = vault();
        let placeholder = vault.variables()[0].1.clone();
        assert_ne!(placeholder, Vault::new(&[vault.0[0].placeholder.clone()]).unwrap().variables()[0].1);
        let fill = |host: &str, header: &str, value: String| {
            let mut value = value;
            let names = vault.fill(&target(host), header, &mut value);
            (value, names.len())
        };
        let bearer = format!("Bearer {placeholder}");
        assert_eq!(
            fill("api.example.org:80", "Authorization", bearer.clone()),
            (format!("Bearer {SECRET}"), 1)
        );
        assert_eq!(fill("api.example.org:80", "X-Api-Key", placeholder.clone()), (SECRET.into(), 1));
        let basic = format!("Basic {}", STANDARD.encode(format!("user:{placeholder}")));
        let expected = format!("Basic {}", STANDARD.encode(format!("user:{SECRET}")));
        assert_eq!(fill("api.example.org:80", "authorization", basic), (expected, 1));
        for (host, header) in [
            ("evil.example:80", "Authorization"),
            ("sub.api.example.org:80", "Authorization"),
            ("api.example.org:8080", "Authorization"),
            ("api.example.org:80", "User-Agent"),
            ("api.example.org:80", "Cookie"),
        ] {
            assert_eq!(fill(host, header, bearer.clone()), (bearer.clone(), 0), "{host} {header}");
        }
    }

    #[test]
    fn a_reflected_secret_is_removed_in_any_fragmentation() {
        struct Cut<'a>(&'a [u8], usize);
        impl Read for Cut<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let size = self.1.min(self.0.len()).min(buffer.len());
                buffer[..size].copy_from_slice(&self.0[..size]);
                self.0 = &self.0[size..];
                Ok(size)
            }
        }
        let vault = vault();
        let host = target("api.example.org:80");
        let sent = [format!("Basic {}", STANDARD.encode(format!("user:{SECRET}")))];
        let filter = vault.filter(&host, &sent);
        let mut forms = vec![SECRET.to_owned(), percent(SECRET), sent[0][6..].to_owned()];
        forms.extend((0..3).map(|before| STANDARD.encode(format!("{}{SECRET}", &"abc"[..before]))));
        for form in forms {
            let text = format!("before {form} between {form}{form} after s3cr3t");
            for size in [1, 2, 7, 16, 4096] {
                let mut out = String::new();
                Filtered::new(Cut(text.as_bytes(), size), &filter).read_to_string(&mut out).unwrap();
                let encoded = STANDARD.encode(SECRET);
                assert!(!out.contains(SECRET) && !out.contains(&percent(SECRET)), "{out}");
                assert!(!out.contains(&encoded[2..20]), "{size} {out}");
                assert!(out.starts_with("before ") && out.ends_with(" after s3cr3t"), "{out}");
                assert_eq!(out.matches("placeholder-").count(), 3, "{out}");
            }
        }
        assert!(vault.filter(&target("evil.example:80"), &sent).is_empty());
    }
}
