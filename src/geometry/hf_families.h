#pragma once

#include <cstdint>
#include <string_view>

#include "geometry/kv_geometry.h"

namespace weir {

// What a family's config.json means: the names are those of the `transformers` library, and so are
// the defaults of keys that a file may leave out. `layer_types` in the file always comes first.
struct HfFamily {
  enum class Locals : uint8_t {
    none,        // no layer is local unless layer_types says so
    period,      // all but one in `period`
    all,         // every layer, when the window is not null
    from_layer,  // layers from max_window_layers on, when use_sliding_window is true
    flags,       // an array of 0 and 1 named `flags_key`; 1 is local
  };
  std::string_view model_type;  // without a trailing _text
  std::string_view gguf_arch;
  Locals locals = Locals::none;
  int period = 0;
  std::string_view flags_key = {};
  int64_t window = 0;  // when the file has no key; 0: then there is none
  LayerKind local_kind = LayerKind::sliding;
  int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;  // 0: no default
  int64_t global_head_dim = 0;                        // of global layers; 0: as head_dim
  int64_t n_reusing = 0;                              // last layers that own no KV
  bool last_is_global = false;                        // whatever the pattern says
};

// Null for a type that weir has no rule for.
const HfFamily* find_hf_family(std::string_view model_type);

}  // namespace weir
