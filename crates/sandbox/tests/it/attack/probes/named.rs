//! Row 59: host paths that a project or a model names widen nothing. Each kind is a family of rows, generated over
//! what carries a path: settings of environments, links of package managers, and arguments that start something.
//!
//! `derived_paths` has forms with several files, and the rules for what is shown.

use std::ffi::OsString;

use toolpost_sandbox::{Language, Program, Sandbox, Workspace};

use crate::attack::expected::{ANY, OK, all};
use crate::attack::{Place, Probe, Who, host};
use crate::derived_paths::{World, file, leak, link, program};
use crate::support::{Mode, quick, run};

const NOT_FOR: &[(Who, &str)] =
    &[(Who::Backend("docker"), "the programs of a container are those of its image")];

pub(crate) const PROBES: &[Probe] = &[
    host(59, "settings of environments", |place| family(place, SETTINGS), all(OK).minimal(ANY))
        .not_for(NOT_FOR)
        .slow(),
    host(59, "links of package managers", |place| family(place, LINKS), all(OK).minimal(ANY))
        .not_for(NOT_FOR)
        .slow(),
    host(59, "arguments that start something", |place| family(place, ARGUMENTS), all(OK).minimal(ANY))
        .not_for(NOT_FOR),
];

/// Where the other directory is: a toolchain root, once its parent is the home directory.
const OTHER: &str = "sdk/app";

/// One row of a family: the program, a path of the project, how it names the other directory, and whether a reader
/// makes something of it.
type Row = (&'static str, &'static str, Named, Reader);

