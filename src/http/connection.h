#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "http/exchange.h"
#include "http/http_server.h"
#include "http/request_reader.h"

namespace weir {

class Connection;

// What the connections of a server share. They hold it, so that a writer left over by a handler
// may outlive the server.
struct HttpShared {
  explicit HttpShared(HttpServerOptions o, Router r)
      : options(std::move(o)), router(std::move(r)), io(options.n_threads) {}

  const HttpServerOptions options;
  const Router router;
  bool is_loopback = false;
  boost::asio::io_context io;
  std::atomic<bool> is_draining{false};
  std::atomic<size_t> body_bytes{0};  // of requests being read
  std::atomic<uint64_t> accepted{0}, refused{0}, closed_for_room{0}, requests{0}, gone{0};

  std::mutex mutex;
  std::unordered_map<const Connection*, std::weak_ptr<Connection>> connections;
  // Those that were served and wait for another request, who waits longest first.
  std::list<std::weak_ptr<Connection>> resting;
};

// One client's socket: a request after the other, each answered before the next is looked at. All
// methods but wake() run on the connection's strand.
class Connection final : public ExchangeOwner, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Connection(std::shared_ptr<HttpShared> shared, Socket socket);
  ~Connection() override;

  void start();
  // Answers without reading, and closes.
  void start_refused(HttpResponse response);
  // Any thread: closes now, or with `when_idle` once the answer is complete.
  void post_close(bool when_idle);
  // Any thread, the shared lock held: was taken off the list of those that rest.
  void left_rest() { rest_.reset(); }

  void wake() override;
  bool is_draining() const override { return shared_->is_draining; }

 private:
  enum class Phase { idle, head, body, answer, linger, closed };

  // --- reading ---
  void read_more();
  void on_read(boost::system::error_code error, size_t n);
  void consume();
  void set_phase(Phase phase);
  void rest();
  void end_rest();
  void arm_deadline(std::chrono::milliseconds after);
  void on_deadline();
  bool count_body(size_t bytes);
  bool is_input_over() const { return has_eof_ && input_.empty(); }

  // --- answering ---
  // An answer to the head alone, if it gets no handler: 404, 405, 401, or to OPTIONS.
  std::optional<HttpResponse> judge_head();
  void answer_here(HttpResponse response, bool keeps_alive);
  void dispatch();
  std::shared_ptr<Exchange> begin_exchange(bool keeps_alive);
  HttpHeaders common_headers() const;
  void answer_tick();

  // --- writing ---
  void pump();
  void write_some();
  void finish_exchange();
  void linger();
  void close();  // whoever waits for an exchange learns that the client is gone

  const std::shared_ptr<HttpShared> shared_;
  Socket socket_;
  boost::asio::steady_timer deadline_;        // of the phase
  boost::asio::steady_timer write_deadline_;  // of the bytes being written
  std::string input_;                         // read and not consumed
  std::array<char, 16 * 1024> read_buffer_;
  bool is_reading_ = false;
  bool has_eof_ = false;  // the client will send no more
  RequestReader reader_;
  size_t counted_body_ = 0;
  bool is_head_judged_ = false;
  Router::Match match_;
  Caller caller_;
  std::string id_;
  std::string origin_;  // of a web page that may read the answer

  Phase phase_ = Phase::idle;
  std::optional<std::list<std::weak_ptr<Connection>>::iterator> rest_;  // under the shared lock
  bool is_last_request_ = false;                                        // others wait for the place
  std::shared_ptr<Exchange> exchange_;
  std::string interim_;  // answers that announce another
  Exchange::Output output_;
  size_t written_ = 0;
  bool is_writing_ = false;
  int probes_ = 0;
  std::atomic<bool> is_woken_{false};
};

}  // namespace weir
