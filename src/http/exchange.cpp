#include "http/exchange.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace weir {
namespace {

// Without what would end a header and begin another.
std::string header_text(std::string_view text) {
  std::string result(text);
  std::erase_if(result, [](char c) { return (c >= 0 && c < 0x20 && c != '\t') || c == 0x7F; });
  return result;
}

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

}  // namespace

Exchange::Exchange(std::shared_ptr<ExchangeOwner> owner, ExchangeOptions options)
    : options_(std::move(options)), owner_(std::move(owner)), keeps_alive_(options_.keeps_alive) {}

void Exchange::wake() {
  if (owner_) owner_->wake();
}

void Exchange::append_head(int status, std::string_view content_type, const HttpHeaders& headers,
                           std::string_view framing) {
  if (owner_ && owner_->is_draining()) keeps_alive_ = false;
  auto out = std::back_inserter(output_);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nDate: {:%a, %d %b %Y %H:%M:%S GMT}\r\n{}", status,
                 reason_phrase(status), fmt::gmtime(std::time(nullptr)), framing);
  if (!content_type.empty()) {
    fmt::format_to(out, "Content-Type: {}\r\n", header_text(content_type));
  }
  if (!keeps_alive_) {
    output_ += "Connection: close\r\n";
  } else if (options_.is_http_1_0) {
    output_ += "Connection: keep-alive\r\n";
  }
  for (const HttpHeaders* list : {&options_.headers, &headers}) {
    for (const auto& [name, value] : *list) {
      fmt::format_to(out, "{}: {}\r\n", header_text(name), header_text(value));
    }
  }
  output_ += "\r\n";
}

void Exchange::send(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (!owner_ || has_begun_) return;
  has_begun_ = is_complete_ = true;
  append_head(response.status, response.content_type, response.headers,
              has_no_body(response.status)
                  ? std::string()
                  : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (!options_.is_head && !has_no_body(response.status)) output_ += response.body;
  wake();
}

void Exchange::begin_stream(int status, std::string_view content_type, const HttpHeaders& headers) {
  const std::lock_guard lock(mutex_);
  if (!owner_ || has_begun_) return;
  has_begun_ = true;
  is_chunked_ = !options_.is_http_1_0;
  if (!is_chunked_) keeps_alive_ = false;  // the end of the connection is the end of the body
  is_event_stream_ = content_type.starts_with("text/event-stream") && !options_.is_head;
  append_head(status, content_type, headers, is_chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  wake();
}

void Exchange::append_chunk(std::string_view chunk) {
  if (is_chunked_) fmt::format_to(std::back_inserter(output_), "{:x}\r\n", chunk.size());
  output_ += chunk;
  if (is_chunked_) output_ += "\r\n";
}

bool Exchange::write(std::string_view chunk) {
  const std::lock_guard lock(mutex_);
  if (!owner_ || is_gone_) return false;
  if (!has_begun_ || is_complete_ || chunk.empty()) return true;
  is_quiet_ = false;
  if (options_.is_head) return true;
  const size_t waiting = output_.size() + in_flight_;
  if (waiting > 0 && waiting + chunk.size() > options_.max_queued_bytes) {
    is_gone_ = true;
    wake();
    return false;
  }
  append_chunk(chunk);
  wake();
  return true;
}

void Exchange::end() {
  const std::lock_guard lock(mutex_);
  if (!owner_ || !has_begun_ || is_complete_) return;
  is_complete_ = true;
  if (is_chunked_ && !options_.is_head) output_ += "0\r\n\r\n";
  wake();
}

bool Exchange::has_begun() const {
  const std::lock_guard lock(mutex_);
  return has_begun_;
}

bool Exchange::is_gone() const {
  const std::lock_guard lock(mutex_);
  return is_gone_;
}

void Exchange::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (owner_) {
      if (!is_complete_) callbacks_.push_back(std::move(callback));
      return;
    }
    if (!is_gone_) return;
  }
  callback();
}

void Exchange::abandon() {
  const std::lock_guard lock(mutex_);
  if (!owner_ || is_complete_) return;
  is_complete_ = true;
  if (has_begun_) {
    is_broken_ = true;
  } else {
    has_begun_ = true;
    const HttpResponse response =
        error_response(500, "server_error", {}, "the request was dropped without an answer");
    append_head(500, response.content_type, {},
                fmt::format("Content-Length: {}\r\n", response.body.size()));
    if (!options_.is_head) output_ += response.body;
  }
  wake();
}

Exchange::Output Exchange::take_output() {
  const std::lock_guard lock(mutex_);
  Output result{std::move(output_), is_complete_ || is_gone_, is_broken_ || is_gone_};
  output_.clear();
  in_flight_ = result.bytes.size();
  return result;
}

void Exchange::keep_alive(bool at_once) {
  const std::lock_guard lock(mutex_);
  if (!owner_ || !is_event_stream_ || is_complete_) return;
  if ((is_quiet_ || at_once) && output_.empty() && in_flight_ == 0) {
    append_chunk(": keep-alive\n\n");
    wake();
  }
  is_quiet_ = true;
}

std::vector<std::function<void()>> Exchange::leave_gone() {
  // Dropped outside the lock: they may hold the writer.
  std::vector<std::function<void()>> callbacks;
  const std::lock_guard lock(mutex_);
  callbacks.swap(callbacks_);
  owner_.reset();
  is_gone_ = true;
  output_.clear();
  if (is_complete_) return {};
  return callbacks;
}

void Exchange::leave() {
  std::vector<std::function<void()>> dropped;  // outside the lock: they may hold the writer
  const std::lock_guard lock(mutex_);
  dropped.swap(callbacks_);
  owner_.reset();
}

bool Exchange::closes_connection() const {
  const std::lock_guard lock(mutex_);
  return !keeps_alive_;
}

namespace {

class Writer final : public ResponseWriter {
 public:
  explicit Writer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Writer() override { exchange_->abandon(); }
  void send(HttpResponse response) override { exchange_->send(std::move(response)); }
  void begin_stream(int status, std::string_view content_type, HttpHeaders headers) override {
    exchange_->begin_stream(status, content_type, headers);
  }
  bool write(std::string_view chunk) override { return exchange_->write(chunk); }
  void end() override { exchange_->end(); }
  bool has_begun() const override { return exchange_->has_begun(); }
  bool is_gone() const override { return exchange_->is_gone(); }
  void on_gone(std::function<void()> callback) override { exchange_->on_gone(std::move(callback)); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<Writer>(std::move(exchange));
}

}  // namespace weir
