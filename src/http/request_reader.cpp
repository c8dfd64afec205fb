#include "http/request_reader.h"

#include <algorithm>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <cstring>

namespace weir {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

// Beast's string body without its trust in Content-Length: memory is taken for what has come.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool isRequest, class Fields>
    explicit reader(http::header<isRequest, Fields>&, std::string& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, beast::error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, beast::error_code& error) {
      error = {};
      size_t n = 0;
      for (auto it = boost::asio::buffer_sequence_begin(buffers);
           it != boost::asio::buffer_sequence_end(buffers); ++it) {
        const boost::asio::const_buffer piece = *it;
        body_.append(static_cast<const char*>(piece.data()), piece.size());
        n += piece.size();
      }
      return n;
    }
    void finish(beast::error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

int status_of(const beast::error_code& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::bad_version) return 505;
  return 400;
}

std::string_view message_of(int status) {
  switch (status) {
    case 413:
      return "the body is larger than this server takes";
    case 431:
      return "the headers are larger than this server takes";
    case 505:
      return "only HTTP/1.0 and HTTP/1.1 are spoken here";
    default:
      return "this is not a valid HTTP request";
  }
}

}  // namespace

struct RequestReader::Parser {
  http::request_parser<GrowingBody> beast;
};

RequestReader::RequestReader(const HttpLimits& limits) : limits_(limits) { take(); }
RequestReader::~RequestReader() = default;
RequestReader::RequestReader(RequestReader&&) noexcept = default;

size_t RequestReader::feed(std::string_view bytes) {
  if (state_ == State::done || state_ == State::failed) return 0;
  size_t taken = 0;
  if (!has_started_) {
    // Empty lines between requests are allowed and mean nothing.
    taken = std::min(bytes.find_first_not_of("\r\n"), bytes.size());
    bytes.remove_prefix(taken);
  }
  if (bytes.empty()) return taken;
  has_started_ = true;

  beast::error_code error;
  const size_t n = parser_->beast.put(boost::asio::buffer(bytes.data(), bytes.size()), error);
  taken += n;
  if (error && error != http::error::need_more) {
    fail(status_of(error), message_of(status_of(error)));
    return taken;
  }
  if (state_ == State::head && parser_->beast.is_header_done()) read_head();
  if (state_ == State::body && parser_->beast.is_done()) state_ = State::done;
  // What the parser neither takes nor understands, a chunk's extension of any length, say.
  if (state_ == State::body && n == 0 && bytes.size() > limits_.max_header_bytes) {
    fail(400, message_of(400));
  }
  return taken;
}

void RequestReader::end_of_input() {
  if (state_ != State::done && state_ != State::failed) fail(400, "the request is not complete");
}

size_t RequestReader::body_bytes() const { return parser_->beast.get().body().size(); }

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(request_);
  if (parser_) request.body = std::move(parser_->beast.get().body());
  request_ = {};
  raw_path_.clear();
  parser_ = std::make_unique<Parser>();
  parser_->beast.eager(false);
  parser_->beast.header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
  parser_->beast.body_limit(limits_.max_body_bytes);
  state_ = State::head;
  has_started_ = false;
  return request;
}

void RequestReader::fail(int status, std::string_view message) {
  error_ = error_response(status, "invalid_request_error", {}, message);
  state_ = State::failed;
}

void RequestReader::read_head() {
  state_ = State::body;
  const auto& head = parser_->beast.get();
  const auto view = [](beast::string_view v) { return std::string_view(v.data(), v.size()); };
  request_.method = view(head.method_string());
  is_http_1_0_ = head.version() == 10;
  keeps_alive_ = head.keep_alive();
  for (const auto& field : head) {
    request_.headers.emplace_back(lower(view(field.name_string())), view(field.value()));
  }

  const std::string expect = lower(request_.header("expect"));
  expects_continue_ = expect == "100-continue" && !is_http_1_0_;
  if (!expect.empty() && expect != "100-continue") {
    return fail(417, "only '100-continue' can be expected here");
  }
  // Whoever frames a body otherwise than we do could hide a second request in it.
  const auto coding = head.count(http::field::transfer_encoding);
  if (coding > 0 && (is_http_1_0_ || coding > 1)) return fail(400, "bad transfer encoding");
  if (coding > 0 && lower(request_.header("transfer-encoding")) != "chunked") {
    return fail(501, "the only transfer encoding known here is 'chunked'");
  }
  if (head.count(http::field::host) != 1 && !is_http_1_0_) {
    return fail(400, "the request needs exactly one Host header");
  }
  read_target(view(head.target()));
}

// A path, or a whole URL as it is sent to proxies; '*' belongs to OPTIONS.
void RequestReader::read_target(std::string_view target) {
  if (target == "*" && request_.method == "OPTIONS") {
    raw_path_ = request_.path = target;
    return;
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    break;
  }
  const size_t question = std::min(target.find('?'), target.size());
  raw_path_ = target.substr(0, question);
  request_.query = target.substr(std::min(question + 1, target.size()));
  const std::optional<std::string> path = percent_decode(raw_path_, false);
  if (!target.starts_with('/') || !path || target.find('#') != std::string_view::npos) {
    return fail(400, "the request's target is not a path");
  }
  request_.path = *path;
}

}  // namespace weir
