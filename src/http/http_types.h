// http/: HTTP/1.1 for many clients. Connections, limits, routes, streamed replies; knows no engine.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weir {

// Name and value. Names of requests are in lower case; what a handler gives is sent as it is, but
// for control characters, which are left out.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Who asks, as the API key says. Without keys everybody is tenant 0 and an administrator.
struct Caller {
  uint32_t tenant = 0;
  std::string name;       // of the tenant
  bool is_admin = false;  // sees all tenants
};

// A whole request, read and within the limits. The bytes are the client's: nothing in it is known
// to be UTF-8.
struct HttpRequest {
  std::string method;  // "GET"; a HEAD comes to the handler of GET
  std::string path;    // "/v1/models": decoded, without the query
  std::string query;   // "a=1&b=2": as it came
  HttpHeaders headers;
  std::string body;
  // What the pattern's {name}s matched, decoded.
  std::map<std::string, std::string> params;
  Caller caller;
  std::string id;  // of this request, for headers and logs: unique in this process

  // The first header of that name (in lower case); empty if there is none.
  std::string_view header(std::string_view name) const;
  // The first value of that name in the query, decoded.
  std::optional<std::string> query_value(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;
  std::string body;
  HttpHeaders headers;
};

// The answer to one request. Every method may be called from any thread and returns at once: what
// the client has not read yet waits in a queue, and a client that lets the queue pass its bound
// counts as gone. What is sent to a client that is gone is dropped. Dropping the last reference
// without an answer sends a 500; dropping it in a stream breaks the connection, so that the client
// knows that something is missing.
class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // The whole answer. Either this, or begin_stream, writes and end; what comes after send or end is
  // dropped.
  virtual void send(HttpResponse response) = 0;

  // Sends the headers now. In a stream of "text/event-stream" the server puts a comment when
  // nothing was written for a while, so that the client and what is between know that it lives.
  virtual void begin_stream(int status, std::string_view content_type, HttpHeaders headers) = 0;
  void begin_stream(int status, std::string_view content_type) {
    begin_stream(status, content_type, {});
  }
  // A piece of the body; for events, whole ones. False when the client is gone.
  virtual bool write(std::string_view chunk) = 0;
  virtual void end() = 0;

  // Whether send or begin_stream was called.
  virtual bool has_begun() const = 0;
  virtual bool is_gone() const = 0;
  // Called once, on a thread of the server, when the client is gone before the answer was complete;
  // at once, if it already is. Must return quickly.
  virtual void on_gone(std::function<void()> callback) = 0;

  void send(int status, std::string_view content_type, std::string body, HttpHeaders headers = {}) {
    send(HttpResponse{status, std::string(content_type), std::move(body), std::move(headers)});
  }
};

// The reason phrase of a status: "Not Found".
std::string_view reason_phrase(int status);

// Text as a JSON string with its quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

// {"error":{"message","type","param","code"}} as OpenAI's clients read it; empty `code` or `param`
// are null. Types in use: "invalid_request_error", "authentication_error", "not_found_error",
// "rate_limit_error", "server_error", "unavailable_error".
HttpResponse error_response(int status, std::string_view type, std::string_view code,
                            std::string_view message, std::string_view param = {});

// %XX decoded; with `plus_is_space` also '+', as in a query. Nothing if an escape is broken or a
// NUL comes out.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space);

}  // namespace weir
