#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "http/http_types.h"

namespace weir {

// A ResponseWriter without a client, for tests of handlers: keeps what it is told. Any thread.
class RecordingWriter final : public ResponseWriter {
 public:
  using ResponseWriter::begin_stream;
  using ResponseWriter::send;

  void send(HttpResponse response) override {
    const std::lock_guard lock(mutex_);
    if (has_ended_ || has_begun_) return;
    response_ = std::move(response);
    has_begun_ = has_ended_ = true;
  }
  void begin_stream(int status, std::string_view content_type, HttpHeaders headers) override {
    const std::lock_guard lock(mutex_);
    if (has_begun_) return;
    response_ = {status, std::string(content_type), {}, std::move(headers)};
    has_begun_ = is_stream_ = true;
  }
  bool write(std::string_view chunk) override {
    const std::lock_guard lock(mutex_);
    if (is_gone_) return false;
    if (is_stream_ && !has_ended_) {
      response_.body += chunk;
      chunks_.emplace_back(chunk);
    }
    return true;
  }
  void end() override {
    const std::lock_guard lock(mutex_);
    has_ended_ = has_begun_;
  }
  bool has_begun() const override {
    const std::lock_guard lock(mutex_);
    return has_begun_;
  }
  bool is_gone() const override {
    const std::lock_guard lock(mutex_);
    return is_gone_;
  }
  void on_gone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!is_gone_) {
        callbacks_.push_back(std::move(callback));
        return;
      }
    }
    callback();
  }

  // The client goes away.
  void go() {
    std::vector<std::function<void()>> callbacks;
    {
      const std::lock_guard lock(mutex_);
      is_gone_ = true;
      callbacks.swap(callbacks_);
    }
    for (const auto& callback : callbacks) callback();
  }
  bool has_ended() const {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }
  bool is_stream() const {
    const std::lock_guard lock(mutex_);
    return is_stream_;
  }
  // With everything that was written so far as its body.
  HttpResponse response() const {
    const std::lock_guard lock(mutex_);
    return response_;
  }
  std::vector<std::string> chunks() const {
    const std::lock_guard lock(mutex_);
    return chunks_;
  }

 private:
  mutable std::mutex mutex_;
  HttpResponse response_;
  std::vector<std::string> chunks_;
  std::vector<std::function<void()>> callbacks_;
  bool has_begun_ = false;
  bool is_stream_ = false;
  bool has_ended_ = false;
  bool is_gone_ = false;
};

}  // namespace weir
