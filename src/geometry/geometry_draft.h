#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "geometry/kv_geometry.h"

namespace weir {

// Bounds on what a model may claim. They keep every product of bytes, tokens and sequences inside
// 63 bits: 2^25 bytes a token × 2^27 tokens × 2^10 sequences.
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxElementsPerToken = int64_t{1} << 23;  // K and V of all layers
constexpr int64_t kMaxTokens = int64_t{1} << 27;            // of a context or a window
constexpr int64_t kMaxSequences = 1024;

// What a reader found in a file, before it is checked and becomes layers.
struct GeometryDraft {
  struct Layer {
    bool is_local = false;
    bool is_projection_shared = false;  // one projection gives K and V
    int64_t k_rotating = 0;             // see KvLayer
    int64_t n_heads = 0;
    int64_t n_kv_heads = 0;  // 0: the layer has no attention, and no KV
    int64_t k_dim = 0, v_dim = 0;
  };
  std::string name, arch;
  int64_t max_context = 0;
  PatternSource pattern = PatternSource::architecture;
  LayerKind local_kind = LayerKind::sliding;
  int64_t window = 0;
  std::vector<Layer> layers;
  int64_t n_reusing = 0;  // last layers that own no KV: each reads the last owner of its kind
  std::vector<std::string> notes;
};

// Errors: corrupt if the numbers contradict themselves or pass the bounds above, naming layer and
// number. A window of kMaxTokens or more is none.
Result<KvGeometry> finish_geometry(GeometryDraft draft);

}  // namespace weir
