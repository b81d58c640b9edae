# The attack table in a container, as root and as an ordinary user. `$BINARY` is the program of the sandbox's tests.
for user in 0 1000; do
  for test in attack::table::the_attack_table_holds_here copies:: attack::mixing leaks:: runs:: sessions::; do
    name="$test, user $user"
    if docker run --rm --network none --user "$user:$user" --volume /usr:/usr:ro --volume "$BINARY:/it:ro" \
      --volume "$ROOT:$ROOT:ro" --workdir / --env PATH=/usr/bin --env HOME=/tmp --env TOOLPOST_ATTACK=all \
      defaults /it --nocapture --test-threads 2 "$test" >"$WORK/out" 2>&1; then
      echo "PASSED $name"
    else
      echo "FAILED $name: $(grep -e '^row ' -e 'panicked at' -A 1 -e 'FAILED' "$WORK/out" | head -40 | tr '\n' ' ')"
    fi
  done
done
