#!/usr/bin/env bash
# All tests: the release build, the address+undefined and thread sanitizers on what they cover in
# time, a GCC build, the fuzz targets for a minute each, the formatting. Ends with the sum of what
# the runners counted; a build that fails counts as one failure. WEIR_FUZZ_SECONDS sets the time of
# each fuzz target.
. "$(dirname "$0")/common.sh"

passed=0 failed=0
fuzz_seconds=${WEIR_FUZZ_SECONDS:-60}
logs=$root/build-logs
mkdir -p "$logs"

# limit SECONDS COMMAND...: stops what hangs. In the foreground, so that Ctrl-C reaches it.
limit() { timeout --foreground --kill-after=10 "$@"; }
test_seconds=1800

# start_gtest NAME COMMAND...: runs a GoogleTest program; leaves its output, exit code and time.
start_gtest() {
  local name=$1 start=$SECONDS code=0
  shift
  limit "$test_seconds" "$@" --gtest_brief=0 >"$logs/$name.log" 2>&1 </dev/null || code=$?
  echo "$code $((SECONDS - start))" >"$logs/$name.end"
}

# report_gtest NAME: adds its counts; its output is shown when something failed. A program that dies
# counts as one more failure.
report_gtest() {
  local name=$1 log="$logs/$1.log" code seconds ok bad
  read -r code seconds <"$logs/$name.end" || { code=1 seconds=0; }
  ok=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/^ *\([0-9]*\) FAILED TEST.*/\1/p' "$log" | tail -n 1)
  : "${ok:=0}" "${bad:=0}"
  [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  printf '    %-28s %5d passed, %d failed  (%d s)\n' "$name" "$ok" "$bad" "$seconds"
  [ "$bad" -eq 0 ] || grep -A 20 -m 1 ' Failure$' "$log" || tail -n 60 "$log"
  [ "$code" -ne 124 ] || echo "    $name was stopped: it ran for $test_seconds s"
}

run_gtest() {
  start_gtest "$@"
  report_gtest "$1"
}

# run_gtests DIR SUFFIX NAME... [-- ARGS...]: the test programs of these floors, as many at a time as
# there are cores that no build keeps busy.
run_gtests() {
  local dir=$1 suffix=$2 names=() name
  local -A pids
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    names+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  set -m
  for name in "${names[@]}"; do
    rm -f "$logs/${name}_test.$suffix.end"
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    start_gtest "${name}_test.$suffix" "$dir/${name}_test" "$@" &
    pids[$name]=$!
  done
  set +m
  for name in "${names[@]}"; do
    wait "${pids[$name]}" || true
    report_gtest "${name}_test.$suffix"
  done
}

# run_tap NAME COMMAND...: runs a program that reports as node's test runner does and adds its counts.
run_tap() {
  local name=$1 log="$logs/$1.log" start=$SECONDS code=0 ok bad
  shift
  limit "$test_seconds" "$@" >"$log" 2>&1 </dev/null || code=$?
  ok=$(sed -n 's/^# pass \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/^# fail \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  : "${ok:=0}" "${bad:=0}"
  [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  printf '    %-28s %5d passed, %d failed  (%d s)\n' "$name" "$ok" "$bad" $((SECONDS - start))
  [ "$bad" -eq 0 ] || tail -n 60 "$log"
}

# check NAME COMMAND...: one pass or one failure; neither with exit code 77, for what cannot be tested
# here.
check() {
  local name=$1 log="$logs/$1.log" start=$SECONDS code=0
  shift
  "$@" >"$log" 2>&1 </dev/null || code=$?
  if [ "$code" -eq 0 ]; then
    passed=$((passed + 1))
    printf '    %-28s passed  (%d s)\n' "$name" $((SECONDS - start))
  elif [ "$code" -eq 77 ]; then
    printf '    %-28s skipped: %s\n' "$name" "$(grep -m 1 . "$log")"
  else
    failed=$((failed + 1))
    printf '    %-28s FAILED  (%d s)\n' "$name" $((SECONDS - start))
    tail -n 60 "$log"
  fi
}

# fuzz PROGRAM: runs it from its seed corpus.
fuzz() {
  local name corpus scratch words
  name=$(basename "$1")
  corpus=$root/fuzz/corpus/${name%_fuzz}
  scratch=$logs/$name.corpus
  mkdir -p "$scratch"
  [ -d "$corpus" ] || corpus=
  words=$root/fuzz/${name%_fuzz}.dict
  [ -f "$words" ] || words=
  limit $((fuzz_seconds + 600)) "$1" -max_total_time="$fuzz_seconds" -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$logs/" ${words:+-dict="$words"} "$scratch" ${corpus:+"$corpus"}
}

# check_ended NAME PID: waits for a process whose output is in the log; one pass or one failure.
check_ended() {
  if wait "$2"; then
    passed=$((passed + 1))
    printf '    %-28s passed\n' "$1"
  else
    fail "$1"
    tail -n 60 "$logs/$1.log"
  fi
}

# fail NAME: one failure.
fail() {
  failed=$((failed + 1))
  printf '    %-28s FAILED\n' "$1"
}

# build PRESET DIR CMAKE_ARGS... [-- TARGETS...]: false if weir does not compile.
build() {
  local preset=$1 dir=$2 args=()
  shift 2
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    args+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  "$root/scripts/configure.sh" "$preset" "$dir" "${args[@]}" && "$root/scripts/compile.sh" "$dir" "$@"
}

# The longest first.
asan_floors=(attention server engine kv model http plan geometry openai base)
tsan_floors=(attention server engine kv http)
gcc_floors=(kv geometry plan openai base)

# build_named PRESET: the build of that name, with the programs that are run from it.
build_named() {
  case $1 in
    release) build release "$root/build" ;;
    asan) build asan "$root/build-asan" -- "${asan_floors[@]/%/_test}" ;;
    tsan) build tsan "$root/build-tsan" -- "${tsan_floors[@]/%/_test}" ;;
    fuzz) build fuzz "$root/build-fuzz" -DWEIR_MODEL_LIBRARY=OFF ;;
    gcc) build gcc "$root/build-gcc" ;;
  esac
}

