//! Missing packages, commands and connections, detected in a program's messages.

use std::net::IpAddr;

use toolpost_sandbox::{Language, Layer, Program, Report};

use crate::Profile;

/// The maximum number of findings.
const MAX_FINDINGS: usize = 5;
/// The number of bytes at the end of an output to search.
const MAX_TEXT: usize = 64 << 10;
/// The longest name in bytes.
const MAX_NAME: usize = 100;

/// Something that a program lacked.
///
/// The messages of interpreters, shells and common clients name it, so a program can forge it. Names are
/// checked for valid characters. Use it only as a hint for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unmet {
    /// A module that is not installed.
    Module {
        /// The language of the code.
        language: Language,
        /// The name in the code.
        module: String,
        /// The package that contains it, by its installer's name.
        package: String,
        /// A profile that has the package.
        profile: Option<&'static str>,
    },
    /// A program that is missing, or outside the search path.
    Command {
        /// Its name.
        name: String,
    },
    /// A connection that the sandbox blocked.
    Connection {
        /// The host, with its port unless 80 or 443; none if no message names it.
        host: Option<String>,
        /// Is a non-public address.
        is_private: bool,
        /// Whether the run had a proxy that the program did not use.
        has_proxy: bool,
    },
}

/// Messages for a failed name resolution or a missing route.
const NO_CONNECTION: [&str; 17] = [
    "Temporary failure in name resolution",
    "Name or service not known",
    "No address associated with hostname",
    "Could not resolve host",
    "unable to resolve host",
    "Failed to resolve '",
    "failed to lookup address",
    "getaddrinfo",
    "EAI_AGAIN",
    "ENOTFOUND",
    "UnknownHostException",
    "etwork is unreachable",
    "ENETUNREACH",
    "dial tcp",
    "no connection to",
    "Failed to connect to",
    "ConnectError",
];

/// Words before a host in such a message, and whether a host without a dot counts.
const BEFORE_HOST: [(&str, bool); 19] = [
    ("no connection to ", true),
    ("host='", true),
    ("Failed to resolve '", true),
    ("Could not resolve host: ", true),
    ("Could not resolve hostname ", true),
    ("resolve host address ", true),
    ("EAI_AGAIN ", true),
    ("ENOTFOUND ", true),
    ("ENETUNREACH ", true),
    ("UnknownHostException: ", true),
    ("getaddrinfo for ", true),
    ("TCP connection to ", true),
    ("connect to host ", true),
    ("Failed to connect to ", true),
    ("lookup ", false),
    ("dial tcp ", false),
    ("dial udp ", false),
    ("http://", true),
    ("https://", true),
];

