//! Package requirements: accepted forms of names and versions.

use toolpost_egress::shorten;
use toolpost_sandbox::{Error, Language};

/// The maximum number of packages in a list.
const MAX_PACKAGES: usize = 256;
/// The maximum length of a requirement in bytes.
const MAX_LENGTH: usize = 200;
/// Names with these extensions are files for the installers.
const ARCHIVES: [&str; 9] =
    [".whl", ".zip", ".tgz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tbz", ".txz"];

/// A list of packages for a language's installer: names with versions.
///
/// Paths, URLs and options, which installers accept too, are rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirements {
    language: Language,
    /// Sorted, without duplicates and spaces.
    packages: Vec<String>,
}

impl Requirements {
    /// Creates Python requirements for `pip`: a name, extras in brackets, versions.
    ///
    /// For example `requests==2.*`, `pandas[excel]>=2,<4`.
    ///
    /// # Errors
    /// [`Error::InvalidName`] names the requirement and the rule that it breaks.
    pub fn python<I, S>(packages: I) -> Result<Self, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        Self::new(Language::Python, packages, check_python)
    }

    /// Creates npm requirements: a name with optional scope, then `@` and a version, range or tag.
    ///
    /// For example `left-pad@1.3.0`, `@types/node@^22`.
    ///
    /// # Errors
    /// [`Error::InvalidName`] names the requirement and the rule that it breaks.
    pub fn npm<I, S>(packages: I) -> Result<Self, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        Self::new(Language::JavaScript, packages, check_npm)
    }

    fn new<I, S>(
        language: Language,
        packages: I,
        check: fn(&str) -> Result<(), &'static str>,
    ) -> Result<Self, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<str>,
    {
        let refuse = |name: &str, reason: String| Error::InvalidName {
            what: "requirement",
            name: shorten(name),
            reason,
        };
        let mut list = Vec::new();
        for package in packages {
            let given = package.as_ref();
            if list.len() >= MAX_PACKAGES {
                return Err(refuse(given, format!("at most {MAX_PACKAGES} packages are allowed")));
            }
            if given.len() > MAX_LENGTH {
                return Err(refuse(given, format!("it is longer than {MAX_LENGTH} bytes")));
            }
            let text = joined(given).ok_or_else(|| refuse(given, OUTSIDE.into()))?;
            check(&text).map_err(|reason| refuse(given, reason.into()))?;
            list.push(text);
        }
        if list.is_empty() {
            return Err(refuse("", "the list is empty".into()));
        }
        list.sort();
        list.dedup();
        Ok(Self { language, packages: list })
    }

    /// The language of the packages.
    pub fn language(&self) -> Language {
        self.language
    }

    /// The packages, sorted.
    pub fn packages(&self) -> &[String] {
        &self.packages
    }
}

/// The name in a checked requirement.
pub(crate) fn name(requirement: &str) -> &str {
    let start = usize::from(requirement.starts_with('@'));
    let end = requirement[start..]
        .find(['@', '[', '=', '<', '>', '~', '!'])
        .map_or(requirement.len(), |end| end + start);
    &requirement[..end]
}

/// Removes spaces beside signs. None if a space separates two words.
fn joined(text: &str) -> Option<String> {
    let is_sign = |letter: Option<char>| letter.is_some_and(|letter| "=<>~!,[]".contains(letter));
    let mut joined = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !joined.is_empty() && !is_sign(joined.chars().last()) && !is_sign(word.chars().next()) {
            return None;
        }
        joined.push_str(word);
    }
    Some(joined)
}

const OUTSIDE: &str = "expected a name with a version; paths, addresses, markers and options are not taken";

fn is_archive(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    ARCHIVES.iter().any(|end| lower.ends_with(end))
}

fn check_python(text: &str) -> Result<(), &'static str> {
    let name = name(text);
    let inner = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let is_name = name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.ends_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(inner);
    if !is_name {
        return Err(OUTSIDE);
    }
    if is_archive(text) {
        return Err("it names a file");
    }
    let mut rest = &text[name.len()..];
    if let Some(after) = rest.strip_prefix('[') {
        let (extras, after) = after.split_once(']').ok_or("its extras lack `]`")?;
        let is_extra = |extra: &str| {
            extra.starts_with(|first: char| first.is_ascii_alphanumeric()) && extra.chars().all(inner)
        };
        if !extras.split(',').all(is_extra) {
            return Err("its extras are invalid");
        }
        rest = after;
    }
    if rest.is_empty() {
        return Ok(());
    }
    for part in rest.split(',') {
        let version = ["===", "==", ">=", "<=", "~=", "!=", "<", ">"]
            .iter()
            .find_map(|operator| part.strip_prefix(operator))
            .ok_or("expected a comparison such as `==` before each version")?;
        let is_version = version.starts_with(|first: char| first.is_ascii_alphanumeric())
            && version.chars().all(|letter| letter.is_ascii_alphanumeric() || ".*+!_-".contains(letter));
        if !is_version {
            return Err("expected a version after the comparison");
        }
    }
    Ok(())
}

