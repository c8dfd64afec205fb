#pragma once

#include <string_view>

#include "base/status.h"

namespace weir {

// What libllama's parser of GBNF does not survive, or takes all memory for: it descends into
// parentheses by recursion, copies what {n} repeats n times, and counts {most,least} down past 0.
// Text that is not GBNF may pass. Errors: invalid_input.
Status check_grammar(std::string_view text);

}  // namespace weir
