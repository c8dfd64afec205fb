#!/usr/bin/env bash
# bench-servers.sh BUILD_DIR [SCENARIO...]: weir serve and llama-server, built from the same pinned
# source, driven by the same conversations over a synthetic Gemma 3 1B, one table a scenario. All of
# them take about an hour on two cores.
. "$(dirname "$0")/common.sh"

build=$1
shift
[ $# -gt 0 ] || set -- rewind inTurn4 inTurn12 shared beside skippedSave
model=$build/gemma-3-1b-q8_0.gguf
"$root/scripts/build-llama.sh" llama-server
[ -e "$model" ] || "$build/weir" synth --like gemma-3-1b --weights q8_0 -o "$model"

# compare SCENARIO ARGS...
compare() {
  node "$root/bench/servers/compare.mjs" --weir "$build/weir" --llama "$(llama_build_dir)/bin/llama-server" \
    --model "$model" --logs "$build" --scenario "$@"
}
for scenario; do
  say "$scenario"
  case $scenario in
    rewind) compare rewind --context 12288 ;;
    # weir's budget holds four such conversations, however many there are
    inTurn4) compare inTurn --count 4 --budget 136MiB ;;
    inTurn12) compare inTurn --count 12 --budget 136MiB ;;
    shared) compare shared --count 8 ;;
    beside) compare beside ;;
    skippedSave) compare skippedSave "--llama-args=--cache-ram 4" ;;
    *) die "no scenario $scenario" ;;
  esac
done
