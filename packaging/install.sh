#!/bin/sh
# Installs toolpost @VERSION@ for one user: the binary, completions and man pages.
#
#   TOOLPOST_BASE_URL  the directory of the release: an https:// URL, or file:// and an absolute path
#   XDG_BIN_HOME       where the binary goes; defaults to ~/.local/bin
#   XDG_DATA_HOME      where completions and man pages go; defaults to ~/.local/share
set -eu
umask 022

fail() {
  echo "error: $1" >&2
  exit 1
}

has() {
  command -v "$1" >/dev/null 2>&1
}

# All of the script is read before it runs.
main() {
  base=${TOOLPOST_BASE_URL:-@REPOSITORY@/releases/download/v@VERSION@}
  data=${XDG_DATA_HOME:-$HOME/.local/share}
  bin=${XDG_BIN_HOME:-$HOME/.local/bin}

  [ "$(uname -s)" = Linux ] || fail "this system is $(uname -s); toolpost needs Linux."
  case $(uname -m) in
    x86_64 | amd64) arch=x86_64 ;;
    aarch64 | arm64) arch=aarch64 ;;
    *) fail "no binary is for $(uname -m); build it: cargo install --path crates/cli" ;;
  esac
  name=toolpost-@VERSION@-$arch-unknown-linux-musl

  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  trap 'exit 1' HUP INT TERM
  download "$base/SHA256SUMS" "$work/SHA256SUMS"
  download "$base/$name.tar.gz" "$work/$name.tar.gz"
  verify "$name.tar.gz"
  tar -xzf "$work/$name.tar.gz" -C "$work"

  place 755 toolpost "$bin/toolpost"
  place 644 completions/toolpost.bash "$data/bash-completion/completions/toolpost"
  place 644 completions/_toolpost "$data/zsh/site-functions/_toolpost"
  place 644 completions/toolpost.fish "$data/fish/vendor_completions.d/toolpost.fish"
  for page in "$work/$name"/man/*.1; do
    place 644 "man/${page##*/}" "$data/man/man1/${page##*/}"
  done

  version=$("$bin/toolpost" --version) || fail "$bin/toolpost does not start."
  echo "installed $version: $bin/toolpost"
  case :$PATH: in
    *:"$bin":*) ;;
    *) echo "Add the directory to your path: export PATH=\"$bin:\$PATH\"" ;;
  esac
}

# Only HTTPS, also after a redirect: nothing else proves where SHA256SUMS is from.
download() {
  case $1 in
    https://*)
      has curl || fail "curl is missing; install it."
      curl --proto =https --tlsv1.2 -fsSL "$1" -o "$2"
      ;;
    file:///*) cp "${1#file://}" "$2" ;;
    *) fail "TOOLPOST_BASE_URL is not an https:// URL: $base" ;;
  esac || fail "cannot download $1; check TOOLPOST_BASE_URL."
}

# Ends the script unless SHA256SUMS has the checksum of the file.
verify() {
  expected=$(awk -v name="$1" '$2 == name { print $1 }' "$work/SHA256SUMS")
  [ -n "$expected" ] || fail "SHA256SUMS has no line for $1; nothing is installed."
  if has sha256sum; then
    found=$(sha256sum "$work/$1")
  elif has shasum; then
    found=$(shasum -a 256 "$work/$1")
  else
    fail "sha256sum is missing; install coreutils."
  fi
  [ "${found%% *}" = "$expected" ] || fail "the checksum of $1 differs; nothing is installed."
}

# Replaces a file by renaming, since a running binary cannot be written.
place() {
  mkdir -p "${3%/*}"
  cp "$work/$name/$2" "$3.new"
  chmod "$1" "$3.new"
  mv -f "$3.new" "$3"
}

main
