#!/usr/bin/env bash
# format.sh CLANG_FORMAT_ARGS...: runs clang-format over weir's sources; -i formats them, and
# --dry-run --Werror checks them.
. "$(dirname "$0")/common.sh"

"$root/scripts/install-packages.sh" clang-format-16
cd "$root"
# find and not git ls-files: git refuses a clone of another owner.
mapfile -d '' files < <(find include src bench fuzz tests \( -name '*.h' -o -name '*.cpp' \) -print0)
[ ${#files[@]} -gt 0 ] || die "no source files to format in $root"
clang-format-16 "$@" "${files[@]}"
