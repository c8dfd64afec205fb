#include "http/http_types.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

nlohmann::json text_or_null(std::string_view text) {
  return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text);
}

std::string dump(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<std::string> HttpRequest::query_value(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (percent_decode(pair.substr(0, equals), true) != name) continue;
    return percent_decode(pair.substr(std::min(pair.size(), equals + 1)), true);
  }
  return std::nullopt;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 102:
      return "Processing";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    case 507:
      return "Insufficient Storage";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

std::string json_string(std::string_view text) { return dump(nlohmann::json(text)); }

HttpResponse error_response(int status, std::string_view type, std::string_view code,
                            std::string_view message, std::string_view param) {
  const nlohmann::json body = {{"error",
                                {{"message", message},
                                 {"type", type},
                                 {"param", text_or_null(param)},
                                 {"code", text_or_null(code)}}}};
  return {status, "application/json", dump(body), {}};
}

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '+' && plus_is_space) c = ' ';
    if (c == '%') {
      const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
      const int low = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return std::nullopt;
    result.push_back(c);
  }
  return result;
}

}  // namespace weir
