//! Each variable of `toolpost help environment` works, and no other is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;
use toolpost_llm::PROVIDERS;
use toolpost_testkit::provider::LoopbackProvider;
use toolpost_testkit::tls::TestAuthority;

use crate::support::{Anthropic, TestEnv, says};

/// Each variable with the test that fails when it is ignored.
fn tests() -> BTreeMap<&'static str, fn()> {
    BTreeMap::from([
        ("ANTHROPIC_API_KEY", key as fn()),
        ("ANTHROPIC_BASE_URL", base_url),
        ("BRAVE_API_KEY", crate::config::engines),
        (
            "CLAUDE_CODE_OAUTH_TOKEN",
            crate::claude_code::claude_code_uses_the_tools_in_the_sandbox_and_in_a_process,
        ),
        ("HTTPS_PROXY", proxy),
        ("NO_PROXY", no_proxy),
        ("SSL_CERT_FILE", certificate_file),
        ("SSL_CERT_DIR", certificate_directory),
        ("DOCKER_HOST", crate::docker::host),
        ("DOCKER_TLS_VERIFY", crate::docker::encryption),
        ("DOCKER_CERT_PATH", crate::docker::encryption),
        ("DOCKER_CONFIG", crate::docker::logins),
        ("PIP_INDEX_URL", crate::packages::index),
        ("PIP_CERT", crate::packages::certificate),
        ("PIP_FIND_LINKS", crate::packages::find_links),
        ("npm_config_registry", crate::packages::registry),
        ("XDG_DATA_HOME", crate::packages::profile),
        ("NO_COLOR", no_color),
        ("CLICOLOR_FORCE", force_color),
        ("TERM", term),
        ("COLUMNS", columns),
        ("PATH", path),
        ("TMPDIR", temporary_directory),
        ("USER", user),
        ("HOME", home),
        ("XDG_CONFIG_HOME", configuration_directory),
        ("XDG_RUNTIME_DIR", crate::session::a_directory_open_to_others_is_rejected),
        ("XDG_STATE_HOME", state_directory),
        ("XDG_CACHE_HOME", cache_directory),
        ("UV_PROJECT_ENVIRONMENT", environment_of_uv),
        ("VIRTUAL_ENV", environments_of_poetry),
        ("POETRY_VIRTUALENVS_PATH", environments_of_poetry),
        ("PYENV_VERSION", version_of_pyenv),
        ("GIT_CONFIG_GLOBAL", configuration_of_git),
        ("GIT_CONFIG_SYSTEM", configuration_of_git),
    ])
}

#[test]
fn every_variable_has_a_test() {
    let page = TestEnv::new().run(["help", "environment"]).ok();
    let told = page.out.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    // Settings have their own tests.
    let mut told: Vec<&str> = told.filter(|name| !name.starts_with("TOOLPOST_")).collect();
    told.sort_unstable();
    // `providers` tests those of every provider.
    let of_providers =
        PROVIDERS.iter().flat_map(|one| one.key_variables.iter().chain(one.base_url_variables));
    let known: BTreeSet<&str> = tests().into_keys().chain(of_providers.copied()).collect();
    assert_eq!(told, known.into_iter().collect::<Vec<_>>());
}

#[test]
fn providers() {
    for provider in PROVIDERS {
        let pairs =
            provider.key_variables.iter().map(|key| (*key, provider.base_url_variables[0])).chain(
                provider.base_url_variables.iter().map(|base_url| (provider.key_variables[0], *base_url)),
            );
        for (key, base_url) in pairs {
            let server = LoopbackProvider::start(Vec::new()).unwrap();
            let env = TestEnv::new().with(key, "canary-5e1f").with(base_url, server.base_url());
            let model = format!("{}/some-model", provider.name);
            let words = ["run", "-p", "hi", "--model", &model, "--config", "models.retries=0", "--json"];
            let finished = env.run(words).exit(4);
            let requests = server.requests();
            let has_key = requests[0].headers.iter().any(|(_, value)| value.contains("canary-5e1f"));
            assert!(has_key, "{key}: {:?}", requests[0]);
            assert!(
                !finished.err.contains("canary-5e1f") && !finished.out.contains("canary-5e1f"),
                "{finished}"
            );
        }
    }
}

