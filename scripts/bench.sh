#!/usr/bin/env bash
# bench.sh BUILD_DIR: the attention kernels beside ggml's, then weir beside llama.cpp on a synthetic
# Gemma 3 1B (1 GiB in the build folder). WEIR_BENCH_DEPTHS sets the depths.
. "$(dirname "$0")/common.sh"

build=$1
model=$build/gemma-3-1b-q8_0.gguf
say "attention kernels"
"$build/bench/attention_bench"
[ -e "$model" ] || "$build/weir" synth --like gemma-3-1b --weights q8_0 -o "$model"
say "weir and llama.cpp in turn (the default depths take about ten minutes)"
"$build/weir" bench -m "$model" --depths "${WEIR_BENCH_DEPTHS:-0,4096,16384,32768}" --peer
