#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/tokenizer.h"
#include "kv/budget.h"
#include "kv/kv_cache.h"
#include "model/model.h"

namespace weir {

// Reads one sequence of tokens and gives every logit asked for: what verify, perplexity and bench
// are made of. No scheduling, no sampling.
class Evaluator {
 public:
  // Errors: invalid_input, io_error.
  static Result<std::unique_ptr<Evaluator>> create(const Model& model, KvDevice& device,
                                                   const KvFormat& format, Bytes budget,
                                                   int n_threads);

  // Appends `tokens` in one step. `output_rows` are indices into `tokens`, ascending; the result
  // has one row of n_vocab logits for each and is valid until the next call. Errors: over_budget
  // (nothing changed), internal.
  Result<std::span<const float>> append(std::span<const Token> tokens,
                                        std::span<const int32_t> output_rows);
  // The same in steps of at most `step_tokens`; `on_rows` gets the logits of each step's wanted
  // rows: index of the first row in `tokens`, and the rows. With `all_rows` every row is wanted,
  // else only the very last.
  Status read(std::span<const Token> tokens, int64_t step_tokens, bool all_rows,
              const std::function<void(int64_t first, std::span<const float> rows)>& on_rows);

  void clear();
  int64_t length() const { return cache_->length(seq_); }
  KvCache& cache() { return *cache_; }
  SeqId sequence() const { return seq_; }
  const Budget& budget() const { return budget_; }
  Bytes compute_bytes() const { return executor_.compute_bytes(); }

 private:
  Evaluator(const Model& model, KvDevice& device, Bytes budget, int n_threads);

  const Model& model_;
  Budget budget_;
  std::unique_ptr<KvCache> cache_;
  Executor executor_;
  SeqId seq_{};
  std::vector<float> logits_;
};

}  // namespace weir
