#!/usr/bin/env bash
# configure.sh PRESET BUILD_DIR [CMAKE_ARGS...]: configures a build of weir against the pinned llama.cpp build.
. "$(dirname "$0")/common.sh"

preset=$1 build=$2
shift 2
llama_build=$(llama_build_dir)
configured="$preset $llama_build $*"
stamp=$build/.weir-configured
[ -e "$build/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$configured" ] &&
  [ ! "$root/CMakePresets.json" -nt "$stamp" ] && exit 0

say "configuring weir ($preset) in $build"
cmake -S "$root" --preset "$preset" -B "$build" \
  -DWEIR_LLAMA_SOURCE="$llama_source" -DWEIR_LLAMA_BUILD="$llama_build" "$@" >"$build.log" 2>&1 ||
  { cat "$build.log" >&2; die "CMake failed"; }
rm -f "$build.log"
echo "$configured" > "$stamp"
