//! A project made of fuzzed files and links names host paths. A slow reference says for each shown path whether it may
//! be shown, without the code of the sandbox: by the canonical path and plain comparisons of text.

#![no_main]

use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use toolpost_sandbox::{Sandbox, Workspace, program_directories};

/// Paths of the project that the input writes.
const OWN: [&str; 24] = [
    ".venv/pyvenv.cfg",
    ".venv/bin/python3",
    ".venv/lib/python3.11/site-packages/x.pth",
    ".venv/lib/python3.11/site-packages/__editable___x_finder.py",
    ".venv/lib/python3.11/os.py",
    ".venv",
    ".venv/lib",
    "bin/python3",
    "bin",
    "lib/python3.11/os.py",
    "lib",
    "node_modules",
    "node_modules/x/cli.js",
    "node_modules/.bin/x",
    "shims/python3",
    "version",
    "versions/x",
    "versions/x/bin/python3",
    ".cargo/bin/rustup",
    ".cargo/bin/python3",
    ".rustup/settings.toml",
    "package.json",
    "src",
    "run",
];

/// Words of contents and targets of links: `@` is the project, `~` the home directory, `!` the other directory.
const WORDS: [&str; 28] = [
    "@",
    "~",
    "!",
    "/",
    "..",
    ".",
    "/proc/self/cwd",
    "/proc/self/root",
    "/usr/bin",
    "/usr/bin/env",
    "@/.venv",
    "@/bin",
    "@/src",
    "!/bin",
    "!/bin/python3",
    "!/data",
    "!/data/secret.py",
    "~/.pyenv/versions/3.12",
    "~/.pyenv/versions/3.12/bin/python3",
    "~/.ssh",
    "~/.cargo",
    "~/.cargo/bin/tool",
    "~/.cargo/credentials.toml",
    "~/.pyenv/versions/3.12/pip.conf",
    "../..",
    "x",
    "~/miniconda3/bin/python3",
    "~/miniconda3",
];

/// First words of commands.
const FIRST: [&str; 10] = [
    ".venv/bin/python3",
    "bin/python3",
    "node_modules/x/cli.js",
    "node_modules/.bin/x",
    "shims/python3",
    ".cargo/bin/python3",
    "./run",
    "python3",
    "!/bin/python3",
    "@/../../c/other/bin/python3",
];

struct World {
    _root: tempfile::TempDir,
    work: PathBuf,
    home: PathBuf,
    other: PathBuf,
}

impl World {
    fn new() -> Self {
        let root = tempfile::Builder::new().prefix("fuzz").tempdir_in("/dev/shm").unwrap();
        let base = root.path().canonicalize().unwrap();
        let world =
            Self { work: base.join("a/work"), home: base.join("b/home"), other: base.join("c/other"), _root: root };
        for path in [
            ".ssh/id",
            ".pyenv/versions/3.12/bin/python3",
            ".pyenv/versions/3.12/lib/python3.12/os.py",
            ".pyenv/versions/3.12/pip.conf",
            ".cargo/bin/tool",
            ".cargo/credentials.toml",
            "miniconda3/bin/python3",
            "miniconda3/conda-meta/history",
            "miniconda3/.condarc",
            "notes",
        ] {
            write(&world.home.join(path), b"\x7fELF");
        }
        for path in [
            "bin/python3",
            "data/secret.py",
            "pyproject.toml",
            "package.json",
            "pyvenv.cfg",
            "lib/python3.11/os.py",
            "lib/python3.11/site-packages/x.pth",
        ] {
            write(&world.other.join(path), b"\x7fELF");
        }
        world
    }

    fn word(&self, word: &str) -> String {
        word.replace('@', self.work.to_str().unwrap())
            .replace('~', self.home.to_str().unwrap())
            .replace('!', self.other.to_str().unwrap())
    }

    /// Whether a path may be shown, from the rules as SECURITY.md has them.
    fn may_show(&self, path: &Path) -> bool {
        let real = path.canonicalize().unwrap();
        let text = real.to_str().unwrap();
        let below = |directory: &Path| {
            let directory = directory.to_str().unwrap();
            text == directory || text.starts_with(&format!("{directory}/"))
        };
        let system = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];
        if below(&self.work) || system.iter().any(|system| below(Path::new(system))) {
            return true;
        }
        let never = [
            ".pyenv/versions/3.12/pip.conf",
            ".cargo/credentials.toml",
            "miniconda3/.condarc",
            "miniconda3/conda-meta",
        ];
        // A shown directory shows everything beneath.
        let holds = |never: &&str| below(&self.home.join(never)) || self.home.join(never).starts_with(&real);
        !never.iter().any(|path| holds(&path))
            && [".pyenv/versions/3.12", ".cargo/bin", "miniconda3"].iter().any(|root| below(&self.home.join(root)))
    }
}

fn write(path: &Path, content: &[u8]) {
    let _ = std::fs::create_dir_all(path.parent().unwrap());
    if std::fs::write(path, content).is_ok() {
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new());
}

fuzz_target!(|input: &[u8]| {
    let Some((head, input)) = input.split_first_chunk::<2>() else { return };
    WORLD.with_borrow(|world| {
        let _ = std::fs::remove_dir_all(&world.work);
        std::fs::create_dir_all(&world.work).unwrap();
        write(&world.work.join("pyproject.toml"), b"");
        for step in input.chunks_exact(4).take(24) {
            let path = world.work.join(OWN[step[0] as usize % OWN.len()]);
            let (one, two) = (WORDS[step[2] as usize % WORDS.len()], WORDS[step[3] as usize % WORDS.len()]);
            let (one, two) = (world.word(one), world.word(two));
            // Nothing that code writes leaves the project by a link.
            let parent = path.parent().unwrap();
            let _ = std::fs::create_dir_all(parent);
            if !parent.canonicalize().is_ok_and(|parent| parent.starts_with(&world.work)) {
                continue;
            }
            let _ = std::fs::remove_file(&path);
            match step[1] % 8 {
                0 => write(&path, b"\x7fELF"),
                1 => write(&path, format!("home = {one}\n").as_bytes()),
                2 => write(&path, format!("{one}\n{two}\n{one}/{two}\n").as_bytes()),
                3 => write(&path, format!("MAPPING = {{'x': '{one}', 'y': '{two}/x'}}\n").as_bytes()),
                4 => write(&path, format!("#!{one}/python3\n").as_bytes()),
                5 => write(&path, format!("x\ndefault_toolchain = \"{one}\"\n").as_bytes()),
                _ => {
                    let _ = symlink(&one, &path);
                }
            }
        }
        std::env::set_current_dir(&world.work).unwrap();
        let path = format!("{0}/bin:{0}/.venv/bin:/usr/bin", world.work.display());
        let sandbox = Sandbox::new()
            .workspace(Workspace::Host(world.work.clone()))
            .search_path(path)
            .home(&world.home)
            .needs(program_directories(&world.work.join("src/server.js")));
        let first = FIRST[head[0] as usize % FIRST.len()];
        let words: Vec<OsString> = vec![world.word(first).into()];
        // The operator may name a program elsewhere.
        let is_operator = head[1] % 2 == 0 && !first.contains(['!', '@']);
        if let Some((shown, _)) = toolpost_sandbox::fuzzing::shown(&sandbox, &words, is_operator) {
            for path in shown {
                assert!(world.may_show(&path), "{words:?} shows {}", path.display());
            }
        }
    });
});
