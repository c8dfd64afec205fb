#!/usr/bin/env bash
# test-openai.sh [WEIR]: OpenAI's own JavaScript client against `weir serve` with weir-tiny. Prints the
# counts of node's test runner; false if one failed.
. "$(dirname "$0")/common.sh"

weir=${1:-$root/build/weir}
client=$root/tests/openai_client
work=$(mktemp -d)
server=
stop() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap stop EXIT

say "installing the client"
(cd "$client" && npm ci --silent --no-audit --no-fund) || die "npm could not install the client"

say "starting the server"
"$weir" serve -m "$root/models/weir-tiny/weir-tiny-q8_0.gguf" --host 127.0.0.1 --port 0 -t 1 \
  >"$work/log" 2>&1 &
server=$!
for _ in $(seq 300); do
  url=$(sed -n 's|.*\(http://127\.0\.0\.1:[0-9][0-9]*\).*|\1|p' "$work/log" | head -n 1)
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || { cat "$work/log"; die "the server ended"; }
  sleep 0.1
done
[ -n "$url" ] || { cat "$work/log"; die "the server does not say its address"; }

code=0
(cd "$client" && WEIR_URL=$url node --test --test-reporter=tap client.test.mjs) || code=$?
kill -0 "$server" 2>/dev/null || { cat "$work/log"; die "the server died"; }
exit "$code"