# Most tests keep one core busy: the builds that come later are made beside them, on what is left.
build_ahead() {
  local preset
  renice -n 19 "$BASHPID" >/dev/null
  for preset in asan tsan fuzz gcc; do
    if build_named "$preset" >"$logs/build-$preset.log" 2>&1; then
      touch "$logs/build-$preset.done"
    else
      touch "$logs/build-$preset.failed"
    fi
  done
}

# built PRESET: waits for the build ahead to get through it; false, and one failure, if it does not
# compile.
built() {
  while kill -0 "$ahead" 2>/dev/null && [ ! -e "$logs/build-$1.done" ] && [ ! -e "$logs/build-$1.failed" ]; do
    sleep 1
  done
  [ -e "$logs/build-$1.done" ] && return
  fail "$1 build"
  tail -n 40 "$logs/build-$1.log"
  return 1
}

# list_programs DIR SUFFIX: sets `programs` to what the build in DIR has rules for; its folder may
# also hold programs of earlier sources. One failure if there are none.
list_programs() {
  mapfile -t programs < <(ninja -C "$1" -t targets all |
    sed -n "s|^\(.*_$2\): CXX_EXECUTABLE_LINKER.*|$1/\1|p" | sort)
  [ ${#programs[@]} -gt 0 ] || fail "programs *_$2"
}

# The demo ends well, and the model's answer to the last question has the name.
demo_recalls() {
  limit "$test_seconds" "$root/scripts/demo.sh" "$1" |
    awk '{ print }
         /^> / { asked = ($0 == "> What is my name?"); next }
         asked && /Matilda/ { recalled = 1 }
         END { if (!recalled) print "the reply to \"What is my name?\" lacks the name"; exit !recalled }'
}

say "release build"
released=1
build_named release || released=0
rm -f "$logs"/build-*.done "$logs"/build-*.failed
set -m # a process group of its own, so that all of it can be stopped
build_ahead &
ahead=$!
set +m
trap 'for job in $(jobs -p); do kill -- "-$job" 2>/dev/null || true; done' EXIT

if [ $released = 0 ]; then
  fail "release build"
else
  say "tests, release (the builds for the sanitizers go on beside them)"
  list_programs "$root/build" test
  for program in "${programs[@]}"; do
    run_gtest "$(basename "$program")" "$program"
  done
  check demo demo_recalls "$root/build/weir"
  run_tap openai-client "$root/scripts/test-openai.sh" "$root/build/weir"
  check soak node "$root/tests/soak/soak.mjs" "$root/build/weir" \
    "$root/models/weir-tiny/weir-tiny-q8_0.gguf" "${WEIR_SOAK_SECONDS:-60}"
  check cgroup node "$root/tests/soak/cgroup.mjs" "$root/build/weir" \
    "$root/models/weir-tiny/weir-tiny-q8_0.gguf" 20
fi

say "address and undefined behaviour sanitizers"
if built asan; then
  export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
  run_gtests "$root/build-asan" asan "${asan_floors[@]}"
fi

say "thread sanitizer"
if built tsan; then
  # ggml's own threads are not instrumented: its barriers are invisible here, so the tests that go
  # through a ggml graph on several threads are left to the other builds; and so are those that
  # measure this process's memory, of which the sanitizer's own shadow is most.
  run_gtests "$root/build-tsan" tsan "${tsan_floors[@]}" -- --gtest_filter='-AttentionBatch.*:CpuMemory.*'
fi

say "fuzz targets, $fuzz_seconds s each"
if built fuzz; then
  list_programs "$root/build-fuzz" fuzz
  # All at once: each is bound by its time, not by its work.
  pids=()
  set -m
  for program in "${programs[@]}"; do
    fuzz "$program" >"$logs/$(basename "$program").log" 2>&1 </dev/null &
    pids+=($!)
  done
  set +m
  for i in "${!programs[@]}"; do
    name=$(basename "${programs[$i]}")
    check_ended "$name" "${pids[$i]}"
  done
fi

say "GCC build"
if built gcc; then
  run_gtests "$root/build-gcc" gcc "${gcc_floors[@]}"
fi

check format "$root/scripts/format.sh" --dry-run --Werror

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
