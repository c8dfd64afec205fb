#pragma once

#include <string>
#include <string_view>

namespace weir {

// What the libraries under weir have to say goes here instead of to the terminal: the last
// warnings and errors, kept until someone explains a failure with them. Thread-safe.
enum class LibraryLevel { quiet, warning, error };
void library_log(LibraryLevel level, std::string_view text);

// The kept text as one line, errors only if there are any; forgets it. Empty if nothing was said.
std::string take_library_log();

}  // namespace weir
