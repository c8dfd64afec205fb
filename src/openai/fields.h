#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "openai/api_error.h"

namespace weir::openai {

// Typed reads of one JSON object of a request. A key that is absent or null gives nothing; one of
// another type or out of range gives nothing, too, and the first of these becomes the error.
class Fields {
 public:
  // `path` names the object in errors: "", "messages[2]", "stream_options".
  Fields(const Json& object, std::string path, std::optional<ApiError>& error)
      : object_(object), path_(std::move(path)), error_(error) {}

  // Null if absent or null.
  const Json* find(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key, int64_t least, int64_t most) const;
  std::optional<double> number(std::string_view key, double least, double most) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key, size_t most_bytes) const;
  const Json* object(std::string_view key) const;
  const Json* array(std::string_view key) const;
  bool boolean_or(std::string_view key, bool otherwise) const {
    return boolean(key).value_or(otherwise);
  }

  // "messages[2].content"; the path itself for an empty key.
  std::string name(std::string_view key) const;
  bool has_failed() const { return error_.has_value(); }
  void fail(std::string_view key, std::string_view code, std::string message) const;
  void wrong_type(std::string_view key, std::string_view expected, const Json& got) const;
  void missing(std::string_view key) const;

 private:
  const Json& object_;
  std::string path_;
  std::optional<ApiError>& error_;
};

// "a string", "an object": for messages.
std::string_view type_name(const Json& value);

}  // namespace weir::openai