/// The name of the other directory in a row: `@` is its path.
#[derive(Debug, Clone, Copy)]
enum Named {
    /// The content of a file.
    File(&'static str),
    /// The target of a link.
    Link(&'static str),
    /// The first word of a command. The path of the row is a link to the other directory.
    First(&'static str),
}
use Named::{File, First, Link};

/// Whether the sandbox reads a row when it starts a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// It would show the path, if the rule admitted it.
    Reads,
    /// Nothing reads it. A new reader changes this row, and obeys the same rule.
    None,
}
use Reader::{None as Unread, Reads};

const SETTINGS: &[Row] = &[
    // Python.
    ("python3", ".venv/pyvenv.cfg", File("home = @/bin\n"), Reads),
    ("python3", ".venv/lib/python3.11/site-packages/x.pth", File("@/data\n@\n"), Reads),
    ("python3", ".venv/lib/python3.11/site-packages/easy-install.pth", File("@/data\n@\n"), Reads),
    ("python3", ".venv/lib/python3.11/site-packages/__editable__.x.pth", File("@/pkg\n"), Reads),
    (
        "python3",
        ".venv/lib/python3.11/site-packages/__editable___x_finder.py",
        File("MAPPING = {'p': '@/pkg'}\n"),
        Reads,
    ),
    ("python3", ".venv/lib/python3.11/site-packages/x.egg-link", File("@\n."), Unread),
    (
        "python3",
        ".venv/lib/python3.11/site-packages/x.dist-info/direct_url.json",
        File("{\"url\": \"file://@\"}"),
        Unread,
    ),
    (
        "python3",
        ".venv/lib/python3.11/site-packages/sitecustomize.py",
        File("import sys; sys.path.append('@')\n"),
        Unread,
    ),
    ("python3", ".venv/lib/python3.11/orig-prefix.txt", File("@"), Unread),
    ("python3", "pyproject.toml", File("[tool.uv.sources]\nx = { path = \"@\", editable = true }\n"), Unread),
    ("python3", "uv.toml", File("cache-dir = \"@\"\n"), Unread),
    ("python3", "poetry.toml", File("[virtualenvs]\npath = \"@\"\n"), Unread),
    ("python3", "Pipfile", File("[packages]\nx = { path = \"@\" }\n"), Unread),
    ("python3", ".python-version", File("@\n../../other\n"), Unread),
    ("python3", "requirements.txt", File("-e @\n"), Unread),
    ("python3", "conda-meta/history", File("@"), Unread),
    // Node.js.
    (
        "node",
        "package.json",
        File("{\"main\": \"@/x.js\", \"bin\": \"@/bin/node\", \"workspaces\": [\"@\"]}"),
        Unread,
    ),
    ("node", ".npmrc", File("prefix=@\nscript-shell=@/bin/node\n"), Unread),
    ("node", "pnpm-workspace.yaml", File("packages: ['@']\n"), Unread),
    ("node", "node_modules/.modules.yaml", File("virtualStoreDir: @\n"), Unread),
    ("node", ".pnp.cjs", File("require('@/x.js')\n"), Unread),
    ("node", ".yarnrc.yml", File("yarnPath: @/bin/node\n"), Unread),
    ("node", "tsconfig.json", File("{\"extends\": \"@/package.json\"}"), Unread),
    ("node", ".nvmrc", File("@\n"), Unread),
    ("deno", "deno.json", File("{\"importMap\": \"@/package.json\"}"), Unread),
    ("bun", "bunfig.toml", File("preload = [\"@/x.js\"]\n"), Unread),
    // Ruby and Perl.
    ("ruby", "Gemfile", File("gem 'x', path: '@'\n"), Unread),
    ("ruby", ".bundle/config", File("BUNDLE_PATH: '@'\n"), Unread),
    ("ruby", ".ruby-version", File("@\n"), Unread),
    ("ruby", ".gemrc", File("gempath: ['@']\n"), Unread),
    ("perl", "cpanfile", File("requires 'x', url => 'file://@';\n"), Unread),
    ("perl", ".perl-version", File("@\n"), Unread),
    ("perl", "local/lib/perl5/x.pm", File("use lib '@';\n"), Unread),
    // Java.
    ("java", ".classpath", File("<classpathentry kind='lib' path='@/x.jar'/>"), Unread),
    ("java", "META-INF/MANIFEST.MF", File("Class-Path: file:@/x.jar\n"), Unread),
    ("java", "pom.xml", File("<systemPath>@/x.jar</systemPath>"), Unread),
    ("java", ".mvn/jvm.config", File("-javaagent:@/x.jar\n"), Unread),
    ("java", "gradle.properties", File("org.gradle.java.home=@\n"), Unread),
    ("java", "settings.gradle", File("includeBuild '@'\n"), Unread),
    ("java", "gradle/wrapper/gradle-wrapper.properties", File("distributionUrl=file:@/x.zip\n"), Unread),
    ("java", ".sdkmanrc", File("java=@\n"), Unread),
    ("java", ".java-version", File("@\n"), Unread),
    ("java", "lib/jvm.cfg", File("-@/lib KNOWN\n"), Unread),
    // PHP.
    ("php", "vendor/autoload.php", File("<?php require '@/x.php';"), Unread),
    ("php", "vendor/composer/installed.json", File("{\"packages\": [{\"install-path\": \"@\"}]}"), Unread),
    ("php", "composer.json", File("{\"repositories\": [{\"type\": \"path\", \"url\": \"@\"}]}"), Unread),
    ("php", "php.ini", File("extension_dir = @\nauto_prepend_file = @/x.php\n"), Unread),
    ("php", ".user.ini", File("include_path = @\n"), Unread),
    // Rust.
    ("cargo", ".cargo/config.toml", File("paths = [\"@\"]\n[build]\nrustc = \"@/bin/rustc\"\n"), Unread),
    ("cargo", "Cargo.toml", File("[dependencies]\nx = { path = \"@\" }\n"), Unread),
    ("rustc", "rust-toolchain.toml", File("[toolchain]\npath = \"@\"\n"), Unread),
    ("rustc", "rust-toolchain", File("@\n"), Unread),
    ("cargo", ".cargo/env", File("export PATH=@/bin\n"), Unread),
    // Go.
    ("go", "go.mod", File("module x\nreplace y => @\n"), Unread),
    ("go", "go.work", File("use @\n"), Unread),
    ("go", "go.env", File("GOROOT=@\nGOPATH=@\n"), Unread),
    ("go", ".config/go/env", File("GOPATH=@\n"), Unread),
    ("go", "vendor/modules.txt", File("# x => @\n"), Unread),
    // Version managers, and files of every language.
    ("node", ".tool-versions", File("nodejs path:@\n"), Unread),
    ("ruby", "mise.toml", File("[tools]\nruby = \"path:@\"\n"), Unread),
    ("python3", ".envrc", File("PATH_add @/bin\n"), Unread),
    ("python3", ".env", File("PYTHONPATH=@\nPATH=@/bin\n"), Unread),
    ("node", ".mcp.json", File("{\"mcpServers\": {\"x\": {\"command\": \"@/bin/node\"}}}"), Unread),
    ("python3", "toolpost.toml", File("readable = [\"@\"]\nlevel = \"minimal\"\n"), Unread),
    ("perl", "run", File("#!@/bin/perl\n"), Reads),
    ("ruby", "bin/run", File("#!@/bin/ruby\n"), Reads),
];

const LINKS: &[Row] = &[
    ("python3", ".venv", Link("@"), Reads),
    ("python3", ".venv/bin", Link("@/bin"), Reads),
    ("python3", ".venv/bin/python3", Link("@/bin/python3"), Reads),
    ("python3", ".venv/lib", Link("@/lib"), Unread),
    ("python3", ".venv/lib/python3.11/site-packages", Link("@"), Unread),
    ("python3", ".venv/lib/python3.11/site-packages/x", Link("@/pkg"), Unread),
    ("python3", ".venv/lib/python3.11/site-packages/x.pth", Link("@/secret.txt"), Unread),
    ("python3", "__pypackages__", Link("@"), Unread),
    ("python3", "bin/python3", Link("@/bin/python3"), Reads),
    ("python3", "bin", Link("@/bin"), Reads),
    ("python3", "lib", Link("@/lib"), Unread),
    ("node", "node_modules", Link("@"), Unread),
    ("node", "node_modules/x", Link("@"), Unread),
    ("node", "node_modules/@s/x", Link("@"), Unread),
    ("node", "node_modules/.bin", Link("@/bin"), Unread),
    ("node", "node_modules/.bin/x", Link("@/bin/node"), Reads),
    ("node", "node_modules/.pnpm", Link("@"), Unread),
    ("node", "node_modules/.pnpm/x@1/node_modules/x", Link("@"), Unread),
    ("node", "node_modules/.store", Link("@"), Unread),
    ("node", ".yarn/cache", Link("@"), Unread),
    ("node", ".nvm/versions/node/x", Link("@"), Unread),
    ("ruby", "vendor/bundle", Link("@"), Unread),
    ("ruby", ".bundle/plugin", Link("@"), Unread),
    ("ruby", "gems", Link("@"), Unread),
    ("ruby", "bin/ruby", Link("@/bin/ruby"), Reads),
    ("perl", "local", Link("@"), Unread),
    ("perl", "local/lib/perl5", Link("@/lib"), Unread),
    ("perl", "lib/perl5", Link("@/lib"), Unread),
    ("perl", "bin/perl", Link("@/bin/perl"), Reads),
    ("java", "lib", Link("@/lib"), Unread),
    ("java", "jre", Link("@"), Unread),
    ("java", "target/classes", Link("@"), Unread),
    ("java", ".m2", Link("@"), Unread),
    ("java", ".gradle", Link("@"), Unread),
    ("java", "bin/java", Link("@/bin/java"), Reads),
    ("php", "vendor", Link("@"), Unread),
    ("php", "vendor/bin/x", Link("@/bin/php"), Reads),
    ("php", "bin/php", Link("@/bin/php"), Reads),
    ("cargo", ".cargo", Link("@"), Unread),
    ("cargo", ".cargo/bin", Link("@/bin"), Unread),
    ("cargo", ".cargo/registry", Link("@"), Unread),
    ("cargo", "target", Link("@"), Unread),
    ("rustc", ".rustup", Link("@"), Unread),
    ("rustc", ".rustup/toolchains/x", Link("@"), Unread),
    ("rustc", "bin/rustc", Link("@/bin/rustc"), Reads),
    ("go", "go", Link("@"), Unread),
    ("go", "pkg/mod", Link("@"), Unread),
    ("go", "vendor", Link("@"), Unread),
    ("go", "bin/go", Link("@/bin/go"), Reads),
    ("deno", ".deno", Link("@"), Unread),
    ("bun", ".bun", Link("@"), Unread),
    ("npm", "bin/npm", Link("@/bin/npm"), Reads),
];

/// First words of a command of a model: of `run_command`, of a step, of a sandbox in Python.
const ARGUMENTS: &[Row] = &[
    ("python3", "x", First("@/bin/python3"), Reads),
    ("node", "x", First("@/bin/node"), Reads),
    ("ruby", "x", First("./x/bin/ruby"), Reads),
    ("perl", "x", First("x/bin/perl"), Reads),
    ("java", "x", First("%/x/bin/java"), Reads),
    ("php", "x", First("%/x/../app/bin/php"), Reads),
    ("rustc", "x", First("%/../../sdk/app/bin/rustc"), Reads),
    ("go", "x", First("../../sdk/app/bin/go"), Unread),
    ("deno", "x", First("/proc/self/cwd/x/bin/deno"), Unread),
    ("bun", "x", First("/proc/self/root@/bin/bun"), Reads),
    ("cargo", "x", First("/workspace/x/bin/cargo"), Unread),
    ("npm", "x", First("/workspace/../..@/bin/npm"), Unread),
    ("python3", "x", First("/usr/bin/../..@/bin/python3"), Reads),
    ("python3", ".venv", First(".venv/bin/python3"), Reads),
    ("node", "node_modules", First("node_modules/bin/node"), Reads),
];

fn plant(world: &World, (language, path, named, _): Row) -> Vec<OsString> {
    let text = |text: &str| {
        let own = text.replace('%', world.project.to_str().unwrap());
        own.replace('@', world.other.to_str().unwrap())
    };
    let at = world.project.join(path);
    let mut first = vec![language.into(), format!("bin/{language}").into()];
    match named {
        File(content) => {
            file(&at, &text(content));
            if path.ends_with("run") {
                first = vec![format!("./{path}").into()];
            }
        }
        Link(target) => {
            link(text(target), &at);
            if path.starts_with("node_modules/.bin") || path.starts_with("vendor/bin") {
                first.push(format!("{}/x", path.trim_end_matches("/x")).into());
            }
        }
        First(argument) => {
            link(&world.other, &at);
            return vec![text(argument).into()];
        }
    }
    if path.starts_with(".venv") {
        first.push(format!(".venv/bin/{language}").into());
        if !path.ends_with("pyvenv.cfg")
            && world.project.join(".venv").symlink_metadata().is_ok_and(|it| it.is_dir())
        {
            file(&world.project.join(".venv/pyvenv.cfg"), "home = /usr/bin\n");
        }
    }
    // Programs of the project, where the row leaves their places.
    for directory in ["bin", ".venv/bin"] {
        let own = world.project.join(directory).join(language);
        let is_own =
            own.parent().unwrap().canonicalize().map_or(true, |found| found.starts_with(&world.project));
        if is_own && own.symlink_metadata().is_err() {
            program(&own);
        }
    }
    first
}

/// The entries of the other directory that the runs of a row show.
fn shown_by(row: Row, sandbox: &dyn Fn(&World) -> Sandbox) -> Option<String> {
    let world = World::with_other(OTHER);
    file(&world.other.join("pyproject.toml"), "");
    let path = format!("{0}/bin:{0}/.venv/bin:/usr/bin:/bin", world.project.display());
    let sandbox = sandbox(&world).workspace(Workspace::Host(world.project.clone())).search_path(path);
    let mut programs: Vec<Program> = plant(&world, row)
        .into_iter()
        .map(|first| Program::argv(std::iter::once(first).chain(world.secrets())))
        .collect();
    // `run_code` finds the interpreter in the search path, which has directories of the project.
    if let Some(language) =
        [("python3", Language::Python), ("node", Language::JavaScript), ("ruby", Language::Ruby)]
            .into_iter()
            .find(|(name, _)| *name == row.0)
    {
        programs.push(Program::code(language.1, "1"));
    }
    programs.iter().find_map(|program| match run(&sandbox, program) {
        Ok(outcome) => leak(&world, &outcome),
        Err(_) => None,
    })
}

fn family(place: &Place<'_>, rows: &[Row]) -> String {
    let found = rows.iter().find_map(|row| {
        let shown = shown_by(*row, &|_| place.sandbox().limits(quick()))?;
        Some(format!("{row:?} {shown}"))
    });
    found.unwrap_or_else(|| "ok".into())
}

/// A planted fault: with a rule that admits the other directory, each row with a reader shows it.
#[test]
fn each_row_with_a_reader_fails_under_a_weaker_rule() {
    if !Mode::available().contains(&Mode::Strict) {
        println!("SKIP each_row_with_a_reader_fails_under_a_weaker_rule: no private root");
        return;
    }
    let weak = |world: &World| Mode::Strict.sandbox().home(&world.root);
    let wrong: Vec<_> = [SETTINGS, LINKS, ARGUMENTS]
        .into_iter()
        .flatten()
        .filter(|row| shown_by(**row, &weak).is_some() != (row.3 == Reads))
        .collect();
    assert!(wrong.is_empty(), "{} rows: {wrong:#?}", wrong.len());
}
