#!/usr/bin/env bash
# Fetches the pinned llama.cpp source into .deps/llama.cpp and patches it: grammars get a limit of
# work. Does nothing when that is there.
. "$(dirname "$0")/common.sh"

fetch() {
  say "fetching llama.cpp $llama_release (33 MiB)"
  mkdir -p "$deps"
  work=$(mktemp -d "$deps/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && npm pack --silent "$llama_npm_package" >/dev/null) ||
    die "npm could not fetch $llama_npm_package; is the npm registry reachable?"
  archive=$(echo "$work"/*.tgz)
  echo "$llama_npm_sha512  $archive" | sha512sum --check --status ||
    die "$llama_npm_package does not match the pinned SHA-512; refusing to build it"
  tar -xzf "$archive" -C "$work" package/llama/gitRelease.bundle
  rm -rf "$llama_source"
  git -c advice.detachedHead=false clone --quiet "$work/package/llama/gitRelease.bundle" "$llama_source" ||
    die "git could not clone the llama.cpp bundle"
  echo "$llama_npm_sha512" > "$stamp"
}

stamp=$llama_source/.weir-source
[ "$(cat "$stamp" 2>/dev/null)" = "$llama_npm_sha512" ] || fetch

patch=$root/scripts/llama-grammar.patch
applied=$llama_source/.weir-patch
if ! cmp -s "$patch" "$applied"; then
  say "patching llama.cpp ($(basename "$patch"))"
  rm -f "$applied"
  git -C "$llama_source" checkout --quiet -- .
  git -C "$llama_source" apply "$patch" || die "$patch does not fit llama.cpp $llama_release"
  cp "$patch" "$applied"
fi
