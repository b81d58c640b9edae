//! The real Claude Code in containers of a test daemon.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use toolpost_claude_code::{ClaudeCode, ClaudeCodeErrorKind as Kind, Executor};
use toolpost_docker::image::{CLAUDE_CODE_PROGRAM, Recipe};
use toolpost_docker::{Docker, DockerHost, Options};
use toolpost_testkit::eventually;

use crate::daemon::Daemon;
use crate::real::{check_connected_tools, check_sources_and_errors, model, toolbox, with};
use crate::{KEY, claude, program};

const IMAGE: &str = "toolpost/claude-code:test";

/// A daemon with an image of the installed program, like that of `image build claude-code`; else prints why it is skipped.
fn daemon(test: &str) -> Option<Daemon> {
    let program = program(test)?;
    let daemon = match Daemon::start() {
        Ok(daemon) => daemon,
        Err(reason) => {
            println!("SKIP {test}: {reason}");
            return None;
        }
    };
    let root = tempfile::tempdir().unwrap();
    let put = |from: &Path, to: &str| {
        let target = root.path().join(to.trim_start_matches('/'));
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::hard_link(from, &target).or_else(|_| std::fs::copy(from, &target).map(drop)).unwrap();
    };
    put(&program, CLAUDE_CODE_PROGRAM);
    put(Path::new("/bin/busybox"), "/bin/busybox");
    for name in ["sh", "sed", "cat"] {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(name)).unwrap();
    }
    for name in ["tmp", "workspace", "proc", "sys", "dev", "etc"] {
        std::fs::create_dir(root.path().join(name)).unwrap();
    }
    put(&Path::new("/bin/bash").canonicalize().unwrap(), "/bin/bash");
    for program in [program.as_path(), Path::new("/bin/bash")] {
        #[expect(clippy::disallowed_methods, reason = "the loader lists what an image needs")]
        let list = Command::new("/lib64/ld-linux-x86-64.so.2").arg("--list").arg(program).output().unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        for word in list.split_whitespace().filter(|word| word.starts_with('/')) {
            if !root.path().join(word.trim_start_matches('/')).exists() {
                put(&Path::new(word).canonicalize().unwrap(), word);
            }
        }
    }
    let recipe = Recipe::Directory { path: root.path().into() };
    daemon.images().build(&recipe, IMAGE, Duration::from_mins(3), &mut |_| {}).unwrap();
    Some(daemon)
}

fn executor(host: &DockerHost) -> Executor {
    let options =
        Options::new(IMAGE).idle_containers(0).answer_timeout(Duration::from_mins(1)).name_prefix("agent");
    Executor::container(CLAUDE_CODE_PROGRAM, Arc::new(Docker::connect(host, options).unwrap()))
}

async fn all_removed(daemon: &Daemon) {
    eventually("all containers are removed", async || daemon.containers().is_empty()).await;
}

