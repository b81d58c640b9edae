# Containers with Docker's defaults: no CAP_SYS_ADMIN, the default seccomp profile, no user namespaces.
#
# `$WORK` is an empty directory, `$ROOT` the checkout, `$BINARY` a program. Each job prints one line, `PASSED NAME` or
# `FAILED NAME: REASON`.
set -eu

export DOCKER_HOST="unix://$WORK/socket" DOCKER_CONFIG="$WORK/config"
dockerd --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/pid" --host "$DOCKER_HOST" \
  --iptables=false --bridge=none >"$WORK/log" 2>&1 &
daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
for _ in $(seq 300); do
  [ ! -S "$WORK/socket" ] || ! docker info >/dev/null 2>&1 || break
  kill -0 $daemon 2>/dev/null || { echo "SKIP the daemon ended: $(tail -1 "$WORK/log")"; trap - EXIT; exit 0; }
  sleep 0.1
done

# An image of links alone: `/usr` is that of this machine.
image=$WORK/image
mkdir -p "$image/usr" "$image/etc" "$image/root" "$image/home" "$image/proc" "$image/sys" "$image/dev" "$image/var/tmp" "$image/tmp"
chmod 1777 "$image/tmp" "$image/var/tmp"
chmod 700 "$image/root"
for name in bin sbin lib lib64; do
  ln -s "usr/$name" "$image/$name"
done
cp -r /etc/ld.so.cache /etc/alternatives "$image/etc/"
printf 'root:x:0:0:root:/root:/bin/sh\nada:x:1000:1000:ada:/home/ada:/bin/sh\n' >"$image/etc/passwd"
printf 'root:*:1::::::\n' >"$image/etc/shadow"
chmod 640 "$image/etc/shadow"
printf 'root:x:0:\nada:x:1000:\n' >"$image/etc/group"
tar -C "$image" -c . | docker import - defaults >/dev/null
