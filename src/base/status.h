// base/: status values, byte counts, checks. The little that every other floor needs.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace weir {

// Why something a user, a file or a request can cause did not work. Our own bugs are WEIR_CHECKs.
enum class Code {
  ok,
  invalid_input,  // the command line, a request or a parameter is wrong
  not_found,      // a file, an id or a tensor does not exist
  corrupt,        // a file is truncated or contradicts itself
  unsupported,    // well-formed, but weir cannot do it
  over_budget,    // does not fit the KV budget; nothing was changed
  cancelled,      // the caller asked to stop
  io_error,       // the operating system refused
  unavailable,    // not now: full, or it waited too long; it may work later
  internal,       // a library failed in a way it should not
};

// A code and one line that says what was wrong, with the numbers, and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

// A value or the Status that explains its absence. Reading the wrong one is a bug and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {  // NOLINT
    WEIR_CHECK(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  T&& operator*() && { return std::move(checked()); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

  const Status& error() const {
    WEIR_CHECK(!ok());
    return std::get<1>(state_);
  }
  Status status() const { return ok() ? Status{} : std::get<1>(state_); }

 private:
  T& checked() {
    WEIR_CHECK(ok());
    return std::get<0>(state_);
  }
  std::variant<T, Status> state_;
};

}  // namespace weir
