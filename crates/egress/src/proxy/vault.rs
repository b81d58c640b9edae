//! The secrets of a run: their placeholders, and their insertion into requests and removal from responses.

use std::io::{self, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::super::host_pattern::Target;
use super::super::secret::{Placeholder, Secret};
use super::text::forms;

/// A secret with its placeholder in this run.
#[derive(Debug)]
struct VaultSecret {
    placeholder: Placeholder,
    text: String,
}

/// The text that replaces the credentials for the operator's proxy.
const REMOVED: &str = "removed";
/// The minimum length of other credentials to remove. A shorter text could occur by chance.
const MIN_CREDENTIALS: usize = 8;

/// The secrets of one run.
#[derive(Debug)]
pub(super) struct Vault {
    entries: Vec<VaultSecret>,
    /// Removes every secret and the credentials for the operator's proxy.
    all: Filter,
}

impl Vault {
    /// Creates an unguessable placeholder for each secret. `authorization` is the header for the operator's proxy.
    pub(super) fn new(placeholders: &[Placeholder], authorization: Option<&Secret>) -> io::Result<Self> {
        let mut entries = Vec::new();
        for placeholder in placeholders {
            let mut random = [0u8; 16];
            let size = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            if size < random.len() {
                return Err(io::Error::other("the kernel returned too few random bytes"));
            }
            let text = format!("placeholder-{:032x}", u128::from_ne_bytes(random));
            entries.push(VaultSecret { placeholder: placeholder.clone(), text });
        }
        let mut all = pairs(entries.iter(), &[]);
        for text in authorization.into_iter().flat_map(|value| credentials(value.reveal())) {
            all.push((text.into_bytes(), REMOVED.into()));
        }
        Ok(Self { entries, all: Filter::new(all) })
    }

    /// The program's variables.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        self.entries.iter().map(|entry| (entry.placeholder.variable.clone(), entry.text.clone())).collect()
    }

    fn bound(&self, target: &Target) -> impl Iterator<Item = &VaultSecret> {
        self.entries.iter().filter(|entry| entry.placeholder.hosts.iter().any(|host| host.matches(target)))
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
        Filter::new(pairs(self.bound(target), sent))
    }

    /// A text for the program or the log without any secret.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        self.all.text(text)
    }
}

/// The texts to replace, with their replacements.
fn pairs<'a>(entries: impl Iterator<Item = &'a VaultSecret>, sent: &[String]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut pairs = Vec::new();
    for entry in entries {
        // The whole credentials too, so that nothing around the secret remains.
        let credentials = sent.iter().flat_map(|value| credentials(value).skip(1));
        for form in forms(entry.placeholder.secret.reveal()).into_iter().chain(credentials) {
            pairs.push((form.into_bytes(), entry.text.clone().into_bytes()));
        }
    }
    pairs
}

/// A header value, and its credentials after the scheme.
fn credentials(value: &str) -> impl Iterator<Item = String> {
    let bare = value.split_once(' ').map(|(_, bare)| bare.trim());
    std::iter::once(value).chain(bare).filter(|text| text.len() >= MIN_CREDENTIALS).map(str::to_owned)
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
    /// Whether a text to replace begins with a byte.
    begins: [bool; 256],
}

impl Filter {
    fn new(mut pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        pairs.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
        pairs.dedup();
        let mut begins = [false; 256];
        for first in pairs.iter().filter_map(|(form, _)| form.first()) {
            begins[usize::from(*first)] = true;
        }
        Self { pairs, begins }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Replaces everything in a text.
    pub(super) fn text(&self, text: &str) -> String {
        let mut out = Vec::new();
        self.push(&mut text.as_bytes().to_vec(), true, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// The status line of a response, without a reason if a secret begins before the reason.
    pub(super) fn status_line(&self, status: u16, reason: &str) -> String {
        let line = format!("HTTP/1.1 {status} {}", self.text(reason));
        if self.is_in(&line) { format!("HTTP/1.1 {status} ") } else { line }
    }

    /// A header of a response; `None` if a secret lies across the colon.
    ///
    /// A secret is found in a name in any case, because names have none.
    pub(super) fn header(&self, name: &str, value: &str) -> Option<(String, String)> {
        let (name, value) = (self.name(name), self.text(value));
        let is_across = [":", ": "].iter().any(|between| self.is_in(&format!("{name}{between}{value}")));
        (!is_across).then_some((name, value))
    }

    /// Replaces everything in a text, in any case.
    fn name(&self, text: &str) -> String {
        let (mut out, mut rest) = (String::new(), text);
        while let Some(first) = rest.chars().next() {
            let found = self.pairs.iter().find(|(form, _)| begins_with(rest.as_bytes(), form));
            let length = match found {
                Some((form, replacement)) => {
                    out.push_str(&String::from_utf8_lossy(replacement));
                    form.len()
                }
                None => {
                    out.push(first);
                    first.len_utf8()
                }
            };
            rest = rest.get(length..).unwrap_or_default();
        }
        out
    }

    /// Whether a text has something to replace, in any case.
    fn is_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        (0..bytes.len()).any(|at| {
            let rest = bytes.get(at..).unwrap_or_default();
            self.pairs.iter().any(|(form, _)| begins_with(rest, form))
        })
    }

    /// Replaces in `held` and moves it to `out`. Unless this is the end, a possible start of a match stays
    /// held.
    fn push(&self, held: &mut Vec<u8>, is_end: bool, out: &mut Vec<u8>) {
        let longest = self.pairs.first().map_or(0, |(form, _)| form.len());
        let mut at = 0;
        while let Some((first, rest)) = held.get(at..).and_then(|rest| Some((*rest.first()?, rest))) {
            if !is_end && rest.len() < longest {
                break;
            }
            let may_begin = self.begins[usize::from(first)];
            match self.pairs.iter().find(|(form, _)| may_begin && rest.starts_with(form)) {
                Some((form, replacement)) => {
                    out.extend_from_slice(replacement);
                    at += form.len();
                }
                None => {
                    out.push(first);
                    at += 1;
                }
            }
        }
        held.drain(..at);
    }
}

/// Whether bytes begin with a text, in any case.
fn begins_with(bytes: &[u8], text: &[u8]) -> bool {
    bytes.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text))
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
    use super::super::head::is_token;
    use super::*;
    use crate::HostPattern;

