#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app{"weir: an inference engine that knows what a model's KV costs and holds it there"};
  app.require_subcommand(1);
  int exit_code = weir::kDone;
  weir::add_synth_command(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? weir::kDone : weir::kBadInput;
  }
  return exit_code;
}
