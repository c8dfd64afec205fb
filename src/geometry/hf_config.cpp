#include "geometry/hf_config.h"

#include <algorithm>

#include "base/quote.h"
#include "geometry/geometry_draft.h"
#include "geometry/hf_families.h"
#include "geometry/hf_json.h"

namespace weir {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEntries = 2 * static_cast<size_t>(kMaxLayers);

// Layers named in layer_types.
enum class NamedKind { global, sliding, chunked, without_kv, unknown };

NamedKind kind_of(std::string_view name) {
  if (name == "full_attention" || name == "global_attention" || name == "attention") {
    return NamedKind::global;
  }
  if (name == "sliding_attention" || name == "sliding_window_attention" ||
      name == "local_attention") {
    return NamedKind::sliding;
  }
  if (name == "chunked_attention") return NamedKind::chunked;
  for (const char* state : {"mamba", "linear", "conv", "recurrent", "ssm"}) {
    if (name.find(state) != std::string_view::npos) return NamedKind::without_kv;
  }
  return NamedKind::unknown;
}

class Reader {
 public:
  Reader(const Json& config, std::string model_type)
      : fields_(config, status_),
        model_type_(std::move(model_type)),
        family_(find_hf_family(model_type_)) {}

  Result<KvGeometry> run();

 private:
  Status refused() const;
  void read_size();
  void read_window();
  void read_pattern();
  bool read_layer_types();
  void read_flags(std::string_view key);
  void read_period();
  void read_heads();
  void override_layers();
  int64_t global_rotating(int64_t dim) const;
  void drop_window(std::string note);
  void fail(std::string message) {
    if (status_.ok()) status_ = Status(Code::corrupt, std::move(message));
  }
  int64_t integer_or(std::string_view key, int64_t otherwise) const {
    return fields_.integer(key).value_or(otherwise);
  }
  size_t n_layers() const { return draft_.layers.size(); }

