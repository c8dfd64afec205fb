#include "http/http_server.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/strand.hpp>
#include <thread>

#include "http/connection.h"

namespace weir {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Refused connections that are told so at the same time; the others are just closed.
constexpr size_t kMostTold = 64;

}  // namespace

struct HttpServer::Impl {
  explicit Impl(std::shared_ptr<HttpShared> s)
      : shared(std::move(s)),
        acceptor(asio::make_strand(shared->io)),
        retry(acceptor.get_executor()),
        work(shared->io.get_executor()) {}

  Status listen();
  void accept();
  void take(tcp::socket socket);
  std::shared_ptr<Connection> end_longest_rest();
  void run();
  void close_all(bool when_idle);
  void stop_listening();

  std::shared_ptr<HttpShared> shared;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  asio::executor_work_guard<asio::io_context::executor_type> work;
  tcp::endpoint endpoint;
  std::vector<std::thread> threads;
};

Status HttpServer::Impl::listen() {
  const HttpServerOptions& options = shared->options;
  error_code error;
  tcp::resolver resolver(shared->io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), error);
  if (error || found.empty()) {
    return Status(Code::invalid_input, "'" + options.host + "' is not an address of this machine");
  }
  // A name may have several; the older protocol is the one that every client speaks.
  endpoint = found.begin()->endpoint();
  for (const auto& entry : found) {
    if (entry.endpoint().address().is_v4()) {
      endpoint = entry.endpoint();
      break;
    }
  }
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return Status(Code::io_error, "cannot listen on " + options.host + ":" +
                                      std::to_string(options.port) + ": " + error.message());
  }
  endpoint = acceptor.local_endpoint(error);
  shared->is_loopback = endpoint.address().is_loopback();
  return {};
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(asio::make_strand(shared->io),
                        [this](error_code error, tcp::socket socket) {
                          if (!acceptor.is_open()) return;
                          if (!error) {
                            take(std::move(socket));
                            return accept();
                          }
                          // Out of file descriptors, mostly: some will be given back.
                          retry.expires_after(std::chrono::milliseconds(100));
                          retry.async_wait([this](error_code cancelled) {
                            if (!cancelled && acceptor.is_open()) accept();
                          });
                        });
}

void HttpServer::Impl::take(tcp::socket socket) {
  ++shared->accepted;
  size_t n_others = 0;
  const auto executor = socket.get_executor();
  const auto connection = std::make_shared<Connection>(shared, std::move(socket));
  const size_t most = shared->options.limits.max_connections;
  std::shared_ptr<Connection> makes_room;
  {
    const std::lock_guard lock(shared->mutex);
    n_others = shared->connections.size();
    if (n_others < most + kMostTold) {
      if (n_others >= most) makes_room = end_longest_rest();
      shared->connections.emplace(connection.get(), connection);
    }
  }
  const bool is_full = n_others >= most && !makes_room;
  if (makes_room) {
    ++shared->closed_for_room;
    makes_room->post_close(true);
  }
  if (is_full) ++shared->refused;
  if (n_others >= most + kMostTold) return;
  asio::post(executor, [connection, is_full] {
    if (!is_full) return connection->start();
    HttpResponse response = error_response(503, "unavailable_error", "too_many_connections",
                                           "too many connections are open; try again later");
    response.headers.emplace_back("Retry-After", "2");
    connection->start_refused(std::move(response));
  });
}

// The connection that waits longest for another request, if one does; the shared lock is held.
std::shared_ptr<Connection> HttpServer::Impl::end_longest_rest() {
  for (auto it = shared->resting.begin(); it != shared->resting.end(); ++it) {
    std::shared_ptr<Connection> longest = it->lock();
    if (!longest) continue;  // it is ending, and takes itself off the list
    shared->resting.erase(it);
    longest->left_rest();
    return longest;
  }
  return nullptr;
}

void HttpServer::Impl::run() {
  for (;;) {
    try {
      shared->io.run();
      return;
    } catch (const std::exception&) {
      // Memory that the system refuses: the connection it happened to ends, the others go on.
    }
  }
}

void HttpServer::Impl::close_all(bool when_idle) {
  // Outside the lock: a connection's end needs it, too.
  std::vector<std::shared_ptr<Connection>> connections;
  {
    const std::lock_guard lock(shared->mutex);
    for (const auto& [key, weak] : shared->connections) {
      if (auto connection = weak.lock()) connections.push_back(std::move(connection));
    }
  }
  for (const auto& connection : connections) connection->post_close(when_idle);
}

void HttpServer::Impl::stop_listening() {
  asio::post(acceptor.get_executor(), [this] {
    error_code ignored;
    acceptor.close(ignored);
    retry.cancel();
  });
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpServerOptions options, Router router) {
  auto impl =
      std::make_unique<Impl>(std::make_shared<HttpShared>(std::move(options), std::move(router)));
  if (Status s = impl->listen(); !s.ok()) return s;
  impl->accept();
  for (int i = 0; i < std::max(1, impl->shared->options.n_threads); ++i) {
    impl->threads.emplace_back([p = impl.get()] { p->run(); });
  }
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->shared->is_draining = true;
  impl_->stop_listening();
  impl_->close_all(false);
  impl_->work.reset();
  for (std::thread& thread : impl_->threads) thread.join();
}

uint16_t HttpServer::port() const { return impl_->endpoint.port(); }

std::string HttpServer::url() const {
  const std::string address = impl_->endpoint.address().to_string();
  return "http://" + (impl_->endpoint.address().is_v6() ? "[" + address + "]" : address) + ":" +
         std::to_string(port());
}

HttpStats HttpServer::stats() const {
  HttpShared& shared = *impl_->shared;
  HttpStats stats;
  stats.accepted = shared.accepted;
  stats.refused = shared.refused;
  stats.closed_for_room = shared.closed_for_room;
  stats.body_bytes = shared.body_bytes;
  stats.requests = shared.requests;
  stats.gone = shared.gone;
  const std::lock_guard lock(shared.mutex);
  stats.connections = shared.connections.size();
  return stats;
}

void HttpServer::drain() {
  impl_->shared->is_draining = true;
  impl_->stop_listening();
  impl_->close_all(true);
}

}  // namespace weir
