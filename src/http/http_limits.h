#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace weir {

// What one client, or all of them, may take. What is over is refused, and memory stays flat.
struct HttpLimits {
  size_t max_header_bytes = 16 * 1024;          // request line and headers: 431
  size_t max_body_bytes = 32 * 1024 * 1024;     // 413
  size_t max_bodies_bytes = 256 * 1024 * 1024;  // of all connections together, while read: 503
  size_t max_queued_bytes = 1024 * 1024;        // of a stream that the client does not read: gone
  size_t max_connections = 512;                 // 503

  std::chrono::milliseconds idle_time{60'000};        // without a request, before it is closed
  std::chrono::milliseconds header_time{10'000};      // from the first byte to the last header: 408
  std::chrono::milliseconds body_time{60'000};        // for the whole body: 408
  std::chrono::milliseconds write_time{30'000};       // without the client taking a byte: gone
  std::chrono::milliseconds keep_alive_time{10'000};  // between comments in a silent event stream
  std::chrono::milliseconds linger_time{2'000};  // for an error to arrive before the line is cut
};

}  // namespace weir
