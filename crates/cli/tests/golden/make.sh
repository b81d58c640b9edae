#!/bin/sh
# Makes the golden files of a release: sh crates/cli/tests/golden/make.sh target/debug/toolpost crates/cli/tests/golden/VERSION
# tests/it/golden.rs opens the files of every release.
set -eu
program=$(realpath "$1")
mkdir "$2"
target=$(realpath "$2")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
export HOME="$root/user" TOOLPOST_NO_NETWORK=1
unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME XDG_RUNTIME_DIR
mkdir -p "$HOME" "$root/project/d"
cd "$root/project"

# Runs of one conversation, a failed run, a recording, the record of a call, a line of chat.
cat > one.yaml <<'END'
turns:
  - text: I calculate.
    calls: [{ tool: calculate, args: { expression: 6*7 } }]
  - text: "The answer is {{ last.structured.value }}."
  - text: "Again: 42."
END
"$program" run -p first --model script:one.yaml --tools calculate --record recording.jsonl
"$program" run -p second --model script:one.yaml --tools calculate --continue
"$program" run -p third --model script:one.yaml --tools calculate --config max_iterations=1 || echo failed as expected
"$program" call calculate expression=1+1

# A workflow that has ended, and one that was killed while it waits for an approval.
if "$program" flow --help > /dev/null 2>&1; then
  cat > done.yaml <<'END'
kind: flow
name: done
steps:
  - id: each
    map: [1, 2]
    as: n
    steps: [{ id: square, tool: calculate, with: { expression: '${{ n }} * ${{ n }}' } }]
    output: '${{ steps.square.output.value }}'
END
  cat > waiting.yaml <<'END'
kind: flow
name: waiting
steps:
  - { id: a, tool: calculate, with: { expression: 2 + 3 } }
  - { id: ok, needs: a, approve: 'Continue with ${{ steps.a.output.value }}?' }
  - { id: b, needs: ok, tool: calculate, with: { expression: '${{ steps.a.output.value }} * 10' } }
END
  "$program" trust done.yaml waiting.yaml
  "$program" flow run done.yaml
  "$program" flow run waiting.yaml &
  run=$!
  for _ in $(seq 100); do
    if "$program" flow show last | grep -q 'Continue with 5'; then break; fi
    sleep 0.05
  done
  kill -9 $run
  cp done.yaml waiting.yaml "$target"
fi

# Held changes, applied changes, and a trusted agent file.
printf old > d/old.txt
"$program" exec --workdir d -- sh -c 'printf applied > old.txt'
"$program" exec --workdir d --review -- sh -c 'printf held > new.txt'
cp -r d "$target"
cat > agent.toml <<'END'
kind = "agent"
v = 1
name = "helper"
description = "Answers."
model = "script:one.yaml"
END
"$program" trust agent.toml

# Approved definitions of a gateway.
cat > tool <<'END'
#!/bin/sh
if [ "$1" = --discover ]; then
  echo '{"name":"p","version":"1.0","tools":[{"name":"forecast","summary":"Forecast.","streaming":false,"session_mode":false}]}'
elif [ "$2" = --manifest ]; then
  echo '{"name":"forecast","summary":"Forecast.","description":"Forecast.","streaming":false,"session_mode":false,"schema":{"type":"object","properties":{},"additionalProperties":false}}'
else
  echo '{"status":"success","result":{"text":"sun"}}'
fi
END
chmod +x tool
printf 'kind = "gateway"\n[[upstreams]]\nname = "w"\ntarget = "./tool"\n' > gateway.toml
"$program" trust gateway.toml
"$program" call gateway.toml w__forecast

cp -r "$HOME/.local/state/toolpost" "$target/state"
cp one.yaml recording.jsonl agent.toml tool gateway.toml "$target"
printf %s "$root/project" > "$target/root"
rm -rf "$target"/state/*.lock "$target"/state/history
