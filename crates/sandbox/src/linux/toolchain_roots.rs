//! The toolchain roots: directories outside a workspace in which installers put interpreters, compilers and
//! packages, and what of them is shown.
//!
//! A file of a project may choose among installed toolchains, but not show anything else of a home directory.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use super::admission::Workspaces;
use super::links::Link;

/// One row: where a manager installs, and what of an installation is shown.
#[derive(Debug)]
struct Root {
    /// The directory: absolute, or relative to the home directory.
    path: &'static str,
    /// The number of components beneath it that name one installation.
    depth: usize,
    /// The entries of an installation that are shown. Empty: all.
    shown: &'static [&'static str],
    /// Paths of an installation that are never shown: they may hold credentials.
    never: &'static [&'static str],
}

/// A row that shows whole installations without these paths.
const fn row(path: &'static str, depth: usize, never: &'static [&'static str]) -> Root {
    Root { path, depth, shown: &[], never }
}

/// Settings of pip with credentials of an index.
const PYTHON: &[&str] = &["pip.conf", "uv.toml", "etc/pip.conf", "uv-receipt.toml", "pipx_metadata.json"];
/// Settings of npm and Yarn with tokens.
const NODE: &[&str] = &["etc/npmrc", "etc/yarnrc", ".npmrc", ".yarnrc", ".yarnrc.yml"];
/// Channels with tokens, and the records and caches of packages that repeat them.
const CONDA: &[&str] = &[
    ".condarc",
    "condarc",
    ".condarc.d",
    "condarc.d",
    "conda-meta",
    "pkgs",
    "envs",
    "pip.conf",
    "etc/pip.conf",
    "etc/conda",
];
/// Settings of gems with keys.
const RUBY: &[&str] = &["etc/gemrc", ".gemrc", ".gem"];
/// Settings of servers and mirrors with passwords, of Maven and Gradle.
const JAVA: &[&str] = &["conf/settings.xml", "conf/settings-security.xml", "gradle.properties", "init.d"];
/// Settings of a version manager's plugins of many languages.
const ALL: &[&str] = &[
    "pip.conf",
    "uv.toml",
    "etc/pip.conf",
    "etc/npmrc",
    "etc/yarnrc",
    ".npmrc",
    ".condarc",
    "etc/gemrc",
    ".gemrc",
    "conf/settings.xml",
    "conf/settings-security.xml",
    "gradle.properties",
    "init.d",
];

/// The table. A new row is one line; a longer path stands before a shorter one.
const ROOTS: &[Root] = &[
    // Python.
    row(".local/share/uv/python", 1, PYTHON),
    row(".local/share/uv/tools", 1, PYTHON),
    row(".local/share/pipx/venvs", 1, PYTHON),
    row(".local/pipx/venvs", 1, PYTHON),
    row(".pyenv/versions", 1, PYTHON),
    row(".virtualenvs", 1, PYTHON),
    row(".local/share/virtualenvs", 1, PYTHON),
    row(".cache/pypoetry/virtualenvs", 1, PYTHON),
    row(".local/share/hatch/env/virtual", 3, PYTHON),
    row(".local/share/hatch/pythons", 1, PYTHON),
    row(".local/share/pdm/venvs", 1, PYTHON),
    row(".local/share/rye/py", 1, PYTHON),
    row(".rye/py", 1, PYTHON),
    // Conda.
    row("miniconda3/envs", 1, CONDA),
    row("miniconda3", 0, CONDA),
    row("anaconda3/envs", 1, CONDA),
    row("anaconda3", 0, CONDA),
    row("miniforge3/envs", 1, CONDA),
    row("miniforge3", 0, CONDA),
    row("mambaforge/envs", 1, CONDA),
    row("mambaforge", 0, CONDA),
    row("micromamba/envs", 1, CONDA),
    row(".local/share/mamba/envs", 1, CONDA),
    row(".conda/envs", 1, CONDA),
    row("/opt/conda/envs", 1, CONDA),
    row("/opt/conda", 0, CONDA),
    row("/opt/miniconda3/envs", 1, CONDA),
    row("/opt/miniconda3", 0, CONDA),
    // Node.js, Deno, Bun.
    row(".nvm/versions", 2, NODE),
    row(".nodenv/versions", 1, NODE),
    row(".local/share/fnm/node-versions", 1, NODE),
    row(".fnm/node-versions", 1, NODE),
    row(".volta/tools/image", 2, NODE),
    row(".local/share/mise/installs", 2, ALL),
    row(".local/share/rtx/installs", 2, ALL),
    row(".asdf/installs", 2, ALL),
    row(".cache/node/corepack", 1, NODE),
    row(".deno/bin", 0, &[]),
    row(".bun/bin", 0, &[]),
    // Rust: binaries and sources of packages, never `credentials.toml` or `config.toml`.
    row(".rustup/toolchains", 1, &[]),
    Root {
        path: ".cargo",
        depth: 0,
        shown: &["bin", "registry/cache", "registry/index", "registry/src", "git/db", "git/checkouts"],
        never: &[],
    },
    // Go.
    row("go/pkg/mod", 0, &[]),
    row("go/bin", 0, &[]),
    row("sdk", 1, &[]),
    row(".goenv/versions", 1, &[]),
    row(".gvm/gos", 1, &[]),
    // Java: packages, never `settings.xml` or `gradle.properties`.
    row(".sdkman/candidates", 2, JAVA),
    row(".jenv/versions", 1, JAVA),
    row(".jabba/jdk", 1, JAVA),
    row(".jdks", 1, JAVA),
    row(".m2/repository", 0, &[]),
    row(".m2/wrapper/dists", 2, JAVA),
    row(".gradle/wrapper/dists", 2, JAVA),
    row(".gradle/jdks", 1, JAVA),
    // Ruby, Perl, PHP.
    row(".rbenv/versions", 1, RUBY),
    row(".rvm/rubies", 1, RUBY),
    row(".rvm/gems", 1, RUBY),
    row(".rubies", 1, RUBY),
    row(".plenv/versions", 1, &[]),
    row("perl5/perlbrew/perls", 1, &[]),
    row(".phpenv/versions", 1, &[]),
    // Others.
    row(".ghcup/ghc", 1, &[]),
    row(".elan/toolchains", 1, &[]),
    row(".julia/juliaup", 1, &[]),
    row(".local/share/swiftly/toolchains", 1, &[]),
    row(".dotnet", 0, &[]),
    // Machines of continuous integration.
    row("/opt/hostedtoolcache", 2, ALL),
    row("/opt/python", 1, PYTHON),
    row("/opt/java", 1, JAVA),
    row("/home/linuxbrew/.linuxbrew/Cellar", 2, ALL),
];

/// The toolchain roots of a home directory.
#[derive(Debug)]
pub(super) struct Toolchains<'a> {
    home: Option<&'a Path>,
}

