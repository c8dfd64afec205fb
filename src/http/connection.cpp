#include "http/connection.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <exception>

namespace weir {

namespace asio = boost::asio;
using boost::system::error_code;

Connection::Connection(std::shared_ptr<HttpShared> shared, Socket socket)
    : shared_(std::move(shared)),
      socket_(std::move(socket)),
      deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      reader_(shared_->options.limits) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

Connection::~Connection() {
  count_body(0);
  const std::lock_guard lock(shared_->mutex);
  shared_->connections.erase(this);
  if (rest_) shared_->resting.erase(*rest_);
}

void Connection::start() {
  // Accepted while the server stops: nobody else would close it.
  if (shared_->is_draining) return close();
  set_phase(Phase::idle);
  // A client that says nothing has less time than one that was served before.
  arm_deadline(shared_->options.limits.header_time);
  rest();
  read_more();
}

void Connection::start_refused(HttpResponse response) { answer_here(std::move(response), false); }

void Connection::post_close(bool when_idle) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), when_idle] {
    if (!when_idle || self->phase_ == Phase::idle) return self->close();
    self->is_last_request_ = !self->is_draining();
  });
}

// Between requests a connection may be closed when others want its place.
void Connection::rest() {
  const std::lock_guard lock(shared_->mutex);
  if (!rest_) rest_ = shared_->resting.insert(shared_->resting.end(), weak_from_this());
}

void Connection::end_rest() {
  const std::lock_guard lock(shared_->mutex);
  if (rest_) shared_->resting.erase(*rest_);
  rest_.reset();
}

// --- reading ---------------------------------------------------------------------------------

void Connection::read_more() {
  // While an answer is under way, this is how to learn that the client hung up; what it sends
  // meanwhile may be the next request, and waits.
  const bool may_read =
      phase_ != Phase::answer || input_.size() < shared_->options.limits.max_header_bytes;
  if (is_reading_ || has_eof_ || phase_ == Phase::closed || !may_read) return;
  is_reading_ = true;
  socket_.async_read_some(
      asio::buffer(read_buffer_),
      [self = shared_from_this()](error_code error, size_t n) { self->on_read(error, n); });
}

void Connection::on_read(error_code error, size_t n) {
  is_reading_ = false;
  if (phase_ == Phase::closed) return;
  if (error == asio::error::eof) {
    has_eof_ = true;
  } else if (error) {
    return close();
  }
  if (phase_ == Phase::linger) return has_eof_ ? close() : read_more();
  input_.append(read_buffer_.data(), n);
  if (phase_ != Phase::answer) return consume();
  if (has_eof_) answer_tick();
  read_more();
}

// Feeds the reader until it has a request or wants more bytes.
void Connection::consume() {
  while (phase_ != Phase::answer && phase_ != Phase::linger && phase_ != Phase::closed) {
    const RequestReader::State before = reader_.state();
    const size_t n = reader_.feed(input_);
    input_.erase(0, n);
    const RequestReader::State state = reader_.state();
    if (state == RequestReader::State::failed) return answer_here(reader_.error(), false);
    if (state != RequestReader::State::head && !is_head_judged_) {
      is_head_judged_ = true;
      id_ = fmt::format("req-{}", ++shared_->requests);
      if (auto response = judge_head()) {
        return answer_here(std::move(*response),
                           state == RequestReader::State::done && reader_.keeps_alive());
      }
      if (reader_.expects_continue() && state == RequestReader::State::body) {
        interim_ += "HTTP/1.1 100 Continue\r\n\r\n";
        pump();
      }
    }
    if (state == RequestReader::State::body && !count_body(reader_.body_bytes())) {
      HttpResponse response = error_response(503, "unavailable_error", "too_many_bodies",
                                             "too much is being uploaded at once; try again later");
      response.headers.emplace_back("Retry-After", "2");
      return answer_here(std::move(response), false);
    }
    if (state == RequestReader::State::done) return dispatch();
    if (n > 0 || state != before) continue;

    if (has_eof_) {
      if (!reader_.has_started()) return close();
      reader_.end_of_input();
      return answer_here(reader_.error(), false);
    }
    set_phase(state == RequestReader::State::body ? Phase::body
              : reader_.has_started()             ? Phase::head
                                                  : Phase::idle);
    return read_more();
  }
}

