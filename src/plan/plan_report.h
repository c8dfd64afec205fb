#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "geometry/growth.h"
#include "geometry/model_source.h"
#include "plan/kv_plan.h"
#include "plan/rewind_plan.h"

namespace weir {

struct PlanOptions {
  // At least one; the first is the main one. The planner chooses the block length.
  std::vector<KvFormat> formats = {{}};
  std::vector<int64_t> contexts;  // empty: doubling from 4096 to the model's largest
  int64_t ubatch = 512;
  int64_t parallel = 1;         // conversations of that length at once
  int64_t idle = 0;             // more of them that are kept and do not run
  int64_t rewind_bound = 1024;  // most tokens to read again after going back; 0: no restart points
  std::optional<Bytes> budget;  // over all KV
};

// One context length. Figures are for all `parallel` conversations.
struct PlanRow {
  int64_t context = 0;
  KvPlan plan;          // what the engine takes: whole blocks
  Bytes global, local;  // row by row, windows exact
  Bytes uniform;        // row by row, if every layer kept the whole context
  Bytes readable;       // rows that the next token reads: what no store can do without
  Bytes exact() const { return global + local; }
  RewindPlan rewind;     // of one conversation
  Bytes restart_points;  // of all of them, running and idle
  Bytes idle;            // the idle ones, without their restart points
  Bytes kept() const { return plan.total() + restart_points + idle; }
  double ratio() const;        // plan.resident / uniform
  double exact_ratio() const;  // exact / uniform
};

struct PlanCapacity {
  Bytes budget;
  int64_t most_tokens = 0;    // longest context of `parallel` conversations; -1: none
  bool is_unlimited = false;  // windows only: any length fits
  struct Count {
    int64_t context = 0, conversations = 0;
  };
  std::vector<Count> counts;  // of conversations of the reported contexts
};

// What storing K and V of one projection once does to the layers of a model.
struct PlanSharing {
  int n_layers = 0;  // that store K and V once
  int n_kv_heads = 0, k_dim = 0, v_dim = 0, k_stored = 0;
  Bytes per_token, separate_per_token;  // of these layers
};

struct TypeReport {
  KvFormat format;
  std::optional<PlanSharing> sharing;
  KvGrowth growth;
  std::vector<PlanRow> rows;
  std::optional<PlanCapacity> capacity;
};

// Everything that `weir plan` prints, in whichever form.
struct PlanReport {
  ModelSource source;
  PlanOptions options;
  int block_tokens = 0;
  std::vector<TypeReport> types;  // in the order of options.formats

  const KvGeometry& geometry() const { return source.geometry; }
  const TypeReport& main() const { return types.front(); }
};

// Errors: invalid_input if a context, ubatch or parallel is out of range or a type cannot store a
// layer's rows.
Result<PlanReport> make_plan_report(ModelSource source, PlanOptions options);

// For people, in a terminal. Ends with a line feed.
std::string plan_text(const PlanReport& report);
// The contract's fields and more, for programs.
std::string plan_json(const PlanReport& report);
// Growth curves of the main type: global, local, total and uniform, with the crossover marked.
std::string plan_svg(const PlanReport& report);
// A page of its own with chart and tables.
std::string plan_html(const PlanReport& report);

// "8192" as "8k", "1572864" as "1.5M"; what is not a multiple of 1024 in full.
std::string short_tokens(int64_t tokens);

}  // namespace weir
