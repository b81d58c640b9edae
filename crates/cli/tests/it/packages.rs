//! Packages for code: installed for a run, and in environments of `image build`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use serde_json::json;

use crate::support::TestEnv;

/// A world with two wheels in `links`: `hello-toolpost` 1.0 and 2.0; skipped without an installer.
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
pub(crate) fn with_wheels(test: &str) -> Option<TestEnv> {
    let env = TestEnv::new();
    let probe =
        env.run_with("import pip, venv, ensurepip", ["exec", "--level", "strict", "--lang", "python", "-"]);
    if !probe.status.success() {
        println!("SKIP {test}: no level strict, or no Python with pip and venv");
        return None;
    }
    let script = r#"
import zipfile
for version in ("1.0", "2.0"):
    tag = f"hello_toolpost-{version}"
    with zipfile.ZipFile(f"{tag}-py3-none-any.whl", "w") as archive:
        archive.writestr("hello_toolpost.py", f"VALUE = {version}")
        archive.writestr(f"{tag}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: hello-toolpost\nVersion: {version}\n")
        archive.writestr(f"{tag}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{tag}.dist-info/RECORD", "")
"#;
    env.run_with(script, ["exec", "--artifacts", "links", "--lang", "python", "-"]).ok();
    let links = env.path("links");
    Some(env.with("PIP_FIND_LINKS", links))
}

const USES: &str = "import hello_toolpost\nprint(hello_toolpost.VALUE)";

#[test]
pub(crate) fn requirement() {
    let Some(env) = with_wheels("requirement") else { return };
    let words = ["exec", "--requirement", "hello-toolpost==1.*", "--lang", "python", "-"];
    assert_eq!(env.run_with(USES, words).ok().out, "1.0\n");
    let newest = ["exec", "--requirement", "hello-toolpost", "--lang", "python", "-"];
    assert_eq!(env.run_with(USES, newest).ok().out, "2.0\n");
    env.run_with(USES, ["exec", "--lang", "python", "-"]).exit(1);
    let wrong =
        env.run_with("1", ["exec", "--json", "--requirement", "no-such-toolpost", "--lang", "python", "-"]);
    let error = wrong.exit(1).error();
    assert_eq!(error["code"], "REQUIREMENT");
    assert!(error["message"].as_str().unwrap().contains("no-such-toolpost"), "{error}");
    assert!(error["hints"].to_string().contains("find_links"), "{error}");
    for (words, said) in [
        (["--requirement", "x", "--lang", "bash"], "bash"),
        (["--requirement", "../x", "--lang", "python"], "../x"),
    ] {
        let refused = env.run_with("1", ["exec", "--json"].iter().chain(&words).chain(&["-"])).exit(2);
        assert!(refused.error()["message"].as_str().unwrap().contains(said), "{refused}");
    }
}

#[test]
fn a_session_has_its_packages_too() {
    let Some(env) = with_wheels("a_session_has_its_packages_too") else { return };
    let words =
        ["exec", "--session", "packed", "--requirement", "hello-toolpost==1.0", "--lang", "python", "-"];
    assert_eq!(env.run_with(USES, words).ok().out, "1.0\n");
    let next = ["exec", "--session", "packed", "--lang", "python", "-"];
    assert_eq!(env.run_with("print(hello_toolpost.VALUE)", next).ok().out, "1.0\n");
    env.run(["exec", "--session", "packed", "--end"]).ok();
}

/// The setting overrides the variable of `pip`.
#[test]
pub(crate) fn find_links() {
    let Some(env) = with_wheels("find_links") else { return };
    let words = ["exec", "--requirement", "hello-toolpost", "--lang", "python", "-"];
    let links = env.path("links").display().to_string();
    let env = env.with("PIP_FIND_LINKS", "missing");
    let error = env.run_with(USES, words).exit(2);
    assert!(error.err.contains("`missing`"), "{error}");
    let setting = format!("packages.find_links={links}");
    assert_eq!(env.run_with(USES, words.iter().chain(&["--config", &setting])).ok().out, "2.0\n");
}