void Connection::set_phase(Phase phase) {
  if (phase_ == phase && phase != Phase::idle) return;
  const bool is_same = phase_ == phase;
  if (!is_same && phase_ == Phase::idle) end_rest();
  phase_ = phase;
  const HttpLimits& limits = shared_->options.limits;
  switch (phase) {
    case Phase::idle:
      if (!is_same) arm_deadline(limits.idle_time);
      return;
    case Phase::head:
      return arm_deadline(limits.header_time);
    case Phase::body:
      return arm_deadline(limits.body_time);
    case Phase::answer:
      return arm_deadline(limits.keep_alive_time);
    case Phase::linger:
      return arm_deadline(limits.linger_time);
    case Phase::closed:
      deadline_.cancel();
      write_deadline_.cancel();
      return;
  }
}

void Connection::arm_deadline(std::chrono::milliseconds after) {
  deadline_.expires_after(after);
  deadline_.async_wait([self = shared_from_this()](error_code error) {
    // A wait that was replaced may already have been on its way.
    if (error || self->deadline_.expiry() > asio::steady_timer::clock_type::now()) return;
    self->on_deadline();
  });
}

void Connection::on_deadline() {
  switch (phase_) {
    case Phase::idle:
    case Phase::linger:
      return close();
    case Phase::head:
    case Phase::body:
      return answer_here(error_response(408, "invalid_request_error", "request_timeout",
                                        "the request did not arrive in time"),
                         false);
    case Phase::answer:
      answer_tick();
      return;
    case Phase::closed:
      return;
  }
}

// Bytes of the body being read, in the account of all connections. False if that is full.
bool Connection::count_body(size_t bytes) {
  const size_t sum = shared_->body_bytes.fetch_add(bytes - counted_body_) + bytes - counted_body_;
  const bool grows = bytes > counted_body_;
  counted_body_ = bytes;
  return !grows || sum <= shared_->options.limits.max_bodies_bytes;
}

// --- answering -------------------------------------------------------------------------------