    const SECRET: &str = "s3cr3t/value+long";

    fn vault() -> Vault {
        let host = HostPattern::new("api.example.org").unwrap();
        Vault::new(&[Placeholder::new("API_TOKEN", SECRET).host(host)], None).unwrap()
    }

    fn target(text: &str) -> Target {
        Target::parse(text.as_bytes(), None).unwrap()
    }

    #[test]
    fn a_placeholder_is_replaced_only_for_its_host_and_in_its_headers() {
        let vault = vault();
        let placeholder = vault.variables()[0].1.clone();
        let again = Vault::new(&[vault.entries[0].placeholder.clone()], None).unwrap();
        assert_ne!(placeholder, again.variables()[0].1);
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
        let encoded = STANDARD.encode(SECRET);
        let mut texts = forms(SECRET);
        texts.push(sent[0][6..].to_owned());
        texts.extend((0..3).map(|before| STANDARD.encode(format!("{}{SECRET}", &"abc"[..before]))));
        for form in texts {
            let text = format!("before {form} between {form}{form} after s3cr3t");
            for size in [1, 2, 7, 16, 4096] {
                let mut out = String::new();
                Filtered::new(Cut(text.as_bytes(), size), &filter).read_to_string(&mut out).unwrap();
                assert!(!forms(SECRET).iter().any(|form| out.contains(form.as_str())), "{out}");
                assert!(!out.contains(&encoded[2..20]), "{size} {out}");
                assert!(out.starts_with("before ") && out.ends_with(" after s3cr3t"), "{out}");
                assert_eq!(out.matches("placeholder-").count(), 3, "{out}");
            }
        }
        assert!(vault.filter(&target("evil.example:80"), &sent).is_empty());
    }

    #[test]
    fn no_part_of_a_response_head_has_a_secret() {
        let filter = |secret: &str| {
            let host = HostPattern::new("api.example.org").unwrap();
            let vault = Vault::new(&[Placeholder::new("A", secret).host(host)], None).unwrap();
            vault.filter(&target("api.example.org:80"), &[])
        };
        let shown = |secret: &str, name: &str, value: &str| {
            filter(secret).header(name, value).map(|(name, value)| format!("{name}: {value}"))
        };
        for name in ["s3cret-value", "S3CRET-VALUE", "x-s3cret-value-y", "s3cret-valueS3cret-value"] {
            let line = shown("s3cret-value", name, "v").unwrap();
            assert!(line.contains("placeholder-") && !line.to_lowercase().contains("s3cret"), "{line}");
            assert!(is_token(line.split(':').next().unwrap()), "{line}");
        }
        assert_eq!(shown("s3cret-value", "Content-Type", "a/b"), Some("Content-Type: a/b".into()));
        // The name and the value together are the secret.
        for (secret, name, value) in [
            ("user:s3cret", "user", "s3cret"),
            ("a: s3cret-value", "a", "s3cret-value"),
            ("user:s3cret", "USER", "s3cret-more"),
        ] {
            assert_eq!(shown(secret, name, value), None, "{secret}");
        }
        assert_eq!(filter("s3cret-value").status_line(200, "OK"), "HTTP/1.1 200 OK");
        for (secret, reason) in
            [("s3cret-value", "the s3cret-value"), ("200 s3cret", "s3cret"), ("1.1 200 secret", "Secret")]
        {
            let line = filter(secret).status_line(200, reason);
            assert!(!line.to_lowercase().contains(secret) && line.starts_with("HTTP/1.1 200 "), "{line}");
        }
    }

    #[test]
    fn credentials_of_the_proxy_are_in_no_text() {
        let authorization = Secret::new("Basic b3BlcmF0b3I6cHc=".into());
        let vault = Vault::new(&[], Some(&authorization)).unwrap();
        assert_eq!(
            vault.without_secrets("for b3BlcmF0b3I6cHc= `Basic b3BlcmF0b3I6cHc=`"),
            "for removed `removed`"
        );
    }
}
