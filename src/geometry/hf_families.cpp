#include "geometry/hf_families.h"

#include <array>

namespace weir {
namespace {

using Locals = HfFamily::Locals;

constexpr HfFamily kGemma4 = {.model_type = "gemma4",
                              .gguf_arch = "gemma4",
                              .locals = Locals::period,
                              .period = 6,
                              .window = 512,
                              .n_heads = 8,
                              .n_kv_heads = 4,
                              .head_dim = 256,
                              .global_head_dim = 512,
                              .last_is_global = true};

constexpr HfFamily named(HfFamily family, std::string_view model_type) {
  family.model_type = model_type;
  return family;
}

constexpr HfFamily qwen(std::string_view model_type, std::string_view arch, int64_t head_dim) {
  return {.model_type = model_type,
          .gguf_arch = arch,
          .locals = Locals::from_layer,
          .n_heads = 32,
          .head_dim = head_dim};
}

constexpr std::array kFamilies = {
    HfFamily{.model_type = "gemma2",
             .gguf_arch = "gemma2",
             .locals = Locals::period,
             .period = 2,
             .window = 4096,
             .n_heads = 8,
             .n_kv_heads = 4,
             .head_dim = 256},
    HfFamily{.model_type = "gemma3",
             .gguf_arch = "gemma3",
             .locals = Locals::period,
             .period = 6,
             .window = 4096,
             .n_heads = 8,
             .n_kv_heads = 4,
             .head_dim = 256},
    HfFamily{.model_type = "gemma3n",
             .gguf_arch = "gemma3n",
             .locals = Locals::period,
             .period = 5,
             .window = 512,
             .n_heads = 8,
             .n_kv_heads = 2,
             .head_dim = 256,
             .n_reusing = 15},
    kGemma4,
    named(kGemma4, "gemma4_unified"),
    HfFamily{.model_type = "gpt_oss",
             .gguf_arch = "gpt-oss",
             .locals = Locals::period,
             .period = 2,
             .window = 128,
             .n_heads = 64,
             .n_kv_heads = 8,
             .head_dim = 64},
    HfFamily{.model_type = "cohere2",
             .gguf_arch = "cohere2",
             .locals = Locals::period,
             .period = 4,
             .window = 4096,
             .n_heads = 64},
    HfFamily{.model_type = "llama4",
             .gguf_arch = "llama4",
             .locals = Locals::period,
             .period = 4,
             .flags_key = "no_rope_layers",
             .window = 8192,
             .local_kind = LayerKind::chunked,
             .n_heads = 40,
             .n_kv_heads = 8,
             .head_dim = 128},
    HfFamily{.model_type = "mimo_v2_flash",
             .gguf_arch = "mimo2",
             .locals = Locals::flags,
             .flags_key = "hybrid_layer_pattern"},
    HfFamily{.model_type = "step3p5", .gguf_arch = "step35", .head_dim = 128},
    HfFamily{.model_type = "step3p7", .gguf_arch = "step35", .head_dim = 128},
    HfFamily{.model_type = "olmo3",
             .gguf_arch = "olmo2",
             .locals = Locals::period,
             .period = 4,
             .window = 4096,
             .n_heads = 32},
    HfFamily{.model_type = "olmo2", .gguf_arch = "olmo2", .n_heads = 32},
    HfFamily{.model_type = "exaone4",
             .gguf_arch = "exaone4",
             .locals = Locals::period,
             .period = 4,
             .window = 4096,
             .n_heads = 32,
             .n_kv_heads = 32},
    HfFamily{.model_type = "smallthinker",
             .gguf_arch = "smallthinker",
             .locals = Locals::flags,
             .flags_key = "sliding_window_layout"},
    HfFamily{.model_type = "afmoe",
             .gguf_arch = "afmoe",
             .locals = Locals::period,
             .period = 4,
             .window = 1024,
             .n_heads = 16,
             .head_dim = 128},
    HfFamily{.model_type = "laguna", .gguf_arch = "laguna"},
    HfFamily{.model_type = "mistral",
             .gguf_arch = "llama",
             .locals = Locals::all,
             .window = 4096,
             .n_heads = 32,
             .n_kv_heads = 8},
    HfFamily{.model_type = "ministral",
             .gguf_arch = "llama",
             .locals = Locals::all,
             .window = 4096,
             .n_heads = 32,
             .n_kv_heads = 8},
    HfFamily{.model_type = "ministral3",
             .gguf_arch = "mistral3",
             .locals = Locals::all,
             .n_heads = 32,
             .n_kv_heads = 8},
    HfFamily{.model_type = "phi3", .gguf_arch = "phi3", .locals = Locals::all, .n_heads = 32},
    HfFamily{.model_type = "llama", .gguf_arch = "llama", .n_heads = 32},
    qwen("qwen2", "qwen2", 0),
    qwen("qwen2_moe", "qwen2moe", 0),
    qwen("qwen3", "qwen3", 128),
    qwen("qwen3_moe", "qwen3moe", 0),
};

}  // namespace

const HfFamily* find_hf_family(std::string_view model_type) {
  if (model_type.ends_with("_text")) model_type.remove_suffix(5);
  for (const HfFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

}  // namespace weir
