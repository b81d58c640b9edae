//! Rows: configurations and links, what code writes, and the command by which the host would run it.

/// The content that an attack writes.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// A program that leaves the mark.
    Program,
    /// A configuration of git whose `core.fsmonitor` leaves the mark.
    Config,
    /// A configuration of git with a program that leaves the mark.
    Setting(&'static str),
    /// Any text.
    Text(&'static str),
}

pub(super) use Content::{Config, Program, Setting, Text};

/// The commands of a row run in `p`, a repository with `a.txt`; the mark is `../ran`.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) setup: &'static str,
    /// The working directory of the sandbox, and the path that code writes, both beneath `p`.
    pub(super) directory: &'static str,
    pub(super) path: &'static str,
    pub(super) content: Content,
    /// The host's side.
    pub(super) host: &'static str,
}

pub(super) const fn row(
    name: &'static str,
    setup: &'static str,
    path: &'static str,
    content: Content,
    host: &'static str,
) -> Row {
    Row { name, setup, directory: "", path, content, host }
}

pub(super) const fn row_in(directory: &'static str, row: Row) -> Row {
    Row { directory, ..row }
}

/// Git runs `post-index-change` when it refreshes the index.
const STATUS: &str = "touch -d 2001-01-01 a.txt; git status";
const COMMIT: &str = "git commit -qm x --allow-empty";
const CHECKOUT: &str = "git checkout -q -b other";
const FETCH: &str = "git fetch ssh://host.invalid/x";
const CREDENTIAL: &str = "printf 'protocol=https\\nhost=h.invalid\\n\\n' | git credential fill";
/// Git starts a pager on a terminal alone.
const LOG: &str = "script -qec 'git log' /dev/null";
pub(super) const NOTEBOOK: &str =
    "echo '*.nb filter=nb diff=nb merge=nb' > .gitattributes; echo 1 > x.nb; git add .; git commit -qm nb; ";
const EDIT: &str = "echo 2 > x.nb; git status; git diff; git stash";
const RESTORE: &str = "rm x.nb; git checkout x.nb";
pub(super) const MERGE: &str = "git checkout -qb one; echo 1a > x.nb; git commit -qam 1; git checkout -qb two HEAD~1; \
    echo 1b > x.nb; git commit -qam 2; git merge -q one";