  Status status_;
  JsonFields fields_;
  std::string model_type_;
  const HfFamily* family_;
  GeometryDraft draft_;
  bool is_window_off_ = false;      // by the file
  bool is_window_default_ = false;  // the library's, not the file's
  std::vector<bool> without_kv_;
};

// Models whose KV is not one K and one V row a layer and head.
Status Reader::refused() const {
  const auto unsupported = [](const char* why) { return Status(Code::unsupported, why); };
  if (fields_.find("kv_lora_rank")) {
    return unsupported(
        "the model compresses K and V into one row (kv_lora_rank, MLA), which weir cannot plan");
  }
  const Json* both_ways = fields_.find("use_bidirectional_attention");
  const Json* encoder = fields_.find("is_encoder_decoder");
  if ((both_ways && (*both_ways == "all" || *both_ways == true)) || (encoder && *encoder == true)) {
    return unsupported("the model is an encoder or has one: its attention is not causal");
  }
  return {};
}

void Reader::read_size() {
  draft_.arch = family_ ? std::string(family_->gguf_arch) : model_type_;
  draft_.name = model_type_.empty() ? "unnamed" : model_type_;
  const std::optional<std::string> name = fields_.string("_name_or_path");
  if (name && !name->empty()) draft_.name = *name;
  draft_.max_context = integer_or("max_position_embeddings",
                                  integer_or("max_seq_len", integer_or("max_sequence_length", 0)));
  const std::optional<int64_t> layers = fields_.integer("num_hidden_layers");
  if (!status_.ok()) return;
  if (!layers) return fail("the config has no 'num_hidden_layers'");
  if (*layers < 1 || *layers > kMaxLayers) {
    return fail("the config's 'num_hidden_layers' is " + std::to_string(*layers) +
                "; expected 1 to " + std::to_string(kMaxLayers));
  }
  draft_.layers.resize(static_cast<size_t>(*layers));
  without_kv_.resize(n_layers());
}

void Reader::drop_window(std::string note) {
  draft_.window = 0;
  draft_.notes.push_back(std::move(note));
}

void Reader::read_window() {
  if (family_) draft_.local_kind = family_->local_kind;
  const bool is_chunked = draft_.local_kind == LayerKind::chunked;
  const char* key = is_chunked                           ? "attention_chunk_size"
                    : fields_.has("sliding_window")      ? "sliding_window"
                    : fields_.has("sliding_window_size") ? "sliding_window_size"
                                                         : "sliding_window";
  const std::optional<int64_t> in_file = fields_.integer(key);
  if (in_file && *in_file < 0) {
    return fail("the config's " + quote(key) + " is " + std::to_string(*in_file));
  }
  const bool is_unused = fields_.boolean("use_sliding_window") == false && !is_chunked;
  is_window_off_ = fields_.is_null(key) || in_file == 0 || is_unused;
  if (is_window_off_) {
    if (in_file)
      drop_window("the config switches the window off: every layer is counted as global");
    return;
  }
  draft_.window = in_file.value_or(family_ ? family_->window : 0);
  is_window_default_ = !in_file && draft_.window > 0;
}

// True if the file names each layer's kind.
bool Reader::read_layer_types() {
  const char* key = fields_.find("layer_types") ? "layer_types" : "layers_block_type";
  const auto names = fields_.strings(key, kMaxEntries);
  if (!names || !status_.ok()) return !status_.ok();
  if (names->size() < n_layers()) {
    fail("the config's " + quote(key) + " names " + std::to_string(names->size()) + " of " +
         std::to_string(n_layers()) + " layers");
    return true;
  }
  bool has_sliding = false, has_chunked = false;
  std::string unknown;
  for (size_t i = 0; i < n_layers(); ++i) {  // draft layers may follow
    const NamedKind kind = kind_of((*names)[i]);
    has_sliding |= kind == NamedKind::sliding;
    has_chunked |= kind == NamedKind::chunked;
    without_kv_[i] = kind == NamedKind::without_kv;
    draft_.layers[i].is_local = kind == NamedKind::sliding || kind == NamedKind::chunked;
    if (kind == NamedKind::unknown) unknown = (*names)[i];
  }
  draft_.pattern = PatternSource::file;
  if (!unknown.empty()) {
    draft_.notes.push_back("weir does not know layers of the type " + quote(unknown) +
                           ": they are counted as global");
  }
  if (std::find(without_kv_.begin(), without_kv_.end(), true) != without_kv_.end()) {
    draft_.notes.push_back("the model also keeps a recurrent state, which is not counted");
  }
  if (has_sliding && has_chunked) {
    status_ = Status(Code::unsupported, "the model has both sliding and chunked layers");
  } else if (has_chunked && draft_.local_kind != LayerKind::chunked) {
    draft_.local_kind = LayerKind::chunked;
    draft_.window = integer_or("attention_chunk_size", 0);
    is_window_off_ = fields_.is_null("attention_chunk_size");
  } else if (has_sliding && draft_.local_kind == LayerKind::chunked) {
    draft_.local_kind = LayerKind::sliding;
    draft_.window = integer_or("sliding_window", 0);
  }
  if ((has_sliding || has_chunked) && draft_.window == 0 && !is_window_off_) {
    fail("the config's " + quote(key) + " names local layers but there is no " +
         (has_chunked ? "'attention_chunk_size'" : "'sliding_window'"));
  }
  return true;
}

void Reader::read_flags(std::string_view key) {
  const auto flags = fields_.integers(key, kMaxEntries);
  if (!flags) return;
  if (flags->size() < n_layers()) {
    return fail("the config's " + quote(key) + " names " + std::to_string(flags->size()) + " of " +
                std::to_string(n_layers()) + " layers");
  }
  draft_.pattern = PatternSource::file;
  for (size_t i = 0; i < n_layers(); ++i) draft_.layers[i].is_local = (*flags)[i] != 0;
}

// A period as a number p (the last of p layers is global) or as letters, L local and G global.
void Reader::read_period() {
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern"}) {
    const Json* pattern = fields_.find(key);
    if (!pattern || !pattern->is_string()) continue;
    const std::string letters = pattern->get<std::string>();
    if (letters.empty() || letters.find_first_not_of("LG") != std::string::npos) {
      return fail("the config's " + quote(key) + " is " + quote(letters) +
                  " instead of a number or letters L and G");
    }
    draft_.pattern = PatternSource::file;
    for (size_t i = 0; i < n_layers(); ++i) {
      draft_.layers[i].is_local = letters[i % letters.size()] == 'L' && i + 1 < n_layers();
    }
    return;
  }
  const bool known = family_ && family_->locals == HfFamily::Locals::period;
  int64_t period = known ? family_->period : 0;
  for (const char* key : {"sliding_window_pattern", "_sliding_window_pattern",
                          "global_attn_every_n_layers", "no_rope_layer_interval"}) {
    // The last key speaks of rope; only where chunked layers are the rotating ones of windows too.
    if (key[0] == 'n' && draft_.local_kind != LayerKind::chunked) continue;
    const std::optional<int64_t> in_file = fields_.integer(key);
    if (!in_file) continue;
    if (*in_file < 0) return fail("the config's " + quote(key) + " is negative");
    period = *in_file;
    draft_.pattern = PatternSource::file;
  }
  if (period == 0 && !known) {
    if (!family_) draft_.pattern = PatternSource::assumed;
    if (draft_.window > 0) {
      drop_window((family_ ? "the config"
                           : "weir has no rule for the model type " + quote(model_type_) +
                                 " and the config") +
                  " names a window of " + std::to_string(draft_.window) +
                  " tokens without saying which layers use it: every layer is counted as global");
    }
    return;
  }
  for (size_t i = 0; i < n_layers(); ++i) {
    draft_.layers[i].is_local = period > 0 && (static_cast<int64_t>(i) + 1) % period != 0;
  }
}

