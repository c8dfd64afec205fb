#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace weir {

// A client that can misbehave: a plain blocking socket to this machine. Reading gives up after a
// time that only a hanging server reaches.
class TestClient {
 public:
  struct Response {
    int status = 0;                              // 0: the connection ended before there was one
    std::map<std::string, std::string> headers;  // lower case names
    std::string body;
    bool is_complete = false;  // ended as its headers said
    int interim = 0;           // 1xx answers before it
  };

  explicit TestClient(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    timeval patience{30, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    is_connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  TestClient(TestClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        is_connected_(other.is_connected_),
        input_(std::move(other.input_)) {}
  ~TestClient() { hang_up(); }

  bool is_connected() const { return is_connected_; }
  // False once the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void shut_down_writing() { shutdown(fd_, SHUT_WR); }
  void hang_up() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Ends the connection as a crash of the machine would: no goodbye.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    hang_up();
  }

  // False at the end of the connection (or after the patience).
  bool read_some() {
    char buffer[16384];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) return false;
    input_.append(buffer, static_cast<size_t>(n));
    return true;
  }
  // Everything up to and including `end`; what there was if the connection ends before.
  std::string read_until(std::string_view end) {
    size_t at;
    while ((at = input_.find(end)) == std::string::npos) {
      if (!read_some()) return std::exchange(input_, {});
    }
    return take(at + end.size());
  }
  bool is_at_end() {
    while (input_.empty()) {
      if (!read_some()) return true;
    }
    return false;
  }

  Response read_response(bool has_body = true) {
    Response response;
    for (;;) {
      const std::string head = read_until("\r\n\r\n");
      if (!head.starts_with("HTTP/1.1 ")) return response;
      response.status = std::atoi(head.c_str() + 9);
      if (response.status >= 200) {
        read_headers(head, response);
        break;
      }
      ++response.interim;
      response.status = 0;
    }
    if (!has_body || response.status == 204) {
      response.is_complete = true;
    } else if (response.headers.contains("transfer-encoding")) {
      read_chunks(response);
    } else if (response.headers.contains("content-length")) {
      const size_t n = std::strtoull(response.headers["content-length"].c_str(), nullptr, 10);
      while (input_.size() < n && read_some()) {
      }
      response.is_complete = input_.size() >= n;
      response.body = take(std::min(n, input_.size()));
    } else {
      while (read_some()) {
      }
      response.body = std::exchange(input_, {});
      response.is_complete = true;
    }
    return response;
  }
  Response ask(std::string_view request) {
    send(request);
    return read_response();
  }
  Response get(std::string_view path, std::string_view more_headers = {}) {
    return ask("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n" + std::string(more_headers) +
               "\r\n");
  }
  Response post(std::string_view path, std::string_view body, std::string_view more_headers = {}) {
    return ask("POST " + std::string(path) +
               " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
               std::string(more_headers) + "\r\n" + std::string(body));
  }

 private:
  std::string take(size_t n) {
    std::string result = input_.substr(0, n);
    input_.erase(0, n);
    return result;
  }
  static void read_headers(const std::string& head, Response& response) {
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const size_t end = head.find("\r\n", at);
      const size_t colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      response.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  }
  void read_chunks(Response& response) {
    for (;;) {
      const std::string line = read_until("\r\n");
      if (!line.ends_with("\r\n")) return;
      const size_t n = std::strtoull(line.c_str(), nullptr, 16);
      while (input_.size() < n + 2) {
        if (!read_some()) {
          response.body += std::exchange(input_, {});
          return;
        }
      }
      response.body += take(n);
      take(2);
      if (n == 0) break;
    }
    response.is_complete = true;
  }

  int fd_;
  bool is_connected_ = false;
  std::string input_;
};

}  // namespace weir
