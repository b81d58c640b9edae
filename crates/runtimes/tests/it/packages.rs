//! Installed packages, and environments with a profile's packages.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use toolpost_runtimes::{Environment, Installer, Profile, Requirements};
use toolpost_sandbox::{
    Cancel, Egress, Error, Host, Language, Level, Limits, Outcome, Program, Sandbox, Verdict, Workspace,
};

/// Limits under which a hanging test ends soon.
fn quick() -> Limits {
    Limits::default().with_wall(Duration::from_secs(20))
}

fn at(level: Level) -> Sandbox {
    Sandbox::new().level(level).limits(quick())
}

fn code(sandbox: &Sandbox, language: Language, source: &str) -> Outcome {
    sandbox.run(&Program::code(language, source), &Cancel::new(), &mut |_| {}).unwrap()
}

/// The relevant parts of an outcome, for messages.
fn told(outcome: &Outcome) -> String {
    let (stdout, stderr) = (outcome.stdout.text(), outcome.stderr.text());
    format!("{:?} stdout: {stdout} stderr: {stderr} {:?}", outcome.verdict, outcome.report.notes)
}

/// Creates a directory with wheels: `hello-toolpost` 1.0 and 2.0, where 2.0 needs `depends-toolpost`.
fn wheels(directory: &Path) {
    let script = r#"
import os, zipfile
def wheel(name, version, module, source, needs=""):
    tag = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(f"{tag}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{module}.py", source)
        archive.writestr(f"{tag}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{tag}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{tag}.dist-info/RECORD", "")
wheel("hello-toolpost", "1.0", "hello_toolpost", "VALUE = 1")
wheel("hello-toolpost", "2.0", "hello_toolpost", "import depends_toolpost\nVALUE = 2", "Requires-Dist: depends-toolpost\n")
wheel("depends-toolpost", "0.5", "depends_toolpost", "")
os.mkdir("x")
open("x/setup.py", "w").write("open('/workspace/built-by-hand', 'w')\nfrom setuptools import setup\nsetup(name='source-toolpost', version='1.0')")
import tarfile
with tarfile.open("source-toolpost-1.0.tar.gz", "w:gz") as archive:
    archive.add("x/setup.py", "source-toolpost-1.0/setup.py")
"#;
    let outcome = code(&Sandbox::new().limits(quick()), Language::Python, script);
    assert_eq!(outcome.verdict, Verdict::Ok, "{}", told(&outcome));
    outcome.export(directory).unwrap();
    std::fs::remove_dir_all(directory.join("x")).unwrap();
}

/// An installer, if this host has one.
fn installer(name: &str) -> Option<Installer> {
    if !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP {name}: no namespaces");
        return None;
    }
    let sandbox = Sandbox::new().level(Level::Strict);
    let probe = Program::code(Language::Python, "import pip");
    let found = sandbox.run(&probe, &Cancel::new(), &mut |_| {});
    if !found.is_ok_and(|outcome| outcome.verdict.is_ok()) {
        println!("SKIP {name}: no Python with pip");
        return None;
    }
    Some(Installer::new(sandbox))
}

