# Runs a script in a container. `$user` is its user, `$project` and `$state` are volumes or directories.
inside() {
  docker run --rm --network none --user "$user:$user" --volume /usr:/usr:ro --volume "$BINARY:/toolpost/toolpost:ro" \
    --volume "$ROOT/examples/weather:/weather:ro" --volume "$project:/project" --volume "$state:/state" --workdir /project \
    --env HOME=/state/home --env XDG_STATE_HOME=/state/of --env PATH=/toolpost:/usr/bin --env TOOLPOST_NO_NETWORK=1 \
    defaults sh -euc "fail() { echo \"\$1\" >&2; exit 1; }
$1" 2>&1
}

# An empty project and an empty state of the user.
fresh() {
  number=$((${number:-0} + 1))
  state=state-$number
  docker volume create "$state" >/dev/null
  case $kind in
  bind)
    project=$WORK/project-$number
    mkdir "$project"
    ;;
  volume)
    project=project-$number
    docker volume create "$project" >/dev/null
    ;;
  esac
  # An empty volume gets the owner of the image's directory with each container.
  user=0
  inside "mkdir /state/home && touch /project/notes && chown -R $1:$1 /project /state" >/dev/null
  user=$1
}

quickstart='toolpost init tool --exec greet
out=$(toolpost call ./greet/greet greet name=Ada times=2)
case $out in *"Hello, Ada. Hello, Ada."*) ;; *) fail "call: $out" ;; esac
printf "%s\n" "turns:" "  - calls: [{ tool: greet, args: { name: Ada } }]" "  - text: \"I said: {{ last.text }}\"" >greet.yaml
out=$(toolpost run -p "Greet Ada." --tools ./greet/greet --model script:greet.yaml)
case $out in *"I said: Hello, Ada."*) ;; *) fail "run: $out" ;; esac'

demo='out=$(toolpost run --attach /weather/seattle-weather.csv --model script:/weather/weather.yaml -p "Which year was the wettest?")
case $out in *"2014 was the wettest year: it rained 1232.8 mm"*) ;; *) fail "$out" ;; esac'

environment='toolpost init tool --exec greet
cd greet
python3 -m venv --without-pip .venv
packages=$(echo .venv/lib/python3.*/site-packages)
mkdir "$packages/shapes"
echo "SIDES = 3" >"$packages/shapes/__init__.py"
sed -i -e "1s|.*|#!/project/greet/.venv/bin/python|" -e "1a import shapes; open(\"made\", \"w\").write(\"by the tool\")" greet
out=$(toolpost call ./greet greet name=Ada times=2)
case $out in *"Hello, Ada. Hello, Ada."*) ;; *) fail "$out" ;; esac
[ "$(cat made)" = "by the tool" ] || fail "the change of the tool was not applied"
out=$(toolpost exec --workdir . -- .venv/bin/python -c "import shapes; print(shapes.SIDES)")
case $out in 3*) ;; *) fail "$out" ;; esac'

workdir='echo one >a.txt
mkdir -p .git/hooks kept
echo kept >kept/file
out=$(toolpost exec --json --workdir /project -- sh -c "echo two >a.txt; echo new >b.txt; rm -r kept; echo x >.git/hooks/pre-commit
  echo direct >/project/a.txt || echo denied; cat /project/a.txt; echo at \$TOOLPOST_WORKDIR")
[ "$(cat a.txt) $(cat b.txt)" = "two new" ] || fail "the changes are missing: $out"
printf %s "$out" | python3 -c "import json, sys; print(json.load(sys.stdin)[\"applied\"][\"id\"])" >/state/id
[ ! -e kept ] || fail "the deletion is missing: $out"
[ ! -e .git/hooks/pre-commit ] || fail "a protected path changed: $out"
case $out in *private_copy*) ;; *) fail "no private copy is attested: $out" ;; esac
case $out in *"denied\\none\\nat /"*) ;; *) fail "the original was not only readable: $out" ;; esac'

undo='out=$(toolpost undo "$(cat /state/id)")
[ "$(cat a.txt) $(cat kept/file)" = "one kept" ] || fail "undo: $out"
[ ! -e b.txt ] || fail "undo left a new file: $out"'

live='echo one >a.txt
toolpost exec --live --workdir /project -- sh -c "echo two >a.txt; echo new >b.txt"
[ "$(cat a.txt) $(cat b.txt)" = "two new" ] || fail "the changes are missing"
out=$(stat -c %u a.txt b.txt . | sort -u)
[ "$out" = "$(id -u)" ] || fail "the files belong to $out"'

job() {
  name=$1
  shift
  for script; do
    if ! out=$(inside "$script"); then
      echo "FAILED $name: $(echo "$out" | tail -4 | tr '\n' ' ')"
      return
    fi
  done
  echo "PASSED $name"
}

for kind in bind volume; do
  for who in 0 1000; do
    for one in quickstart demo environment workdir live; do
      fresh $who
      case $one in
      quickstart) job "$one, project as $kind, user $who" "$quickstart" ;;
      demo) job "$one, project as $kind, user $who" "$demo" ;;
      environment) job "$one, project as $kind, user $who" "$environment" ;;
      workdir) job "$one, project as $kind, user $who" "$workdir" "$undo" ;;
      live) job "$one, project as $kind, user $who" "$live" ;;
      esac
    done
  done
done