/// Modules of Python whose package has another name.
const PACKAGES: [(&str, &str); 24] = [
    ("Crypto", "pycryptodome"),
    ("MySQLdb", "mysqlclient"),
    ("OpenSSL", "pyOpenSSL"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python-headless"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("fitz", "PyMuPDF"),
    ("git", "GitPython"),
    ("jose", "python-jose"),
    ("jwt", "PyJWT"),
    ("ldap3", "ldap3"),
    ("magic", "python-magic"),
    ("multipart", "python-multipart"),
    ("pkg_resources", "setuptools"),
    ("pptx", "python-pptx"),
    ("psycopg2", "psycopg2-binary"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("slugify", "python-slugify"),
    ("telegram", "python-telegram-bot"),
    ("yaml", "PyYAML"),
    ("zmq", "pyzmq"),
];

impl Unmet {
    /// The resource that a program lacked, from its text and its output.
    ///
    /// Of a run with an allowlist, [`Report::egress`] has what the proxy refused: such a host is not found again.
    pub fn find(program: &Program, stdout: &str, stderr: &str, report: &Report) -> Vec<Self> {
        let (language, text) = match program {
            Program::Code { language, source } => (Some(*language), source.clone()),
            Program::Argv(words) => {
                let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
                (None, words.join(" "))
            }
            Program::Ready(ready) => (ready.language(), String::new()),
            _ => (None, String::new()),
        };
        let mut found = Self::search(language, &text, end(stdout), end(stderr), is_blocked(report));
        if let Some(log) = &report.egress {
            let name = |host: &str| host.rsplit_once(':').map_or(host, |(name, _)| name).to_owned();
            found.retain_mut(|unmet| match unmet {
                Self::Connection { host: Some(host), has_proxy, .. } => {
                    *has_proxy = true;
                    log.events.iter().all(|event| name(&event.target) != name(host))
                }
                Self::Connection { host: None, .. } => false,
                _ => true,
            });
        }
        found
    }

    /// Searches the output of code, with or without blocked connections.
    fn search(
        language: Option<Language>,
        source: &str,
        stdout: &str,
        stderr: &str,
        is_blocked: bool,
    ) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut add = |unmet: Self| {
            if found.len() < MAX_FINDINGS && !found.contains(&unmet) {
                found.push(unmet);
            }
        };
        for line in stderr.lines() {
            module(line, language).into_iter().for_each(&mut add);
            command(line, stderr).into_iter().for_each(&mut add);
        }
        if !is_blocked {
            return found;
        }
        // Code often prints errors that it caught.
        let lines = || stderr.lines().chain(stdout.lines());
        let failures = || lines().filter(|line| NO_CONNECTION.iter().any(|words| line.contains(words)));
        let mut hosts: Vec<String> = failures().flat_map(hosts_in).collect();
        if hosts.is_empty() && failures().next().is_some() {
            hosts = source.lines().flat_map(addresses_in).collect();
            if hosts.is_empty() {
                add(Self::Connection { host: None, is_private: false, has_proxy: false });
            }
        }
        for host in hosts {
            let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
            let is_private = name == "localhost" || name.parse::<IpAddr>().is_ok_and(is_private);
            let host = host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(&host);
            add(Self::Connection { host: Some(host.to_owned()), is_private, has_proxy: false });
        }
        found
    }
}

/// Whether the sandbox blocked direct connections.
fn is_blocked(report: &Report) -> bool {
    report.has(Layer::NetworkNamespace) || report.has(Layer::LandlockTcp)
}

/// The end of a text, from the start of a line.
fn end(text: &str) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(MAX_TEXT));
    text.get(start..).unwrap_or_default()
}

/// The name after some words in a line, of letters, digits and `signs`.
fn after<'a>(line: &'a str, words: &str, signs: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(words)?;
    let rest = rest.trim_start_matches(['\'', '"', '`', '‘', '“']);
    let fits = |letter: char| letter.is_ascii_alphanumeric() || signs.contains(letter);
    let end = rest.find(|letter| !fits(letter)).unwrap_or(rest.len());
    name(rest.get(..end)?)
}

fn name(text: &str) -> Option<&str> {
    let text = text.trim_end_matches(['.', ',', ':']);
    let begins = text.starts_with(|letter: char| letter.is_ascii_alphanumeric() || "_@".contains(letter));
    (begins && text.len() <= MAX_NAME).then_some(text)
}

