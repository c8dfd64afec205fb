#include <cstdio>
#include <memory>
#include <string>
#include <unistd.h>

#include "cli/commands.h"
#include "model/synth.h"

namespace weir {
namespace {

const SynthShape kShapes[] = {
    {"gemma-3-270m", "gemma3", 18, 640, 2048, 262144, 4, 1, 256, 512, 1e6f, 1e4f, 1, 32768, true},
    {"gemma-3-1b", "gemma3", 26, 1152, 6912, 262144, 4, 1, 256, 512, 1e6f, 1e4f, 1, 32768, true},
    {"gemma-3-4b", "gemma3", 34, 2560, 10240, 262208, 8, 4, 256, 1024, 1e6f, 1e4f, 8, 131072, true},
    {"gemma-3-12b", "gemma3", 48, 3840, 15360, 262208, 16, 8, 256, 1024, 1e6f, 1e4f, 8, 131072,
     true},
    {"gemma-3-27b", "gemma3", 62, 5376, 21504, 262208, 32, 16, 128, 1024, 1e6f, 1e4f, 8, 131072,
     true},
};

struct SynthArguments {
  std::string like, output;
  SynthOptions options;
};

int run_synth(SynthArguments& arguments) {
  const SynthShape* shape = nullptr;
  for (const SynthShape& s : kShapes)
    if (s.name == arguments.like) shape = &s;
  if (!shape) {
    std::fprintf(stderr, "weir synth: unknown model %s\n", arguments.like.c_str());
    return kBadInput;
  }
  const bool terminal = isatty(STDERR_FILENO);
  int shown = -1;
  arguments.options.progress = [&](float part) {
    const int percent = static_cast<int>(100 * part);
    if (terminal && percent != shown) std::fprintf(stderr, "\rwriting %3d %%", shown = percent);
  };
  Result<SynthSummary> summary = synthesize(*shape, arguments.options, arguments.output);
  if (shown >= 0) std::fprintf(stderr, "\r             \r");
  if (!summary) {
    std::fprintf(stderr, "weir synth: %s\n", summary.error().message().c_str());
    return summary.error().code() == Code::io_error ? kWorkFailed : kBadInput;
  }
  for (const std::string& note : summary->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  std::printf("%s: %s of random weights shaped like %s\n", arguments.output.c_str(),
              format_bytes(summary->size).c_str(), shape->name.c_str());
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