pub(super) const ROWS: &[Row] = &[
    row(
        "hooks",
        "git config core.hooksPath .githooks; mkdir .githooks",
        ".githooks/post-index-change",
        Program,
        STATUS,
    ),
    row(
        "hooks, missing",
        "git config core.hooksPath ./tools/hooks",
        "tools/hooks/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, absolute",
        "git config core.hooksPath \"$PWD/hk\"; mkdir hk",
        "hk/post-checkout",
        Program,
        CHECKOUT,
    ),
    row(
        "hooks, behind a link",
        "mkdir -p s/h; ln -s s/h hk; git config core.hooksPath hk",
        "s/h/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, a linked one",
        "mkdir hk s; echo true > s/c; chmod +x s/c; ln -s ../s/c hk/pre-commit; git config core.hooksPath hk",
        "s/c",
        Program,
        COMMIT,
    ),
    row("hooks, the top", "git config core.hooksPath \"$PWD\"", "pre-commit", Program, COMMIT),
    row(
        "hooks, by an include",
        "git config include.path more; git config -f .git/more core.hooksPath hk",
        "hk/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, of the worktree",
        "git config extensions.worktreeConfig true; git config --worktree core.hooksPath hk",
        "hk/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, of husky",
        "git config core.hooksPath conf/husky/_; mkdir -p conf/husky/_; printf '#!/bin/sh\\n. \"${0%%/*}/../pre-commit\"\\n' > conf/husky/_/pre-commit; chmod +x conf/husky/_/pre-commit",
        "conf/husky/pre-commit",
        Program,
        COMMIT,
    ),
    row("hooks, of the user", "git config --global core.hooksPath .hk", ".hk/pre-commit", Program, COMMIT),
    row(
        "hooks, in the home directory",
        "git config --global core.hooksPath '~/p/hk'",
        "hk/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, linked directory",
        "rm -rf .git/hooks; mkdir gh; ln -s ../gh .git/hooks",
        "gh/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, linked directory, missing",
        "rm -rf .git/hooks; ln -s ../gh .git/hooks",
        "gh/pre-commit",
        Program,
        COMMIT,
    ),
    row(
        "hooks, linked twice",
        "mkdir s; echo true > s/a; chmod +x s/a; ln -s a s/b; ln -s ../../s/b .git/hooks/pre-commit",
        "s/a",
        Program,
        COMMIT,
    ),
    row_in(
        "pkg",
        row(
            "hooks, from a directory below",
            "mkdir pkg; git config core.hooksPath pkg/hk",
            "hk/pre-commit",
            Program,
            COMMIT,
        ),
    ),
    row_in(
        "hk",
        row(
            "hooks, the directory itself",
            "mkdir hk; git config core.hooksPath hk",
            "pre-commit",
            Program,
            COMMIT,
        ),
    ),
    row(
        "hooks, of a nested repository",
        "git init -q sub; git -C sub config core.hooksPath hk",
        "sub/hk/pre-commit",
        Program,
        "cd sub; git commit -qm x --allow-empty",
    ),
    row_in(
        "wt",
        row(
            "hooks, of a worktree",
            "git worktree add -q wt; git config core.hooksPath hk",
            "hk/pre-commit",
            Program,
            "cd wt; git commit -qm x --allow-empty",
        ),
    ),
    row(
        "hooks, of a submodule",
        "git init -q ../m; git -C ../m commit -qm 1 --allow-empty; git -c protocol.file.allow=always submodule --quiet add ../m lib/sub; git commit -qm s; git -C lib/sub config core.hooksPath hk",
        "lib/sub/hk/pre-commit",
        Program,
        "cd lib/sub; git commit -qm x --allow-empty",
    ),
    row("include", "git config include.path ../team; : > team", "team", Config, "git status"),
    row("include, missing", "git config include.path ../conf/team", "conf/team", Config, "git status"),
    row("include, absolute", "git config include.path \"$PWD/team\"", "team", Config, "git diff"),
    row(
        "include, nested",
        "mkdir conf; git config include.path ../conf/a; git config -f conf/a include.path b",
        "conf/b",
        Config,
        "git status",
    ),
    row(
        "include, behind a link",
        "mkdir conf; ln -s conf/a team; git config include.path ../team",
        "conf/a",
        Config,
        "git status",
    ),
    row(
        "include, continued line",
        "printf '[INCLUDE] Path = \"../te\\\\\\nam\" # c\\n' >> .git/config",
        "team",
        Config,
        "git status",
    ),
    row(
        "includeIf, by directory",
        "git config includeIf.gitdir:**.path ../team",
        "team",
        Config,
        "git status",
    ),
    row(
        "includeIf, by branch",
        "git config includeIf.onbranch:other.path ../team",
        "team",
        Config,
        "git checkout -q -b other; git status",
    ),
    row(
        "includeIf, by remote",
        "git config 'includeIf.hasconfig:remote.*.url:x.path' ../team; git remote add o x",
        "team",
        Config,
        "git status",
    ),
    row("include, of the user", "git config --global include.path '~/p/team'", "team", Config, "git status"),
    row(
        "linked configuration",
        "mv .git/config conf; ln -s ../conf .git/config",
        "conf",
        Setting("[core]\n\trepositoryformatversion = 0\n"),
        "git status",
    ),
    row("fsmonitor", "git config core.fsmonitor tools/f", "tools/f", Program, "git status"),
    row("fsmonitor, by sh", "git config core.fsmonitor 'sh tools/f.sh'", "tools/f.sh", Program, "git status"),
    row(
        "fsmonitor, by substitution",
        "git config core.fsmonitor '\"$(git rev-parse --show-toplevel)\"/tools/f'",
        "tools/f",
        Program,
        "git diff",
    ),
    row(
        "fsmonitor, in a directory",
        "mkdir tools; git config core.fsmonitor 'cd tools && ./f'",
        "tools/f",
        Program,
        "git status",
    ),
    row(
        "fsmonitor, of a submodule",
        "git init -q ../m; git -C ../m commit -qm 1 --allow-empty; git -c protocol.file.allow=always submodule --quiet add ../m sub; git commit -qm s; git -C sub config core.fsmonitor tools/f",
        "sub/tools/f",
        Program,
        "git status",
    ),
    row("sshCommand", "git config core.sshCommand tools/ssh", "tools/ssh", Program, FETCH),
    row(
        "sshCommand, quoted",
        "git config core.sshCommand \"'tools/my ssh' -v\"",
        "tools/my ssh",
        Program,
        FETCH,
    ),
    row(
        "sshCommand, with variables",
        "git config core.sshCommand 'A=1 B=2 ./ssh.sh'",
        "ssh.sh",
        Program,
        FETCH,
    ),
    row(
        "remote, ext",
        "git config protocol.ext.allow always; git remote add o 'ext::tools/x %S'",
        "tools/x",
        Program,
        "git fetch o",
    ),
    row("pager", "git config core.pager tools/pager", "tools/pager", Program, LOG),
    row("pager, of a command", "git config pager.log 'sh tools/pager'", "tools/pager", Program, LOG),
    row("pager, in a pipe", "git config core.pager 'cat | ./tools/pager'", "tools/pager", Program, LOG),
    row("editor", "git config core.editor tools/edit", "tools/edit", Program, "git commit --amend"),
    row(
        "editor, with options",
        "git config core.editor 'env A=1 tools/edit --wait'",
        "tools/edit",
        Program,
        "git commit --amend",
    ),
    row(
        "sequence editor",
        "git commit -qm 2 --allow-empty; git config sequence.editor './edit.sh'",
        "edit.sh",
        Program,
        "git rebase -i HEAD~1",
    ),
    row("credential helper", "git config credential.helper '!tools/cred'", "tools/cred", Program, CREDENTIAL),
    row(
        "credential helper, absolute",
        "git config credential.helper \"$PWD/tools/cred\"",
        "tools/cred",
        Program,
        CREDENTIAL,
    ),
    row(
        "credential helper, function",
        "git config credential.helper '!f() { sh ./cred.sh \"$@\"; }; f'",
        "cred.sh",
        Program,
        CREDENTIAL,
    ),
    row(
        "credential helper, of a host",
        "git config credential.https://h.invalid.helper '!tools/cred'",
        "tools/cred",
        Program,
        CREDENTIAL,
    ),
    row("clean filter", "NB; git config filter.nb.clean ./tools/clean", "tools/clean", Program, EDIT),
    row(
        "clean filter, by sh",
        "NB; git config filter.nb.clean 'sh tools/clean %f'",
        "tools/clean",
        Program,
        EDIT,
    ),
    row(
        "clean filter, bare script",
        "NB; git config filter.nb.clean 'sh clean.sh'",
        "clean.sh",
        Program,
        EDIT,
    ),
    row("smudge filter", "NB; git config filter.nb.smudge tools/smudge", "tools/smudge", Program, RESTORE),
    row(
        "smudge filter, quoted",
        "NB; git config filter.nb.smudge \"sh -c 'tools/smudge %f'\"",
        "tools/smudge",
        Program,
        RESTORE,
    ),
    row(
        "smudge filter, old section",
        "NB; printf '[filter.nb]\\nsmudge = tools/smudge\\n' >> .git/config",
        "tools/smudge",
        Program,
        RESTORE,
    ),
    row("filter process", "NB; git config filter.nb.process tools/process", "tools/process", Program, EDIT),
    row(
        "filter process, by exec",
        "NB; git config filter.nb.process 'exec tools/process'",
        "tools/process",
        Program,
        EDIT,
    ),
    row(
        "filter process, in a subshell",
        "NB; git config filter.nb.process '(tools/process)'",
        "tools/process",
        Program,
        EDIT,
    ),
    row("diff command", "NB; git config diff.nb.command tools/diff", "tools/diff", Program, EDIT),
    row(
        "diff command, by a variable",
        "NB; git config diff.nb.command '\"$PWD\"/tools/diff'",
        "tools/diff",
        Program,
        EDIT,
    ),
    row(
        "diff command, condition",
        "NB; git config diff.nb.command 'if tools/diff; then true; fi; :'",
        "tools/diff",
        Program,
        EDIT,
    ),
    row("textconv", "NB; git config diff.nb.textconv tools/conv", "tools/conv", Program, "git log -p"),
    row("textconv, by sh", "NB; git config diff.nb.textconv 'sh conv.sh'", "conv.sh", Program, EDIT),
    row(
        "textconv, by backquotes",
        "NB; git config diff.nb.textconv '`pwd`/tools/conv'",
        "tools/conv",
        Program,
        "git log -p",
    ),
    row(
        "external diff",
        "git config diff.external tools/diff",
        "tools/diff",
        Program,
        "echo 2 > a.txt; git diff",
    ),
    row(
        "external diff, by sh",
        "git config diff.external 'sh ./d.sh'",
        "d.sh",
        Program,
        "echo 2 > a.txt; git diff",
    ),
    row(
        "external diff, escaped",
        "git config diff.external 'tools/my\\ diff'",
        "tools/my diff",
        Program,
        "echo 2 > a.txt; git diff",
    ),
    row(
        "merge driver",
        "NB; git config merge.nb.driver 'tools/merge %O %A %B'",
        "tools/merge",
        Program,
        MERGE,
    ),
    row("merge driver, by sh", "NB; git config merge.nb.driver 'sh merge.sh %A'", "merge.sh", Program, MERGE),
    row(
        "merge driver, second command",
        "NB; git config merge.nb.driver 'true; ./tools/merge'",
        "tools/merge",
        Program,
        MERGE,
    ),
    row("gpg", "git config gpg.program tools/gpg", "tools/gpg", Program, "git commit -S -qm x --allow-empty"),
    row(
        "gpg, of a format",
        "git config gpg.openpgp.program tools/gpg; git config commit.gpgSign true",
        "tools/gpg",
        Program,
        COMMIT,
    ),
    row(
        "gpg, with a blank",
        "git config gpg.program 'tools/my gpg'",
        "tools/my gpg",
        Program,
        "git commit -S -qm x --allow-empty",
    ),
    row(
        "gpg, of ssh",
        "git config gpg.format ssh; git config user.signingKey k; git config gpg.ssh.program tools/sign",
        "tools/sign",
        Program,
        "git commit -S -qm x --allow-empty",
    ),
    row("alias", "git config alias.x '!tools/x'", "tools/x", Program, "git x"),
    row("alias, by sh", "git config alias.x '!sh -c \"tools/x\"'", "tools/x", Program, "git x"),
    row("alias, function", "git config alias.x '!f() { cd tools; ./x; }; f'", "tools/x", Program, "git x"),
    row(
        "alias, option",
        "git config alias.x '-c core.fsmonitor=tools/x status'",
        "tools/x",
        Program,
        "git x",
    ),
    row(
        "attributes",
        "git config core.attributesFile conf/attributes; git config filter.x.clean 'touch \"$MARK\"; cat'",
        "conf/attributes",
        Text("* filter=x\n"),
        "echo 2 > a.txt; git diff",
    ),
    row(
        "attributes, in the home directory",
        "git config core.attributesFile '~/p/att'; git config filter.x.clean 'touch \"$MARK\"; cat'",
        "att",
        Text("* filter=x\n"),
        "echo 2 > a.txt; git diff",
    ),
    row(
        "attributes, of the user",
        "git config --global core.attributesFile att; git config filter.x.clean 'touch \"$MARK\"; cat'",
        "att",
        Text("* filter=x\n"),
        "echo 2 > a.txt; git diff",
    ),
    row(
        "template",
        "git config --global init.templateDir \"$PWD/t\"",
        "t/hooks/pre-commit",
        Program,
        "git init -q n; cd n; git commit -qm x --allow-empty",
    ),
    row(
        "template, in the home directory",
        "git config --global init.templateDir '~/p/t'",
        "t/hooks/pre-commit",
        Program,
        "git init -q n; cd n; git commit -qm x --allow-empty",
    ),
    row(
        "template, with a configuration",
        "git config --global init.templateDir \"$PWD/t\"; mkdir t",
        "t/config",
        Config,
        "git init -q n; cd n; git status",
    ),
    row(
        "trailer command",
        "git config trailer.x.cmd tools/x; git config trailer.x.key X",
        "tools/x",
        Program,
        "echo a | git interpret-trailers --trailer x=1",
    ),
    row(
        "archive command",
        "git config tar.x.command tools/x",
        "tools/x",
        Program,
        "git archive --format=x HEAD",
    ),
    row(
        "interactive filter",
        "git config interactive.diffFilter tools/x; echo 2 > a.txt",
        "tools/x",
        Program,
        "echo q | git -c color.ui=always add -p",
    ),
    row(
        "difftool",
        "git config difftool.x.cmd tools/x; git config diff.tool x; echo 2 > a.txt",
        "tools/x",
        Program,
        "git difftool -y",
    ),
    row(
        "mergetool",
        "NB; git config mergetool.x.cmd tools/x; git config merge.tool x",
        "tools/x",
        Program,
        "MERGE; git mergetool -y",
    ),
    row(
        "alternate refs",
        "git init -q ../alt; echo \"$PWD/../alt/.git/objects\" > .git/objects/info/alternates; git config core.alternateRefsCommand \"$PWD/tools/x\"",
        "tools/x",
        Program,
        "git fetch -q .",
    ),
    row(
        "link to a start file",
        "mkdir d; echo true > d/bashrc; ln -s d/bashrc .bashrc",
        "d/bashrc",
        Program,
        "HOME=$PWD bash -ic true",
    ),
    row(
        "link to a start file, missing",
        "ln -s d/profile .profile",
        "d/profile",
        Program,
        "HOME=$PWD bash -lc true",
    ),
    row(
        "link to a start file, two links",
        "mkdir d; ln -s d/a .bashrc; ln -s b d/a",
        "d/b",
        Program,
        "HOME=$PWD bash -ic true",
    ),
    row(
        "link to a directory",
        "mkdir -p e; ln -s e .vscode",
        "e/tasks.json",
        Program,
        "sh .vscode/tasks.json",
    ),
    row(
        "link in a directory",
        "mkdir -p e .claude; ln -s ../e .claude/hooks",
        "e/start.sh",
        Program,
        "sh .claude/hooks/start.sh",
    ),
    row(
        "link to a link in a directory",
        "mkdir -p e s; ln -s s .claude; ln -s ../e s/hooks",
        "e/start.sh",
        Program,
        "sh .claude/hooks/start.sh",
    ),
    row(
        "link below",
        "mkdir -p pkg e; ln -s ../e pkg/.vscode",
        "e/tasks.json",
        Program,
        "sh pkg/.vscode/tasks.json",
    ),
    row(
        "link of a parent name",
        "mkdir -p d/config; ln -s d/config .config",
        "d/config/fish/config.fish",
        Program,
        "sh .config/fish/config.fish",
    ),
    row(
        "link in a parent name",
        "mkdir -p d/fish .config; ln -s ../d/fish .config/fish",
        "d/fish/config.fish",
        Program,
        "sh .config/fish/config.fish",
    ),
    row(
        "link from the home directory",
        "mkdir d; ln -s p/d/bashrc ../.bashrc",
        "d/bashrc",
        Program,
        "bash -ic true",
    ),
    row_in(
        "d",
        row(
            "link from the home directory, deep",
            "mkdir -p d ../.config; ln -s ../p/d/nvim ../.config/nvim",
            "nvim/init.lua",
            Program,
            "sh ~/.config/nvim/init.lua",
        ),
    ),
    row(
        "link to instructions",
        "mkdir docs; echo a > docs/agent.md; ln -s docs/agent.md CLAUDE.md",
        "docs/agent.md",
        Program,
        "sh CLAUDE.md",
    ),
    row(
        "Mercurial, hook",
        "mkdir -p .hg tools; printf '[hooks]\\nx = tools/x\\n' > .hg/hgrc",
        "tools/x",
        Program,
        "sh tools/x",
    ),
    row(
        "Mercurial, include",
        "mkdir .hg; echo '%include ../team.rc' > .hg/hgrc",
        "team.rc",
        Program,
        "sh team.rc",
    ),
    row(
        "Mercurial, extension",
        "mkdir .hg; printf '[extensions]\\nx = ./x.py\\n' > .hg/hgrc-not-shared",
        "x.py",
        Program,
        "sh x.py",
    ),
    row(
        "Mercurial, shared repository",
        "mkdir -p .hg store; printf ../store > .hg/sharedpath",
        "store/hgrc",
        Program,
        "sh store/hgrc",
    ),
    row("Mercurial, own files", "mkdir .hg", ".hg/requires", Program, "sh .hg/requires"),
];

