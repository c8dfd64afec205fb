#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "http/http_limits.h"
#include "http/http_types.h"

namespace weir {

// Bytes to one request after the other, of one connection. Knows no socket.
class RequestReader {
 public:
  enum class State {
    head,    // the request line or the headers are not complete
    body,    // the headers are; the body is not
    done,    // take() gives the request
    failed,  // error() says why; the connection cannot go on
  };

  explicit RequestReader(const HttpLimits& limits);
  ~RequestReader();
  RequestReader(RequestReader&&) noexcept;

  // Takes bytes up to the end of the head, or of the request, and returns how many: the rest has
  // to be given again, with more after it. State done or failed takes nothing.
  size_t feed(std::string_view bytes);
  // The client will send no more: an unfinished request has failed.
  void end_of_input();

  State state() const { return state_; }
  // A byte of the request has been seen.
  bool has_started() const { return has_started_; }
  // In state failed. The status is 400, 413, 417, 431, 501 or 505.
  const HttpResponse& error() const { return error_; }

  // From state body on: all but the body.
  const HttpRequest& request() const { return request_; }
  std::string_view raw_path() const { return raw_path_; }
  bool is_head() const { return request_.method == "HEAD"; }
  bool expects_continue() const { return expects_continue_; }
  bool keeps_alive() const { return keeps_alive_; }
  bool is_http_1_0() const { return is_http_1_0_; }
  size_t body_bytes() const;  // read so far

  // In state done: the request, and back to the start.
  HttpRequest take();

 private:
  struct Parser;
  void fail(int status, std::string_view message);
  void read_head();
  void read_target(std::string_view target);

  HttpLimits limits_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::head;
  HttpRequest request_;
  HttpResponse error_;
  std::string raw_path_;
  bool has_started_ = false;
  bool expects_continue_ = false;
  bool keeps_alive_ = false;
  bool is_http_1_0_ = false;
};

}  // namespace weir
