//! Paths that want out, and files that want to hang.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use toolpost_core::Code;

use crate::support::{Bench, names_in, skip};

/// A directory outside of the root with a secret file.
fn outside() -> tempfile::TempDir {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    outside
}

#[tokio::test]
async fn no_path_escapes_the_root() {
    let (bench, outside) = (Bench::new(), outside());
    let secret = outside.path().join("secret");
    symlink(&secret, bench.path("file_link")).unwrap();
    symlink(outside.path(), bench.path("directory_link")).unwrap();
    symlink("../..", bench.path("up")).unwrap();
    symlink("loop", bench.path("loop")).unwrap();
    symlink("/proc/self/fd/0", bench.path("descriptor")).unwrap();
    symlink("/proc/self/root/etc/passwd", bench.path("magic")).unwrap();
    symlink("/dev/zero", bench.path("device")).unwrap();
    bench.put("file", "");
    let outside_name = outside.path().file_name().unwrap().to_str().unwrap();
    let long = "n/".repeat(2048) + "n";
    for path in [
        "..",
        "../secret",
        &format!("../{outside_name}/secret"),
        "a/../../secret",
        secret.to_str().unwrap(),
        "/etc/passwd",
        "//etc/passwd",
        "file_link",
        "directory_link/secret",
        &format!("up/{outside_name}/secret"),
        "loop",
        "descriptor",
        "magic",
        "device",
        "file/below",
        "/proc/self/environ",
        &long,
        &"n".repeat(4096),
    ] {
        let error = bench.error("read_file", json!({ "path": path })).await;
        assert_eq!(error.code(), Code::InvalidPath, "read {path}: {error}");
        assert!(error.message().len() < 600, "{error}");
        let arguments = json!({"path": path, "content": "changed", "create_directories": true});
        let error = bench.error("write_file", arguments).await;
        assert_eq!(error.code(), Code::InvalidPath, "write {path}: {error}");
        let error = bench.error("list_directory", json!({ "path": path })).await;
        assert_eq!(error.code(), Code::InvalidPath, "list {path}: {error}");
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    assert_eq!(names_in(outside.path()), ["secret"]);
    for path in ["a\0b", ""] {
        for tool in ["read_file", "write_file", "list_directory"] {
            let error = bench.error(tool, json!({"path": path, "content": ""})).await;
            assert!(error.is_recoverable(), "{tool} {path:?}");
        }
    }
}

#[tokio::test]
async fn writing_follows_no_link_even_inside() {
    let bench = Bench::new();
    bench.put("real/a", "kept");
    symlink("real/a", bench.path("link")).unwrap();
    symlink("real", bench.path("directory")).unwrap();
    symlink("nowhere", bench.path("dangling")).unwrap();
    for path in ["link", "directory/a", "directory/new", "dangling"] {
        for atomic in [true, false] {
            let arguments =
                json!({"path": path, "content": "changed", "atomic": atomic, "create_directories": true});
            assert_eq!(bench.error("write_file", arguments).await.code(), Code::InvalidPath, "{path}");
        }
    }
    assert_eq!(bench.read("real/a").await, "kept");
    assert_eq!(bench.names(), ["dangling", "directory", "link", "real"]);
}

#[tokio::test]
async fn pipes_sockets_and_directories_are_rejected() {
    let bench = Bench::new();
    let fifo = std::ffi::OsString::from(bench.path("fifo"));
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(bench.path("socket")).unwrap();
    std::fs::create_dir(bench.path("directory")).unwrap();
    for path in ["fifo", "socket", "directory"] {
        for (tool, atomic) in [("read_file", None), ("write_file", Some(true)), ("write_file", Some(false))] {
            let mut arguments = json!({ "path": path });
            if let Some(atomic) = atomic {
                arguments["content"] = "x".into();
                arguments["atomic"] = atomic.into();
            }
            let call = tokio::time::timeout(Duration::from_secs(10), bench.error(tool, arguments));
            let error = call.await.expect("the call does not hang");
            assert_eq!(error.code(), Code::InvalidPath, "{tool} {path}: {error}");
        }
    }
    let device = tempfile::tempdir().unwrap().keep().join("null");
    match rustix::fs::mknodat(
        rustix::fs::CWD,
        &device,
        rustix::fs::FileType::CharacterDevice,
        mode,
        rustix::fs::makedev(1, 3),
    ) {
        Err(errno) => {
            skip(format!("mknod: {errno}"));
        }
        Ok(()) => {
            let mut call = bench.call("read_file", json!({"path": "null"}));
            call.options.working_dir = device.parent().map(Into::into);
            let error = bench.toolbox.call(call).await.result.unwrap_err();
            assert!(error.message().contains("a device"), "{error}");
        }
    }
    std::fs::remove_dir_all(device.parent().unwrap()).unwrap();
}

/// Swaps a name between a harmless thing and a link out of the directory until the guard goes away.
struct Swapper(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Swapper {
    fn start(bench: &Bench, name: &str, target: &std::path::Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (name, spare) = (bench.path(name), bench.path("spare"));
        symlink(target, &spare).unwrap();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    &name,
                    rustix::fs::CWD,
                    &spare,
                    rustix::fs::RenameFlags::EXCHANGE,
                )
                .unwrap();
            }
        });
        Self(stop, Some(thread))
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn a_file_swapped_for_a_link_leaks_nothing() {
    let (bench, outside) = (Bench::new(), outside());
    let secret = outside.path().join("secret");
    bench.put("a", "harmless");
    let swapper = Swapper::start(&bench, "a", &secret);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..2000 {
        match bench.run("read_file", json!({"path": "a"})).await {
            Ok(output) => {
                assert_eq!(output.to_text(), "harmless");
                read += 1;
            }
            Err(error) => {
                assert!(matches!(error.code(), Code::InvalidPath | Code::Conflict), "{error}");
                refused += 1;
            }
        }
    }
    for round in 0..1000 {
        let arguments =
            json!({"path": "a", "content": "harmless", "create_backup": false, "atomic": round % 2 == 0});
        // Replacing may hit the link itself, which puts a file in its place; the target must not change.
        let _ = bench.run("write_file", arguments).await;
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "secret");
    }
    drop(swapper);
    assert!(read > 0, "{read} read, {refused} refused");
}

#[tokio::test]
async fn a_directory_swapped_for_a_link_leaks_nothing() {
    let (bench, outside) = (Bench::new(), outside());
    bench.put("d/secret", "harmless");
    let swapper = Swapper::start(&bench, "d", outside.path());
    let (mut read, mut written) = (0, 0);
    for round in 0..2000 {
        if let Ok(output) = bench.run("read_file", json!({"path": "d/secret"})).await {
            assert_eq!(output.to_text(), "harmless");
            read += 1;
        }
        let arguments = json!({
            "path": "d/new/file", "content": "x", "create_directories": true, "create_backup": false,
            "atomic": round % 2 == 0
        });
        written += usize::from(bench.run("write_file", arguments).await.is_ok());
        if let Ok(output) = bench.run("list_directory", json!({"path": "d", "recursive": true})).await {
            assert!(output.structured.unwrap()["entries"].as_array().unwrap().len() <= 4);
        }
    }
    drop(swapper);
    assert_eq!(names_in(outside.path()), ["secret"]);
    assert_eq!(std::fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
    assert!(read > 0 && written > 0, "{read} read, {written} written");
}
