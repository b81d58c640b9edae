exec </dev/null
export PATH=/usr/sbin:/usr/bin TERM=dumb
# check NAME TEXT COMMAND: the output has the text.
check() {
  name=$1 text=$2
  shift 2
  output=$("$@" 2>&1)
  case $output in
    *"$text"*) echo "ok $user: $name" ;;
    *) echo "not ok $user: $name: $(echo "$output" | tr '\n' ' ' | tail -c 600)" ;;
  esac
}
checks() {
  cd "$HOME"
  for level in minimal standard strict maximum; do
    check "$level" "✓ $level" toolpost doctor
    check "code at $level" "[5]" toolpost exec --level $level --lang python - <<'P'
print([2 + 3])
P
  done
  for attempt in "shadow fails" "home fails" "connect fails" "system fails" "unshare fails" user; do
    check "strict: $attempt" "$attempt" toolpost exec --level strict /open.py
  done
  check "limit of memory" "its memory exceeded 100 MiB" toolpost exec --memory 100M /sum.py
  check "limit of processes" "stopped at 63" toolpost exec /forks.py
  mkdir -p w
  cd w
  echo a >f
  check "held" "~ f" toolpost exec --workdir . --review -- sh -c 'echo b > f; touch g'
  check "applied" "applied 2 changes" toolpost apply last
  check "undone" "reverted 2 changes" toolpost undo
  cd ..
  check "agent" onetwo toolpost run -v -p x --model script:/agent.yaml --tools run_code,write_file
}
if [ "${1:-}" = checks ]; then
  user=$2
  checks
  exit
fi
export HOME=/root
mount -t tmpfs tmpfs /tmp
chmod 1777 /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ldconfig
modprobe overlay
busybox ip link set lo up
python3 -m http.server --bind 127.0.0.1 22 >/tmp/server.log 2>&1 &
cat >/sum.py <<'P'
import os, time
for _ in range(6):
    if os.fork() == 0:
        block = bytearray(40 << 20)
        time.sleep(20)
        os._exit(0)
for _ in range(6):
    os.wait()
P
cat >/forks.py <<'P'
import os, time
try:
    for count in range(500):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
except OSError:
    print("stopped at", count)
P
cat >/open.py <<'P'
import ctypes, os, socket
def attempt(name, work):
    try:
        work()
        print(name, "works")
    except OSError as error:
        print(name, "fails")
attempt("shadow", lambda: open("/etc/shadow").read())
attempt("home", lambda: os.listdir("/srv/u"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", 22), 2))
attempt("system", lambda: open("/usr/x", "w"))
libc = ctypes.CDLL(None, use_errno=True)
print("unshare", "works" if libc.unshare(0x10000000) == 0 else "fails")
print("root" if os.getuid() == 0 else "user")
P
cat >/agent.yaml <<'P'
turns:
  - calls: [{ tool: run_code, args: { language: python, code: "open('a', 'w').write('1')" } }]
  - calls: [{ tool: write_file, args: { path: d/b, content: one, create_directories: true } }]
  - calls: [{ tool: run_code, args: { language: python, code: "open('d/b', 'a').write('two'); print(open('d/b').read())" } }]
  - text: done.
P
user=unconfined
sleep 3
# What the sandbox must block works without it.
for attempt in "shadow works" "home works" "connect works" "system works" "unshare works"; do
  check "$attempt" "$attempt" python3 /open.py
done
user=root
checks
for limit in memory pids; do
  check "group for $limit" "✓ cgroup_$limit: version 2" toolpost doctor
done
ordinary="setpriv --reuid 1000 --regid 1000 --clear-groups env HOME=/srv/u"
$ordinary bash /guest.sh checks "ordinary user"
# As systemd does with `Delegate=yes`.
user="delegated group"
in_group() {
  group=$(mktemp -d /sys/fs/cgroup/service-XXXXXX)
  chown 1000 $group $group/cgroup.procs $group/cgroup.subtree_control $group/cgroup.threads
  sh -c "echo \$\$ >$group/cgroup.procs && exec $ordinary \"\$@\"" sh "$@"
}
for limit in memory pids cpu kill; do
  check "group for $limit" "✓ cgroup_$limit: version 2" in_group toolpost doctor
done
check "limit of memory" '"memory_limit"' in_group toolpost exec --json -- true
echo "1..end"
sync
echo b >/proc/sysrq-trigger
sleep 10
