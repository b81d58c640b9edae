//! Launchers that install a program before they start it: `npx` and `uvx`.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path};

use toolpost_egress::shorten;
use toolpost_sandbox::{Error, Language};

use crate::requirements::name;
use crate::{Installed, Requirements};

/// The largest package metadata file in bytes; a larger one is ignored.
const MAX_FILE: u64 = 1 << 20;
/// The number of entries read from a package directory.
const MAX_ENTRIES: usize = 100_000;
/// Runs an entry point. Arguments: module, attribute, package directory, then those of the program.
const ENTRY: &str = "import sys, importlib, functools\n\
                     module, attribute, packages = sys.argv[1:4]\n\
                     sys.argv[:4] = [attribute]\n\
                     sys.path.insert(0, packages)\n\
                     sys.exit(functools.reduce(getattr, attribute.split('.'), importlib.import_module(module))())";

/// A parsed launcher command: `npx` for npm, `uvx` or `uv tool run` for Python.
///
/// The install ([`crate::Installer`]) and the start are separate runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    requirements: Requirements,
    /// The first package to search for the program.
    package: String,
    /// The name of the program, if given.
    program: Option<String>,
    arguments: Vec<OsString>,
}

impl Launcher {
    /// Parses a command. Returns none if its first word is not a launcher.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for an unsupported option or package.
    pub fn parse(command: &[OsString]) -> Result<Option<Self>, Error> {
        let Some((first, rest)) = command.split_first() else { return Ok(None) };
        let is = |index: usize, word: &str| rest.get(index).is_some_and(|own| own == word);
        match first.to_str() {
            Some("npx") => Self::npx(rest).map(Some),
            Some("uvx") => Self::uvx(rest).map(Some),
            Some("uv") if is(0, "tool") && is(1, "run") => {
                Self::uvx(rest.get(2..).unwrap_or_default()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn npx(words: &[OsString]) -> Result<Self, Error> {
        let flags = ["-y", "--yes", "-q", "--quiet", "--ignore-scripts"];
        let Split { named, program, arguments } = split("npx", words, &flags, &["-p", "--package"])?;
        let mut packages: Vec<String> = named.into_iter().map(|(_, package)| package).collect();
        let is_named = !packages.is_empty();
        if !is_named {
            packages.push(program.clone());
        }
        let package = name(packages.first().map_or("", String::as_str)).to_owned();
        let requirements = Requirements::npm(&packages)?;
        Ok(Self { requirements, package, program: is_named.then_some(program), arguments })
    }

    fn uvx(words: &[OsString]) -> Result<Self, Error> {
        let flags = ["-q", "--quiet", "--isolated"];
        let Split { named, program, arguments } = split("uvx", words, &flags, &["--from", "--with"])?;
        let from = named.iter().find(|(option, _)| *option == "--from").map(|(_, package)| package.clone());
        let is_named = from.is_some();
        // Only this launcher has `NAME@VERSION`.
        let (own, version) = program.split_once('@').unwrap_or((&program, "latest"));
        let package = from.unwrap_or_else(|| match version {
            "latest" => own.to_owned(),
            version => format!("{own}=={version}"),
        });
        let with = named.iter().filter(|(option, _)| *option == "--with");
        let with = with.flat_map(|(_, packages)| packages.split(',').map(str::to_owned));
        let packages: Vec<String> = std::iter::once(package.clone()).chain(with).collect();
        let requirements = Requirements::python(&packages)?;
        let program = Some(if is_named { program.clone() } else { own.to_owned() });
        Ok(Self { requirements, package: name(&package).to_owned(), program, arguments })
    }

    /// The packages to install.
    pub fn requirements(&self) -> &Requirements {
        &self.requirements
    }

    /// The command that starts the installed program without the launcher.
    ///
    /// # Errors
    /// [`Error::Requirement`] if the packages have no such program.
    pub fn command(&self, installed: &Installed) -> Result<Vec<OsString>, Error> {
        let modules = installed.modules();
        let mut command = match installed.language() {
            Language::Python => self.entry_point(&modules)?,
            _ => self.script(&modules)?,
        };
        command.extend(self.arguments.iter().cloned());
        Ok(command)
    }

    fn missing(&self, found: &[String]) -> Error {
        let program = self.program.as_ref().unwrap_or(&self.package);
        let reason = match found {
            [] => format!("it has no program `{}`", shorten(program)),
            found => format!("it has no program `{}`; it has {}", shorten(program), found.join(", ")),
        };
        Error::Requirement { package: self.package.clone(), reason }
    }

    /// Finds an npm program: the script in the package's `bin`.
    fn script(&self, modules: &Path) -> Result<Vec<OsString>, Error> {
        let packages = self.requirements.packages().iter().map(|package| name(package));
        let mut known = Vec::new();
        for package in std::iter::once(self.package.as_str()).chain(packages) {
            let directory = modules.join(package);
            let text = read(&directory.join("package.json")).unwrap_or_default();
            let manifest: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            let unscoped = package.rsplit('/').next().unwrap_or(package);
            let programs: Vec<(&str, &str)> = match &manifest["bin"] {
                serde_json::Value::String(path) => vec![(unscoped, path)],
                serde_json::Value::Object(all) => {
                    all.iter().filter_map(|(name, path)| Some((name.as_str(), path.as_str()?))).collect()
                }
                _ => Vec::new(),
            };
            let wanted = self.program.as_deref().unwrap_or(unscoped);
            let is_only = self.program.is_none() && programs.len() == 1;
            let found = programs.iter().find(|(name, _)| is_only || *name == wanted);
            if let Some((_, path)) = found.filter(|(_, path)| is_beneath(path)) {
                return Ok(vec![
                    "node".into(),
                    directory.join(path.trim_start_matches("./")).into_os_string(),
                ]);
            }
            known.extend(programs.iter().map(|(name, _)| shorten(name)));
        }
        Err(self.missing(&known))
    }

    /// Finds a Python program: the function of an entry point.
    fn entry_point(&self, modules: &Path) -> Result<Vec<OsString>, Error> {
        let wanted = self.program.as_deref().unwrap_or(&self.package);
        let mut known = Vec::new();
        for entry in modules.read_dir().into_iter().flatten().take(MAX_ENTRIES).flatten() {
            let directory = entry.path();
            if directory.extension() != Some(OsStr::new("dist-info")) {
                continue;
            }
            let text = read(&directory.join("entry_points.txt")).unwrap_or_default();
            for (name, object) in console_scripts(&text) {
                let Some((module, attribute)) = object.split_once(':').filter(|_| name == wanted) else {
                    known.push(shorten(name));
                    continue;
                };
                let attribute = attribute.split(['[', ' ']).next().unwrap_or_default();
                return Ok([
                    OsStr::new("python3"),
                    OsStr::new("-I"),
                    OsStr::new("-c"),
                    OsStr::new(ENTRY),
                    OsStr::new(module.trim()),
                    OsStr::new(attribute.trim()),
                    modules.as_os_str(),
                ]
                .map(OsStr::to_owned)
                .to_vec());
            }
        }
        known.sort();
        known.truncate(8);
        Err(self.missing(&known))
    }
}

/// A split launcher command.
struct Split<'a> {
    /// Options with their values.
    named: Vec<(&'a str, String)>,
    program: String,
    arguments: Vec<OsString>,
}

/// Splits off the options before the program; later words are the program's arguments.
fn split<'a>(
    launcher: &'static str,
    words: &[OsString],
    flags: &[&str],
    options: &[&'a str],
) -> Result<Split<'a>, Error> {
    let refuse = |word: &str, reason: &str| Error::InvalidName {
        what: "word of a launcher",
        name: shorten(word),
        reason: format!("{reason} (`{launcher}`)"),
    };
    let mut named = Vec::new();
    let mut words = words.iter();
    let mut is_program = false;
    while let Some(word) = words.next() {
        let text = word.to_str().ok_or_else(|| refuse(&word.to_string_lossy(), "it is not UTF-8"))?;
        if is_program || !text.starts_with('-') {
            return Ok(Split { named, program: text.to_owned(), arguments: words.cloned().collect() });
        }
        if text == "--" {
            is_program = true;
            continue;
        }
        let (option, value) = match text.split_once('=') {
            Some((option, value)) => (option, Some(value.to_owned())),
            None => (text, None),
        };
        if let Some(known) = options.iter().find(|known| **known == option) {
            let value = value.or_else(|| words.next()?.to_str().map(str::to_owned));
            named.push((*known, value.ok_or_else(|| refuse(text, "it needs a value"))?));
        } else if !flags.contains(&text) {
            return Err(refuse(text, "the option is not supported"));
        }
    }
    Err(refuse(launcher, "it names no package"))
}

/// Parses the entries of `[console_scripts]`: names and targets.
fn console_scripts(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = text.lines().map(str::trim).skip_while(|line| *line != "[console_scripts]").skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| line.split_once('=')).map(|(name, object)| (name.trim(), object.trim()))
}

/// Whether a path in package metadata stays in the package.
fn is_beneath(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn read(path: &Path) -> Option<String> {
    let is_small = std::fs::symlink_metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.len() <= MAX_FILE);
    is_small.then(|| std::fs::read_to_string(path).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Launcher>, Error> {
        Launcher::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn launchers_are_parsed() {
        for (line, packages, package, program, arguments) in [
            ("npx -y @a/server@1.2 /data -x", "@a/server@1.2", "@a/server", None, "/data -x"),
            ("npx --package=a@2 --package b run", "a@2 b", "a", Some("run"), ""),
            ("npx -y -- left-pad", "left-pad", "left-pad", None, ""),
            (
                "uvx mcp-server-fetch --ignore",
                "mcp-server-fetch",
                "mcp-server-fetch",
                Some("mcp-server-fetch"),
                "--ignore",
            ),
            ("uvx ruff@0.6.1", "ruff==0.6.1", "ruff", Some("ruff"), ""),
            ("uvx ruff@latest", "ruff", "ruff", Some("ruff"), ""),
            ("uv tool run --from a[b]==1 --with c,d run x", "a[b]==1 c d", "a", Some("run"), "x"),
        ] {
            let launcher = parse(line).unwrap().unwrap();
            assert_eq!(launcher.requirements.packages().join(" "), packages, "{line}");
            assert_eq!(
                (launcher.package.as_str(), launcher.program.as_deref()),
                (package, program),
                "{line}"
            );
            assert_eq!(launcher.arguments.join(OsStr::new(" ")), arguments, "{line}");
        }
        for line in ["python3 npx", "./npx a", "uv run a", "/usr/bin/npx a"] {
            assert_eq!(parse(line).unwrap(), None, "{line}");
        }
        for (line, reason) in [
            ("npx", "no package"),
            ("npx -y", "no package"),
            ("npx -c ls", "not supported"),
            ("npx --registry=http://x a", "not supported"),
            ("npx ../a", "paths"),
            ("uvx --from git+https://x/y z", "paths"),
            ("uvx --index-url x y", "not supported"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }

    #[test]
    fn a_program_is_found_in_installed_packages() {
        let directory = tempfile::tempdir().unwrap();
        let modules = directory.path();
        let write = |path: &str, text: &str| {
            let path = modules.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("@a/one/package.json", r#"{"bin": {"other-name": "./dist/index.js"}}"#);
        write("two/package.json", r#"{"bin": {"x": "x.js", "two": "two.js", "evil": "../../evil.js"}}"#);
        write("three/package.json", r#"{"bin": "cli.js"}"#);
        write("none/package.json", "{}");
        let script = |line: &str| {
            let command = parse(line).unwrap().unwrap().script(modules)?;
            Ok::<_, Error>(
                command[1].to_str().unwrap().strip_prefix(modules.to_str().unwrap()).unwrap().to_owned(),
            )
        };
        assert_eq!(script("npx @a/one@1").unwrap(), "/@a/one/dist/index.js");
        assert_eq!(script("npx two").unwrap(), "/two/two.js");
        assert_eq!(script("npx -p two x").unwrap(), "/two/x.js");
        assert_eq!(script("npx three").unwrap(), "/three/cli.js");
        for (line, reason) in
            [("npx none", "no program `none`"), ("npx -p two evil", "two"), ("npx -p two y", "it has")]
        {
            assert!(script(line).unwrap_err().to_string().contains(reason), "{line}");
        }
        write(
            "a_b-1.dist-info/entry_points.txt",
            "[x]\nrun = wrong:main\n\n[console_scripts]\nrun = a.b:cli.main [extra]\n[y]\n",
        );
        let found = |line: &str| parse(line).unwrap().unwrap().entry_point(modules);
        let command = found("uvx --from a-b run").unwrap();
        assert_eq!(command[4..6], [OsString::from("a.b"), "cli.main".into()]);
        assert!(found("uvx a-b").unwrap_err().to_string().contains("it has run"));
    }
}
