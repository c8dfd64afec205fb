#!/usr/bin/env bash
# All tests: the release build, the address+undefined and thread sanitizers on what they cover in
# time, a GCC build, the fuzz targets for a minute each, the formatting. Ends with the sum of what
# the runners counted. WEIR_FUZZ_SECONDS sets the time of each fuzz target.
. "$(dirname "$0")/common.sh"

passed=0 failed=0
fuzz_seconds=${WEIR_FUZZ_SECONDS:-60}
logs=$root/build-logs
mkdir -p "$logs"

# run_gtest NAME COMMAND...: runs a GoogleTest program and adds its counts; its output is shown when
# something failed. A program that dies counts as one more failure.
run_gtest() {
  local name=$1 log="$logs/$1.log" start=$SECONDS code=0 ok bad
  shift
  "$@" --gtest_brief=0 >"$log" 2>&1 || code=$?
  ok=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test.*/\1/p' "$log" | tail -n 1)
  bad=$(sed -n 's/^ *\([0-9]*\) FAILED TEST.*/\1/p' "$log" | tail -n 1)
  : "${ok:=0}" "${bad:=0}"
  [ "$code" -ne 0 ] && [ "$bad" -eq 0 ] && bad=1
  passed=$((passed + ok)) failed=$((failed + bad))
  printf '    %-28s %5d passed, %d failed  (%d s)\n' "$name" "$ok" "$bad" $((SECONDS - start))
  [ "$bad" -eq 0 ] || tail -n 60 "$log"
}

# check NAME COMMAND...: one pass or one failure.
check() {
  local name=$1 log="$logs/$1.log" start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    printf '    %-28s passed  (%d s)\n' "$name" $((SECONDS - start))
  else
    failed=$((failed + 1))
    printf '    %-28s FAILED  (%d s)\n' "$name" $((SECONDS - start))
    tail -n 60 "$log"
  fi
}

test_programs() { find "$1" -name '*_test' -type f -executable | sort; }

say "release build"
"$root/scripts/configure.sh" release "$root/build"
"$root/scripts/compile.sh" "$root/build"
say "tests, release"
for program in $(test_programs "$root/build"); do
  run_gtest "$(basename "$program")" "$program"
done
check demo "$root/scripts/demo.sh" "$root/build/weir"

say "address and undefined behaviour sanitizers"
"$root/scripts/configure.sh" asan "$root/build-asan"
"$root/scripts/compile.sh" "$root/build-asan" base_test geometry_test kv_test plan_test attention_test model_test engine_test
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
for name in base geometry kv plan attention model engine; do
  run_gtest "${name}_test.asan" env WEIR_TEST_BUDGET=small "$root/build-asan/${name}_test"
done

say "thread sanitizer"
"$root/scripts/configure.sh" tsan "$root/build-tsan"
"$root/scripts/compile.sh" "$root/build-tsan" kv_test attention_test engine_test
# ggml's own threads are not instrumented: its barriers are invisible here, so the tests that go
# through a ggml graph on several threads are left to the other builds.
for name in kv attention engine; do
  run_gtest "${name}_test.tsan" env WEIR_TEST_BUDGET=small "$root/build-tsan/${name}_test" --gtest_filter='-*Ggml*'
done

say "fuzz targets, $fuzz_seconds s each"
"$root/scripts/configure.sh" fuzz "$root/build-fuzz" -DWEIR_MODEL_LIBRARY=OFF
"$root/scripts/compile.sh" "$root/build-fuzz"
for program in "$root"/build-fuzz/fuzz/*_fuzz; do
  name=$(basename "$program")
  corpus=$root/fuzz/corpus/${name%_fuzz}
  scratch=$logs/$name.corpus
  mkdir -p "$scratch"
  [ -d "$corpus" ] || corpus=
  check "$name" "$program" -max_total_time="$fuzz_seconds" -rss_limit_mb=2048 -timeout=10 \
    -artifact_prefix="$logs/" "$scratch" $corpus
done

say "GCC build"
"$root/scripts/configure.sh" gcc "$root/build-gcc"
check gcc-build "$root/scripts/compile.sh" "$root/build-gcc"

check format make -s -C "$root" format-check

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" -eq 0 ]