/// The key of a request with both of Gemini's variables, and the request of Ollama by its port.
#[test]
fn providers_with_several_variables() {
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    let words = |model: &'static str| ["run", "-p", "hi", "--model", model, "--config", "models.retries=0"];
    let env = TestEnv::new()
        .with("GEMINI_API_KEY", "second")
        .with("GOOGLE_API_KEY", "first")
        .with("GEMINI_BASE_URL", server.base_url());
    env.run(words("gemini/some-model")).exit(4);
    assert_eq!(server.requests()[0].header("x-goog-api-key"), Some("first"));
    let everywhere = format!("0.0.0.0:{}", server.address().port());
    TestEnv::new().with("OLLAMA_HOST", everywhere).run(words("ollama/some-model")).exit(4);
    assert_eq!(server.requests()[1].path, "/v1/chat/completions");
    // A full URL overrides it.
    let env = TestEnv::new().with("OLLAMA_HOST", "nobody.invalid").with("OLLAMA_BASE_URL", server.base_url());
    env.run(words("ollama/some-model")).exit(4);
    assert_eq!(server.requests().len(), 3);
}

#[test]
fn key() {
    let model = Anthropic::start(vec![says("ok")]);
    model.env.run(["run", "-p", "hi"]).ok();
    assert_eq!(model.server.requests()[0].header("x-api-key"), Some(Anthropic::KEY));
    let empty = model.env.with("ANTHROPIC_API_KEY", "");
    assert_eq!(empty.run(["run", "-p", "hi", "--json"]).exit(3).error()["code"], "AUTH");
}

#[test]
fn base_url() {
    let model = Anthropic::start(vec![says("from here")]);
    assert_eq!(model.env.run(["run", "-p", "hi"]).ok().out, "from here\n");
    assert_eq!(model.server.requests()[0].path, "/v1/messages");
    let elsewhere = model.env.without("ANTHROPIC_BASE_URL").run(["run", "-p", "hi", "--json"]).exit(5);
    assert!(elsewhere.error()["message"].as_str().unwrap().contains("api.anthropic.com"), "{elsewhere}");
}

#[test]
fn model() {
    let env = TestEnv::new().with("TOOLPOST_MODEL", "script:hello.yaml");
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    assert_eq!(env.run(["run", "-p", "hi"]).ok().out, "hello\n");
    // The option overrides it.
    env.write("other.yaml", "turns:\n  - text: other\n");
    assert_eq!(env.run(["run", "-p", "hi", "--model", "script:other.yaml"]).ok().out, "other\n");
}

#[test]
fn no_network() {
    let far =
        TestEnv::new().with("ANTHROPIC_API_KEY", "key").with("ANTHROPIC_BASE_URL", "http://192.0.2.1:9");
    let finished = far.run(["run", "-p", "hi", "--json"]).exit(5);
    let error = finished.error();
    assert_eq!(error["code"], "NETWORK_FORBIDDEN");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("anthropic/claude-sonnet-5-5") && message.contains("192.0.2.1"), "{error}");
    assert!(error["hints"][0].as_str().unwrap().contains("TOOLPOST_NO_NETWORK"), "{error}");
    // Without it, the connection goes to a local proxy, so that nothing leaves this machine.
    let proxy = LoopbackProvider::start(vec![says("through")]).unwrap();
    let free = far.without("TOOLPOST_NO_NETWORK").with("HTTPS_PROXY", proxy.base_url());
    assert_eq!(free.run(["run", "-p", "hi"]).ok().out, "through\n");
}

#[test]
fn proxy() {
    let proxy = LoopbackProvider::start(vec![says("through")]).unwrap();
    let env = TestEnv::new()
        .with("ANTHROPIC_API_KEY", "key")
        .with("ANTHROPIC_BASE_URL", "http://provider.invalid")
        .with("HTTPS_PROXY", proxy.base_url());
    assert_eq!(env.run(["run", "-p", "hi"]).ok().out, "through\n");
    assert_eq!(proxy.requests()[0].path, "http://provider.invalid/v1/messages");
    let bad = env.with("HTTPS_PROXY", "://me:hunter2@proxy").run(["run", "-p", "hi", "--json"]).exit(2);
    assert_eq!(bad.error()["code"], "CONFIGURATION");
    assert!(!bad.err.contains("hunter2"), "{bad}");
}