/// Work that the rules do not disturb: a name, the set-up, the code, and the files that it writes.
pub(super) const EVERYDAY: &[(&str, &str, &str, &[&str])] = &[
    (
        "a commit with hooks of husky",
        "git config core.hooksPath .husky/_; mkdir -p .husky/_; printf '#!/bin/sh\\n. \"${0%%/*}/../pre-commit\"\\n' > .husky/_/pre-commit; \
         echo 'echo checked > checked' > .husky/pre-commit; chmod +x .husky/_/pre-commit; git add .; git commit -qm h --no-verify",
        "echo 2 > a.txt; git commit -qam x && git log --format=%s -1 > subject",
        &["a.txt", "checked", "subject"],
    ),
    (
        "files beside hooks and programs",
        "mkdir -p tools/hooks; git config core.hooksPath tools/hooks; git config core.fsmonitor 'sh tools/f.sh'",
        "echo 1 > tools/other; echo 2 > tools/hooks.md; mkdir tools/new; echo 3 > tools/new/a",
        &["tools/other", "tools/hooks.md", "tools/new/a"],
    ),
    (
        "directories that a command names",
        "mkdir src; git config alias.lint '!eslint src tests/ build/'; git config core.editor 'code --wait'",
        "echo 1 > src/a; mkdir tests build; echo 1 > tests/a; echo 1 > build/a; echo 1 > code",
        &["src/a", "tests/a", "build/a", "code"],
    ),
    (
        "other files behind the target of a link",
        "mkdir -p d/config; ln -s d/config .config; mkdir docs; ln -s docs readme",
        "echo 1 > d/config/notes; echo 1 > d/a; echo 1 > docs/a; echo 1 > d/config/x",
        &["d/config/notes", "d/a", "docs/a", "d/config/x"],
    ),
    (
        "a checkout of an agent beside links",
        "mkdir -p src .claude/worktrees/a; ln -s ../../../src .claude/worktrees/a/src",
        "echo 1 > src/a",
        &["src/a"],
    ),
    (
        "common settings",
        "git config core.pager 'less -FRX'; git config filter.lfs.clean 'git-lfs clean -- %f'; git config filter.lfs.process 'git-lfs filter-process'; \
         git config credential.helper 'store --file x'; git config diff.tool vimdiff; git config core.fsmonitor false; \
         git remote add o https://h.invalid/a/b.git; git config core.hooksPath ''",
        "echo 1 > clean; echo 1 > less; mkdir a; echo 1 > a/b.git; echo 1 > false; echo 1 > vimdiff",
        &["clean", "less", "a/b.git", "false", "vimdiff"],
    ),
];
