// weir catalog: what models' KV costs, what was claimed and measured, and whether it is so.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/quote.h"
#include "cli/catalog_measure.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "plan/catalog.h"

namespace weir {
namespace {

struct CatalogArguments {
  std::string target;
  std::vector<std::string> targets;
  bool is_json = false, measures = false;
  std::string kv_type = "f16";
  std::string weights = "q8_0";
  int64_t tokens = 0, step_tokens = 512;
  int n_layers = 0;
  int n_threads = 1;
};

Result<CatalogEntry> read_entry(const std::string& path) {
  const Result<std::string> text = read_text_file(path);
  if (!text) return text.error();
  Result<CatalogEntry> entry = parse_catalog_entry(*text);
  if (entry) return entry;
  return Status(entry.error().code(), quote(path) + ": " + entry.error().message());
}

// An id of the catalog, or an entry's file.
Result<CatalogEntry> find_entry(const std::string& target) {
  for (const CatalogEntry& entry : builtin_catalog_entries()) {
    if (entry.facts.id == target) return entry;
  }
  if (target.find('/') != std::string::npos || target.ends_with(".json")) return read_entry(target);
  return find_builtin(target).error();
}

// Each target is an id, a file, or a directory of entries; none: the program's own catalog.
Result<std::vector<CatalogEntry>> find_entries(const std::vector<std::string>& targets) {
  if (targets.empty()) return builtin_catalog_entries();
  std::vector<CatalogEntry> entries;
  for (const std::string& target : targets) {
    std::vector<std::string> files = {target};
    std::error_code error;
    if (std::filesystem::is_directory(target, error)) {
      files.clear();
      std::filesystem::directory_iterator at(target, error);
      for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
        if (at->path().extension() == ".json") files.push_back(at->path());
      }
      if (error) return Status(Code::io_error, "cannot read the directory " + quote(target));
      if (files.empty()) {
        return Status(Code::not_found, "the directory " + quote(target) + " holds no entries");
      }
      std::sort(files.begin(), files.end());
    }
    for (const std::string& file : files) {
      Result<CatalogEntry> entry = find_entry(file);
      if (!entry) return entry.error();
      entries.push_back(std::move(*entry));
    }
  }
  return entries;
}

// Reads the tokens again and compares with what the entry says.
Status measure_again(CatalogCheck& check, int n_threads) {
  for (size_t i = 0; i < check.entry->measured.size(); ++i) {
    const CatalogMeasurement& recorded = check.entry->measured[i];
    const Result<CatalogMeasurement> now = measure_kv(check.entry->facts, recorded, n_threads);
    if (!now) return now.error();
    const std::string what = std::to_string(now->resident_bytes) + " B resident after " +
                             std::to_string(recorded.tokens) + " tokens in " +
                             kv_type_name(recorded.type);
    std::cerr << check.entry->facts.id << ": " << what << "\n";
    if (now->resident_bytes != recorded.resident_bytes ||
        now->global_bytes != recorded.global_bytes || now->local_bytes != recorded.local_bytes) {
      check.disagreements.push_back(
          {"measured[" + std::to_string(i) + "]", "measured again: " + what + ", the entry says " +
                                                      std::to_string(recorded.resident_bytes)});
    }
  }
  return {};
}

int list(const CatalogArguments& a) {
  const std::vector<CatalogEntry>& entries = builtin_catalog_entries();
  std::cout << (a.is_json ? catalog_list_json(entries) : catalog_list_text(entries));
  return kDone;
}

int show(const CatalogArguments& a) {
  const Result<CatalogEntry> entry = find_entry(a.target);
  if (!entry) return report(entry.error());
  std::cout << (a.is_json ? catalog_file(*entry) : catalog_entry_text(*entry));
  return kDone;
}

int verify(const CatalogArguments& a) {
  const Result<std::vector<CatalogEntry>> entries = find_entries(a.targets);
  if (!entries) return report(entries.error());
  std::vector<CatalogCheck> checks;
  bool is_good = true;
  for (const CatalogEntry& entry : *entries) {
    checks.push_back(check_catalog_entry(entry));
    if (a.measures) {
      if (Status s = measure_again(checks.back(), a.n_threads); !s.ok()) return report(s);
    }
    is_good &= checks.back().disagreements.empty();
  }
  std::cout << (a.is_json ? catalog_checks_json(checks) : catalog_checks_text(checks));
  return is_good ? kDone : kWorkFailed;
}

int measure(const CatalogArguments& a) {
  const Result<CatalogEntry> entry = find_entry(a.target);
  if (!entry) return report(entry.error());
  CatalogMeasurement m;
  m.tokens = a.tokens;
  m.step_tokens = a.step_tokens;
  const Result<KvType> type = parse_kv_type(a.kv_type);
  if (!type) return report(type.error());
  m.type = *type;
  m.weights = a.weights;
  m.n_layers = a.n_layers > 0 ? a.n_layers : entry->facts.n_layers;
  if (m.n_layers > entry->facts.n_layers) {
    return report(
        Status(Code::invalid_input,
               entry->facts.name + " has " + std::to_string(entry->facts.n_layers) + " layers"));
  }
  const Result<CatalogMeasurement> measured = measure_kv(entry->facts, m, a.n_threads);
  if (!measured) return report(measured.error());
  std::cout << measurement_json(*measured, a.target, entry->facts.n_layers) << "\n";
  return kDone;
}

void add_threads(CLI::App* command, const std::shared_ptr<CatalogArguments>& a) {
  command->add_option("-t,--threads", a->n_threads, "threads that measure")
      ->capture_default_str()
      ->check(CLI::Range(1, kMaxThreads));
}

// Runs `work` with the arguments when the command was given.
void when_given(CLI::App* command, const std::shared_ptr<CatalogArguments>& a, int& exit_code,
                int (*work)(const CatalogArguments&)) {
  command->callback([a, &exit_code, work] { exit_code = work(*a); });
}

}  // namespace

