#pragma once

#include <string>
#include <string_view>

namespace weir {

// `text` from a file or a user in single quotes, fit for a one-line message: control characters
// and bytes that are not UTF-8 become \xNN, more than 80 bytes are cut.
std::string quote(std::string_view text);

// The same without quotes and with the limit given: for names that are printed as values.
std::string printable(std::string_view text, size_t limit);

}  // namespace weir
