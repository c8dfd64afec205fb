#!/usr/bin/env bash
# demo.sh WEIR: a short conversation with the embedded model, read from models/weir-tiny/demo.txt.
# A fact is told, some two hundred tokens of other talk follow, more than the window of 128 holds,
# and then the fact is asked for. /kv shows what the memory of it all cost.
. "$(dirname "$0")/common.sh"

say "weir-tiny (window 128 tokens) recalls a fact from far outside its window"
"$1" chat -m "$root/models/weir-tiny/weir-tiny-f16.gguf" --temp 0 -n 120 < "$root/models/weir-tiny/demo.txt"
