#include "model/catch_library_log.h"

#include <mutex>

#include "base/library_log.h"
#include "llama.h"

namespace weir {

void catch_library_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          library_log(level == GGML_LOG_LEVEL_ERROR  ? LibraryLevel::error
                      : level == GGML_LOG_LEVEL_WARN ? LibraryLevel::warning
                                                     : LibraryLevel::quiet,
                      text);
        },
        nullptr);
  });
}

}  // namespace weir