/// A path of an installation: where it is, where the installation begins, and the row that found it.
struct Place {
    installation: PathBuf,
    /// Relative to the installation; empty for all of it.
    inner: PathBuf,
    root: &'static Root,
}

impl Place {
    /// Whether the row shows the path. A whole installation is shown by its parts.
    fn is_shown(&self) -> bool {
        let is_whole = self.inner.as_os_str().is_empty();
        let lies_in = |path: &&str| self.inner.starts_with(path);
        let is_named = self.root.shown.is_empty() || self.root.shown.iter().any(lies_in);
        is_whole || is_named && !self.root.never.iter().any(lies_in)
    }
}

impl<'a> Toolchains<'a> {
    pub(super) fn new(home: Option<&'a Path>) -> Self {
        Self { home: home.filter(|home| home.is_absolute()) }
    }

    /// Whether a path without links lies in an installation that no workspace reaches.
    pub(super) fn admit(&self, real: &Path, workspaces: &Workspaces) -> bool {
        self.place(real).is_some_and(|place| {
            place.is_shown() && !workspaces.contain(&place.installation) && is_safe(&place.installation)
        })
    }

    /// The parts of a path that are shown, and the links between them: the path itself, unless it holds paths
    /// that never are.
    pub(super) fn parts(&self, real: PathBuf) -> (Vec<PathBuf>, Vec<Link>) {
        let Some(Place { installation, inner, root }) = self.place(&real) else {
            return (vec![real], Vec::new());
        };
        if inner.as_os_str().is_empty() && !root.shown.is_empty() {
            let shown = root.shown.iter().map(|path| installation.join(path));
            return (shown.filter(|path| path.is_dir()).collect(), Vec::new());
        }
        let never: Vec<PathBuf> = root
            .never
            .iter()
            .map(|path| installation.join(path))
            .filter(|path| path.starts_with(&real) && path.symlink_metadata().is_ok())
            .collect();
        let (mut parts, mut links) = (Vec::new(), Vec::new());
        without(real, &never, &mut parts, &mut links);
        (parts, links)
    }

    /// The installation in which a path lies, the path within it, and its row.
    fn place(&self, real: &Path) -> Option<Place> {
        // Most homes have no links in these paths: only otherwise are they resolved.
        self.place_by(real, &|path| Some(path.to_owned()))
            .or_else(|| self.place_by(real, &|path| path.canonicalize().ok()))
    }

    fn place_by(&self, real: &Path, resolve: &dyn Fn(&Path) -> Option<PathBuf>) -> Option<Place> {
        let home = self.home.and_then(resolve);
        ROOTS.iter().find_map(|row| {
            let root = match (row.path.starts_with('/'), &home) {
                (true, _) => PathBuf::from(row.path),
                (false, Some(home)) => home.join(row.path),
                (false, None) => return None,
            };
            let root = if real.starts_with(&root) { root } else { resolve(&root)? };
            let rest = real.strip_prefix(&root).ok()?;
            let mut parts = rest.components();
            let mut installation = root;
            for _ in 0..row.depth {
                match parts.next()? {
                    Component::Normal(name) => installation.push(name),
                    _ => return None,
                }
            }
            Some(Place { installation, inner: parts.as_path().to_owned(), root: row })
        })
    }
}

/// Whether only the user and root can write to an installation.
fn is_safe(installation: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| {
        path.symlink_metadata()
            .is_ok_and(|found| (found.uid() == user || found.uid() == 0) && found.mode() & 0o002 == 0)
    };
    is_own(installation) && installation.parent().is_some_and(is_own)
}

/// The maximum number of entries of a directory that is shown by its parts.
const MAX_PARTS: usize = 256;

/// Adds a path, or its entries without some paths beneath it.
fn without(path: PathBuf, never: &[PathBuf], parts: &mut Vec<PathBuf>, links: &mut Vec<Link>) {
    if never.contains(&path) {
        return;
    }
    if !never.iter().any(|never| never.starts_with(&path)) {
        // Inside, a link leads to what is shown inside.
        match std::fs::read_link(&path) {
            Ok(target) => links.push((path, target)),
            Err(_) => parts.push(path),
        }
        return;
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(&path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .take(MAX_PARTS)
        .collect();
    entries.sort();
    for entry in entries {
        without(entry, never, parts, links);
    }
}
