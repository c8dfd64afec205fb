#!/usr/bin/env bash
# compile.sh BUILD_DIR [TARGETS...]: builds, quiet when there is nothing to do.
. "$(dirname "$0")/common.sh"

build=$1
shift
# -n looks without building; it also reports when CMake has to run again.
if ! ninja -C "$build" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
  say "building weir in $build"
fi
ninja -C "$build" "$@" | sed '/ninja: Entering/d; /ninja: no work to do/d; /Re-checking globbed/d'