#[test]
fn packages_are_installed_once_and_a_run_finds_them_read_only() {
    let name = "packages_are_installed_once_and_a_run_finds_them_read_only";
    let Some(installer) = installer(name) else { return };
    let directory = tempfile::tempdir().unwrap();
    let (links, cache) = (directory.path().join("links"), directory.path().join("cache"));
    std::fs::create_dir(&links).unwrap();
    wheels(&links);
    let installer = installer.find_links(&links).offline(true);
    let wanted = Requirements::python(["hello-toolpost"]).unwrap();
    let newest = installer.install(&wanted, &cache, &Cancel::new()).unwrap();
    assert_eq!(newest.packages(), ["depends-toolpost==0.5", "hello-toolpost==2.0"]);
    assert!(newest.bytes() > 0);
    let old = installer
        .install(&Requirements::python(["hello-toolpost==1.*"]).unwrap(), &cache, &Cancel::new())
        .unwrap();
    assert_eq!(old.packages(), ["hello-toolpost==1.0"]);

    // The same list comes from the directory: nothing could be installed any more.
    std::fs::remove_dir_all(&links).unwrap();
    std::fs::create_dir(&links).unwrap();
    let again = installer.install(&wanted, &cache, &Cancel::new()).unwrap();
    assert_eq!((again.modules(), again.packages()), (newest.modules(), newest.packages()));
    assert!(installer.clone().allow_build(true).install(&wanted, &cache, &Cancel::new()).is_err());

    let source = "import hello_toolpost, os\n\
                  try: open(hello_toolpost.__file__, 'a'); wrote = True\n\
                  except OSError: wrote = False\n\
                  [hello_toolpost.VALUE, wrote]";
    for (packages, value) in [(&newest, 2), (&old, 1)] {
        for level in [Level::Strict, Level::Standard] {
            let sandbox = at(level).modules(packages.clone());
            let outcome = code(&sandbox, Language::Python, source);
            assert_eq!(outcome.value, Some(json!([value, false])), "{level} {}", told(&outcome));
        }
    }
    // A session sees them too. A pool, whose interpreters started before, starts such a run cold.
    let sandbox = at(Level::Strict).modules(old.clone());
    let session = toolpost_sandbox::Session::start(&sandbox, Language::Python).unwrap();
    let cell =
        session.run(source, &toolpost_sandbox::CellLimits::default(), &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(cell.value, Some(json!([1, false])), "{}", told(&cell));
    let pool = toolpost_sandbox::Pool::builder(&at(Level::Strict))
        .language(Language::Python)
        .idle_workers(1)
        .build()
        .unwrap();
    let outcome = code(&sandbox.backend(std::sync::Arc::new(pool)), Language::Python, source);
    assert_eq!(outcome.value, Some(json!([1, false])), "{}", told(&outcome));
    assert!(outcome.report.notes.iter().any(|note| note.contains("packages")), "{}", told(&outcome));
    let without = code(&at(Level::Strict), Language::Python, source);
    assert!(without.stderr.text().contains("ModuleNotFoundError"), "{}", told(&without));
}

#[test]
fn a_package_that_cannot_be_installed_is_an_error_that_names_it() {
    let Some(installer) = installer("a_package_that_cannot_be_installed") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (links, cache) = (directory.path().join("links"), directory.path().join("cache"));
    std::fs::create_dir(&links).unwrap();
    wheels(&links);
    let installer = installer.find_links(&links).offline(true);
    // Neither an unknown name, nor one without a wheel, whose code would run.
    for list in [["hello-toolpost", "no-such-toolpost==3"], ["hello-toolpost", "source-toolpost"]] {
        let wanted = Requirements::python(list).unwrap();
        let error = installer.install(&wanted, &cache, &Cancel::new()).unwrap_err();
        let Error::Requirement { package, reason } = &error else { panic!("{error}") };
        assert!(package == list[1] && reason.contains("No matching distribution"), "{error}");
        let left: Vec<_> =
            std::fs::read_dir(&cache).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| name.to_string_lossy().starts_with("lock-")), "{left:?}");
    }
    let cancel = Cancel::new();
    cancel.cancel();
    let wanted = Requirements::python(["hello-toolpost"]).unwrap();
    assert!(installer.install(&wanted, &cache, &cancel).is_err());
    let short = Installer::new(
        Sandbox::new().level(Level::Strict).limits(quick().with_wall(std::time::Duration::from_millis(5))),
    );
    let error = short.find_links(&links).offline(true).install(&wanted, &cache, &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("Timeout"), "{error}");
}

#[test]
fn unused_packages_are_evicted_first() {
    let Some(installer) = installer("packages_make_room_for_others") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (links, cache) = (directory.path().join("links"), directory.path().join("cache"));
    std::fs::create_dir(&links).unwrap();
    wheels(&links);
    let installer = installer.find_links(&links).offline(true).max_bytes(1);
    let install = |name: &str| {
        installer.install(&Requirements::python([name]).unwrap(), &cache, &Cancel::new()).unwrap()
    };
    let first = install("hello-toolpost==1.0");
    let place = first.modules();
    let _second = install("hello-toolpost==2.0");
    assert!(place.is_dir(), "it is in use");
    drop(first);
    let _third = install("depends-toolpost");
    assert!(!place.exists(), "it was not used for longest");
}