#[test]
fn no_proxy() {
    let model = Anthropic::start(vec![says("past it")]);
    let proxy = LoopbackProvider::start(Vec::new()).unwrap();
    let env = model.env.with("HTTPS_PROXY", proxy.base_url()).with("NO_PROXY", "localhost, 127.0.0.1");
    assert_eq!(env.run(["run", "-p", "hi"]).ok().out, "past it\n");
    assert!(proxy.requests().is_empty());
}

/// Without certificates there is no TLS connection and no attempt.
#[track_caller]
fn without_certificates(name: &str) {
    let env =
        TestEnv::new().with("ANTHROPIC_API_KEY", "key").with("ANTHROPIC_BASE_URL", "https://127.0.0.1:9");
    let env = env.with(name, "/no/certificates/here");
    let error = env.run(["run", "-p", "hi", "--json"]).exit(2).error();
    assert!(error["message"].as_str().unwrap().contains("certificates"), "{error}");
    assert!(error["hints"][0].as_str().unwrap().contains("help environment"), "{error}");
}

#[expect(clippy::print_stdout, reason = "what the machine lacks is skipped loudly")]
/// With the provider's root certificate the connection works; `trust` names the file.
pub(crate) fn with_certificate(trust: impl Fn(TestEnv, &Path) -> TestEnv) {
    let directory = tempfile::tempdir().unwrap();
    let Some(authority) = TestAuthority::make(directory.path(), "localhost") else {
        println!("SKIP with_certificate: there is no `openssl` to make certificates with");
        return;
    };
    let server = LoopbackProvider::start_tls(authority.server().unwrap(), vec![says("safely")]).unwrap();
    let env =
        || TestEnv::new().with("ANTHROPIC_API_KEY", "key").with("ANTHROPIC_BASE_URL", server.base_url());
    let words = ["run", "-p", "hi", "--json"];
    let refused = env().run(words).exit(4).error();
    assert!(refused["hints"].to_string().contains("SSL_CERT_FILE"), "{refused}");
    let finished = trust(env(), &authority.file()).run(words).ok();
    assert!(finished.out.contains("safely"), "{finished}");
}

#[test]
fn certificate_file() {
    without_certificates("SSL_CERT_FILE");
    with_certificate(|env, file| env.with("SSL_CERT_FILE", file));
}

#[test]
fn certificate_directory() {
    without_certificates("SSL_CERT_DIR");
    with_certificate(|env, file| env.with("SSL_CERT_DIR", file.parent().unwrap()));
}

const SUM: [&str; 3] = ["call", "calculate", "expression=6*7"];

#[test]
fn log() {
    let env = TestEnv::new().with("TOOLPOST_LOG", "toolpost::call=debug");
    assert!(env.run(SUM).ok().err.contains("DEBUG toolpost::call: call started"));
    assert!(!env.run(SUM.iter().chain(&["--log", "off"])).ok().err.contains("DEBUG"));
    let wrong = TestEnv::new().with("TOOLPOST_LOG", "a=b=c").run(SUM).exit(2);
    assert!(wrong.err.contains("`a=b=c`"), "{wrong}");
}

fn colours_on_a_terminal(env: &TestEnv) -> bool {
    env.on_terminal("", SUM).ok().out.contains('\u{1b}')
}

#[test]
fn no_color() {
    let env = TestEnv::new().with("TERM", "xterm");
    assert!(colours_on_a_terminal(&env));
    let env = env.with("NO_COLOR", "1");
    assert!(!colours_on_a_terminal(&env));
    assert!(!colours_on_a_terminal(&env.with("CLICOLOR_FORCE", "1")));
    assert!(colours_on_a_terminal(&TestEnv::new().with("TERM", "xterm").with("NO_COLOR", "")));
}