void Reader::read_pattern() {
  using Locals = HfFamily::Locals;
  const Locals locals = family_ ? family_->locals : Locals::none;
  if (read_layer_types()) {
  } else if (family_ && !family_->flags_key.empty() && fields_.find(family_->flags_key)) {
    read_flags(family_->flags_key);
  } else if (!family_ && fields_.find("sliding_window_layout")) {
    read_flags("sliding_window_layout");
  } else if (!family_ && fields_.find("hybrid_layer_pattern")) {
    read_flags("hybrid_layer_pattern");
  } else if (locals == Locals::all) {
    for (GeometryDraft::Layer& layer : draft_.layers) layer.is_local = true;
  } else if (locals == Locals::from_layer) {
    const int64_t first = integer_or("max_window_layers", 28);
    const bool is_used = fields_.boolean("use_sliding_window").value_or(false);
    for (size_t i = 0; is_used && i < n_layers(); ++i) {
      draft_.layers[i].is_local = static_cast<int64_t>(i) >= first;
    }
  } else {
    read_period();
  }
  if (family_ && family_->last_is_global) draft_.layers.back().is_local = false;
  const bool has_local = std::any_of(draft_.layers.begin(), draft_.layers.end(),
                                     [](const auto& layer) { return layer.is_local; });
  if (is_window_default_ && has_local && draft_.window > 0) {
    draft_.notes.push_back("the config names no window: the library's default of " +
                           std::to_string(draft_.window) + " tokens is used");
  }
}

void Reader::read_heads() {
  const int64_t heads = integer_or("num_attention_heads", family_ ? family_->n_heads : 0);
  const int64_t kv_default = family_ && family_->n_kv_heads ? family_->n_kv_heads : heads;
  const int64_t kv =
      integer_or("num_key_value_heads", integer_or("num_attention_groups", kv_default));
  int64_t dim = family_ ? family_->head_dim : 0;
  if (dim == 0 && heads > 0) dim = integer_or("hidden_size", 0) / heads;
  dim = integer_or("head_dim", dim);
  const int64_t v_dim = integer_or("v_head_dim", dim);
  if (!status_.ok()) return;
  if (heads < 1) return fail("the config has no 'num_attention_heads'");

  // Gemma 4: global layers are wider and, where K and V are one projection, have their own count.
  const bool k_eq_v = fields_.boolean("attention_k_eq_v").value_or(false);
  const int64_t wide = integer_or("global_head_dim", family_ ? family_->global_head_dim : 0);
  const bool is_wide = wide > 0 && !fields_.find("per_layer_config");
  const int64_t kv_global = k_eq_v ? integer_or("num_global_key_value_heads", kv) : kv;

  // MiMo and Step: local layers have a set of their own.
  const Json none = Json::object();
  const Json* other = fields_.find("attention_other_setting");
  const JsonFields local(other && other->is_object() ? *other : none, status_);
  const auto of_local = [&](const char* swa_key, const char* key, int64_t otherwise) {
    return integer_or(swa_key, local.integer(key).value_or(otherwise));
  };
  const int64_t local_heads = of_local("swa_num_attention_heads", "num_attention_heads", heads);
  const int64_t local_kv = of_local("swa_num_key_value_heads", "num_attention_groups", kv);
  const int64_t local_dim = of_local("swa_head_dim", "head_dim", dim);
  const int64_t local_v = integer_or("swa_v_head_dim", local_dim == dim ? v_dim : local_dim);
  for (GeometryDraft::Layer& layer : draft_.layers) {
    if (layer.is_local) {
      layer.n_heads = local_heads;
      layer.n_kv_heads = local_kv;
      layer.k_dim = local_dim;
      layer.v_dim = local_v;
    } else {
      layer.n_heads = heads;
      layer.n_kv_heads = kv_global;
      layer.k_dim = is_wide ? wide : dim;
      layer.v_dim = is_wide ? wide : v_dim;
      layer.is_projection_shared = k_eq_v;
    }
  }
  override_layers();
  for (GeometryDraft::Layer& layer : draft_.layers) {
    if (layer.is_projection_shared) layer.k_rotating = global_rotating(layer.k_dim);
  }
  for (size_t i = 0; i < n_layers(); ++i) {
    if (without_kv_[i]) draft_.layers[i].n_kv_heads = 0;
  }
  draft_.n_reusing = integer_or("num_kv_shared_layers", family_ ? family_->n_reusing : 0);
}

