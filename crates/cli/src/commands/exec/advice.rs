//! Advice on the option that gives a program what it lacked.

use std::path::{Path, PathBuf};

use toolpost_runtimes::Unmet;
use toolpost_sandbox::Language;

use crate::args::{Backend, ExecArgs};
use crate::env;
use crate::packages;
use crate::style::shell_word;

/// One sentence per missing thing, with the option or command.
pub(super) fn hints(found: &[Unmet], args: &ExecArgs) -> Vec<String> {
    let is_container = args.backend == Some(Backend::Docker);
    let mut hints: Vec<String> = Vec::new();
    for unmet in found {
        let hint = match unmet {
            Unmet::Module { language: Language::Python, module, package, profile } => {
                match beside(args, module) {
                    Some(path) => {
                        format!("Copy the module into the workspace: `--attach {}`.", path.display())
                    }
                    None => of_python(package, *profile, args, is_container),
                }
            }
            Unmet::Module { package, .. } | Unmet::Command { name: package } if is_container => {
                format!("Use an image that has `{package}`: `--image NAME`.")
            }
            Unmet::Module { language: Language::JavaScript | Language::TypeScript, package, .. } => {
                of_code(package, args)
            }
            Unmet::Module { language: Language::Go | Language::Rust | Language::Java, package, .. } => {
                format!("`{package}` is not available: this code has only the standard library.")
            }
            Unmet::Module { package, .. } => {
                format!("Install it on this host, for example `apt-get install {package}`.")
            }
            Unmet::Command { name } => of_command(name),
            Unmet::Connection { host, is_private, has_proxy } => {
                of_connection(host.as_deref(), *is_private, *has_proxy)
            }
            _ => continue,
        };
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    if !hints.is_empty()
        && let Some(id) = &args.session
    {
        hints.push(format!(
            "The options of a session are fixed: end it first with `toolpost exec --session {id} --end`."
        ));
    }
    hints
}

/// The file of the module beside the code.
fn beside(args: &ExecArgs, module: &str) -> Option<PathBuf> {
    let directory = args.code.as_deref().filter(|code| *code != Path::new("-"))?.parent()?;
    let file = directory.join(format!("{module}.py"));
    file.is_file().then_some(file)
}

fn of_python(package: &str, profile: Option<&str>, args: &ExecArgs, is_container: bool) -> String {
    let profile = profile.filter(|name| args.profile.as_deref() != Some(*name));
    if is_container {
        let image = format!("Use an image that has `{package}`: `--image NAME`");
        return match profile {
            Some(name) => {
                format!("{image}, or `toolpost image build {name} --docker` and `--profile {name}`.")
            }
            None => format!("{image}."),
        };
    }
    let Some(name) = profile else { return of_code(package, args) };
    let profile = match packages::environment(name) {
        Ok(Some(_)) => format!("`--profile {name}`"),
        _ => format!("`toolpost image build {name}` and `--profile {name}`"),
    };
    if args.code.is_some() {
        format!("Add `--requirement {package}`, or use {profile}.")
    } else {
        format!("Use {profile}.")
    }
}

/// A package for a command: the line that gives the code itself.
fn of_code(package: &str, args: &ExecArgs) -> String {
    if args.code.is_some() {
        return format!("Add `--requirement {package}`.");
    }
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let code = match words.as_slice() {
        [program, "-c", code, ..] if program.contains("python") => {
            format!("--lang python - <<< {}", shell_word(code))
        }
        [program, "-e", code, ..] if program.contains("node") => {
            format!("--lang javascript - <<< {}", shell_word(code))
        }
        [_, file, rest @ ..] if !file.starts_with('-') => {
            let arguments = rest.iter().map(|word| shell_word(word));
            let separator = (!rest.is_empty()).then(|| "--".to_owned());
            let line = [shell_word(file)].into_iter().chain(separator).chain(arguments);
            line.collect::<Vec<String>>().join(" ")
        }
        _ => "FILE".to_owned(),
    };
    format!("Give the code instead of a command: `toolpost exec --requirement {package} {code}`.")
}

fn of_command(name: &str) -> String {
    let search = env::get_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&search).map(|directory| directory.join(name)).find(|path| path.is_file());
    match found {
        Some(path) => {
            format!("`{}` is outside of the sandbox: install `{name}` in `/usr/local/bin`.", path.display())
        }
        None => format!("Install it on this host, for example `apt-get install {name}`."),
    }
}

fn of_connection(host: Option<&str>, is_private: bool, has_proxy: bool) -> String {
    let option = match host {
        Some(host) if is_private => {
            let host = host.replace("localhost", "127.0.0.1");
            let port = if host.contains(':') { "" } else { ":PORT" };
            format!("--allow-address {host}{port}")
        }
        host => format!("--allow-host {}", host.unwrap_or("HOST")),
    };
    if has_proxy {
        // The option may be there already: a direct connection is blocked in spite of it.
        return format!(
            "The program must use the proxy of HTTPS_PROXY. A host not yet allowed needs `{option}`."
        );
    }
    format!("The sandbox blocks connections: allow this one with `{option}`.")
}
