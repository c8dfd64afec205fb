// cli/: the program. One file a command; each reads its options, calls the floors below and prints.
#pragma once

#include <CLI/CLI.hpp>

#include "base/status.h"

namespace weir {

// Exit codes of every command.
constexpr int kDone = 0;
constexpr int kWorkFailed = 1;
constexpr int kBadInput = 2;

// kBadInput for what the user gave: options, names, files that are not what they should be.
int exit_code_of(const Status& status);
// Prints "weir: MESSAGE" to stderr; returns exit_code_of.
int report(const Status& status);

// The program with all its commands. Returns the exit code.
int run_weir(int argc, const char* const* argv);

// Each adds a subcommand to `app`. When that command ran, its exit code is in `exit_code`.
void add_plan_command(CLI::App& app, int& exit_code);
void add_run_command(CLI::App& app, int& exit_code);
void add_chat_command(CLI::App& app, int& exit_code);
void add_serve_command(CLI::App& app, int& exit_code);
void add_verify_command(CLI::App& app, int& exit_code);
void add_perplexity_command(CLI::App& app, int& exit_code);
void add_bench_command(CLI::App& app, int& exit_code);
void add_synth_command(CLI::App& app, int& exit_code);
void add_catalog_command(CLI::App& app, int& exit_code);

}  // namespace weir
