#pragma once

namespace weir {

// From the first call on, what ggml and libllama log goes to base/library_log.h and not to the
// terminal. Any thread.
void catch_library_log();

}  // namespace weir