#[test]
pub(crate) fn certificate() {
    let env = TestEnv::new().with("PIP_CERT", "missing.pem");
    let words = ["exec", "--requirement", "hello-toolpost", "--lang", "python", "-"];
    let error = env.run_with("1", words).exit(2);
    assert!(error.err.contains("`missing.pem`"), "{error}");
    let error =
        env.run_with("1", words.iter().chain(&["--config", "packages.certificate=other.pem"])).exit(2);
    assert!(error.err.contains("other.pem"), "{error}");
}

/// A server without packages that records its requests.
fn empty_index() -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.find(String::is_empty);
            let answer = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            if sender.send(path).is_err() {
                break;
            }
        }
    });
    (address, asked)
}

/// A local index works with `no_network`.
#[test]
pub(crate) fn index() {
    let Some(env) = with_wheels("index") else { return };
    let env = env.without("PIP_FIND_LINKS");
    let words = ["exec", "--requirement", "hello-toolpost", "--lang", "python", "-"];
    let (variable, asked) = empty_index();
    let env = env.with("PIP_INDEX_URL", format!("http://{variable}/simple"));
    env.run_with("1", words).exit(1);
    assert_eq!(asked.try_iter().next().as_deref(), Some("/simple/hello-toolpost/"));
    let (setting, asked_by_setting) = empty_index();
    let setting = format!("packages.index=http://{setting}/own");
    env.run_with("1", words.iter().chain(&["--config", &setting])).exit(1);
    assert_eq!(asked_by_setting.try_iter().next().as_deref(), Some("/own/hello-toolpost/"));
    assert_eq!(asked.try_iter().next(), None);
}

/// Ctrl-C ends the wait for a silent index.
#[test]
fn ctrl_c_ends_an_installation_and_leaves_nothing() {
    use crate::support::{eventually, processes};
    let test = "ctrl_c_ends_an_installation_and_leaves_nothing";
    let Some(env) = with_wheels(test) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, asked) = channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().flatten() {
            kept.push(stream);
            let _ = sender.send(());
        }
    });
    let env = env.without("PIP_FIND_LINKS").with("PIP_INDEX_URL", format!("http://{address}/simple"));
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let running =
            env.start(["exec", "--json", "--requirement", "hello-toolpost", "--lang", "python", "/dev/null"]);
        asked.recv_timeout(std::time::Duration::from_mins(1)).unwrap();
        running.signal(signal);
        let finished = running.finish().exit(130);
        assert_eq!(finished.error()["code"], "CANCELLED", "{finished}");
        eventually("no client is left", || processes(&address).is_empty());
        let left = std::fs::read_dir(env.path("../home/.cache/toolpost/packages")).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| name.to_string_lossy().starts_with("lock-")), "{left:?}");
        while asked.try_recv().is_ok() {}
    }
}

#[test]
pub(crate) fn registry() {
    let env = TestEnv::new();
    let probe = env.run(["exec", "--level", "strict", "--", "npm", "--version"]);
    if !probe.status.success() {
        println!("SKIP registry: no level strict, or no npm");
        return;
    }
    let words = ["exec", "--requirement", "left-toolpost", "--lang", "javascript", "-"];
    let (variable, asked) = empty_index();
    let env = env.with("npm_config_registry", format!("http://{variable}/"));
    env.run_with("1", words).exit(1);
    assert!(asked.try_iter().any(|path| path.contains("left-toolpost")));
    let (setting, asked_by_setting) = empty_index();
    let setting = format!("packages.registry=http://{setting}/own/");
    env.run_with("1", words.iter().chain(&["--config", &setting])).exit(1);
    assert!(asked_by_setting.try_iter().any(|path| path.contains("own/left-toolpost")));
    assert_eq!(asked.try_iter().next(), None);
}

