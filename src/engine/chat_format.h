// For the sources that call llama-common's chat functions only.
#pragma once

#include "chat.h"
#include "engine/chat_message.h"

namespace weir {

struct ChatFormat {
  common_chat_parser_params params;
};

common_chat_templates_inputs chat_inputs(const ChatInput& input);

// Tools for templates that know none: described in the system message, called between marks, their
// answers written as the user's. `input` as it is to be rendered, without tools.
ChatInput with_tools_as_text(const ChatInput& input);
// Makes the grammar and the reader of `rendered` those of weir's own format.
void use_tools_as_text(const ChatInput& input, common_chat_params& rendered);

}  // namespace weir
