#include "cli/commands.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "base/quote.h"
#include "engine/text_stream.h"

namespace weir {
namespace {

// One dash and several letters, as other engines write them.
std::string long_form(const std::string& argument) {
  for (const char* name : {"-ub", "-ctk", "-ctv"}) {
    if (argument == name) return "-" + argument;
  }
  return argument;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

int report(const Status& status) {
  // Messages quote what users and libraries wrote: a terminal gets one line of it, no controls.
  std::string line = valid_utf8(status.message());
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
  }
  std::cerr << "weir: " << line << '\n';
  return exit_code_of(status);
}

int exit_code_of(const Status& status) {
  switch (status.code()) {
    case Code::ok:
      return kDone;
    case Code::invalid_input:
    case Code::not_found:
    case Code::corrupt:
    case Code::unsupported:
    case Code::over_budget:
      return kBadInput;
    default:
      return kWorkFailed;
  }
}

namespace {

// Parses the command line and runs what it names.
int dispatch(int argc, const char* const* argv) {
  CLI::App app(
      "weir: an inference engine for sliding-window models whose KV memory is known to "
      "the byte before loading");
  app.name("weir");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("weir ") + WEIR_VERSION);
  int exit_code = kDone;
  add_plan_command(app, exit_code);
  add_run_command(app, exit_code);
  add_chat_command(app, exit_code);
  add_serve_command(app, exit_code);
  add_verify_command(app, exit_code);
  add_perplexity_command(app, exit_code);
  add_bench_command(app, exit_code);
  add_synth_command(app, exit_code);
  add_catalog_command(app, exit_code);

  const auto all = app.get_subcommands([](const CLI::App*) { return true; });
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(all.begin(), all.end(),
                   [&](const CLI::App* command) { return command->get_name() == argv[1]; })) {
    std::cerr << "weir: " << quote(argv[1]) << " is not a command; 'weir --help' lists them\n";
    return kBadInput;
  }
  std::vector<std::string> arguments;  // CLI11 takes them last first
  for (int i = argc - 1; i > 0; --i) arguments.push_back(long_form(argv[i]));
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e, std::cout, std::cerr) == 0 ? kDone : kWorkFailed;
  } catch (const CLI::ParseError& e) {
    std::cerr << "weir: " << first_line(e.what()) << "; 'weir --help' lists commands and options\n";
    return kBadInput;
  } catch (const std::exception& e) {
    // Memory that the system refuses, mostly: nothing below throws on purpose.
    std::cerr << "weir: gave up: " << first_line(e.what()) << '\n';
    return kWorkFailed;
  }
  return exit_code;
}

}  // namespace

int run_weir(int argc, const char* const* argv) {
  const int exit_code = dispatch(argc, argv);
  // A result that nobody could be told is not done.
  std::cout.flush();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout) {
    std::cerr << "weir: cannot write to standard output\n";
    return kWorkFailed;
  }
  return exit_code;
}

}  // namespace weir