#[test]
fn force_color() {
    let coloured =
        |value: &str| TestEnv::new().with("CLICOLOR_FORCE", value).run(SUM).ok().err.contains('\u{1b}');
    assert!(coloured("1"));
    assert!(!coloured("0") && !coloured(""));
    let never = TestEnv::new().with("CLICOLOR_FORCE", "1").run(SUM.iter().chain(&["--color", "never"])).ok();
    assert!(!never.err.contains('\u{1b}'));
}

#[test]
fn term() {
    assert!(!colours_on_a_terminal(&TestEnv::new().with("TERM", "dumb")));
    assert!(colours_on_a_terminal(&TestEnv::new().with("TERM", "xterm-256color")));
}

#[test]
fn columns() {
    let widest = |columns: &str| {
        let page = TestEnv::new().with("COLUMNS", columns).run(["exec", "-h"]).ok();
        page.out.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!(widest("60") <= 60 && widest("60") < widest("100"));
}

#[test]
fn path() {
    let env = TestEnv::new();
    assert_eq!(env.run(["exec", "--", "echo", "found"]).ok().out, "found\n");
    std::fs::create_dir(env.path("nothing")).unwrap();
    let nothing = env.path("nothing");
    let env = env.with("PATH", nothing);
    let error = env.run(["exec", "--json", "--", "echo", "found"]).exit(2).error();
    assert!(error["message"].as_str().unwrap().contains("/nothing"), "{error}");
    env.write("code.js", "1");
    let error = env.run(["exec", "--json", "code.js"]).exit(1).error();
    assert!(error["message"].as_str().unwrap().contains("node"), "{error}");
    // The same for tools.
    let error = env.run(["call", "run_code", "language=javascript", "code=1", "--json"]);
    assert!(error.error()["message"].as_str().unwrap().contains("/nothing"), "{error}");
}

#[test]
fn temporary_directory() {
    let env = TestEnv::new();
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    let words = ["run", "-p", "x", "--model", "script:hello.yaml"];
    env.run(words).ok();
    let missing = env.path("missing");
    let error = env.with("TMPDIR", missing).run(words).exit(2);
    assert!(error.err.contains("temporary files") && error.err.contains("missing"), "{error}");
}

#[test]
fn user() {
    let words = || SUM.iter().chain(&["--format", "jsonl"]);
    let named = TestEnv::new().with("USER", "ada").run(words()).ok().record();
    assert_eq!(named["caller"]["identity"], "ada", "{named}");
    let nameless = TestEnv::new().run(words()).ok().record();
    assert_eq!(nameless["caller"]["identity"], Value::Null);
}

/// The setting `format`, with a settings file in a directory.
fn format_of(env: &TestEnv) -> String {
    env.run(["config", "get", "max_tokens", "--format", "text"]).out
}

#[test]
fn home() {
    let env = TestEnv::new();
    env.write("else/.config/toolpost/config.toml", "max_tokens = 7\n");
    assert_eq!(format_of(&env), "");
    let home = env.path("else");
    assert_eq!(format_of(&env.with("HOME", home)), "7\n");
}

#[test]
fn configuration_directory() {
    let env = TestEnv::new();
    env.write("else/toolpost/config.toml", "max_tokens = 7\n");
    // The specification ignores relative paths.
    assert_eq!(format_of(&TestEnv::new().with("XDG_CONFIG_HOME", "else")), "");
    let directory = env.path("else");
    assert_eq!(format_of(&env.with("XDG_CONFIG_HOME", directory)), "7\n");
}

#[test]
fn state_directory() {
    let env = TestEnv::new();
    env.write("a.toml", "kind = \"agent\"\nv = 1\nname = \"a\"\ndescription = \"A.\"\n");
    let directory = env.path("state");
    let env = env.with("XDG_STATE_HOME", directory.clone());
    env.run(["trust", "a.toml"]).ok();
    assert!(directory.join("toolpost/trust.json").is_file());
}

#[test]
fn cache_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let env = TestEnv::new();
    let path = env.write("prog", "#!/bin/sh\necho '{\"name\":\"p\",\"version\":\"1\",\"tools\":[{\"name\":\"t\",\"summary\":\"T.\",\"streaming\":false,\"session_mode\":false,\"schema\":{\"type\":\"object\"}}],\"resources\":[],\"prompts\":[]}'\n");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let directory = env.path("cache");
    let env = env.with("XDG_CACHE_HOME", directory.clone());
    env.run(["tools", "./prog"]).ok();
    assert!(directory.join("toolpost").read_dir().unwrap().next().is_some());
}

