#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/options.h"

int main(int argc, char** argv) {
  using namespace weir;
  CLI::App app("weir: a language model engine whose KV memory is known, held and kept");
  app.set_version_flag("--version", "weir 0.1.0");
  app.require_subcommand(1);
  int exit_code = kDone;
  add_run_command(app, exit_code);
  add_chat_command(app, exit_code);
  add_verify_command(app, exit_code);
  add_perplexity_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_synth_command(app, exit_code);

  std::vector<std::string> args = expand_short_options(argc, argv);
  std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
  try {
    app.parse(std::move(args));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "weir: %s; see 'weir --help'\n", e.what());
    return kBadInput;
  }
  return exit_code;
}
