#include "geometry/gguf_families.h"

#include <array>

namespace weir {
namespace {

using Window = GgufFamily::Window;

constexpr std::array<GgufFamily, 18> kFamilies = {{
    {.arch = "gemma2", .window_rule = Window::fixed, .period = 2, .window = 4096},
    {.arch = "gemma3", .window_rule = Window::if_present, .period = 6},
    {.arch = "gemma3n", .window_rule = Window::required, .period = 5, .n_owners = 20},
    {.arch = "gemma4", .window_rule = Window::required},
    {.arch = "gpt-oss", .window_rule = Window::required, .period = 2},
    {.arch = "cohere2", .window_rule = Window::required, .period = 4},
    {.arch = "llama4",
     .window_rule = Window::fixed,
     .period = 4,
     .window = 8192,
     .local_kind = LayerKind::chunked},
    {.arch = "mimo2", .window_rule = Window::required},
    {.arch = "step35", .window_rule = Window::required},
    {.arch = "olmo2", .window_rule = Window::if_present, .period = 4},
    {.arch = "exaone4",
     .window_rule = Window::fixed,
     .period = 4,
     .window = 4096,
     .only_for_layers = 64},
    {.arch = "afmoe", .window_rule = Window::if_present, .period = 4},
    {.arch = "smallthinker", .window_rule = Window::if_present, .period = 4, .global_first = true},
    {.arch = "laguna", .window_rule = Window::if_present, .period = 4, .global_first = true},
    // No converter writes the key for llama; a file that has it is Mistral 7B v0.1 or a relative.
    {.arch = "llama", .window_rule = Window::if_present, .all_local = true},
    {.arch = "mistral3"},
    {.arch = "qwen3"},
    {.arch = "phi3", .window_rule = Window::if_present, .all_local = true},
}};

}  // namespace

const GgufFamily* find_gguf_family(std::string_view arch) {
  for (const GgufFamily& family : kFamilies) {
    if (family.arch == arch) return &family;
  }
  return nullptr;
}

}  // namespace weir