fn check_npm(text: &str) -> Result<(), &'static str> {
    let name = name(text);
    let is_part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
            && part.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || "._-".contains(letter)
            })
    };
    let is_name = match name.strip_prefix('@') {
        Some(scoped) => scoped.split_once('/').is_some_and(|(scope, name)| is_part(scope) && is_part(name)),
        None => is_part(name),
    };
    if !is_name {
        return Err(OUTSIDE);
    }
    if is_archive(text) {
        return Err("it names a file");
    }
    let rest = &text[name.len()..];
    if rest.is_empty() {
        return Ok(());
    }
    let version = rest.strip_prefix('@').ok_or("expected `@` before the version")?;
    let is_version = version
        .starts_with(|first: char| first.is_ascii_alphanumeric() || "^~<>=*".contains(first))
        && version.chars().all(|letter| letter.is_ascii_alphanumeric() || ".*^~<>=+_-".contains(letter));
    if is_version { Ok(()) } else { Err("expected a version, a range or a tag after `@`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_versions_are_accepted_and_sorted() {
        let list = Requirements::python([
            "requests == 2.*",
            "pandas[excel,plot]>=2,<4",
            "numpy",
            "numpy",
            "a.b-c_d~=1.0",
            "x!=1!2.0+local",
        ])
        .unwrap();
        assert_eq!(
            list.packages(),
            ["a.b-c_d~=1.0", "numpy", "pandas[excel,plot]>=2,<4", "requests==2.*", "x!=1!2.0+local"]
        );
        let list = Requirements::npm([
            "left-pad@1.3.0",
            "@types/node@^22",
            "lodash",
            "x@>=1.0.0-beta.1",
            "y@latest",
            "z@*",
        ])
        .unwrap();
        assert_eq!((list.language(), list.packages().len()), (Language::JavaScript, 6));
        assert_eq!(name("@types/node@^22"), "@types/node");
        assert_eq!(name("pandas[excel]>=2"), "pandas");
    }

    #[test]
    fn other_forms_are_rejected() {
        let both = [
            "",
            " ",
            "-r x",
            "-rx",
            "--index-url=http://x",
            "-e.",
            ".",
            "./x",
            "../x",
            "/etc/passwd",
            "a/b",
            "~/x",
            "git+https://x/y",
            "https://x/y.whl",
            "file:///x",
            "x@https://x",
            "x @ file:///x",
            "x;python_version>'3'",
            "x\n-r y",
            "x\0",
            "x\\y",
            "$(id)",
            "`id`",
            "x.whl",
            "x.tar.gz",
            "x.tgz",
            "C:x",
            "ü",
            "x#egg=y",
            "x y\u{202e}",
            "x y",
            "x -r y",
        ];
        for name in both {
            for (list, kind) in [(Requirements::python([name]), "python"), (Requirements::npm([name]), "npm")]
            {
                let error = list.expect_err(&format!("{kind} {name:?}"));
                assert!(matches!(error, Error::InvalidName { what: "requirement", .. }), "{error}");
                assert!(!error.to_string().contains(['\n', '\0', '\u{202e}']), "{error}");
            }
        }
        for name in [
            "x@1",
            "x==",
            "x=1",
            "x==1,",
            "x==-1",
            "x[",
            "x[]",
            "x[a",
            "x[-r]",
            "x==1 --hash",
            "-",
            "x-",
            "x==1;y",
        ] {
            assert!(Requirements::python([name]).is_err(), "{name:?}");
        }
        for name in [
            "x@", "x@.", "x@..", "x@./y", "x@npm:y", "x@y/z", "X", "@x", "@/y", "@x/", "@x/y/z", "_x",
            "x==1", "x@-1",
        ] {
            assert!(Requirements::npm([name]).is_err(), "{name:?}");
        }
        assert!(Requirements::python(Vec::<String>::new()).is_err());
        assert!(Requirements::python((0..300).map(|number| format!("p{number}"))).is_err());
        assert!(Requirements::python(["x".repeat(300)]).is_err());
    }
}
