#pragma once

#include <cstdint>
#include <string_view>

#include "geometry/kv_geometry.h"

namespace weir {

// How the files of an architecture tell which layers are local. A pattern array in the file always
// comes first; a scalar in the file replaces `period`.
struct GgufFamily {
  enum class Window : uint8_t {
    none,        // the key alone means nothing; with a pattern it does
    if_present,  // the window key decides
    required,    // the key must be there
    fixed,       // `window` when the file has no key
  };
  std::string_view arch;
  Window window_rule = Window::none;
  int period = 0;             // one global layer in `period`; 0: the file must have the array
  bool global_first = false;  // the global layer opens the period instead of closing it
  int64_t window = 0;
  LayerKind local_kind = LayerKind::sliding;
  bool all_local = false;       // a window without a pattern is that of every layer
  int64_t only_for_layers = 0;  // without a pattern only models of this many layers have a window
  int64_t n_owners = 0;  // layers from here on own no KV when the file does not say; 0: all own
};

// Null for an architecture that weir has no rule for.
const GgufFamily* find_gguf_family(std::string_view arch);

}  // namespace weir
