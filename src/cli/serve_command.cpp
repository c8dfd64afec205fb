// weir serve: the engine behind an HTTP interface.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>

#include "base/quote.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "engine/evaluator.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"
#include "geometry/geometry_draft.h"
#include "server/api_server.h"

namespace weir {
namespace {

struct ServeOptions {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string host = "127.0.0.1";
  uint16_t port = 8080;
  std::vector<std::string> cors;
  std::string key_file;
  std::string alias;
  int64_t parallel = 64;
  int64_t queue = 64;
  int64_t queue_seconds = 60;
  int64_t grace_seconds = 30;
  int64_t stall_seconds = 60;
  std::string rewind_bound = "auto";
  int64_t max_gap_ms = 500;
  bool overcommit = false;
};

// What a browser sends as Origin: a scheme, a host and maybe a port.
std::string is_origin(const std::string& text) {
  const size_t host = text.find("://");
  if (text == "*" || (host != std::string::npos && host > 0 && text.size() > host + 3 &&
                      text.find('/', host + 3) == std::string::npos)) {
    return "";
  }
  return quote(text) + " is no origin such as https://example.org, nor '*'";
}

// How requests share the engine and what they leave behind.
Status set_sharing(const ServeOptions& options, EngineOptions& engine) {
  engine.max_running = options.parallel;
  engine.overcommit = options.overcommit;
  engine.max_gap = std::chrono::milliseconds(options.max_gap_ms);
  if (options.rewind_bound == "auto") return {};
  const Result<Bytes> tokens = parse_bytes(options.rewind_bound);  // "8k" and "8192" alike
  const bool is_memory = options.rewind_bound.find_first_of("bB") != std::string::npos;
  if (!tokens || is_memory || tokens->v > kMaxTokens)
    return Status(Code::invalid_input, "--rewind-bound is " + quote(options.rewind_bound) +
                                           "; give a number of tokens, or auto");
  engine.rewind_bound = tokens->v;
  return {};
}

// Blocked in every thread from before there are any, and waited for by one.
sigset_t stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

// Graph and attention buffers for steps of `step_tokens`: they grow with a step's tokens, so two
// small steps tell. Also shows that the model computes at all.
Result<Bytes> expected_compute(const Model& model, KvDevice& device, const EngineOptions& options) {
  constexpr int64_t kSecond = 32;
  Result<std::unique_ptr<Evaluator>> evaluator =
      Evaluator::create(model, device, options.kv, options.kv_budget, options.n_threads);
  if (!evaluator) return evaluator.error();
  int64_t bytes[2];
  const int64_t tokens[2] = {1, std::min(kSecond, options.step_tokens)};
  for (int i = 0; i < 2; ++i) {
    (*evaluator)->clear();
    const std::vector<Token> text(static_cast<size_t>(tokens[i]), 0);
    const int32_t last = static_cast<int32_t>(tokens[i]) - 1;
    const auto logits = (*evaluator)->append(text, {&last, 1});
    // A budget that has no room for the second step says nothing about the first.
    if (!logits && (i == 0 || logits.error().code() != Code::over_budget)) return logits.error();
    bytes[i] = (*evaluator)->compute_bytes().v;
  }
  if (tokens[1] == 1) return Bytes{bytes[0]};
  const int64_t per_token = (bytes[1] - bytes[0]) / (tokens[1] - 1);
  return Bytes{bytes[0] + per_token * (options.step_tokens - 1)};
}

std::string describe_bound(int64_t tokens) {
  if (tokens == 0) return "restart points at ends and branches";
  return fmt::format("going back reads at most {} tokens again", tokens);
}

void print_needs(const Model& model, Engine& engine, const EngineOptions& options, Bytes compute) {
  int64_t longest = engine.max_context();
  engine.with_core([&](EngineCore& core) { longest = std::min(longest, core.largest_context()); });
  std::fputs(
      fmt::format("weir: {}\n"
                  "  weights     {:>10}\n"
                  "  KV budget   {:>10}  a conversation has at most {} tokens; {}\n"
                  "  compute    ~{:>10}  steps of at most {} tokens, {} threads\n",
                  model.description(), format_bytes(model.weight_bytes()),
                  format_bytes(options.kv_budget), longest, describe_bound(engine.rewind_bound()),
                  format_bytes(compute), options.step_tokens, options.n_threads)
          .c_str(),
      stderr);
}

// Options that do for this model something else than whoever gave them expects.
void announce_surprises(const ServeOptions& options, const KvGeometry& geometry) {
  std::vector<std::string> lines = options.engine.kv_types.without_effect(geometry);
  const bool has_local = std::ranges::any_of(geometry.layers, [](const KvLayer& layer) {
    return layer.retention.kind != LayerKind::global;
  });
  if (options.rewind_bound != "auto" && !has_local)
    lines.push_back(
        "--rewind-bound has no effect: this model has no local layers, and going back "
        "reads less than a block again");
  if (geometry.max_context > 0 && options.engine.context > geometry.max_context)
    lines.push_back(fmt::format("-c {} is beyond the {} tokens that this model was trained for",
                                options.engine.context, geometry.max_context));
  for (const std::string& line : lines) std::fprintf(stderr, "weir: %s\n", line.c_str());
}

// Until a signal asks to stop, and all is stopped; a second one ends the process where it is.
void serve_until_stopped(ApiServer& server, std::chrono::seconds grace) {
  const sigset_t signals = stop_signals();
  int signal = 0;
  sigwait(&signals, &signal);
  std::fprintf(stderr, "weir: stopping; replies have %lld s to finish\n",
               static_cast<long long>(grace.count()));
  std::future<void> stopped = std::async(std::launch::async, [&] { server.stop(grace); });
  const timespec a_moment{0, 50'000'000};
  while (stopped.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (sigtimedwait(&signals, nullptr, &a_moment) > 0) {
      std::fputs("weir: stopped at once\n", stderr);
      std::_Exit(kWorkFailed);
    }
  }
}

Result<ApiServerOptions> server_options(const ServeOptions& options) {
  ApiServerOptions server;
  server.http.host = options.host;
  server.http.port = options.port;
  server.http.cors_origins = options.cors;
  server.gate.max_running = options.parallel;
  server.gate.max_waiting = options.queue;
  server.gate.max_wait = std::chrono::seconds(options.queue_seconds);
  server.stall_limit = std::chrono::seconds(options.stall_seconds);
  Result<SamplingParams> sampling = options.sampling.sampling();
  if (!sampling) return sampling.error();
  server.openai.sampling = std::move(*sampling);
  server.openai.version = std::string("weir-") + WEIR_VERSION;
  server.openai.model_id = !options.alias.empty()
                               ? options.alias
                               : std::filesystem::path(options.engine.model_path).stem().string();
  if (!options.key_file.empty()) {
    const Result<std::string> text = read_text_file(options.key_file);
    if (!text) return text.error();
    Result<ApiKeys> keys = ApiKeys::parse(*text, options.key_file);
    if (!keys) return keys.error();
    server.keys = std::move(*keys);
  }
  return server;
}

int run(const ServeOptions& options) {
  const sigset_t signals = stop_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  Result<ApiServerOptions> server = server_options(options);
  if (!server) return report(server.error());

  Result<std::unique_ptr<Model>> model =
      Model::load(options.engine.model_path, options.engine.model_options(true));
  if (!model) return report(model.error());
  // Requests that name no others have these.
  SamplingParams sampling = server->openai.sampling;
  sampling.repeat_last_n = std::max(sampling.repeat_last_n, 0);  // the engine knows the context
  if (Result<Sampler> sampler = Sampler::create(sampling, Tokenizer((*model)->vocab())); !sampler) {
    return report(sampler.error());
  }
  Result<EngineOptions> engine_options = options.engine.engine_options(**model);
  if (!engine_options) return report(engine_options.error());
  if (Status s = set_sharing(options, *engine_options); !s.ok()) return report(s);
  if (server->keys) engine_options->tenants = server->keys->tenants();
  engine_options->on_warning = [](const std::string& warning) {
    std::fprintf(stderr, "weir: %s\n", warning.c_str());
  };
  const std::unique_ptr<KvDevice> device = make_cpu_device();
  const Result<Bytes> compute = expected_compute(**model, *device, *engine_options);
  if (!compute) return report(compute.error());
  Result<std::unique_ptr<Engine>> engine = Engine::create(**model, *device, *engine_options);
  if (!engine) return report(engine.error());
  Result<std::unique_ptr<ApiServer>> started =
      ApiServer::start(**model, **engine, std::move(*server));
  if (!started) return report(started.error());
  announce_surprises(options, (*model)->geometry());
  print_needs(**model, **engine, *engine_options, *compute);
  std::printf("listening on %s\n", (*started)->http().url().c_str());
  std::fflush(stdout);
  serve_until_stopped(**started, std::chrono::seconds(options.grace_seconds));
  return kDone;
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App* command = app.add_subcommand("serve", "Serve the model over HTTP, as OpenAI's API");
  constexpr int64_t kMostSeconds = 24 * 3600;
  options->engine.add_to(*command);
  options->sampling.add_to(*command);
  command->add_option("--host", options->host, "Address to listen on")->capture_default_str();
  command->add_option("--port", options->port, "Port to listen on (0: any that is free)")
      ->capture_default_str();
  command->add_option("--alias", options->alias, "Name of the model (default: its file's)");
  command->add_option("--api-key-file", options->key_file,
                      "Keys that may ask, one a line: KEY or NAME:KEY [floor=SIZE] [ceiling=SIZE] "
                      "[admin]");
  command
      ->add_option("--cors", options->cors,
                   "Origin whose web pages may ask; '*' for any (repeatable)")
      ->check(is_origin, "ORIGIN", "");
  command->add_option("--parallel", options->parallel, "Most requests computed at a time")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command
      ->add_option("--rewind-bound", options->rewind_bound,
                   "Tokens that going back to any point of a conversation may read again, while "
                   "there is room for restart points (0: any number)")
      ->capture_default_str();
  command
      ->add_option("--max-gap", options->max_gap_ms,
                   "Milliseconds between tokens of a reply that prompts beside it are cut for (0: "
                   "not cut)")
      ->check(CLI::Range(int64_t{0}, int64_t{3'600'000}))
      ->capture_default_str();
  command->add_flag("--overcommit", options->overcommit,
                    "Let requests in though their replies may not fit; the youngest gives way");
  command->add_option("--queue", options->queue, "Most requests that wait beside those")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  command->add_option("--queue-timeout", options->queue_seconds, "Longest wait, in seconds")
      ->check(CLI::Range(int64_t{1}, kMostSeconds))
      ->capture_default_str();
  command
      ->add_option("--grace", options->grace_seconds,
                   "Seconds for replies to finish when asked to stop")
      ->check(CLI::Range(int64_t{0}, kMostSeconds))
      ->capture_default_str();
  command
      ->add_option("--health-timeout", options->stall_seconds,
                   "Seconds with work but no finished step after which /health fails")
      ->check(CLI::Range(int64_t{1}, kMostSeconds))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace weir