/// A module that a line reports as missing.
fn module(line: &str, language: Option<Language>) -> Option<Unmet> {
    let found = |language: Language, module: &str, package: String| {
        let profile = Profile::named("data").ok().and_then(|data| {
            let has = data.packages.iter().any(|entry| entry.requirement == package);
            (language == Language::Python && has).then_some("data")
        });
        Some(Unmet::Module { language, module: module.to_owned(), package, profile })
    };
    // A command may be any interpreter; code has one language.
    let may_be = |other: Language| language.is_none_or(|own| own == other);
    if may_be(Language::Python) {
        let missing = after(line, "No module named ", "_.").or_else(|| {
            // The message of pandas for an optional module.
            after(line, "Missing optional dependency ", "_.-")
        });
        if let Some(module) = missing.and_then(|module| module.split('.').next()) {
            return found(Language::Python, module, python_package(module));
        }
    }
    if language.is_none_or(|own| matches!(own, Language::JavaScript | Language::TypeScript)) {
        // The last one is the message of `import` in code without a file.
        let missing = ["Cannot find module ", "Cannot find package ", "Failed to resolve module specifier "];
        let missing = missing.iter().find_map(|words| after(line, words, "@/._-:"));
        if let Some(module) = missing.filter(|module| !module.starts_with("node:")) {
            let parts = if module.starts_with('@') { 2 } else { 1 };
            let package: Vec<&str> = module.split('/').take(parts).collect();
            return found(language.unwrap_or(Language::JavaScript), module, package.join("/"));
        }
    }
    let (words, signs) = match language? {
        Language::Ruby => ("cannot load such file -- ", "/_-"),
        Language::Perl => ("Can't locate ", "/_"),
        Language::R => ("there is no package called ", "._"),
        Language::Lua => ("module '", "._-"),
        Language::Go => ("no required module provides package ", "/._-"),
        Language::Rust => ("can't find crate for ", "_"),
        Language::Java => ("error: package ", "._"),
        _ => return None,
    };
    let module = after(line, words, signs)?;
    let is_whole = match language? {
        Language::Lua => line.contains("' not found"),
        Language::Java => line.contains(" does not exist"),
        _ => true,
    };
    let dashed = |text: &str| text.replace(['/', '.', '_'], "-").to_lowercase();
    let package = match language? {
        Language::Ruby => format!("ruby-{}", dashed(module)),
        Language::Perl => format!("lib{}-perl", dashed(module)),
        Language::R => format!("r-cran-{}", dashed(module)),
        Language::Lua => format!("lua-{}", dashed(module)),
        _ => module.to_owned(),
    };
    if is_whole { found(language?, module, package) } else { None }
}

/// The package of a Python module.
fn python_package(module: &str) -> String {
    let known = PACKAGES.iter().find(|(name, _)| *name == module).map(|(_, package)| (*package).to_owned());
    let of_profile = || {
        let data = Profile::named("data").ok()?;
        data.packages.into_iter().find(|entry| entry.module == module).map(|entry| entry.requirement)
    };
    known.or_else(of_profile).unwrap_or_else(|| module.to_owned())
}

/// A program that a line reports as missing.
fn command(line: &str, whole: &str) -> Option<Unmet> {
    const SIGNS: &str = "._+-";
    let last = |text: &str| name(text.rsplit([' ', ':']).next().unwrap_or_default()).map(str::to_owned);
    let is_name =
        |text: &str| text.chars().all(|letter| letter.is_ascii_alphanumeric() || SIGNS.contains(letter));
    let of_shell = || last(line.strip_suffix(": command not found")?);
    // `sh: 1: jq: not found`
    let of_posix_shell = || {
        let rest = line.strip_suffix(": not found")?;
        let (before, _) = rest.rsplit_once(": ")?;
        let number = before.rsplit([' ', ':']).next()?;
        number.parse::<u32>().ok().and_then(|_| last(rest))
    };
    let of_python = || {
        let is_start = line.starts_with("FileNotFoundError: ") && whole.contains("subprocess.py");
        is_start.then(|| after(line, "No such file or directory: ", SIGNS)).flatten().map(str::to_owned)
    };
    let of_others = || {
        let found = if line.contains("executable file not found in") {
            after(line, "exec: ", SIGNS)
        } else if line.contains(" ENOENT") {
            after(line, "spawn ", SIGNS)
        } else if line.contains("No such file or directory") {
            after(line, "env: ", SIGNS).or_else(|| after(line, "Can't exec ", SIGNS))
        } else {
            None
        };
        found.map(str::to_owned)
    };
    let name = of_shell().or_else(of_posix_shell).or_else(of_python).or_else(of_others)?;
    is_name(&name).then_some(Unmet::Command { name })
}

/// The hosts in a message.
fn hosts_in(line: &str) -> Vec<String> {
    let mut hosts: Vec<String> = BEFORE_HOST
        .iter()
        .filter_map(|(words, is_certain)| {
            host(after(line, words, ".-:")?).filter(|host| *is_certain || host.contains('.'))
        })
        .collect();
    // `bash: example.org: Temporary failure in name resolution`
    for words in [": Temporary failure in name resolution", ": Name or service not known"] {
        let before = line.split_once(words).map(|(before, _)| before);
        let found = before.and_then(|before| before.rsplit([' ', '\'', '"', '‘']).next());
        hosts.extend(found.and_then(host).filter(|host| host.contains('.')));
    }
    hosts.dedup();
    hosts.truncate(1);
    hosts
}

