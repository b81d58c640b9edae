//! Container options, against a daemon of this machine.

use std::sync::Arc;

use crate::daemon::{Daemon, IMAGE};
use crate::support::TestEnv;

/// A world with a daemon and its image; skipped without a daemon.
fn with_daemon(test: &str) -> Option<(TestEnv, Arc<Daemon>)> {
    let daemon = Daemon::get(test)?;
    let env = TestEnv::new().with("DOCKER_HOST", daemon.host.to_string());
    Some((env, daemon))
}

#[test]
pub(crate) fn backend() {
    let env = TestEnv::new().with("DOCKER_HOST", "unix:///no/daemon.sock");
    assert_eq!(env.run(["exec", "--backend", "process", "--", "echo", "here"]).ok().out, "here\n");
    let words = ["exec", "--json", "--backend", "docker", "--", "echo", "there"];
    let gone = env.run(words).exit(4).error();
    assert_eq!(gone["code"], "BACKEND");
    assert!(gone["message"].as_str().unwrap().contains("/no/daemon.sock"), "{gone}");
    let session = ["exec", "--json", "--backend", "docker", "--session", "a", "--lang", "python", "-"];
    assert!(env.run_with("1", session).exit(2).error()["message"].to_string().contains("--session"));
    let packages = ["exec", "--json", "--backend", "docker", "--requirement", "a", "--lang", "python", "-"];
    assert!(env.run_with("1", packages).exit(2).error()["hints"].to_string().contains("--image"));
}

#[test]
pub(crate) fn image() {
    let env = TestEnv::new();
    let refused = env.run(["exec", "--json", "--backend", "process", "--image", "a", "--", "true"]).exit(2);
    assert!(refused.error()["message"].as_str().unwrap().contains("`--image`"), "{refused}");
    let Some((env, _daemon)) = with_daemon("image") else { return };
    let words = ["exec", "--json", "--backend", "docker", "--image", IMAGE, "--", "echo", "there"];
    let outcome = env.run(words).ok().json();
    assert_eq!(
        (&outcome["stdout"]["text"], &outcome["report"]["backend"]),
        (&"there\n".into(), &"docker".into())
    );
    // A profile and the default name the images of `image build --docker`.
    for (option, said) in
        [(&["--profile", "own"][..], "toolpost/own:latest"), (&[], "toolpost/python:latest")]
    {
        let words = ["exec", "--json", "--backend", "docker"].iter().chain(option).chain(&["--", "true"]);
        let missing = env.run(words).exit(2).error();
        assert!(missing["message"].as_str().unwrap().contains(said), "{missing}");
        let fix = if option.is_empty() { "image build python --docker" } else { "No recipe builds it" };
        assert!(missing["hints"].to_string().contains(fix), "{missing}");
    }
}

#[test]
pub(crate) fn pull() {
    let env = TestEnv::new();
    let words = |backend: &'static str, pull: &'static str| {
        [
            "exec",
            "--json",
            "--backend",
            backend,
            "--image",
            "127.0.0.1:1/nothing",
            "--pull",
            pull,
            "--",
            "true",
        ]
    };
    let refused =
        env.run(["exec", "--json", "--backend", "process", "--pull", "missing", "--", "true"]).exit(2);
    assert!(refused.error()["message"].as_str().unwrap().contains("`--pull`"), "{refused}");
    // In a public registry, anyone may own the name of an image that Toolpost builds.
    for (more, recipe) in
        [(&[][..], "python"), (&["--profile", "data"], "data"), (&["--profile", "nothing"], "nothing")]
    {
        for policy in ["missing", "always"] {
            let options = ["exec", "--json", "--backend", "docker", "--pull", policy];
            let rejected = env.run([&options[..], more, &["--", "true"]].concat()).exit(2).error();
            assert_eq!(rejected["message"], "`--pull` needs `--image`", "{rejected}");
            assert!(rejected["hints"].to_string().contains(&format!("image build {recipe} ")), "{rejected}");
        }
    }
    let Some((env, _daemon)) = with_daemon("pull") else { return };
    let missing = env.run(words("docker", "never")).exit(2).error();
    assert!(missing["message"].as_str().unwrap().contains("is missing"), "{missing}");
    for policy in ["missing", "always"] {
        let asked = env.run(words("docker", policy)).exit(4).error();
        assert!(asked["message"].as_str().unwrap().contains("pulling image"), "{asked}");
    }
}

