#include "kv/budget.h"

#include <string>
#include <utility>

namespace weir {

const char* tag_name(Tag tag) {
  switch (tag) {
    case Tag::live_global:
      return "live_global";
    case Tag::live_local:
      return "live_local";
    case Tag::restart:
      return "restart";
    case Tag::idle:
      return "idle";
    case Tag::step_headroom:
      return "step_headroom";
    case Tag::staging_in:
      return "staging_in";
    case Tag::staging_out:
      return "staging_out";
    case Tag::tier_memory:
      return "tier_memory";
    case Tag::metadata:
      return "metadata";
    case Tag::committed_free:
      return "committed_free";
  }
  return "unknown";
}

Reservation::Reservation(Reservation&& other) noexcept
    : budget_(std::exchange(other.budget_, nullptr)),
      size_(std::exchange(other.size_, Bytes{})),
      tag_(other.tag_) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    if (budget_) budget_->release(size_, tag_);
    budget_ = std::exchange(other.budget_, nullptr);
    size_ = std::exchange(other.size_, Bytes{});
    tag_ = other.tag_;
  }
  return *this;
}

Reservation::~Reservation() {
  if (budget_) budget_->release(size_, tag_);
}

Reservation Reservation::split(Bytes part) {
  WEIR_CHECK(part.v >= 0 && part <= size_);
  size_ -= part;
  return Reservation(budget_, part, tag_);
}

void Reservation::merge(Reservation other) {
  if (!other.budget_) return;
  WEIR_CHECK(budget_ == other.budget_);
  other.retag(tag_);
  size_ += other.size_;
  other.size_ = {};
}

void Reservation::retag(Tag to) {
  if (budget_ && to != tag_) budget_->move_tag(size_, tag_, to);
  tag_ = to;
}

Result<Reservation> Budget::reserve(Bytes need, Tag tag) {
  WEIR_CHECK(need.v >= 0);
  int64_t passes = refuse_after_.load();
  while (passes >= 0 && !refuse_after_.compare_exchange_weak(passes, passes - 1)) {
  }
  const bool refuse = passes == 0;

  int64_t used = used_.load();
  do {
    const int64_t limit = limit_.load();
    if (need.v == 0 && !refuse) break;  // asks for nothing: fits even a limit lowered below use
    if (refuse || need.v > limit - used) {
      const int64_t unused = limit > used ? limit - used : 0;
      return Status(Code::over_budget, "the KV budget has " + format_bytes({unused}) + " of " +
                                           format_bytes({limit}) + " left, " + format_bytes(need) +
                                           " more are needed; raise the budget or end a sequence");
    }
  } while (!used_.compare_exchange_weak(used, used + need.v));
  tags_[static_cast<size_t>(tag)] += need.v;

  int64_t peak = peak_.load();
  while (peak < used + need.v && !peak_.compare_exchange_weak(peak, used + need.v)) {
  }
  return Reservation(this, need, tag);
}

bool Budget::would_fit(Bytes need) const {
  return need.v == 0 || need.v <= limit_.load() - used_.load();
}

void Budget::release(Bytes size, Tag tag) {
  tags_[static_cast<size_t>(tag)] -= size.v;
  used_ -= size.v;
}

void Budget::move_tag(Bytes size, Tag from, Tag to) {
  tags_[static_cast<size_t>(from)] -= size.v;
  tags_[static_cast<size_t>(to)] += size.v;
}

}  // namespace weir
