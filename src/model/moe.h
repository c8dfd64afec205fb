#pragma once

#include <cstdint>
#include <string>

struct ggml_context;
struct ggml_tensor;

namespace weir {

class SynthFile;
class WeightLoader;

// Mixture of experts: a router picks a few experts for each token, and their outputs are summed.

// What turns router logits into probabilities.
enum class Gating : uint8_t {
  softmax,            // over all experts
  sigmoid,            // each expert by itself
  softmax_of_chosen,  // experts are chosen by logit; softmax over the chosen logits only
  sqrt_softplus,      // sqrt(ln(1 + e^x)), each expert by itself
};

struct Router {
  Gating gating = Gating::softmax;
  int64_t n_expert = 0, n_used = 0;
  bool by_logit = false;               // choose by logit whatever the gating (Llama 4)
  bool normalize = false;              // the chosen weights sum to one
  float scale = 1.0f;                  // of the weights, after that
  ggml_tensor* weight = nullptr;       // [n_embd, n_expert]
  ggml_tensor* bias = nullptr;         // [n_expert], on the logits; may be null
  ggml_tensor* choice_bias = nullptr;  // [n_expert], on the probabilities, for the choice only
};

// The choice for each token.
struct Routing {
  ggml_tensor* experts = nullptr;  // i32 [n_used, n_tokens]
  ggml_tensor* weights = nullptr;  // f32 [1, n_used, n_tokens]
};

enum class ExpertActivation : uint8_t {
  silu,
  gelu,  // the tanh form
  relu,
  // gpt-oss: g = min(gate, 7); g * sigmoid(1.702 g) * (clamp(up, -7, 7) + 1)
  clamped_swiglu,
};

struct Experts {
  ExpertActivation activation = ExpertActivation::silu;
  float limit = 0;  // silu: silu(gate) is at most this, up within +-this; 0: no limit
  // [in, out, n_expert]. gate_up holds gate's rows, then up's; it replaces the other two.
  ggml_tensor *gate_up = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  ggml_tensor *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // [out, n_expert]
  ggml_tensor* down_scale = nullptr;  // [n_expert]: a factor on each expert's output
};

// Where a token's weights act: on the experts' outputs, or on what they are given.
enum class WeightSide : uint8_t { output, input };

// logits: f32 [n_expert, n_tokens].
Routing route(ggml_context* ctx, const Router& router, ggml_tensor* logits);
// min(silu(gate), limit) * clamp(up, -limit, limit)
ggml_tensor* limited_swiglu(ggml_context* ctx, ggml_tensor* gate, ggml_tensor* up, float limit);
// act(gate x) * up x; both [n_ff, ...].
ggml_tensor* gated(ggml_context* ctx, const Experts& experts, ggml_tensor* gate, ggml_tensor* up);
// The weighted sum of the chosen experts' outputs; x and it: f32 [n_embd, n_tokens].
ggml_tensor* apply_experts(ggml_context* ctx, const Experts& experts, const Routing& routing,
                           ggml_tensor* x, WeightSide side = WeightSide::output);

// --- keys and tensors ---------------------------------------------------------------------------

// Reads expert_count, expert_used_count, expert_gating_func (`gating` where the file has none),
// expert_weights_scale and expert_weights_norm. No tensors.
Router read_router(WeightLoader& w, Gating gating);
// Adds the tensors that a layer's router and experts have: those named `block`ffn_*. `bias` says
// whether router and experts have biases.
void read_router_weight(WeightLoader& w, const std::string& block, int64_t n_embd, bool bias,
                        Router& router);
Experts read_experts(WeightLoader& w, const std::string& block, int64_t n_embd, int64_t n_ff,
                     int64_t n_expert, bool bias);

// Lists the same tensors, gate and up apart, in a synthetic model.
struct SynthExperts {
  int64_t n_embd = 0, n_ff = 0, n_expert = 0;
  float gain = 1;            // of gate and up; 1 keeps lengths
  float bias = 0;            // deviation of the biases of gate and up; 0: no biases at all
  bool choice_bias = false;  // exp_probs_b
};
void synthesize_experts(SynthFile& file, const std::string& block, const SynthExperts& experts);

}  // namespace weir