/// Only where an image is pulled.
#[test]
pub(crate) fn logins() {
    let env = TestEnv::new().with("DOCKER_HOST", "unix:///no/daemon.sock").with("DOCKER_CONFIG", "logins");
    std::fs::create_dir(env.path("logins")).unwrap();
    env.write("logins/config.json", r#"{"auths": {"registry.example": {"auth": "?"}}}"#);
    let words = ["exec", "--json", "--backend", "docker", "--image", "registry.example/a", "--", "true"];
    env.run(words).exit(4);
    let words = words.map(|word| if word == "--json" { "--pull=missing" } else { word });
    let wrong = env.run(words).exit(2);
    assert!(wrong.err.contains("registry.example/a") && wrong.err.contains("docker login"), "{wrong}");
}

#[test]
pub(crate) fn runtime() {
    let env = TestEnv::new();
    let refused = env.run(["exec", "--json", "--backend", "process", "--runtime", "a", "--", "true"]).exit(2);
    assert!(refused.error()["message"].as_str().unwrap().contains("`--runtime`"), "{refused}");
    let Some((env, _daemon)) = with_daemon("runtime") else { return };
    let words =
        ["exec", "--json", "--backend", "docker", "--image", IMAGE, "--runtime", "nosuch", "--", "true"];
    let missing = env.run(words).exit(2).error();
    let message = missing["message"].as_str().unwrap();
    assert!(message.contains("`nosuch`") && message.contains("runc"), "{missing}");
}

#[test]
pub(crate) fn build_and_remove() {
    let Some((env, _daemon)) = with_daemon("build_and_remove") else { return };
    let made = env.run(["image", "build", "busybox", "--docker", "--json"]).ok().json();
    assert_eq!(made["image"]["name"], "toolpost/busybox:latest", "{made:#}");
    let listed = env.run(["image", "ls"]).ok();
    assert!(listed.out.contains("image toolpost/busybox:latest: busybox"), "{listed}");
    env.run(["exec", "--backend", "docker", "--image", "toolpost/busybox:latest", "--", "true"]).ok();
    env.run(["image", "rm", "busybox", "--docker"]).ok();
    assert!(!env.run(["image", "ls"]).ok().out.contains("toolpost/busybox:latest"));
    let gone = env.run(["image", "rm", "busybox", "--docker", "--json"]).exit(2).error();
    assert!(gone["message"].as_str().unwrap().contains("toolpost/busybox:latest"), "{gone}");
}

#[test]
pub(crate) fn host() {
    let env = TestEnv::new().with("DOCKER_HOST", "ssh://somewhere");
    let wrong = env.run(["exec", "--json", "--backend", "docker", "--", "true"]).exit(2).error();
    assert!(wrong["message"].as_str().unwrap().contains("ssh://somewhere"), "{wrong}");
}

#[test]
pub(crate) fn encryption() {
    let env = TestEnv::new().with("DOCKER_HOST", "tcp://127.0.0.1:1").with("DOCKER_TLS_VERIFY", "1");
    let words = ["exec", "--json", "--backend", "docker", "--", "true"];
    let wrong = env.run(words).exit(2).error();
    assert!(wrong["message"].as_str().unwrap().contains("DOCKER_CERT_PATH"), "{wrong}");
    let wrong = env.with("DOCKER_CERT_PATH", "certificates").run(words).exit(2).error();
    assert!(wrong["message"].as_str().unwrap().contains("certificates/ca.pem"), "{wrong}");
}

/// An MCP server for any shell.
const SERVER: &str = r#"while read -r line; do
  id=${line##*\"id\":}; id=${id%%[,\}]*}
  answer() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
  case $line in
    *'"method":"initialize"'*) answer '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"shell","version":"1"}}' ;;
    *'"method":"tools/list"'*) answer '"result":{"tools":[{"name":"where","description":"Says where it is.","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*) answer '"result":{"content":[{"type":"text","text":"'"$GREETING from $PWD with $0 and $(tail -n +3 /proc/net/dev | grep -vc lo:) networks"'"}]}' ;;
    *'"id":'*) answer '"error":{"code":-32601,"message":"unknown"}' ;;
  esac
done"#;

#[test]
fn a_server_in_an_image_starts_with_its_entry_point() {
    let name = "a_server_in_an_image_starts_with_its_entry_point";
    let Some((env, daemon)) = with_daemon(name) else { return };
    // The result of `docker build` with ENTRYPOINT, CMD, ENV and WORKDIR.
    let made =
        daemon.request("POST", "/containers/create", &format!(r#"{{"Image": "{IMAGE}", "Cmd": ["sh"]}}"#));
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let id = made["Id"].as_str().unwrap();
    let config = serde_json::json!({
        "Entrypoint": ["sh", "-c", SERVER], "Cmd": ["the-default"], "WorkingDir": "/etc",
        "Env": ["GREETING=hello", "LD_PRELOAD=/evil.so", "PATH=/bin"],
    });
    daemon.request("POST", &format!("/commit?container={id}&repo=mcp/where&tag=one"), &config.to_string());
    daemon.request("DELETE", &format!("/containers/{id}?v=1"), "");

    let tools = env.run(["tools", "docker:mcp/where:one"]).ok();
    assert!(tools.out.contains("where"), "{tools}");
    for (target, word) in
        [("docker:mcp/where:one", "the-default"), ("docker:mcp/where:one 'another word'", "another word")]
    {
        let said = env.run(["call", target, "where"]).ok();
        assert_eq!(said.out.trim(), format!("hello from /etc with {word} and 0 networks"), "{said}");
    }
    env.write("say.yaml", "turns:\n  - calls: [{ tool: where, args: {} }]\n  - text: \"{{ last.text }}\"\n");
    let words = ["run", "-p", "x", "--model", "script:say.yaml", "--mcp-server", "docker:mcp/where:one"];
    assert!(env.run(words).ok().out.contains("hello from /etc"));
    let missing = env.run(["tools", "docker:mcp/none:there", "--json"]).exit(2).error();
    assert!(missing["message"].as_str().unwrap().contains("mcp/none:there"), "{missing}");
    let quiet = env.run(["tools", &format!("docker:{IMAGE}"), "--json"]).exit(2).error();
    assert!(quiet["message"].as_str().unwrap().contains("no entry point"), "{quiet}");
    let gone = env.with("DOCKER_HOST", "unix:///no/daemon.sock").run(["tools", "docker:a", "--json"]).exit(4);
    assert!(gone.error()["message"].as_str().unwrap().contains("/no/daemon.sock"), "{gone}");
    crate::support::eventually("the containers are gone", || daemon.containers().is_empty());
}
