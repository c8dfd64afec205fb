// weir run: a prompt in, a reply out.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/kv_picture.h"
#include "cli/options.h"

namespace weir {
namespace {

struct RunOptions {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt, file;
  int64_t max_new = -1;
  std::vector<std::string> stop;
  bool ignore_end = false;
  bool as_json = false;
};

nlohmann::json to_json(const Reply& reply, const KvForecast& plan, Bytes peak, Bytes budget) {
  return {{"text", reply.text},
          {"tokens", reply.tokens},
          {"finish_reason", finish_reason_name(reply.reason)},
          {"usage",
           {{"prompt_tokens", reply.usage.prompt_tokens},
            {"cached_tokens", reply.usage.cached_tokens},
            {"completion_tokens", reply.usage.completion_tokens}}},
          {"timings",
           {{"ttft_ms", reply.timings.ttft_ms},
            {"prefill_tps", reply.timings.prefill_tps()},
            {"decode_tps", reply.timings.decode_tps()}}},
          {"kv",
           {{"tokens", reply.kv_tokens},
            {"resident_bytes", reply.kv.resident().v},
            {"peak_bytes", peak.v},
            {"global_bytes", reply.kv.global.v},
            {"local_bytes", reply.kv.local.v},
            {"planned_bytes", plan.planned.v},
            {"uniform_bytes", plan.uniform.v},
            {"budget_bytes", budget.v}}}};
}

void print_summary(const Reply& reply, const KvForecast& plan, Bytes peak) {
  std::fputs(fmt::format("\n[{}] {} prompt + {} reply tokens; prompt {:.1f} tokens/s, reply {:.1f} "
                         "tokens/s\n[kv] resident {}, planned {}, peak {}, uniform {}\n",
                         finish_reason_name(reply.reason), reply.usage.prompt_tokens,
                         reply.usage.completion_tokens, reply.timings.prefill_tps(),
                         reply.timings.decode_tps(), format_bytes(reply.kv.resident()),
                         format_bytes(plan.planned), format_bytes(peak), format_bytes(plan.uniform))
                 .c_str(),
             stderr);
}

int run(const RunOptions& options) {
  if (options.prompt.empty() == options.file.empty()) {
    return report(Status(Code::invalid_input, "give a prompt with either -p TEXT or -f FILE"));
  }
  std::string prompt = options.prompt;
  if (!options.file.empty()) {
    Result<std::string> text = read_text_file(options.file);
    if (!text) return report(text.error());
    prompt = std::move(*text);
    if (prompt.empty())
      return report(Status(Code::invalid_input, "'" + options.file + "' is empty"));
  }
  Result<SamplingParams> sampling = options.sampling.sampling();
  if (!sampling) return report(sampling.error());
  Result<LoadedEngine> loaded = load_engine(options.engine, true);
  if (!loaded) return report(loaded.error());

  Request request;
  Result<std::vector<Token>> tokens = loaded->engine->tokenizer().tokenize(prompt, true, true);
  if (!tokens) return report(tokens.error());
  request.prompt = std::move(*tokens);
  request.max_new_tokens = options.max_new;
  request.sampling = std::move(*sampling);
  request.stop = options.stop;
  request.ignore_end = options.ignore_end;

  RequestEvents events;
  if (!options.as_json) {
    events.on_token = [](const TokenEvent& event) {
      std::fwrite(event.text.data(), 1, event.text.size(), stdout);
      std::fflush(stdout);
    };
  }
  const Reply reply = run_interruptibly(*loaded->engine, std::move(request), std::move(events));
  if (reply.reason == FinishReason::failed) return report(reply.error);

  Bytes peak, budget;
  KvForecast plan;
  loaded->engine->with_core([&](EngineCore& core) {
    peak = core.budget().peak();
    budget = core.budget().limit();
    plan = forecast_kv(loaded->model->geometry(), core.cache().layout().format, reply.kv_tokens);
  });
  if (options.as_json) {
    std::puts(to_json(reply, plan, peak, budget).dump().c_str());
  } else {
    print_summary(reply, plan, peak);
  }
  return reply.reason == FinishReason::cancelled ? kWorkFailed : kDone;
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  options->engine.reuse = false;  // one request: nothing comes back
  CLI::App* command = app.add_subcommand("run", "Continue a prompt and show what its KV cost");
  options->engine.add_to(*command);
  options->sampling.add_to(*command);
  command->add_option("-p,--prompt", options->prompt, "The prompt");
  command->add_option("-f,--file", options->file, "File with the prompt (-: standard input)");
  command->add_option("-n,--predict", options->max_new, "Most tokens to generate (-1: no limit)")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  command->add_option("--stop", options->stop, "Text that ends the reply (repeatable)");
  command->add_flag("--ignore-eos", options->ignore_end, "Go on after an end-of-turn token");
  command->add_flag("--json", options->as_json, "Print one JSON object instead of the text");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace weir
