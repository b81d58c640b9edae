//! Settings of git's configuration that name files which git executes or obeys.
//!
//! Source: git-config(1), gitattributes(5), githooks(5), gitcredentials(7), git-send-email(1), git-lfs-config(5).

use std::collections::HashMap;
use std::sync::OnceLock;

/// A kind of value that names files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// Another configuration file, relative to the file with the setting.
    Include,
    /// A directory with hooks, relative to the work tree.
    Hooks,
    /// A file or directory that git obeys, relative to the work tree.
    Path,
    /// A command line, executed in the work tree.
    Command,
    /// A command line after `!`; otherwise the arguments of a command of git.
    Alias,
    /// A command line after `!`, an absolute path, or the end of a command name.
    Helper,
    /// A URL; one of `ext::` is a command line.
    Url,
    /// The top of the work tree, relative to the repository.
    WorkTree,
    /// Whether the repository has `config.worktree`.
    WorktreeConfig,
}

/// The settings, in lower case; `*` is any subsection.
const SETTINGS: &[(&str, ValueKind)] = &[
    ("include.path", ValueKind::Include),
    ("includeif.*.path", ValueKind::Include),
    ("core.hookspath", ValueKind::Hooks),
    ("core.attributesfile", ValueKind::Path),
    ("init.templatedir", ValueKind::Path),
    ("gpg.ssh.allowedsignersfile", ValueKind::Path),
    ("gpg.ssh.revocationfile", ValueKind::Path),
    ("sendemail.aliasesfile", ValueKind::Path),
    ("http.sslcainfo", ValueKind::Path),
    ("http.*.sslcainfo", ValueKind::Path),
    ("http.sslcapath", ValueKind::Path),
    ("http.*.sslcapath", ValueKind::Path),
    ("core.fsmonitor", ValueKind::Command),
    ("core.sshcommand", ValueKind::Command),
    ("core.pager", ValueKind::Command),
    ("core.editor", ValueKind::Command),
    ("core.askpass", ValueKind::Command),
    ("core.gitproxy", ValueKind::Command),
    ("core.alternaterefscommand", ValueKind::Command),
    ("sequence.editor", ValueKind::Command),
    ("interactive.difffilter", ValueKind::Command),
    ("filter.*.clean", ValueKind::Command),
    ("filter.*.smudge", ValueKind::Command),
    ("filter.*.process", ValueKind::Command),
    ("diff.external", ValueKind::Command),
    ("diff.*.command", ValueKind::Command),
    ("diff.*.textconv", ValueKind::Command),
    ("difftool.*.cmd", ValueKind::Command),
    ("difftool.*.path", ValueKind::Command),
    ("merge.*.driver", ValueKind::Command),
    ("mergetool.*.cmd", ValueKind::Command),
    ("mergetool.*.path", ValueKind::Command),
    ("guitool.*.cmd", ValueKind::Command),
    ("gpg.program", ValueKind::Command),
    ("gpg.*.program", ValueKind::Command),
    ("gpg.ssh.defaultkeycommand", ValueKind::Command),
    ("hook.*.command", ValueKind::Command),
    ("trailer.*.command", ValueKind::Command),
    ("trailer.*.cmd", ValueKind::Command),
    ("tar.*.command", ValueKind::Command),
    ("man.*.cmd", ValueKind::Command),
    ("man.*.path", ValueKind::Command),
    ("browser.*.cmd", ValueKind::Command),
    ("browser.*.path", ValueKind::Command),
    ("instaweb.httpd", ValueKind::Command),
    ("instaweb.modulepath", ValueKind::Path),
    ("uploadpack.packobjectshook", ValueKind::Command),
    ("remote.*.uploadpack", ValueKind::Command),
    ("remote.*.receivepack", ValueKind::Command),
    ("submodule.*.update", ValueKind::Alias),
    ("sendemail.sendmailcmd", ValueKind::Command),
    ("sendemail.smtpserver", ValueKind::Command),
    ("sendemail.tocmd", ValueKind::Command),
    ("sendemail.cccmd", ValueKind::Command),
    ("sendemail.headercmd", ValueKind::Command),
    ("imap.tunnel", ValueKind::Command),
    ("lfs.customtransfer.*.path", ValueKind::Command),
    ("lfs.customtransfer.*.args", ValueKind::Command),
    ("lfs.extension.*.clean", ValueKind::Command),
    ("lfs.extension.*.smudge", ValueKind::Command),
    ("credential.helper", ValueKind::Helper),
    ("credential.*.helper", ValueKind::Helper),
    ("remote.*.url", ValueKind::Url),
    ("remote.*.pushurl", ValueKind::Url),
    ("core.worktree", ValueKind::WorkTree),
    ("extensions.worktreeconfig", ValueKind::WorktreeConfig),
];

/// The hooks of githooks(5), for a directory that has other files too.
pub(crate) const HOOKS: [&str; 28] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-prepare-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "post-index-change",
];

/// The kind of a setting's value. None if it names no file.
pub(crate) fn kind(key: &str, subsection: Option<&[u8]>) -> Option<ValueKind> {
    static KINDS: OnceLock<HashMap<&'static str, ValueKind>> = OnceLock::new();
    let kinds = KINDS.get_or_init(|| SETTINGS.iter().copied().collect());
    // The section `lfs.customtransfer.x`, and the subsection `ssh` of `gpg`.
    let fixed = || {
        let (section, name) = key.split_once(".*.")?;
        let subsection = std::str::from_utf8(subsection?).ok()?.to_ascii_lowercase();
        let first = subsection.split_once('.').map_or(subsection.as_str(), |(first, _)| first);
        kinds
            .get(format!("{section}.{subsection}.{name}").as_str())
            .or_else(|| kinds.get(format!("{section}.{first}.*.{name}").as_str()))
    };
    let named = || match key.split('.').next() {
        // Any name is a command, and newer versions have subsections.
        Some("alias") => Some(ValueKind::Alias),
        Some("pager") => Some(ValueKind::Command),
        _ => None,
    };
    let is_long = matches!(key.split('.').next(), Some("lfs" | "gpg"));
    is_long.then(fixed).flatten().or_else(|| kinds.get(key)).copied().or_else(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_found_by_section_and_subsection() {
        for (key, subsection, expected) in [
            ("core.hookspath", None, Some(ValueKind::Hooks)),
            ("core.*.hookspath", Some("x"), None),
            ("filter.*.clean", Some("x.y"), Some(ValueKind::Command)),
            ("filter.*.required", Some("x"), None),
            ("gpg.*.program", Some("ssh"), Some(ValueKind::Command)),
            ("gpg.*.allowedsignersfile", Some("ssh"), Some(ValueKind::Path)),
            ("gpg.*.allowedsignersfile", Some("x"), None),
            ("lfs.*.path", Some("customtransfer.x"), Some(ValueKind::Command)),
            ("lfs.*.path", Some("x"), None),
            ("alias.x", None, Some(ValueKind::Alias)),
            ("alias.*.command", Some("x"), Some(ValueKind::Alias)),
            ("pager.log", None, Some(ValueKind::Command)),
            ("user.name", None, None),
        ] {
            assert_eq!(kind(key, subsection.map(str::as_bytes)), expected, "{key} {subsection:?}");
        }
        for (key, _) in SETTINGS {
            assert_eq!(key.to_ascii_lowercase(), *key);
        }
    }
}