/// The hosts of the URLs in a line.
fn addresses_in(line: &str) -> Vec<String> {
    let addresses = ["https://", "http://"].into_iter().flat_map(|scheme| {
        line.match_indices(scheme)
            .filter_map(move |(place, _)| after(line.get(place..)?, scheme, ".-:").and_then(host))
    });
    addresses.take(MAX_FINDINGS).collect()
}

/// Parses a host with its port.
fn host(text: &str) -> Option<String> {
    let text = text.trim_end_matches(['.', ':']);
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, Some(port.split(':').next()?.parse::<u16>().ok()?)),
        None => (text, None),
    };
    let is_part = |part: &str| {
        !part.is_empty()
            && part.len() <= 63
            && !part.starts_with('-')
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
    };
    let is_host = name.split('.').all(is_part) && name != "address";
    is_host.then(|| port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}")))
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unique_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(language: Option<Language>, source: &str, printed: &str, expected: &[&str]) {
        let found = Unmet::search(language, source, "", printed, true);
        let names: Vec<String> = found
            .iter()
            .map(|unmet| match unmet {
                Unmet::Module { package, profile, .. } => {
                    format!(
                        "package {package}{}",
                        profile.map(|name| format!(" in {name}")).unwrap_or_default()
                    )
                }
                Unmet::Command { name } => format!("command {name}"),
                Unmet::Connection { host, is_private, .. } => format!(
                    "host {}{}",
                    host.as_deref().unwrap_or("unknown"),
                    if *is_private { " private" } else { "" }
                ),
            })
            .collect();
        assert_eq!(names, expected, "{printed}");
    }

    #[test]
    fn a_missing_package_gets_its_installer_name() {
        use Language::{JavaScript, Lua, Perl, Python, R, Ruby, Rust, TypeScript};
        for (language, printed, expected) in [
            (Python, "ModuleNotFoundError: No module named 'pandas'", "package pandas in data"),
            (Python, "ModuleNotFoundError: No module named 'sklearn.svm'", "package scikit-learn in data"),
            (Python, "ModuleNotFoundError: No module named 'yaml'", "package PyYAML"),
            (
                Python,
                "ImportError: Missing optional dependency 'openpyxl'.  Use pip",
                "package openpyxl in data",
            ),
            (JavaScript, "Error: Cannot find module 'lodash/fp'", "package lodash"),
            (
                TypeScript,
                "Error [ERR_MODULE_NOT_FOUND]: Cannot find package '@acme/kit' imported from data:text",
                "package @acme/kit",
            ),
            (
                JavaScript,
                "TypeError: Failed to resolve module specifier \"ms\" from \"data:text/javascript;base64,IyE=\"",
                "package ms",
            ),
            (
                Ruby,
                "main.rb:1:in `require': cannot load such file -- nokogiri (LoadError)",
                "package ruby-nokogiri",
            ),
            (Perl, "Can't locate JSON/XS.pm in @INC (you may need to install it)", "package libjson-xs-perl"),
            (R, "Error in library(ggplot2) : there is no package called ‘ggplot2’", "package r-cran-ggplot2"),
            (Lua, "lua: main.lua:1: module 'lpeg' not found:", "package lua-lpeg"),
            (Rust, "error[E0463]: can't find crate for `serde`", "package serde"),
        ] {
            check(Some(language), "", printed, &[expected]);
        }
        // A command may be any interpreter.
        check(None, "", "ModuleNotFoundError: No module named 'pandas'", &["package pandas in data"]);
        check(None, "", "Error: Cannot find module 'lodash'", &["package lodash"]);
    }

    #[test]
    fn other_messages_name_no_package() {
        for (language, printed) in [
            (Language::JavaScript, "Error: Cannot find module './helper'"),
            (Language::JavaScript, "Error: Cannot find module '/workspace/x.js'"),
            (Language::JavaScript, "Error: Cannot find module 'node:sqlite3'"),
            (Language::Python, "No module named '$(touch x)'"),
            (Language::Python, "No module named '--index-url=x'"),
            (Language::Bash, "ModuleNotFoundError: No module named 'pandas'"),
            (Language::Lua, "module 'x' is fine"),
        ] {
            check(Some(language), "", printed, &[]);
        }
    }

    #[test]
    fn a_missing_command_is_named() {
        let python = "  File \"/usr/lib/python3.11/subprocess.py\", line 1955, in _execute_child\n\
                      FileNotFoundError: [Errno 2] No such file or directory: 'jq'";
        for printed in [
            "/proc/self/fd/5: line 1: jq: command not found",
            "bash: jq: command not found",
            "sh: 1: jq: not found",
            "/proc/self/fd/5: 3: jq: not found",
            python,
            "Error: spawn jq ENOENT",
            "exec: \"jq\": executable file not found in $PATH",
            "/usr/bin/env: ‘jq’: No such file or directory",
            "Can't exec \"jq\": No such file or directory at main.pl line 1.",
        ] {
            check(None, "", printed, &["command jq"]);
        }
        for printed in [
            "FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'",
            "cat: data.csv: No such file or directory",
            "the page was: not found",
            "x: $(reboot): command not found",
        ] {
            check(None, "", printed, &[]);
        }
    }

    #[test]
    fn a_blocked_connection_names_the_host() {
        for (printed, expected) in [
            ("curl: (6) Could not resolve host: example.org", "host example.org"),
            (
                "fatal: unable to access 'https://example.org/x.git/': Could not resolve host: example.org",
                "host example.org",
            ),
            ("wget: unable to resolve host address ‘example.org’", "host example.org"),
            ("Error: getaddrinfo EAI_AGAIN example.org", "host example.org"),
            ("Error: connect ENETUNREACH 192.0.2.1:443 - Local (0.0.0.0:0)", "host 192.0.2.1"),
            ("Error: connect ENETUNREACH 127.0.0.1:8080 - Local (0.0.0.0:0)", "host 127.0.0.1:8080 private"),
            ("bash: example.org: Temporary failure in name resolution", "host example.org"),
            (
                "ssh: Could not resolve hostname example.org: Temporary failure in name resolution",
                "host example.org",
            ),
            ("no connection to example.org:8443", "host example.org:8443"),
            (
                "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='example.org', port=443): Max retries \
                 exceeded with url: / (Caused by NameResolutionError(\"Failed to resolve 'example.org' ([Errno -3] \
                 Temporary failure in name resolution)\"))",
                "host example.org",
            ),
            ("dial tcp: lookup example.org on [::1]:53: read udp", "host example.org"),
            ("java.net.UnknownHostException: example.org", "host example.org"),
            (
                "php_network_getaddresses: getaddrinfo for example.org failed: Temporary failure",
                "host example.org",
            ),
            (
                "Failed to open TCP connection to example.org:443 (getaddrinfo: Temporary failure)",
                "host example.org",
            ),
            (
                "Cannot connect to host example.org:443 ssl:default [Temporary failure in name resolution]",
                "host example.org",
            ),
            ("failed to lookup address information: Temporary failure in name resolution", "host unknown"),
            ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "host unknown"),
        ] {
            check(None, "", printed, &[expected]);
        }
        // A message without a host: use the URLs of the code.
        let failure = "<urlopen error [Errno -3] Temporary failure in name resolution>";
        let code = "import urllib.request as r\nr.urlopen('https://example.org/a')\nr.urlopen('http://b.example:8080')";
        check(Some(Language::Python), code, failure, &["host example.org", "host b.example:8080"]);
        // Code prints errors that it caught.
        assert_eq!(Unmet::search(None, "", failure, "", true).len(), 1);
        assert!(Unmet::search(None, "", failure, failure, false).is_empty(), "nothing was blocked");
        check(None, "", "the text mentions https://example.org and nothing failed", &[]);
    }
}