#[test]
fn an_environment_is_created_once_listed_used_and_removed() {
    let Some(installer) = installer("an_environment_is_created_once_listed_used_and_removed") else { return };
    let directory = tempfile::tempdir().unwrap();
    let (links, place) = (directory.path().join("links"), directory.path().join("environments"));
    std::fs::create_dir(&links).unwrap();
    wheels(&links);
    let installer = installer.find_links(&links).offline(true);
    let profile = Profile::parse("own", "hello-toolpost==2.0 hello_toolpost\n").unwrap();
    let missing = profile.missing(&at(Level::Strict)).unwrap();
    assert_eq!(missing, profile.packages.iter().collect::<Vec<_>>());
    let environment = match Environment::build(&profile, &place, &installer, &Cancel::new()) {
        Err(Error::Requirement { reason, .. }) if reason.contains("python3-venv") => {
            println!("SKIP an_environment_is_created_once_listed_used_and_removed: no venv");
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!(environment.version("hello-toolpost"), Some("2.0"), "{environment:?}");
    assert_eq!(environment.version("depends-toolpost"), Some("0.5"));
    assert_eq!(Environment::list(&place), std::slice::from_ref(&environment));
    for level in [Level::Strict, Level::Standard] {
        let sandbox = at(level).search_first(environment.programs());
        let outcome = code(&sandbox, Language::Python, "import hello_toolpost\nhello_toolpost.VALUE");
        assert_eq!(outcome.value, Some(json!(2)), "{level} {}", told(&outcome));
        assert!(profile.missing(&sandbox).unwrap().is_empty());
    }
    // The same list by the same Python is reused; nothing could be installed any more.
    std::fs::remove_dir_all(&links).unwrap();
    std::fs::create_dir(&links).unwrap();
    assert_eq!(Environment::build(&profile, &place, &installer, &Cancel::new()).unwrap(), environment);
    let other = Profile::parse("own", "hello-toolpost==1.0 hello_toolpost\n").unwrap();
    assert!(Environment::build(&other, &place, &installer, &Cancel::new()).is_err());
    assert_eq!(Environment::list(&place), [], "half an environment is none");
    assert!(environment.clone().remove().is_ok() && !environment.directory.exists());
}

/// A loopback file server for the test's lifetime. Returns its port and the requests.
fn serve(
    files: Vec<(String, Vec<u8>)>,
    listener: std::net::TcpListener,
) -> std::sync::Arc<std::sync::Mutex<Vec<String>>> {
    use std::io::{BufRead as _, Write as _};
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut lines = std::io::BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(first)) = lines.next() else { continue };
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let found = files.iter().find(|(name, _)| *name == path);
            let (status, content) =
                found.map_or(("404 Not Found", &[][..]), |(_, content)| ("200 OK", content));
            let kind = match path.rsplit('.').next() {
                Some("whl" | "tgz") => "application/octet-stream",
                _ if path.starts_with("/simple") => "text/html",
                _ => "application/json",
            };
            seen.lock().unwrap().push(path);
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                content.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(content));
        }
    });
    asked
}

#[test]
fn only_the_index_is_reached_through_the_proxy() {
    let Some(installer) = installer("only_the_index_is_reached_through_the_proxy") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let links = directory.path().join("links");
    std::fs::create_dir(&links).unwrap();
    wheels(&links);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let wheel = "hello_toolpost-1.0-py3-none-any.whl";
    let page = format!("<html><body><a href=\"/files/{wheel}\">{wheel}</a></body></html>");
    let files = vec![
        ("/simple/hello-toolpost/".to_owned(), page.into_bytes()),
        (format!("/files/{wheel}"), std::fs::read(links.join(wheel)).unwrap()),
    ];
    let asked = serve(files, listener);
    let own =
        Installer::new(Sandbox::new().level(Level::Strict).egress(Egress::new().allow_address(address)))
            .index(format!("http://{address}/simple"));
    let wanted = Requirements::python(["hello-toolpost"]).unwrap();
    let packages = own.install(&wanted, &directory.path().join("cache"), &Cancel::new()).unwrap();
    assert_eq!(packages.packages(), ["hello-toolpost==1.0"]);
    assert!(asked.lock().unwrap().contains(&"/simple/hello-toolpost/".to_owned()));
    // The same server is denied when it is not the index.
    let count = asked.lock().unwrap().len();
    let other = Installer::new(Sandbox::new().level(Level::Strict)).index(format!("http://{address}/simple"));
    assert!(other.install(&wanted, &directory.path().join("other"), &Cancel::new()).is_err());
    assert_eq!(asked.lock().unwrap().len(), count);
    drop(installer);
}

