# Shared by the set-up scripts: where things are, which versions are pinned, how to speak.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${WEIR_DEPS:-$root/.deps}
llama_source=$deps/llama.cpp
# GCC 12 miscompiles ggml's AMX path (its _tile_loadconfig is declared to read 8 of 64 bytes), so
# the libraries and weir are built with clang 16.
cc=clang-16
cxx=clang++-16

# The npm package whose llama/gitRelease.bundle is the llama.cpp source weir is built against.
llama_npm_package=node-llama-cpp@3.21.1
llama_npm_sha512=13737412fd956b4c33c9dbd7605c0cf47bf2a34ecfa168edf13ffd18c738dc2bedf18915fcd53fb5852010c0b582b4cfbf6a3d3d18d08b41b759be4ffdac2232
llama_release=v0.4.0

say() { printf '==> %s\n' "$*"; }
die() { printf 'weir set-up: %s\n' "$*" >&2; exit 1; }

# Names what a native build depends on: the compiler, and what it knows of this processor. Builds for
# other processors stay beside this one.
native_variant() {
  { "$cc" --version && "$cc" -march=native -dM -E -x c /dev/null; } 2>/dev/null | sha256sum | cut -c1-12
}
llama_build_dir() {
  local variant
  variant=$(native_variant) || die "$cc does not run; run make setup, which installs it"
  printf '%s/llama-%s-%s' "$deps" "$llama_release" "$variant"
}
