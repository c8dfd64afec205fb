#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir {

// Which earlier tokens a layer reads.
enum class LayerKind : uint8_t {
  global,   // all of them
  sliding,  // the last `window` tokens, the current one included: keys j with i-w < j <= i
  chunked,  // those of the query's own chunk of `window` tokens (Llama 4)
};

struct Retention {
  LayerKind kind = LayerKind::global;
  int64_t window = 0;  // w of a sliding layer, chunk length of a chunked one, 0 for global
  bool operator==(const Retention&) const = default;
};

// What a layer's projection gives. `shared`: K and V come from one projection (Gemma 4 global
// layers): with n its norm, V = n and K = rope(factors * n). See KvFormat::share.
enum class KvStorage : uint8_t { separate, shared };

struct KvLayer {
  int index = 0;
  Retention retention;
  int n_heads = 0;  // query heads
  int n_kv_heads = 0;
  int k_dim = 0;  // elements of a K row per head
  int v_dim = 0;  // elements of a V row per head
  KvStorage storage = KvStorage::separate;
  // Of shared storage: elements of a K row that rotate, those of the pairs (p, p + k_dim/2) with
  // p < k_rotating/2; 0: not known.
  int k_rotating = 0;
  int source = 0;  // the layer whose K and V it reads; its own index when it owns KV

  bool owns_kv() const { return source == index; }
  bool operator==(const KvLayer&) const = default;
};

// Where the knowledge which layers are local came from.
enum class PatternSource : uint8_t {
  builtin,       // the built-in list
  file,          // an array or period in the file
  architecture,  // the architecture's known rule
  assumed,       // unknown architecture without a pattern: every layer counted as global
};

// What the KV cache of a model must hold. Layers in order, draft (MTP) layers left out.
struct KvGeometry {
  std::string name;
  std::string arch;         // general.architecture of a GGUF, or the matching name
  int64_t max_context = 0;  // largest advertised context; 0 if the source does not say
  std::vector<KvLayer> layers;
  PatternSource pattern = PatternSource::builtin;
  std::vector<std::string> notes;  // one line each, for the user: what was assumed or ignored
};

}  // namespace weir
