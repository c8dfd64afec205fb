// Any bytes as what a client sends: they become requests or one refusal, the same ones however the
// bytes are cut. The bodies of requests go on to the API's readers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "http/request_reader.h"
#include "http/router.h"
#include "http/testing/recording_writer.h"
#include "openai/request.h"

namespace weir {
namespace {

HttpLimits small_limits() {
  HttpLimits limits;
  limits.max_header_bytes = 1024;
  limits.max_body_bytes = 4096;
  return limits;
}

template <typename Parsed>
HttpResponse answer(const Parsed& parsed) {
  const bool is_fine = parsed.index() == 0;
  return {is_fine ? 200 : 400, "application/json", {}, {}};
}

Router make_router() {
  Router router;
  router.add("POST", "/v1/chat/completions", [](const HttpRequest& request, auto writer) {
    writer->send(answer(openai::parse_chat_request(request.body)));
  });
  router.add("POST", "/v1/completions", [](const HttpRequest& request, auto writer) {
    writer->send(answer(openai::parse_completion_request(request.body)));
  });
  router.add("POST", "/v1/kv/conversations/{name}/fork",
             [](const HttpRequest& request, auto writer) {
               WEIR_CHECK(!request.params.at("name").empty());
               writer->send(200, "text/plain", request.query_value("to").value_or(""));
             });
  router.add("GET", "/health", [](const HttpRequest&, auto writer) {
    writer->begin_stream(200, "text/event-stream");
    writer->write("data: x\n\n");
    writer->end();
  });
  return router;
}

// What became of the bytes: each request's answer and body, then the refusal if there was one.
std::vector<std::string> serve(std::string_view bytes, size_t piece) {
  static const Router router = make_router();
  const HttpLimits limits = small_limits();
  RequestReader reader(limits);
  std::vector<std::string> events;
  std::string input;
  for (;;) {
    const RequestReader::State before = reader.state();
    const size_t n = reader.feed(input);
    WEIR_CHECK(n <= input.size());
    input.erase(0, n);
    WEIR_CHECK(reader.body_bytes() <= limits.max_body_bytes);
    if (reader.state() == RequestReader::State::failed) break;
    if (reader.state() == RequestReader::State::done) {
      const Router::Match match = router.find(reader.request().method, reader.raw_path());
      HttpRequest request = reader.take();
      request.params = match.params;
      const auto writer = std::make_shared<RecordingWriter>();
      if (match.handler) {
        (*match.handler)(request, writer);
        WEIR_CHECK(writer->has_ended());
      }
      events.push_back(request.method + " " + request.path + "?" + request.query + " " +
                       std::to_string(request.headers.size()) + " " +
                       std::to_string(writer->response().status) + " " + request.body);
      continue;
    }
    if (n > 0 || reader.state() != before) continue;
    // A reader that wants more has to be given more: what it holds back is bounded.
    WEIR_CHECK(input.size() <= limits.max_header_bytes + piece);
    if (bytes.empty()) break;
    input += bytes.substr(0, piece);
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
  reader.end_of_input();
  if (reader.state() == RequestReader::State::failed) {
    WEIR_CHECK(reader.error().status >= 400 && !reader.error().body.empty());
    // Which of several faults is named may depend on how far the bytes had come.
    events.push_back("refused");
  }
  return events;
}

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> whole = weir::serve(bytes, 16 * 1024);
  WEIR_CHECK(weir::serve(bytes, 7) == whole);
  return 0;
}
