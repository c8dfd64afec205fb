#include "model/synth_vocab.h"

#include <cstdio>

#include "base/check.h"

namespace weir {
namespace {

// Token types as GGUF numbers them.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;

// The n-th string of lower-case letters of two and more letters: aa, ab, ..., zz, aaa, ...
std::string letters(int64_t n) {
  int64_t length = 2, count = 26 * 26;
  while (n >= count) {
    n -= count;
    count *= 26;
    ++length;
  }
  std::string text(static_cast<size_t>(length), 'a');
  for (int64_t i = length - 1; i >= 0; --i) {
    text[static_cast<size_t>(i)] = static_cast<char>('a' + n % 26);
    n /= 26;
  }
  return text;
}

}  // namespace

SynthVocab make_synth_vocab(int64_t size) {
  WEIR_CHECK(size >= kMinSynthVocab);
  SynthVocab vocab;
  vocab.tokens.reserve(static_cast<size_t>(size));
  auto add = [&](std::string text, int32_t type, float score = 0.0f) {
    vocab.tokens.push_back(std::move(text));
    vocab.types.push_back(type);
    vocab.scores.push_back(score);
  };
  add("<pad>", kControl);
  add("<eos>", kControl);
  add("<bos>", kControl);
  add("<unk>", kUnknown);
  add("<start_of_turn>", kControl);
  add("<end_of_turn>", kControl);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte));
    add(text, kByte);
  }
  add("\xe2\x96\x81", kNormal);  // SentencePiece's sign for a space
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c), kNormal);
  // A lower score merges later: two letters before three.
  for (int64_t n = 0; static_cast<int64_t>(vocab.tokens.size()) < size; ++n)
    add(letters(n), kNormal, -static_cast<float>(n + 1));
  return vocab;
}

const char* synth_chat_template() {
  return "{%- set ns = namespace(prefix='') -%}"
         "{{- bos_token -}}"
         "{%- for message in messages -%}"
         "{%- if message['role'] == 'system' -%}"
         "{%- set ns.prefix = message['content'] + '\\n\\n' -%}"
         "{%- else -%}"
         "{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}"
         "{{- '<start_of_turn>' + role + '\\n' + ns.prefix + message['content'] | trim + "
         "'<end_of_turn>\\n' -}}"
         "{%- set ns.prefix = '' -%}"
         "{%- endif -%}"
         "{%- endfor -%}"
         "{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}";
}

}  // namespace weir