void add_catalog_command(CLI::App& app, int& exit_code) {
  auto a = std::make_shared<CatalogArguments>();
  CLI::App* catalog = app.add_subcommand(
      "catalog", "What models' KV costs, what was claimed about it, and whether it is so");
  catalog->require_subcommand(1);

  CLI::App* listing = catalog->add_subcommand("list", "all entries, a line each");
  listing->add_flag("--json", a->is_json, "JSON instead of a table");
  when_given(listing, a, exit_code, list);

  CLI::App* showing = catalog->add_subcommand("show", "one entry: figures, claims, measurements");
  showing->add_option("entry", a->target, "an id, or an entry's file")->required();
  showing->add_flag("--json", a->is_json, "the entry as its file, figures recomputed");
  when_given(showing, a, exit_code, show);

  CLI::App* verifying =
      catalog->add_subcommand("verify", "recompute everything, print each disagreement");
  verifying->add_option("entries", a->targets,
                        "ids, files or directories (default: the program's own catalog)");
  verifying->add_flag("--measure", a->measures, "also measure again what was measured");
  add_threads(verifying, a);
  verifying->add_flag("--json", a->is_json, "JSON instead of lines");
  when_given(verifying, a, exit_code, verify);

  CLI::App* measuring = catalog->add_subcommand(
      "measure", "read random tokens with random weights of these shapes, print the KV held");
  measuring->add_option("entry", a->target, "an id, or an entry's file")->required();
  measuring->add_option("--tokens", a->tokens, "how many tokens")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 27));
  measuring->add_option("--kv-type", a->kv_type, "type of stored keys and values")
      ->capture_default_str();
  measuring->add_option("--layers", a->n_layers, "only the first N layers")
      ->check(CLI::PositiveNumber);
  measuring->add_option("--weights", a->weights, "type of the matrices")->capture_default_str();
  measuring->add_option("--ubatch,--ub", a->step_tokens, "most tokens of a step")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  add_threads(measuring, a);
  when_given(measuring, a, exit_code, measure);
}

}  // namespace weir
