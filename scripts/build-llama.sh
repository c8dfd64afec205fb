#!/usr/bin/env bash
# Builds ggml, libllama and llama-common once for this processor: Release, static, into
# .deps/llama-RELEASE-VARIANT. More targets (llama-server, llama-bench) can be named as arguments.
. "$(dirname "$0")/common.sh"

build=$(llama_build_dir)
if [ ! -e "$build/.weir-configured" ]; then
  say "configuring llama.cpp $llama_release for this processor"
  cmake -S "$llama_source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
    -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF >"$deps/llama-configure.log" 2>&1 ||
    die "configuring llama.cpp failed; see $deps/llama-configure.log"
  touch "$build/.weir-configured"
fi
if ! ninja -C "$build" -n llama llama-common "$@" | grep -q 'no work to do'; then
  say "building llama.cpp $llama_release (a few minutes, once)"
  ninja -C "$build" llama llama-common "$@" || die "building llama.cpp failed"
fi
