#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// A made-up SentencePiece vocabulary that can write any text: control tokens, the 256 bytes,
// printable ASCII, then strings of letters (two letters first, then three, ...) up to `size`, so
// that running text takes about as many tokens as with a trained vocabulary.
struct SynthVocab {
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;  // the token types of GGUF
};

constexpr int kSynthPad = 0, kSynthEos = 1, kSynthBos = 2, kSynthUnknown = 3;
constexpr int kSynthTurnStart = 4, kSynthTurnEnd = 5;

// Smallest size: control tokens, bytes and ASCII.
constexpr int64_t kMinSynthVocab = 6 + 256 + 95;
constexpr int64_t kMaxSynthVocab = int64_t{1} << 24;

// size >= kMinSynthVocab.
SynthVocab make_synth_vocab(int64_t size);

// Gemma's way to write a conversation, as a Jinja template.
const char* synth_chat_template();

}  // namespace weir