/// Built from a file, listed, used by a run, and removed.
#[test]
pub(crate) fn profile() {
    let Some(env) = with_wheels("profile") else { return };
    let data = env.path("data");
    let env = env.with("XDG_DATA_HOME", data.clone()).with("DOCKER_HOST", "unix:///no/daemon.sock");
    env.write("own.txt", "# Of our own.\nhello-toolpost==1.0 hello_toolpost\n");
    let words = ["exec", "--profile", "own", "--lang", "python", "-"];
    let none = env.run_with(USES, words).exit(1);
    assert!(none.err.contains("there is no environment `own`") && none.err.contains("image build"), "{none}");

    let made = env.run(["image", "build", "--profile-file", "own.txt", "--json"]).ok().json();
    assert_eq!(made["environment"]["name"], "own", "{made:#}");
    assert!(made["environment"]["installed"].to_string().contains("hello-toolpost==1.0"), "{made:#}");
    assert!(data.join("toolpost/environments/own").is_dir());
    assert_eq!(env.run_with(USES, words).ok().out, "1.0\n");
    // The setting works too.
    let set =
        |words: &[&str]| env.run_with(USES, ["exec", "--config", "code.profile=own"].iter().chain(words));
    assert_eq!(set(&["--lang", "python", "-"]).ok().out, "1.0\n");
    let unknown =
        env.run_with(USES, ["exec", "--config", "code.profile=other", "--lang", "python", "-"]).exit(1);
    assert!(unknown.err.contains("there is no environment `other`"), "{unknown}");
    env.run(["exec", "--config", "code.profile=other", "--", "true"]).ok();

    let listed = env.run(["image", "ls", "--json"]).ok().json();
    assert_eq!(listed["environments"][0]["name"], "own", "{listed:#}");
    assert_eq!(listed["docker"]["available"], json!(false), "{listed:#}");
    let listed = env.run(["image", "ls"]).ok();
    assert!(listed.out.starts_with("environment own: ") && listed.err.contains("daemon.sock"), "{listed}");

    env.run(["image", "rm", "own"]).ok();
    let gone = env.run(["image", "rm", "own", "--json"]).exit(1).error();
    assert_eq!(gone["code"], "NOT_FOUND");
    assert!(gone["hints"][0].as_str().unwrap().contains("image ls"), "{gone}");
    assert!(env.run(["image", "ls"]).ok().err.contains("image build data"));
    env.run_with(USES, words).exit(1);
}

/// Each name means its own packages, none of which exist here.
#[test]
pub(crate) fn name() {
    let Some(env) = with_wheels("name") else { return };
    let error = env.run(["image", "build", "data", "-q", "--json"]).exit(1).error();
    assert_eq!(error["code"], "REQUIREMENT");
    assert!(error["hints"].to_string().contains("find_links"), "{error}");
    let error = env.run(["image", "build", "dat", "--json"]).exit(2).error();
    assert!(error["message"].as_str().unwrap().contains("`data`"), "{error}");
    assert!(error["hints"].to_string().contains("--profile-file"), "{error}");
}

/// The second call uses the cached build of the first.
#[test]
fn builds_of_calls_are_cached() {
    let env = TestEnv::new();
    let cache = env.path("cache");
    let env = env.with("XDG_CACHE_HOME", cache.clone());
    let code = "code=#include <stdio.h>\nint main(void) { puts(\"built\"); return 0; }";
    let words = ["call", "run_code", "language=c", code];
    let first = env.run(words);
    if !first.status.success() && first.err.contains("no `") {
        println!("SKIP builds_of_calls_are_cached: no compiler");
        return;
    }
    assert!(first.ok().out.contains("built"));
    let kept = || std::fs::read_dir(cache.join("toolpost/builds")).unwrap().count();
    let before = kept();
    assert!(before > 0);
    assert!(env.run(words).ok().out.contains("built"));
    assert_eq!(kept(), before);
}
