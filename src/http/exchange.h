#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "http/http_types.h"

namespace weir {

// What an exchange needs of its connection. `wake` is called under the exchange's lock.
class ExchangeOwner {
 public:
  virtual ~ExchangeOwner() = default;
  virtual void wake() = 0;               // there is something to write, or to end: soon
  virtual bool is_draining() const = 0;  // connections are not to be kept
};

struct ExchangeOptions {
  bool is_head = false;      // the client wants no body
  bool is_http_1_0 = false;  // and knows no chunks
  bool keeps_alive = false;
  size_t max_queued_bytes = 0;
  HttpHeaders headers;  // of every answer
};

// One request's answer on its way from any thread to the connection's. The two sides share it; the
// connection leaves it when all is written or the client is gone.
class Exchange {
 public:
  Exchange(std::shared_ptr<ExchangeOwner> owner, ExchangeOptions options);

  // --- any thread: what ResponseWriter says ---
  void send(HttpResponse response);
  void begin_stream(int status, std::string_view content_type, const HttpHeaders& headers);
  bool write(std::string_view chunk);
  void end();
  bool has_begun() const;
  bool is_gone() const;
  void on_gone(std::function<void()> callback);
  void abandon();  // the last writer let go

  // --- the connection ---
  struct Output {
    std::string bytes;
    bool is_complete = false;  // nothing comes after them
    bool is_broken = false;    // nor should the client believe that this was all
  };
  // Takes what waits. The bytes count against the bound until the next call.
  Output take_output();
  // A comment, if this is an event stream in which nothing was written since the last call; with
  // `at_once` whatever was written.
  void keep_alive(bool at_once);
  bool takes_interim() const { return !options_.is_http_1_0; }
  // The client is gone: returns whom to tell. Once.
  std::vector<std::function<void()>> leave_gone();
  // All is written.
  void leave();
  bool closes_connection() const;

 private:
  void append_head(int status, std::string_view content_type, const HttpHeaders& headers,
                   std::string_view framing);
  void append_chunk(std::string_view chunk);
  void wake();

  const ExchangeOptions options_;
  mutable std::mutex mutex_;
  std::shared_ptr<ExchangeOwner> owner_;  // null once the connection has left
  std::string output_;
  size_t in_flight_ = 0;  // bytes taken and perhaps not sent yet
  std::vector<std::function<void()>> callbacks_;
  bool keeps_alive_;
  bool has_begun_ = false;
  bool is_chunked_ = false;
  bool is_event_stream_ = false;
  bool is_quiet_ = false;  // nothing was written since the last keep_alive()
  bool is_complete_ = false;
  bool is_broken_ = false;
  bool is_gone_ = false;
};

// The writer that handlers get.
std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange);

}  // namespace weir
