# Shared by the set-up scripts: where things are, which versions are pinned, how to speak.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${WEIR_DEPS:-$root/.deps}
llama_source=$deps/llama.cpp
# GCC 12 miscompiles ggml's AMX path (its _tile_loadconfig is declared to read 8 of 64 bytes), so
# the libraries and weir are built with clang 16.
cc=${WEIR_CC:-clang-16}
cxx=${WEIR_CXX:-clang++-16}

# The npm package whose llama/gitRelease.bundle is the llama.cpp source weir is built against.
llama_npm_package=node-llama-cpp@3.21.1
llama_npm_sha512=13737412fd956b4c33c9dbd7605c0cf47bf2a34ecfa168edf13ffd18c738dc2bedf18915fcd53fb5852010c0b582b4cfbf6a3d3d18d08b41b759be4ffdac2232
llama_release=v0.4.0

say() { printf '==> %s\n' "$*"; }
die() { printf 'weir set-up: %s\n' "$*" >&2; exit 1; }

# Names a processor by what a native build depends on: model and instruction set.
cpu_variant() {
  { uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo | tr ' ' '\n' | sort; "$cxx" --version | head -n 1; } |
    sha256sum | cut -c1-12
}
llama_build_dir() { printf '%s/llama-%s-%s' "$deps" "$llama_release" "$(cpu_variant)"; }
