#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>

#include "base/quote.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "geometry/geometry_draft.h"
#include "plan/plan_report.h"

namespace weir {
namespace {

struct PlanArguments {
  std::string model;
  std::vector<std::string> contexts;
  KvTypeOptions types;
  std::string budget, ubatch = "512", svg, html;
  int64_t parallel = 1, idle = 0;
  std::string rewind_bound = "1024";
  bool is_json = false;
};

Result<int64_t> parse_tokens(const std::string& text, const char* what) {
  const Result<Bytes> n = parse_bytes(text);  // "8k" and "8192" alike
  if (!n || n->v < 1 || n->v > kMaxTokens) {
    return Status(Code::invalid_input, std::string(what) + " is " + quote(text) +
                                           "; give a number of tokens, 1 to " +
                                           std::to_string(kMaxTokens) + ", for example 8192 or 8k");
  }
  return n->v;
}

Result<PlanOptions> parse_options(const PlanArguments& a) {
  PlanOptions options;
  Result<std::vector<KvFormat>> formats = a.types.formats(KvFormat().block_tokens);
  if (!formats) return formats.error();
  options.formats = std::move(*formats);
  for (const std::string& text : a.contexts) {
    const Result<int64_t> n = parse_tokens(text, "--context");
    if (!n) return n.error();
    options.contexts.push_back(*n);
  }
  const Result<int64_t> ubatch = parse_tokens(a.ubatch, "-ub");
  if (!ubatch) return ubatch.error();
  options.ubatch = *ubatch;
  options.parallel = a.parallel;
  options.idle = a.idle;
  options.rewind_bound = 0;
  if (a.rewind_bound != "0") {
    const Result<int64_t> bound = parse_tokens(a.rewind_bound, "--rewind-bound");
    if (!bound) return bound.error();
    options.rewind_bound = *bound;
  }
  if (!a.budget.empty()) {
    const Result<Bytes> budget = parse_bytes(a.budget);
    if (!budget) return budget.error();
    options.budget = *budget;
  }
  return options;
}

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (out) return {};
  return Status(Code::io_error, "cannot write " + quote(path));
}

Status run_plan(const PlanArguments& arguments) {
  const Result<PlanOptions> options = parse_options(arguments);
  if (!options) return options.error();
  Result<ModelSource> source = open_model_source(arguments.model);
  if (!source) return source.error();
  const Result<PlanReport> report = make_plan_report(std::move(*source), *options);
  if (!report) return report.error();
  if (!arguments.svg.empty()) {
    if (Status s = write_file(arguments.svg, plan_svg(*report)); !s.ok()) return s;
  }
  if (!arguments.html.empty()) {
    if (Status s = write_file(arguments.html, plan_html(*report)); !s.ok()) return s;
  }
  std::cout << (arguments.is_json ? plan_json(*report) : plan_text(*report)) << std::flush;
  if (!std::cout) return Status(Code::io_error, "cannot write to standard output");
  return {};
}

}  // namespace

void add_plan_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<PlanArguments>();
  CLI::App* plan =
      app.add_subcommand("plan", "What a model's KV takes at any context, to the byte");
  plan->add_option("model", a->model, "a GGUF file, a config.json, or a built-in id")
      ->required()
      ->type_name("MODEL");
  plan->add_option("--context", a->contexts, "context length, for example 8192 or 32k; repeatable")
      ->type_name("N")
      ->allow_extra_args(false);
  a->types.add_to(*plan, true);
  plan->add_option("--kv-budget", a->budget, "what fits in this, for example 8GiB")
      ->type_name("SIZE");
  plan->add_option("--ubatch,--ub", a->ubatch, "most tokens of a step (default 512)")
      ->type_name("N");
  plan->add_option("--parallel", a->parallel, "conversations of that length at once (default 1)")
      ->type_name("N");
  plan->add_option("--idle", a->idle, "more conversations that are kept and do not run (default 0)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{0}, kMaxSequences));
  plan->add_option("--rewind-bound", a->rewind_bound,
                   "tokens that going back to any point may read again (default 1024; 0: any)")
      ->type_name("N");
  plan->add_flag("--json", a->is_json, "JSON instead of a table");
  plan->add_option("--svg", a->svg, "also write the growth curves")->type_name("FILE");
  plan->add_option("--html", a->html, "also write a page with table and curves")->type_name("FILE");
  plan->callback([a, &exit_code] {
    const Status s = run_plan(*a);
    if (!s.ok()) std::cerr << "weir plan: " << s.message() << "\n";
    exit_code = exit_code_of(s);
  });
}

}  // namespace weir
