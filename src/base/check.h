#pragma once

namespace weir {

// Prints where and what, then aborts. For states that only a bug in weir can reach.
[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace weir

#define WEIR_CHECK(condition)                               \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::weir::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)
