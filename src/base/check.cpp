#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace weir {

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "weir: internal error: %s does not hold (%s:%d)\n", condition, file, line);
  std::abort();
}

}  // namespace weir