/// The arguments and environments of all processes of this machine.
fn process_texts() -> Vec<u8> {
    let directories = std::fs::read_dir("/proc").unwrap().flatten();
    let files =
        directories.flat_map(|directory| ["cmdline", "environ"].map(|name| directory.path().join(name)));
    files.filter_map(|file| std::fs::read(file).ok()).flatten().collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_calls_connected_tools_and_is_removed() {
    let Some(daemon) = daemon("a_container_calls_connected_tools_and_is_removed") else { return };
    // Without a credential, no container starts.
    let (model, toolbox) = (model(), toolbox());
    let without_credential = ClaudeCode::builder().executor(executor(&daemon.host)).build().unwrap();
    assert_eq!(without_credential.run("hi").await.error.unwrap().kind(), Kind::CredentialMissing);
    let missing = Options::new("toolpost/none:here").idle_containers(0);
    let missing = Executor::container("claude", Arc::new(Docker::connect(&daemon.host, missing).unwrap()));
    let error = claude(missing).base_url(model.base_url()).build().unwrap().run("hi").await.error.unwrap();
    assert_eq!(error.kind(), Kind::Program, "{error}");
    let absent = Options::new(IMAGE).idle_containers(0);
    let absent = Executor::container("/nowhere", Arc::new(Docker::connect(&daemon.host, absent).unwrap()));
    let error = claude(absent).base_url(model.base_url()).build().unwrap().run("hi").await.error.unwrap();
    assert_eq!(error.kind(), Kind::Program, "{error}");
    all_removed(&daemon).await;
    assert!(model.requests().is_empty());

    check_connected_tools(executor(&daemon.host)).await;
    check_sources_and_errors(executor(&daemon.host)).await;

    // Arguments, environments and logs have no secret.
    let agent = with(executor(&daemon.host), &model, &toolbox).build().unwrap();
    let mut session = agent.start().await.unwrap();
    let outcome = session.turn("call mcp__calc__increase {\"by\": 1}").await;
    assert_eq!(outcome.error, None);
    let id = outcome.record.container_id.clone().unwrap();
    let names = daemon.containers();
    let digits = names[0].strip_prefix("agent-").unwrap_or_else(|| panic!("{names:?}"));
    assert!(digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{names:?}");
    let shown = daemon.request("GET", &format!("/containers/{id}/json"), "");
    assert!(shown.contains(&names[0]) && shown.contains("\"NetworkMode\":\"none\""), "{shown}");
    let processes = process_texts();
    assert!(contains(&processes, "--strict-mcp-config"), "the program is seen");
    for secret in [KEY, "Bearer "] {
        assert!(!contains(shown.as_bytes(), secret) && !contains(&processes, secret), "{secret}");
    }
    let logs = daemon.request("GET", &format!("/containers/{id}/logs?stdout=1&stderr=1"), "");
    assert!(!logs.contains(KEY));

    // Killed during a turn.
    let requests = model.requests().len();
    let (turn, ()) = tokio::join!(session.turn("wait 600000"), async {
        eventually("the turn begins", async || model.requests().len() > requests).await;
        daemon.request("POST", &format!("/containers/{id}/kill"), "");
    });
    let error = turn.error.unwrap();
    assert_eq!((error.kind(), error.class().as_str()), (Kind::Killed, "execution"), "{error}");
    assert!(error.message().contains("137"), "{error}");
    assert_eq!(turn.record.container_id.as_deref(), Some(id.as_str()));
    session.end().await;
    all_removed(&daemon).await;

    // A dropped session, and an ended one.
    for is_dropped in [true, false] {
        let session = agent.start().await.unwrap();
        assert_eq!(daemon.containers().len(), 1);
        if is_dropped {
            drop(session);
        } else {
            session.end().await;
        }
        all_removed(&daemon).await;
    }

    // Files of own tools are in the working directory afterwards, and the daemon has the limits.
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("there.txt"), "from before").unwrap();
    let agent = with(executor(&daemon.host), &model, &toolbox)
        .own_tools(["Bash"])
        .allow(["Bash(cat*)", "Bash"])
        .working_dir(directory.path())
        .max_memory_bytes(3 << 30)
        .max_cpus(1.5)
        .build()
        .unwrap();
    let mut session = agent.start().await.unwrap();
    let shown = daemon.request("GET", &format!("/containers/{}/json", daemon.containers()[0]), "");
    for limit in ["\"Memory\":3221225472", "\"PidsLimit\":1025", "\"NanoCpus\":1500000000"] {
        assert!(shown.contains(limit), "{limit}: {shown}");
    }
    let outcome = session.turn("call Bash {\"command\": \"cat there.txt > made.txt\"}").await;
    assert_eq!(outcome.error, None);
    session.end().await;
    let made = std::fs::read_to_string(directory.path().join("made.txt"));
    assert_eq!(made.ok().as_deref(), Some("from before"), "{}", outcome.text());
    all_removed(&daemon).await;
    assert!(!contains(&process_texts(), KEY));
}
