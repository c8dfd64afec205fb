#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "http/http_types.h"

namespace weir {

// Runs on a thread of the server and must return quickly: it answers at once or gives the writer to
// who will. The request lives until it returns. An exception becomes a 500.
using HttpHandler =
    std::function<void(const HttpRequest& request, std::shared_ptr<ResponseWriter> writer)>;

enum class Access {
  open,    // anybody
  tenant,  // a key, if there are keys
  admin,   // a key that is an administrator's
};

// Method and path to handler.
class Router {
 public:
  // `pattern` is a path of which whole segments may be {name}: "/v1/things/{name}/fork". Fixed
  // segments go before {name}s. GET serves HEAD, too.
  void add(std::string_view method, std::string_view pattern, HttpHandler handler,
           Access access = Access::tenant);

  struct Match {
    const HttpHandler* handler = nullptr;  // null: nothing serves it, see allowed
    Access access = Access::open;
    std::map<std::string, std::string> params;
    // "GET, HEAD, OPTIONS": what the path does serve; empty: there is no such path.
    std::string allowed;
  };
  // `path` as it came, percent signs and all.
  Match find(std::string_view method, std::string_view path) const;

 private:
  struct Route {
    std::string method;
    std::vector<std::string> segments;
    HttpHandler handler;
    Access access;
  };
  std::vector<Route> routes_;
};

}  // namespace weir
