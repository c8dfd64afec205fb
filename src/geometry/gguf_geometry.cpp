#include "geometry/gguf_geometry.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/quote.h"
#include "geometry/geometry_draft.h"
#include "geometry/gguf_families.h"

namespace weir {
namespace {

// Layers that may stand in a file: decoder and draft layers.
constexpr int64_t kMaxBlocks = 2 * kMaxLayers;

class Reader {
 public:
  Reader(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {
    family_ = find_gguf_family(arch_);
  }

  Result<KvGeometry> run();

 private:
  std::string key(const char* name) const { return arch_ + "." + name; }
  // Nothing if absent; remembers the first error.
  std::optional<int64_t> integer(const char* name);
  // A value for each decoder layer, from a scalar or an array over all blocks.
  std::optional<std::vector<int64_t>> per_layer(const char* name);
  void fail(std::string message) {
    if (status_.ok()) status_ = Status(Code::corrupt, std::move(message));
  }

  void read_size();
  void read_heads();
  void read_window();
  void read_pattern();
  void read_sharing();
  int64_t rotating(int64_t dim) const;
  void add_notes();
  void drop_window(std::string note);

  const GgufFile& file_;
  std::string arch_;
  const GgufFamily* family_ = nullptr;
  GeometryDraft draft_;
  int64_t n_blocks_ = 0;
  Status status_;
};

std::optional<int64_t> Reader::integer(const char* name) {
  const Result<std::optional<int64_t>> value = file_.integer(key(name));
  if (value) return *value;
  if (status_.ok()) status_ = value.error();
  return std::nullopt;
}

std::optional<std::vector<int64_t>> Reader::per_layer(const char* name) {
  const Result<std::optional<std::vector<int64_t>>> value = file_.integers(key(name), kMaxBlocks);
  if (!value) {
    if (status_.ok()) status_ = value.error();
    return std::nullopt;
  }
  if (!*value) return std::nullopt;
  std::vector<int64_t> numbers = **value;
  const size_t n = draft_.layers.size();
  if (!file_.find(key(name))->is_array()) return std::vector<int64_t>(n, numbers[0]);
  if (numbers.size() != n && numbers.size() != static_cast<size_t>(n_blocks_)) {
    fail("metadata key " + quote(key(name)) + " has " + std::to_string(numbers.size()) +
         " elements for " + std::to_string(n_blocks_) + " layers");
    return std::nullopt;
  }
  numbers.resize(n);
  return numbers;
}

void Reader::read_size() {
  draft_.arch = arch_;
  draft_.name = arch_;
  const Result<std::optional<std::string>> name = file_.string("general.name");
  if (name && *name && !(*name)->empty()) draft_.name = **name;
  draft_.max_context = integer("context_length").value_or(0);

  const std::optional<int64_t> blocks = integer("block_count");
  if (!blocks) return fail("the metadata key " + quote(key("block_count")) + " is missing");
  const int64_t drafts = integer("nextn_predict_layers").value_or(0);
  if (*blocks < 1 || *blocks > kMaxBlocks || drafts < 0 || drafts >= *blocks) {
    return fail(quote(key("block_count")) + " is " + std::to_string(*blocks) + " with " +
                std::to_string(drafts) + " draft layers; expected 1 to " +
                std::to_string(kMaxBlocks) + " with fewer draft layers");
  }
  n_blocks_ = *blocks;
  draft_.layers.resize(static_cast<size_t>(*blocks - drafts));
}

void Reader::read_heads() {
  const auto heads = per_layer("attention.head_count");
  if (!status_.ok()) return;
  if (!heads) return fail("the metadata key " + quote(key("attention.head_count")) + " is missing");
  const std::vector<int64_t> kv_heads = per_layer("attention.head_count_kv").value_or(*heads);

  // Without a key, a head takes its share of the embedding.
  int64_t dim = 0;
  for (const int64_t n : *heads) {
    if (n > 0 && dim == 0) dim = integer("embedding_length").value_or(0) / n;
  }
  if (arch_ == "gpt-oss") dim = integer("rope.dimension_count").value_or(dim);
  const int64_t k = integer("attention.key_length").value_or(dim);
  const int64_t v = integer("attention.value_length").value_or(dim);
  const int64_t k_local = integer("attention.key_length_swa").value_or(k);
  const int64_t v_local = integer("attention.value_length_swa").value_or(v);
  for (size_t i = 0; i < draft_.layers.size(); ++i) {
    GeometryDraft::Layer& layer = draft_.layers[i];
    layer.n_heads = (*heads)[i];
    layer.n_kv_heads = kv_heads[i];
    layer.k_dim = layer.is_local ? k_local : k;
    layer.v_dim = layer.is_local ? v_local : v;
  }
}

void Reader::drop_window(std::string note) {
  draft_.window = 0;
  draft_.notes.push_back(std::move(note));
}

void Reader::read_window() {
  using Window = GgufFamily::Window;
  const std::optional<int64_t> in_file = integer("attention.sliding_window");
  if (in_file && *in_file == 0) {
    return drop_window("the file switches the window off: every layer is counted as global");
  }
  draft_.window = in_file.value_or(0);
  if (!family_) return;
  draft_.local_kind = family_->local_kind;
  switch (family_->window_rule) {
    case Window::none:
    case Window::if_present:
      return;
    case Window::required:
      if (!in_file) {
        fail("the metadata key " + quote(key("attention.sliding_window")) + " is missing");
      }
      return;
    case Window::fixed:
      // A chunk length is part of the architecture; the file's key can only switch it off.
      if (!in_file || family_->local_kind == LayerKind::chunked) draft_.window = family_->window;
      return;
  }
}

void Reader::read_pattern() {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const GgufValue* pattern = file_.find(key(kKey));
  if (pattern && pattern->is_array()) {
    const auto local = per_layer(kKey);
    if (!local) return;
    bool any = false;
    for (size_t i = 0; i < local->size(); ++i) {
      draft_.layers[i].is_local = (*local)[i] != 0;
      any |= (*local)[i] != 0;
    }
    draft_.pattern = PatternSource::file;
    if (any && draft_.window == 0 && !file_.find(key("attention.sliding_window"))) {
      fail(quote(key(kKey)) + " names local layers but " + quote(key("attention.sliding_window")) +
           " is missing");
    }
    return;
  }

  const std::string window = std::to_string(draft_.window);
  const std::optional<int64_t> period_in_file = integer(kKey);
  if (!family_ && !period_in_file) {
    draft_.pattern = PatternSource::assumed;
    if (draft_.window > 0) {
      drop_window("weir has no rule for the architecture " + quote(arch_) +
                  " and the file names a window of " + window +
                  " tokens without saying which layers use it: every layer is counted as global");
    }
    return;
  }
  if (family_ && family_->window_rule == GgufFamily::Window::none && !period_in_file) {
    if (draft_.window > 0) {
      drop_window("the file names a window of " + window + " tokens, but " + arch_ +
                  " files do not say which layers use it: every layer is counted as global");
    }
    return;
  }
  if (family_ && family_->only_for_layers != 0 &&
      family_->only_for_layers != static_cast<int64_t>(draft_.layers.size())) {
    draft_.window = 0;
    return;
  }
  const int64_t period = period_in_file.value_or(family_ ? family_->period : 0);
  if (family_ && family_->all_local) {
    // Phi-3's long-context files name a window that no context exceeds.
    if (draft_.max_context > 0 && draft_.window >= draft_.max_context) draft_.window = 0;
  } else if (family_ && family_->period == 0 && !period_in_file) {
    return fail("the metadata key " + quote(key(kKey)) + " is missing");
  }
  if (period < 0) return fail(quote(key(kKey)) + " is " + std::to_string(period));
  if (draft_.window == 0) return;
  draft_.pattern = period_in_file ? PatternSource::file : PatternSource::architecture;
  const bool global_first = family_ && family_->global_first;
  for (size_t i = 0; i < draft_.layers.size(); ++i) {
    // A period of 0 has no global layer, one of 1 no local layer.
    const int64_t at = period == 0 ? 1 : static_cast<int64_t>(i) % period;
    draft_.layers[i].is_local = period == 0 || at != (global_first ? 0 : period - 1);
  }
}

void Reader::read_sharing() {
  const int64_t n = static_cast<int64_t>(draft_.layers.size());
  const int64_t by_rule =
      family_ && family_->n_owners > 0 ? std::max<int64_t>(0, n - family_->n_owners) : 0;
  draft_.n_reusing = integer("attention.shared_kv_layers").value_or(by_rule);

  // Gemma 4: a global layer without a V projection takes V from that of K.
  if (arch_ != "gemma4") return;
  for (size_t i = 0; i < draft_.layers.size(); ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    GeometryDraft::Layer& layer = draft_.layers[i];
    layer.is_projection_shared =
        file_.find_tensor(block + "attn_k.weight") && !file_.find_tensor(block + "attn_v.weight");
    if (layer.is_projection_shared && !layer.is_local) layer.k_rotating = rotating(layer.k_dim);
  }
}

// Elements of a head of `dim` that rotate: the divisors of the others' frequencies are so large
// that no position turns them. 0 if the file does not say, or other pairs than the first rotate.
int64_t Reader::rotating(int64_t dim) const {
  constexpr float kNever = 1e20f;
  const GgufTensor* divisors = file_.find_tensor("rope_freqs.weight");
  const uint64_t pairs = static_cast<uint64_t>(dim / 2);
  if (!divisors || divisors->bytes != pairs * sizeof(float)) return 0;
  std::vector<float> values(pairs);
  std::memcpy(values.data(), file_.data(*divisors).data(), divisors->bytes);
  const auto never = [](float x) { return x >= kNever; };
  const auto first = std::find_if(values.begin(), values.end(), never);
  if (!std::all_of(first, values.end(), never)) return 0;
  return 2 * (first - values.begin());
}

void Reader::add_notes() {
  if (file_.find(key("attention.kv_lora_rank"))) {
    draft_.notes.push_back(
        "the model compresses K and V into one row (MLA); the figures count K and V as the file "
        "names them");
  }
  if (file_.find(key("ssm.state_size")) || file_.find(key("shortconv.l_cache")) ||
      file_.find(key("wkv.head_size"))) {
    draft_.notes.push_back("the model also keeps a recurrent state, which is not counted");
  }
}

Result<KvGeometry> Reader::run() {
  const Result<std::optional<bool>> causal = file_.boolean(key("attention.causal"));
  if (causal && *causal && !**causal) {
    return Status(Code::unsupported,
                  "the model is an encoder (its attention is not causal): it "
                  "has no KV cache that grows with the context");
  }
  read_size();
  if (status_.ok()) read_window();
  if (status_.ok()) read_pattern();
  if (status_.ok()) read_heads();
  if (status_.ok()) read_sharing();
  if (!status_.ok()) return status_;
  add_notes();
  return finish_geometry(std::move(draft_));
}

}  // namespace

Result<KvGeometry> geometry_from_gguf(const GgufFile& file) {
  const Result<std::optional<std::string>> arch = file.string("general.architecture");
  if (!arch) return arch.error();
  if (!*arch || (*arch)->empty()) {
    return Status(Code::corrupt, "the metadata key 'general.architecture' is missing");
  }
  return Reader(file, **arch).run();
}

}  // namespace weir