// Elements of a global layer's K row that rotate. A quarter unless the config says otherwise.
int64_t Reader::global_rotating(int64_t dim) const {
  constexpr double kUsual = 0.25;
  double share = kUsual;
  if (const Json* rope = fields_.find("rope_parameters"); rope && rope->is_object()) {
    const auto global = rope->find("full_attention");
    if (global != rope->end() && global->is_object() && global->contains("partial_rotary_factor")) {
      const Json& factor = global->at("partial_rotary_factor");
      share = factor.is_number() ? factor.get<double>() : 0.0;
    }
  }
  return share > 0 && share <= 1 ? 2 * static_cast<int64_t>(share * static_cast<double>(dim) / 2)
                                 : 0;
}

void Reader::override_layers() {
  if (const auto heads = fields_.integers("num_attention_heads_per_layer", kMaxEntries)) {
    if (heads->size() < n_layers()) return fail("'num_attention_heads_per_layer' is too short");
    for (size_t i = 0; i < n_layers(); ++i) draft_.layers[i].n_heads = (*heads)[i];
  }
  const Json* per_layer = fields_.find("per_layer_config");
  if (!per_layer) return;
  for (size_t i = 0; i < n_layers(); ++i) {
    const auto found = per_layer->find(std::to_string(i));
    if (!per_layer->is_object() || found == per_layer->end() || !found->is_object()) continue;
    const JsonFields layer(*found, status_);
    GeometryDraft::Layer& to = draft_.layers[i];
    to.n_kv_heads = layer.integer("num_key_value_heads").value_or(to.n_kv_heads);
    to.k_dim = layer.integer("head_dim").value_or(to.k_dim);
    to.v_dim = layer.integer("head_dim").value_or(to.v_dim);
  }
}

Result<KvGeometry> Reader::run() {
  if (Status s = refused(); !s.ok()) return s;
  read_size();
  if (status_.ok()) read_window();
  if (status_.ok()) read_pattern();
  if (status_.ok()) read_heads();
  if (!status_.ok()) return status_;
  return finish_geometry(std::move(draft_));
}

// The text model inside a multimodal config, or the config itself.
const Json& text_config(const Json& config, std::string& model_type) {
  const Json* at = &config;
  const auto named = [&](const Json& object) {
    const auto type = object.find("model_type");
    if (type != object.end() && type->is_string()) model_type = type->get<std::string>();
  };
  named(config);
  for (int depth = 0; depth < 4; ++depth) {
    const Json* inner = nullptr;
    for (const char* key : {"text_config", "llm_config", "language_config", "thinker_config",
                            "language_model_config"}) {
      const auto found = at->find(key);
      if (!inner && found != at->end() && found->is_object()) inner = &*found;
    }
    if (!inner) break;
    if (at->contains("num_hidden_layers") && !inner->contains("num_hidden_layers")) break;
    at = inner;
    named(*at);
  }
  return *at;
}

}  // namespace

Result<KvGeometry> geometry_from_hf_config(std::string_view json) {
  try {
    const Result<Json> config = parse_untrusted_json(json);
    if (!config) return config.error();
    std::string model_type;
    const Json& text = text_config(*config, model_type);
    return Reader(text, model_type).run();
  } catch (const Json::exception&) {
    return Status(Code::corrupt, "the config holds a value of an unexpected type");
  }
}

}  // namespace weir
