// Any bytes as the body of a request: a value, or a refusal of one line that is JSON again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "openai/request.h"
#include "openai/response.h"
#include "openai/schema_check.h"

namespace {

using namespace weir::openai;

template <typename T>
const T* checked(const Parsed<T>& parsed) {
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    WEIR_CHECK(!error->message.empty() && error->message.find('\n') == std::string::npos);
    WEIR_CHECK(error->status == 400);
    const Json shape = Json::parse(dump(error_json(*error)), nullptr, false);
    WEIR_CHECK(shape.is_object() && shape["error"]["message"].is_string());
  }
  return std::get_if<T>(&parsed);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const auto chat = parse_chat_request(body);
  if (const ChatRequest* request = checked(chat)) {
    WEIR_CHECK(!request->messages.empty() && request->n >= 1 && request->n <= kMostChoices);
    WEIR_CHECK(!request->max_tokens || *request->max_tokens >= 0);
    // What is handed on as text must be a schema that was looked at.
    for (const Tool& tool : request->tools) {
      WEIR_CHECK(!schema_problem(Json::parse(tool.parameters)));
    }
    if (!request->json_schema.empty()) {
      WEIR_CHECK(!schema_problem(Json::parse(request->json_schema)));
    }
  }
  const auto completion = parse_completion_request(body);
  if (const CompletionRequest* request = checked(completion)) {
    WEIR_CHECK(!request->prompts.empty() && request->best_of >= request->n);
  }
  checked(parse_tokenize_request(body));
  checked(parse_detokenize_request(body));
  return 0;
}