/// Writes an executable script that prints a word.
fn printing(env: &TestEnv, path: &str, word: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let path = env.write(path, format!("#!/bin/sh\necho {word}\n"));
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A Python environment with one program, `tool`.
fn environment_of_python(env: &TestEnv, name: &str) {
    env.write(&format!("{name}/pyvenv.cfg"), "");
    printing(env, &format!("{name}/bin/tool"), name.rsplit('/').next().unwrap());
}

const MINIMAL: [&str; 4] = ["exec", "--level", "minimal", "--"];

#[test]
fn environment_of_uv() {
    let env = TestEnv::new().with("UV_PROJECT_ENVIRONMENT", "named");
    environment_of_python(&env, "named");
    environment_of_python(&env, ".venv");
    assert_eq!(env.run(MINIMAL.iter().chain(&["uv", "run", "tool"])).ok().out, "named\n");
    let env = env.without("UV_PROJECT_ENVIRONMENT");
    assert_eq!(env.run(MINIMAL.iter().chain(&["uv", "run", "tool"])).ok().out, ".venv\n");
}

#[test]
fn environments_of_poetry() {
    use sha2::Digest as _;
    let env = TestEnv::new();
    let poetry = |env: &TestEnv| env.run(MINIMAL.iter().chain(&["poetry", "run", "tool"]));
    let project = env.write("pyproject.toml", "").parent().unwrap().canonicalize().unwrap();
    assert!(poetry(&env).exit(2).err.contains("poetry install"));
    // Poetry hashes the name of the directory.
    let digest = sha2::Sha256::digest(project.as_os_str().as_encoded_bytes());
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = digest.iter().take(6).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let hash: String =
        (0..8).rev().map(|place| char::from(alphabet[(bits >> (6 * place)) as usize & 63])).collect();
    let of_directory = format!("all/own-{hash}-py3.11");
    environment_of_python(&env, &of_directory);
    let env = env.with("POETRY_VIRTUALENVS_PATH", project.join("all"));
    assert_eq!(poetry(&env).ok().out, format!("own-{hash}-py3.11\n"));
    environment_of_python(&env, "active");
    let env = env.with("VIRTUAL_ENV", project.join("active"));
    assert_eq!(poetry(&env).ok().out, "active\n");
}

#[test]
fn configuration_of_git() {
    const WORDS: [&str; 7] =
        ["exec", "--workdir", ".", "--", "sh", "-c", "mkdir -p hooks; echo x > hooks/pre-commit"];
    for name in ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"] {
        let env = TestEnv::new();
        env.write(".git/HEAD", "ref: refs/heads/main\n");
        env.write("user.gitconfig", "[core]\n\thooksPath = hooks\n");
        env.run(WORDS).ok();
        std::fs::remove_file(env.path("hooks/pre-commit")).unwrap();
        let config = env.path("user.gitconfig");
        let env = env.with(name, config);
        let finished = env.run(WORDS);
        assert!(!env.path("hooks/pre-commit").exists(), "{name}: {finished}");
        assert!(finished.err.contains("core.hooksPath"), "{name}: {finished}");
    }
}

fn version_of_pyenv() {
    let env = TestEnv::new();
    for version in ["1.2.3", "1.3.0"] {
        printing(&env, &format!("pyenv/versions/{version}/bin/tool"), version);
    }
    printing(&env, "pyenv/shims/tool", "shim");
    env.write("pyenv/version", "1.2.3");
    let shims = env.path("pyenv/shims").display().to_string();
    let env = env.with("PATH", format!("{shims}:/usr/bin:/bin")).with("PYENV_VERSION", "1.3");
    assert_eq!(env.run(MINIMAL.iter().chain(&["tool"])).ok().out, "1.3.0\n");
}