#[test]
fn packages_of_npm_are_installed_without_their_scripts_and_found() {
    let name = "packages_of_npm_are_installed_without_their_scripts_and_found";
    if installer(name).is_none() {
        return;
    }
    let make = r#"
import io, json, tarfile
def pack(name, files):
    with tarfile.open(f"{name}-1.0.0.tgz", "w:gz") as archive:
        for path, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo("package/" + path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
package = {"name": "hello-toolpost", "version": "1.0.0", "main": "index.js", "scripts": {"postinstall": "node mark.js"}}
pack("hello-toolpost", {"package.json": json.dumps(package), "index.js": "module.exports = { value: 42 };",
     "mark.js": "require('fs').writeFileSync('marked', '1')"})
"#;
    let packed = code(&Sandbox::new(), Language::Python, make);
    let archive = packed.artifacts.first().unwrap_or_else(|| panic!("{}", told(&packed))).read().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let about = json!({
        "name": "hello-toolpost",
        "dist-tags": { "latest": "1.0.0" },
        "versions": { "1.0.0": {
            "name": "hello-toolpost", "version": "1.0.0", "hasInstallScript": true,
            "scripts": { "postinstall": "node mark.js" },
            "dist": { "tarball": format!("http://{address}/hello-toolpost-1.0.0.tgz") },
        } },
    });
    let files = vec![
        ("/hello-toolpost".to_owned(), about.to_string().into_bytes()),
        ("/hello-toolpost-1.0.0.tgz".to_owned(), archive),
    ];
    serve(files, listener);
    let sandbox = Sandbox::new().level(Level::Strict).egress(Egress::new().allow_address(address));
    let installer = Installer::new(sandbox).index(format!("http://{address}"));
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let wanted = Requirements::npm(["hello-toolpost@1"]).unwrap();
    let packages = match installer.install(&wanted, &cache, &Cancel::new()) {
        Err(error @ (Error::LanguageMissing { .. } | Error::ProgramNotFound { .. })) => {
            println!("SKIP {name}: {error}");
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!(packages.packages(), ["hello-toolpost@1.0.0"]);
    assert!(!packages.modules().join("hello-toolpost/marked").exists(), "its script ran");
    let built = installer.clone().allow_build(true).install(&wanted, &cache, &Cancel::new()).unwrap();
    assert!(built.modules().join("hello-toolpost/marked").exists(), "its script was allowed");
    for source in [
        "require('hello-toolpost').value",
        "import hello from 'hello-toolpost';\nconsole.log('::result', await hello.value)",
    ] {
        let sandbox = at(Level::Strict).modules(packages.clone());
        let outcome = code(&sandbox, Language::JavaScript, source);
        assert_eq!(outcome.value, Some(json!(42)), "{source} {}", told(&outcome));
        let without = code(&at(Level::Strict), Language::JavaScript, source);
        assert!(!without.verdict.is_ok(), "{source} {}", told(&without));
    }
    let missing = Requirements::npm(["no-such-toolpost"]).unwrap();
    let error = installer.install(&missing, &cache, &Cancel::new()).unwrap_err();
    let Error::Requirement { package, reason } = &error else { panic!("{error}") };
    assert!(package == "no-such-toolpost" && reason.contains("404"), "{error}");
}

#[test]
fn a_directory_of_others_takes_no_packages() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let wanted = Requirements::python(["x"]).unwrap();
    let error =
        Installer::new(Sandbox::new()).install(&wanted, directory.path(), &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("chmod 700"), "{error}");
    let sandbox = Sandbox::new().workspace(Workspace::Fresh);
    let address = Installer::new(sandbox).index("https://name:word@x/simple");
    let private = tempfile::tempdir().unwrap();
    assert!(matches!(
        address.install(&wanted, &private.path().join("own"), &Cancel::new()),
        Err(Error::InvalidName { .. })
    ));
}
