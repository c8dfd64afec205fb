#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "geometry/kv_geometry.h"
#include "geometry/kv_layout.h"

namespace weir {

// How a model's KV grows with the context, counted row by row: windows exact, no blocks. Layers
// that own no KV do not count. What the engine really takes is plan/kv_plan.h.
class KvGrowth {
 public:
  struct Local {
    Retention retention;
    Bytes per_token;  // of all layers of this window
    int n_layers = 0;
  };

  // Errors: invalid_input if a type cannot store a layer's rows (as make_layout).
  static Result<KvGrowth> of(const KvGeometry& geometry, const KvFormat& format);

  Bytes global_per_token() const { return global_per_token_; }
  int n_global_layers() const { return n_global_layers_; }
  const std::vector<Local>& locals() const { return locals_; }
  Bytes local_per_token() const;

  Bytes local_bytes() const;  // all local windows full
  Bytes global(int64_t n) const { return n * global_per_token_; }
  Bytes local(int64_t n) const;  // min(n, window) rows of each local layer
  Bytes resident(int64_t n) const { return global(n) + local(n); }
  // What an engine pays that gives every layer all tokens, and stores K and V apart.
  Bytes uniform(int64_t n) const { return n * uniform_per_token_; }
  double ratio(int64_t n) const;  // resident / uniform; 1 for n = 0

  // First n at which the global layers hold as many bytes as the full local windows. Nothing if
  // the model has only one kind. If it is not above the window, the global layers lead from the
  // start.
  std::optional<int64_t> crossover() const;

 private:
  Bytes global_per_token_;
  Bytes uniform_per_token_;
  int n_global_layers_ = 0;
  std::vector<Local> locals_;
};

}  // namespace weir
