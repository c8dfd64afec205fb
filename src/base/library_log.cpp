#include "base/library_log.h"

#include <deque>
#include <mutex>
#include <utility>

namespace weir {
namespace {

constexpr size_t kKeptLines = 8;

struct Kept {
  std::mutex mutex;
  std::deque<std::pair<LibraryLevel, std::string>> lines;
};

// The libraries' log callbacks are process-wide, so what catches them is too.
Kept& kept() {
  static Kept instance;
  return instance;
}

}  // namespace

void library_log(LibraryLevel level, std::string_view text) {
  if (level == LibraryLevel::quiet) return;
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  if (text.empty()) return;
  std::lock_guard lock(kept().mutex);
  kept().lines.emplace_back(level, text);
  if (kept().lines.size() > kKeptLines) kept().lines.pop_front();
}

std::string take_library_log() {
  std::lock_guard lock(kept().mutex);
  bool has_errors = false;
  for (const auto& [level, line] : kept().lines) has_errors |= level == LibraryLevel::error;
  std::string text;
  for (const auto& [level, line] : kept().lines) {
    if (has_errors && level != LibraryLevel::error) continue;
    if (!text.empty()) text += "; ";
    for (char c : line) text += c == '\n' ? ' ' : c;
  }
  kept().lines.clear();
  return text;
}

}  // namespace weir
