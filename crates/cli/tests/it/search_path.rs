//! Programs that code writes to a directory of the operator's `PATH`.

use crate::support::TestEnv;

#[test]
fn programs_of_the_system_are_not_planted_in_the_operators_path() {
    let env = TestEnv::new();
    env.write("project/.venv/pyvenv.cfg", "home = /usr/bin\n");
    env.write("project/.venv/bin/activate", "# of the operator\n");
    env.write("home/notes", "");
    let programs = env.path("project/.venv/bin");
    let path = format!("{}:node_modules/.bin:/usr/local/bin:/usr/bin:/bin", programs.display());
    let env = env.leaving_files().with("PATH", path);
    let script =
        "for name in ls toolpost own; do echo x > .venv/bin/$name; done; echo evil >> .venv/bin/activate
                  mkdir -p a/node_modules/.bin; echo x > a/node_modules/.bin/sed; echo ok > made";
    let finished = env.run(["exec", "--workdir", "project", "--json", "--", "sh", "-c", script]);
    for (path, is_there) in [
        (".venv/bin/ls", false),
        (".venv/bin/toolpost", false),
        ("a/node_modules/.bin/sed", false),
        (".venv/bin/own", true),
        ("made", true),
    ] {
        assert_eq!(env.path("project").join(path).exists(), is_there, "{path}: {finished}");
    }
    assert_eq!(env.read("project/.venv/bin/activate"), "# of the operator\n", "{finished}");
    assert!(
        finished.out.contains("the shell runs it instead of the system's program of this name"),
        "{finished}"
    );
    assert!(finished.out.contains("search_path"), "{finished}");
    for (path, is_written) in [(".venv/bin/ls", false), (".venv/bin/own2", true)] {
        let path = format!("path={path}");
        let words = ["call", "write_file", "--workdir", "project", "--yes", &path, "content=x"];
        let finished = env.run(words);
        assert_eq!(finished.status.success(), is_written, "{path}: {finished}");
    }
}