namespace {

// "http://localhost:3000" and the like: a page that this machine serves.
bool is_local_origin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  const size_t port = host.rfind(':');
  if (port != std::string_view::npos && host.find(']', port) == std::string_view::npos) {
    host = host.substr(0, port);
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

bool allows_origin(const HttpShared& shared, std::string_view origin) {
  if (origin.empty()) return false;
  for (const std::string& allowed : shared.options.cors_origins) {
    if (allowed == "*" || allowed == origin) return true;
  }
  return shared.is_loopback && is_local_origin(origin);
}

HttpResponse preflight(const Router::Match& match, bool allows, std::string_view wanted_headers) {
  HttpResponse response{204, {}, {}, {{"Allow", match.allowed}}};
  if (!allows) return response;
  response.headers.emplace_back("Access-Control-Allow-Methods", match.allowed);
  if (!wanted_headers.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Headers", wanted_headers);
  }
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

}  // namespace

std::optional<HttpResponse> Connection::judge_head() {
  const HttpRequest& request = reader_.request();
  const std::string_view origin = request.header("origin");
  origin_ = allows_origin(*shared_, origin) ? origin : std::string_view();
  match_ = shared_->router.find(request.method, reader_.raw_path());
  if (request.method == "OPTIONS" && (!match_.allowed.empty() || request.path == "*")) {
    return preflight(match_, !origin_.empty(), request.header("access-control-request-headers"));
  }
  if (match_.allowed.empty()) {
    return error_response(404, "not_found_error", "unknown_url", "there is no such path");
  }
  if (!match_.handler) {
    HttpResponse response = error_response(405, "invalid_request_error", "method_not_allowed",
                                           "this path serves " + match_.allowed);
    response.headers.emplace_back("Allow", match_.allowed);
    return response;
  }
  caller_ = {};
  caller_.is_admin = !shared_->options.authenticate;
  if (!shared_->options.authenticate || match_.access == Access::open) return std::nullopt;
  const std::optional<Caller> caller = shared_->options.authenticate(request);
  if (!caller) {
    HttpResponse response =
        error_response(401, "authentication_error", "invalid_api_key",
                       "give a valid API key in the header 'Authorization: Bearer KEY'");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  caller_ = *caller;
  if (match_.access == Access::admin && !caller_.is_admin) {
    return error_response(403, "permission_error", "not_an_administrator",
                          "this key is not an administrator's");
  }
  return std::nullopt;
}

HttpHeaders Connection::common_headers() const {
  HttpHeaders headers;
  if (!id_.empty()) headers.emplace_back("X-Request-Id", id_);
  if (!origin_.empty()) {
    headers.emplace_back("Access-Control-Allow-Origin", origin_);
    headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    headers.emplace_back("Vary", "Origin");
  }
  return headers;
}

std::shared_ptr<Exchange> Connection::begin_exchange(bool keeps_alive) {
  ExchangeOptions options;
  options.is_head = is_head_judged_ && reader_.is_head();
  options.is_http_1_0 = is_head_judged_ && reader_.is_http_1_0();
  options.keeps_alive = keeps_alive && !is_input_over();
  options.max_queued_bytes = shared_->options.limits.max_queued_bytes;
  options.headers = common_headers();
  exchange_ = std::make_shared<Exchange>(shared_from_this(), std::move(options));
  probes_ = 0;
  set_phase(Phase::answer);
  return exchange_;
}

void Connection::answer_here(HttpResponse response, bool keeps_alive) {
  const std::shared_ptr<Exchange> exchange = begin_exchange(keeps_alive);
  reader_.take();
  count_body(0);
  exchange->send(std::move(response));
}

void Connection::dispatch() {
  const std::shared_ptr<Exchange> exchange = begin_exchange(reader_.keeps_alive());
  const std::shared_ptr<ResponseWriter> writer = make_writer(exchange);
  HttpRequest request = reader_.take();
  request.params = std::move(match_.params);
  request.caller = caller_;
  request.id = id_;
  read_more();
  try {
    (*match_.handler)(request, writer);
  } catch (const std::exception& e) {
    writer->send(error_response(500, "server_error", {}, e.what()));
  }
  count_body(0);
}

// Now and then while an answer is under way, and when the client will send no more. Has it hung up
// or does it only listen? That shows when something is sent: a comment in a silent stream, or,
// before there is an answer, a sign that it is being worked on.
void Connection::answer_tick() {
  std::chrono::milliseconds again = shared_->options.limits.keep_alive_time;
  exchange_->keep_alive(has_eof_);
  if (has_eof_ && !exchange_->has_begun() && exchange_->takes_interim() && !is_writing_) {
    interim_ += "HTTP/1.1 102 Processing\r\n\r\n";
    pump();
  }
  // The first sign makes a client that is gone say so, the second one hears it.
  if (has_eof_ && ++probes_ == 1) again = std::min(again, std::chrono::milliseconds(100));
  if (phase_ == Phase::answer) arm_deadline(again);
}

// --- writing ---------------------------------------------------------------------------------

// Any thread. The exchange holds its lock and has not been left: the strand still has work to do,
// so that this will run.
void Connection::wake() {
  if (is_woken_.exchange(true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->is_woken_ = false;
    self->pump();
  });
}

void Connection::pump() {
  if (phase_ == Phase::closed) return;
  if (exchange_ && exchange_->is_gone()) return close();
  if (is_writing_) return;
  output_ = {};
  if (exchange_) output_ = exchange_->take_output();
  if (!interim_.empty()) output_.bytes.insert(0, std::exchange(interim_, {}));
  written_ = 0;
  if (!output_.bytes.empty()) {
    is_writing_ = true;
    write_some();
  } else if (output_.is_complete) {
    finish_exchange();
  }
}

void Connection::write_some() {
  write_deadline_.expires_after(shared_->options.limits.write_time);
  write_deadline_.async_wait([self = shared_from_this()](error_code error) {
    if (error || self->write_deadline_.expiry() > asio::steady_timer::clock_type::now()) return;
    self->close();
  });
  socket_.async_write_some(
      asio::buffer(output_.bytes.data() + written_, output_.bytes.size() - written_),
      [self = shared_from_this()](error_code error, size_t n) {
        if (self->phase_ == Phase::closed) return;
        if (error) return self->close();
        self->written_ += n;
        if (self->written_ < self->output_.bytes.size()) return self->write_some();
        self->write_deadline_.cancel();
        self->is_writing_ = false;
        if (self->output_.is_complete) return self->finish_exchange();
        self->pump();
      });
}

void Connection::finish_exchange() {
  if (output_.is_broken) return close();
  const bool closes = exchange_->closes_connection() || is_input_over() || is_last_request_;
  exchange_->leave();
  exchange_.reset();
  is_head_judged_ = false;
  id_.clear();
  origin_.clear();
  if (closes) return linger();
  set_phase(Phase::idle);
  if (shared_->is_draining) return close();
  consume();
  if (phase_ == Phase::idle) rest();
}

// Ends the connection so that the client still gets what was written: a socket that is closed with
// bytes unread would take it back.
void Connection::linger() {
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  if (has_eof_) return close();
  set_phase(Phase::linger);
  input_.clear();
  read_more();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  set_phase(Phase::closed);
  error_code ignored;
  socket_.close(ignored);
  input_ = {};
  if (!exchange_) return;
  const std::shared_ptr<Exchange> exchange = std::exchange(exchange_, nullptr);
  ++shared_->gone;
  for (const auto& callback : exchange->leave_gone()) callback();
}

}  // namespace weir
