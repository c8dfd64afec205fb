// openai/: OpenAI's API as values. Requests read and checked field by field, answers and events
// written; knows no engine and no HTTP.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace weir::openai {

// Keys stay in the order they came in: that of a schema decides the order of the reply.
using Json = nlohmann::ordered_json;

// Why a request is refused, in OpenAI's terms.
struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string code;     // "invalid_type", "context_length_exceeded", ...; may be empty
  std::string message;  // one line: what is wrong, with the numbers, and what to do
  std::string param;    // "messages[2].content"; may be empty
};

// {"error": {message, type, param, code}}: the body of a refusal, or an event in a stream.
Json error_json(const ApiError& error);

// JSON as text; bytes that are not UTF-8 become U+FFFD.
std::string dump(const Json& json);

}  // namespace weir::openai
