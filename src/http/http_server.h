#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "http/http_limits.h"
#include "http/router.h"

namespace weir {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name
  uint16_t port = 8080;            // 0: any that is free
  int n_threads = 2;
  HttpLimits limits;
  // Web pages of these origins may use the server; "*": of any. Those that come from this machine
  // may, as long as the server listens for this machine only.
  std::vector<std::string> cors_origins;
  // Who the caller is, by the headers; nothing: 401. Any thread. Empty: everybody, as
  // administrator.
  std::function<std::optional<Caller>(const HttpRequest&)> authenticate;
};

struct HttpStats {
  size_t connections = 0;        // now
  size_t body_bytes = 0;         // of requests being read now
  uint64_t accepted = 0;         // connections since the start
  uint64_t refused = 0;          // of these, because there were too many
  uint64_t closed_for_room = 0;  // between two requests, because others came
  uint64_t requests = 0;         // with a complete head
  uint64_t gone = 0;  // clients that left, or did not read, before their answer was complete
};

// Listens, reads requests, calls the router's handlers and writes what they answer. Its threads
// wait for no client: one that is slow, silent or gone costs its connection and nothing else.
class HttpServer {
 public:
  // Listens from now on. Errors: invalid_input for a host without an address, io_error when the
  // port cannot be had.
  static Result<std::unique_ptr<HttpServer>> start(HttpServerOptions options, Router router);
  // Cuts every connection. Writers that are left drop what they get.
  ~HttpServer();

  uint16_t port() const;
  std::string url() const;  // "http://127.0.0.1:8080"
  HttpStats stats() const;

  // Takes no new connection; closes the others as soon as their answers are complete.
  void drain();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
