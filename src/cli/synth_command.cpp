#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "cli/commands.h"
#include "geometry/model_source.h"
#include "model/synth.h"
#include "model/synth_config.h"

namespace weir {
namespace {

struct SynthArguments {
  std::string like, output;
  SynthOptions options;
};

// A built-in id, or a config.json.
Result<ModelFacts> facts_like(const std::string& like) {
  Result<ModelSource> source = open_model_source(like);
  if (!source) return source.error();
  if (source->kind == ModelSource::Kind::builtin) return *source->facts;
  if (source->kind == ModelSource::Kind::gguf)
    return Status(Code::unsupported,
                  like + " is a GGUF; --like takes a built-in id or a config.json");
  const std::filesystem::path path(like);
  std::ifstream file(std::filesystem::is_directory(path) ? path / "config.json" : path);
  return facts_from_hf_config(std::string{std::istreambuf_iterator<char>(file), {}});
}

int run_synth(SynthArguments& arguments) {
  Result<ModelFacts> facts = facts_like(arguments.like);
  if (!facts) {
    std::fprintf(stderr, "weir synth: %s\n", facts.error().message().c_str());
    return kBadInput;
  }
  const bool terminal = isatty(STDERR_FILENO);
  int shown = -1;
  arguments.options.progress = [&](float part) {
    const int percent = static_cast<int>(100 * part);
    if (terminal && percent != shown) std::fprintf(stderr, "\rwriting %3d %%", shown = percent);
  };
  Result<SynthSummary> summary = synthesize(*facts, arguments.options, arguments.output);
  if (shown >= 0) std::fprintf(stderr, "\r             \r");
  if (!summary) {
    std::fprintf(stderr, "weir synth: %s\n", summary.error().message().c_str());
    return exit_code_of(summary.error());
  }
  for (const std::string& note : summary->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::printf("%s: %s of random weights shaped like %s\n", arguments.output.c_str(),
              format_bytes(summary->size).c_str(), facts->name.c_str());
  return kDone;
}

}  // namespace

void add_synth_command(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<SynthArguments>();
  CLI::App* command = app.add_subcommand(
      "synth", "write a GGUF of random weights with a real model's exact shapes");
  command->add_option("--like", arguments->like, "built-in id or config.json of the model")
      ->required();
  command->add_option("--weights", arguments->options.weights, "type of the matrices")
      ->capture_default_str();
  command->add_option("--layers", arguments->options.n_layers, "only the first N layers")
      ->check(CLI::PositiveNumber);
  command->add_option("--vocab", arguments->options.n_vocab, "another vocabulary size")
      ->check(CLI::PositiveNumber);
  command->add_option("--seed", arguments->options.seed, "of the random numbers")
      ->capture_default_str();
  command->add_option("-o,--output", arguments->output, "file to write")->required();
  command->callback([arguments, &exit_code] { exit_code = run_synth(*arguments); });
}

}  // namespace weir
