#pragma once

#include <string>
#include <vector>

namespace weir {

// Columns of text for a terminal, right-aligned but for the first. Counts characters, not bytes.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // One line a row, each beginning with `indent`.
  std::string text(const std::string& indent) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace weir
