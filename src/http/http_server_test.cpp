#include "http/http_server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "http/testing/test_client.h"

namespace weir {
namespace {

using namespace std::chrono_literals;
using Writer = std::shared_ptr<ResponseWriter>;

// Writers that a test answers itself, in its own thread.
class Inbox {
 public:
  void put(Writer writer) {
    const std::lock_guard lock(mutex_);
    writers_.push_back(std::move(writer));
    changed_.notify_all();
  }
  Writer next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 30s, [&] { return !writers_.empty(); })) return nullptr;
    Writer writer = std::move(writers_.front());
    writers_.pop_front();
    return writer;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Writer> writers_;
};

// Set by one thread, waited for by another.
class Flag {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    is_set_ = true;
    changed_.notify_all();
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 30s, [&] { return is_set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_set_ = false;
};

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    options.port = 0;
    router.add("GET", "/hello", [](const HttpRequest& request, Writer writer) {
      writer->send(200, "text/plain", "hello " + request.query);
    });
    router.add("POST", "/echo", [](const HttpRequest& request, Writer writer) {
      writer->send(200, "application/octet-stream", request.body);
    });
    router.add("POST", "/later",
               [this](const HttpRequest&, Writer writer) { inbox.put(std::move(writer)); });
    router.add("GET", "/later",
               [this](const HttpRequest&, Writer writer) { inbox.put(std::move(writer)); });
    router.add(
        "GET", "/open",
        [](const HttpRequest&, Writer writer) { writer->send(200, "text/plain", "open"); },
        Access::open);
  }

  TestClient connect() {
    if (!server) {
      Result<std::unique_ptr<HttpServer>> started = HttpServer::start(options, router);
      EXPECT_TRUE(started.ok());
      server = std::move(*started);
    }
    TestClient client(server->port());
    EXPECT_TRUE(client.is_connected());
    return client;
  }
  void expect_alive() {
    const TestClient::Response response = connect().get("/hello?a");
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "hello a");
  }

  HttpServerOptions options;
  Router router;
  Inbox inbox;
  std::unique_ptr<HttpServer> server;
};

TEST_F(HttpServerTest, AConnectionServesRequestAfterRequest) {
  TestClient client = connect();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(client.get("/hello?" + std::to_string(i)).body, "hello " + std::to_string(i));
    EXPECT_EQ(client.post("/echo", std::string(100'000, 'x')).body.size(), 100'000u);
  }
  EXPECT_EQ(server->stats().accepted, 1u);
  const TestClient::Response last = client.get("/hello", "Connection: close\r\n");
  EXPECT_EQ(last.headers.at("connection"), "close");
  EXPECT_TRUE(client.is_at_end());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  TestClient client = connect();
  client.send(
      "POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
      "GET /hello?2 HTTP/1.1\r\nHost: x\r\n\r\n"
      "\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\nGET /hello?4 HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer first = inbox.next();
  first->begin_stream(200, "text/plain");
  first->write("on");
  first->write("e");
  first->end();
  EXPECT_EQ(client.read_response().body, "one");
  EXPECT_EQ(client.read_response().body, "hello 2");
  EXPECT_EQ(client.read_response().body, "abcde");
  EXPECT_EQ(client.read_response().body, "hello 4");
}

TEST_F(HttpServerTest, ARequestMayComeByteByByte) {
  TestClient client = connect();
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
      "GET /hello HTTP/1.0\r\n\r\n";
  for (const char c : request) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_EQ(client.read_response().body, "abc");
  EXPECT_EQ(client.read_response().body, "hello ");
  EXPECT_TRUE(client.is_at_end());  // HTTP/1.0 does not keep connections unless asked
}

TEST_F(HttpServerTest, HeadGetsTheHeadersOfGetAndNothingElse) {
  TestClient client = connect();
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  const TestClient::Response head = client.read_response(false);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), "6");
  EXPECT_EQ(client.read_response().body, "hello ");
}

TEST_F(HttpServerTest, UnknownPathsAndMethodsAreToldSo) {
  TestClient client = connect();
  const TestClient::Response missing = client.get("/nothing/%ff\xff");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(nlohmann::json::parse(missing.body).at("error").at("type"), "not_found_error");
  const TestClient::Response wrong = client.get("/echo");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  EXPECT_EQ(client.ask("BREW /echo HTTP/1.1\r\nHost: x\r\n\r\n").status, 405);
  EXPECT_EQ(client.get("/hello").status, 200);
}

TEST_F(HttpServerTest, PagesOfThisMachineMayAskALoopbackServerAndOthersNot) {
  TestClient client = connect();
  const auto preflight = [&](std::string_view origin) {
    return client.ask("OPTIONS /echo HTTP/1.1\r\nHost: x\r\nOrigin: " + std::string(origin) +
                      "\r\nAccess-Control-Request-Headers: authorization\r\n\r\n");
  };
  for (const char* origin : {"http://localhost:3000", "http://127.0.0.1", "http://[::1]:80"}) {
    const TestClient::Response allowed = preflight(origin);
    EXPECT_EQ(allowed.status, 204);
    EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), origin);
    EXPECT_EQ(allowed.headers.at("access-control-allow-methods"), "POST, OPTIONS");
    EXPECT_EQ(allowed.headers.at("access-control-allow-headers"), "authorization");
  }
  for (const char* origin :
       {"http://localhost.example", "https://example.org", "null", "http://127.0.0.1.example:80"}) {
    EXPECT_FALSE(preflight(origin).headers.contains("access-control-allow-origin")) << origin;
  }
  EXPECT_EQ(client.get("/hello", "Origin: http://localhost:1\r\n")
                .headers.at("access-control-allow-origin"),
            "http://localhost:1");
}

TEST_F(HttpServerTest, OriginsCanBeGiven) {
  options.cors_origins = {"https://example.org"};
  EXPECT_EQ(connect()
                .get("/hello", "Origin: https://example.org\r\n")
                .headers.count("access-control-allow-origin"),
            1u);
}

TEST_F(HttpServerTest, WhatIsNotHttpGetsACleanRefusal) {
  const std::pair<int, std::string> cases[] = {
      {400, std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)},  // TLS
      {400, "GET\r\n\r\n"},
      {400, "GET /hello\r\nHost: x\r\n\r\n"},
      {400, "GET  /hello HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET hello HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /hello HTTP/1.1\r\n\r\n"},                        // no Host
      {400, "GET /hello HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},  // two
      {400, "GET /hello HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"},
      {400, "GET /hello HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n"},
      {400, std::string("GET /hello HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n", 40)},
      {400, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /hello#x HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1x\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"},
      {400,
       "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"},
      {400, "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" +
                std::string(20'000, 'e')},
      {501, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
      {501, "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n"},
      {417, "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: tea\r\nContent-Length: 1\r\n\r\n"},
      {505, "GET /hello HTTP/2.0\r\nHost: x\r\n\r\n"},
      {431, "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"},
      {431, "GET /hello HTTP/1.1\r\nHost: x\r\nA: " + std::string(20'000, 'a') + "\r\n\r\n"},
      {413, "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"},
  };
  for (const auto& [status, bytes] : cases) {
    TestClient client = connect();
    const TestClient::Response response = client.ask(bytes);
    EXPECT_EQ(response.status, status) << bytes.substr(0, 100);
    if (response.status != 0) {
      EXPECT_TRUE(nlohmann::json::parse(response.body).contains("error"));
      EXPECT_EQ(response.headers.at("connection"), "close");
    }
    EXPECT_TRUE(client.is_at_end());
  }
  expect_alive();
}

TEST_F(HttpServerTest, RequestsThatBreakOffAreRefusedOrJustEnd) {
  {
    TestClient client = connect();
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
    client.shut_down_writing();
    EXPECT_EQ(client.read_response().status, 400);
  }
  {
    TestClient client = connect();
    client.shut_down_writing();
    EXPECT_TRUE(client.is_at_end());
  }
  expect_alive();
}

TEST_F(HttpServerTest, LargeBodiesAreRefusedHoweverTheyCome) {
  options.limits.max_body_bytes = 1000;
  TestClient client = connect();
  EXPECT_EQ(client.post("/echo", std::string(1000, 'x')).body.size(), 1000u);
  EXPECT_EQ(client
                .ask("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                     "200\r\n" +
                     std::string(512, 'x') + "\r\n200\r\n" + std::string(512, 'x'))
                .status,
            413);
  EXPECT_TRUE(client.is_at_end());
  // The refusal arrives although the client is still sending.
  TestClient eager = connect();
  eager.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n");
  eager.send(std::string(3'000'000, 'x'));
  EXPECT_EQ(eager.read_response().status, 413);
}

TEST_F(HttpServerTest, ManyBodiesAtOnceHaveOneBound) {
  options.limits.max_bodies_bytes = 150'000;
  TestClient first = connect();
  first.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100001\r\n\r\n" +
             std::string(100'000, 'x'));
  while (server->stats().body_bytes < 100'000) std::this_thread::yield();
  const TestClient::Response second = connect().post("/echo", std::string(100'000, 'x'));
  EXPECT_EQ(second.status, 503);
  EXPECT_EQ(second.headers.count("retry-after"), 1u);
  first.send("x");
  EXPECT_EQ(first.read_response().body.size(), 100'001u);
  EXPECT_EQ(connect().post("/echo", std::string(100'000, 'x')).status, 200);
}

TEST_F(HttpServerTest, SlowRequestsTimeOut) {
  options.limits.header_time = 200ms;
  options.limits.body_time = 200ms;
  TestClient trickling = connect();
  TestClient silent = connect();
  TestClient bodiless = connect();
  bodiless.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n");
  trickling.send("GET /hello HTTP/1.1\r\nA: ");
  while (trickling.send("x")) std::this_thread::sleep_for(20ms);
  EXPECT_EQ(trickling.read_response().status, 408);
  EXPECT_EQ(bodiless.read_response().status, 408);
  EXPECT_TRUE(silent.is_at_end());
  expect_alive();
}

TEST_F(HttpServerTest, IdleConnectionsAreClosed) {
  options.limits.idle_time = 100ms;
  TestClient client = connect();
  EXPECT_EQ(client.get("/hello").status, 200);
  EXPECT_TRUE(client.is_at_end());
}

TEST_F(HttpServerTest, ContinueIsSentToWhoWaitsForIt) {
  TestClient client = connect();
  client.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ab");
  EXPECT_EQ(client.read_response().body, "ab");
  // Not when the answer is known without the body.
  const TestClient::Response refused = client.ask(
      "POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(refused.status, 404);
  EXPECT_EQ(refused.interim, 0);
}

TEST_F(HttpServerTest, HundredsOfIdleConnectionsLeaveRoomForOthers) {
  std::vector<TestClient> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(connect());
    if (i % 2 == 0) idle.back().send("GET /hel");
  }
  expect_alive();
  idle[0].send("lo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(idle[0].read_response().status, 200);
}

TEST_F(HttpServerTest, TooManyConnectionsAreToldToComeLater) {
  options.limits.max_connections = 3;
  std::vector<TestClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(connect());
    clients.back().send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  std::vector<Writer> writers;
  for (int i = 0; i < 3; ++i) writers.push_back(inbox.next());
  TestClient refused = connect();
  const TestClient::Response response = refused.get("/hello");
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.headers.count("retry-after"), 1u);
  EXPECT_EQ(server->stats().refused, 1u);
  clients.clear();
  while (connect().get("/hello").status != 200) std::this_thread::yield();
}

// Who waits between two requests makes room, the longest first; who is being served does not.
TEST_F(HttpServerTest, TheLongestIdleConnectionMakesRoomForANewOne) {
  options.limits.max_connections = 3;
  std::vector<TestClient> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(connect());
    EXPECT_EQ(clients.back().get("/hello").status, 200);
  }
  EXPECT_EQ(clients[0].get("/hello").status, 200);  // so that the second is idle for longest
  clients[2].send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  TestClient fourth = connect();
  EXPECT_EQ(fourth.get("/hello").status, 200);
  EXPECT_TRUE(clients[1].is_at_end());
  EXPECT_EQ(clients[0].get("/hello").status, 200);
  TestClient fifth = connect();
  EXPECT_EQ(fifth.get("/hello").status, 200);
  EXPECT_TRUE(fourth.is_at_end());
  writer->send(200, "text/plain", "later");
  EXPECT_EQ(clients[2].read_response().body, "later");
  EXPECT_EQ(server->stats().closed_for_room, 2u);
  EXPECT_EQ(server->stats().refused, 0u);
}

// Who connects and says nothing keeps nobody out.
TEST_F(HttpServerTest, ConnectionsThatSayNothingMakeRoom) {
  options.limits.max_connections = 3;
  std::vector<TestClient> silent;
  for (int i = 0; i < 7; ++i) silent.push_back(connect());
  TestClient client = connect();
  EXPECT_EQ(client.get("/hello").status, 200);
  EXPECT_TRUE(silent[0].is_at_end());
  EXPECT_EQ(server->stats().refused, 0u);
}

// --- answers that take time ---------------------------------------------------------------------

TEST_F(HttpServerTest, AStreamArrivesPieceByPiece) {
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  writer->begin_stream(200, "text/event-stream", {{"Evil", "a\r\nInjected: b"}});
  EXPECT_TRUE(writer->write("data: 1\n\n"));
  const std::string head = client.read_until("data: 1\n\n\r\n");
  EXPECT_NE(head.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(head.find("\r\nEvil: aInjected: b\r\n"), std::string::npos);
  writer->write("data: 2\n\n");
  EXPECT_EQ(client.read_until("data: 2\n\n\r\n"), "9\r\ndata: 2\n\n\r\n");
  writer->end();
  writer->write("late");
  writer->send(200, "text/plain", "late");
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_EQ(client.get("/hello").status, 200);
}

TEST_F(HttpServerTest, OldClientsGetStreamsWithoutChunks) {
  TestClient client = connect();
  client.send("GET /later HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Writer writer = inbox.next();
  writer->begin_stream(200, "text/plain");
  writer->write("ab");
  writer->write("c");
  writer->end();
  const TestClient::Response response = client.read_response();
  EXPECT_EQ(response.body, "abc");
  EXPECT_EQ(response.headers.at("connection"), "close");
}

TEST_F(HttpServerTest, SilentEventStreamsGetComments) {
  options.limits.keep_alive_time = 50ms;
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  writer->begin_stream(200, "text/event-stream");
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(client.read_until(": keep-alive\n\n\r\n").find(": keep-alive"), std::string::npos);
  }
  writer->write("data: x\n\n");
  writer->end();
  EXPECT_NE(client.read_until("0\r\n\r\n").find("data: x"), std::string::npos);
}

TEST_F(HttpServerTest, AHalfClosedClientGetsItsAnswer) {
  options.limits.keep_alive_time = 50ms;
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\nGET /hello?2 HTTP/1.1\r\nHost: x\r\n\r\n");
  client.shut_down_writing();
  const Writer writer = inbox.next();
  // It listens still, as it shows by taking the signs of work.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 102 Processing\r\n\r\n");
  }
  EXPECT_FALSE(writer->is_gone());
  writer->send(200, "text/plain", "at last");
  EXPECT_EQ(client.read_response().body, "at last");
  EXPECT_EQ(client.read_response().body, "hello 2");
  EXPECT_TRUE(client.is_at_end());
}

TEST_F(HttpServerTest, AClientThatVanishesIsNoticedBeforeTheAnswer) {
  for (const bool says_goodbye : {true, false}) {
    TestClient client = connect();
    client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    const Writer writer = inbox.next();
    Flag gone;
    writer->on_gone([&] { gone.set(); });
    says_goodbye ? client.hang_up() : client.reset();
    EXPECT_TRUE(gone.wait());
    EXPECT_TRUE(writer->is_gone());
    Flag told_again;
    writer->on_gone([&] { told_again.set(); });
    EXPECT_TRUE(told_again.wait());
    writer->send(200, "text/plain", "to nobody");
  }
  EXPECT_EQ(server->stats().gone, 2u);
  expect_alive();
}

TEST_F(HttpServerTest, AClientThatVanishesInAStreamIsNoticed) {
  for (const bool says_goodbye : {true, false}) {
    TestClient client = connect();
    client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    const Writer writer = inbox.next();
    Flag gone;
    writer->on_gone([&] { gone.set(); });
    writer->begin_stream(200, "text/event-stream");
    writer->write("data: 1\n\n");
    client.read_until("data: 1\n\n\r\n");
    says_goodbye ? client.hang_up() : client.reset();
    EXPECT_TRUE(gone.wait());
    EXPECT_FALSE(writer->write("data: 2\n\n"));
  }
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsGoneAtTheBound) {
  options.limits.max_queued_bytes = 100'000;
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  Flag gone;
  writer->on_gone([&] { gone.set(); });
  writer->begin_stream(200, "text/event-stream");
  const std::string event(10'000, 'x');
  int n_taken = 0;
  // The system's own buffers take some, too; but never all.
  while (writer->write(event)) ASSERT_LT(++n_taken, 10'000);
  EXPECT_TRUE(writer->is_gone());
  EXPECT_TRUE(gone.wait());
  // What the server held back is not sent: the client sees a stream that broke off.
  EXPECT_FALSE(client.read_response().is_complete);
  expect_alive();
}

TEST_F(HttpServerTest, AClientThatStopsReadingTimesOut) {
  options.limits.write_time = 200ms;
  options.limits.max_queued_bytes = 1 << 30;
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  Flag gone;
  writer->on_gone([&] { gone.set(); });
  writer->begin_stream(200, "text/event-stream");
  writer->write(std::string(50'000'000, 'x'));
  EXPECT_TRUE(gone.wait());
}

TEST_F(HttpServerTest, LargeAnswersArriveWhole) {
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  inbox.next()->send(200, "text/plain", std::string(20'000'000, 'x'));
  const TestClient::Response response = client.read_response();
  EXPECT_TRUE(response.is_complete);
  EXPECT_EQ(response.body.size(), 20'000'000u);
}

// --- handlers that fail -------------------------------------------------------------------------

TEST_F(HttpServerTest, HandlersThatThrowOrForgetAnswer500) {
  router.add("GET", "/throw", [](const HttpRequest&, Writer) { throw std::runtime_error("oh"); });
  router.add("GET", "/forget", [](const HttpRequest&, Writer) {});
  TestClient client = connect();
  EXPECT_EQ(client.get("/throw").status, 500);
  EXPECT_EQ(client.get("/forget").status, 500);
  EXPECT_EQ(client.get("/hello").status, 200);
}

TEST_F(HttpServerTest, AStreamThatIsDroppedBreaksOff) {
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  {
    const Writer writer = inbox.next();
    writer->begin_stream(200, "text/plain");
    writer->write("half");
  }
  const TestClient::Response response = client.read_response();
  EXPECT_EQ(response.body, "half");
  EXPECT_FALSE(response.is_complete);
}

// --- keys ---------------------------------------------------------------------------------------

TEST_F(HttpServerTest, KeysAreAskedForBeforeBodies) {
  options.authenticate = [](const HttpRequest& request) -> std::optional<Caller> {
    if (request.header("authorization") != "Bearer secret") return std::nullopt;
    return Caller{7, "me", false};
  };
  router.add("GET", "/who", [](const HttpRequest& request, Writer writer) {
    writer->send(200, "text/plain", request.caller.name + std::to_string(request.caller.tenant));
  });
  router.add(
      "GET", "/admin",
      [](const HttpRequest&, Writer writer) { writer->send(200, "text/plain", "in"); },
      Access::admin);
  TestClient client = connect();
  EXPECT_EQ(client.get("/open").status, 200);
  EXPECT_EQ(client.get("/nothing").status, 404);
  const TestClient::Response refused = client.get("/who");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(nlohmann::json::parse(refused.body).at("error").at("code"), "invalid_api_key");
  EXPECT_EQ(client.get("/who", "Authorization: Bearer secret\r\n").body, "me7");
  EXPECT_EQ(client.get("/admin", "Authorization: Bearer secret\r\n").status, 403);
  const TestClient::Response early =
      client.ask("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(early.status, 401);
}

// --- the end ------------------------------------------------------------------------------------

TEST_F(HttpServerTest, DrainingLetsAnswersFinishAndNobodyIn) {
  TestClient idle = connect();
  EXPECT_EQ(idle.get("/hello").status, 200);
  TestClient busy = connect();
  busy.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  writer->begin_stream(200, "text/plain");
  server->drain();
  EXPECT_TRUE(idle.is_at_end());
  writer->write("to the end");
  writer->end();
  EXPECT_EQ(busy.read_response().body, "to the end");
  EXPECT_TRUE(busy.is_at_end());
}

TEST_F(HttpServerTest, WritersMayOutliveTheServer) {
  TestClient client = connect();
  client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  const Writer writer = inbox.next();
  Flag gone;
  writer->on_gone([&] { gone.set(); });
  server.reset();
  EXPECT_TRUE(gone.wait());
  EXPECT_FALSE(writer->write("x"));
  writer->send(200, "text/plain", "x");
  EXPECT_TRUE(client.is_at_end());
}

// Writers on many threads while clients come and go: for the thread sanitizer.
TEST_F(HttpServerTest, ManyThreadsMayWriteWhileClientsLeave) {
  std::thread answering([&] {
    for (int i = 0; i < 60; ++i) {
      const Writer writer = inbox.next();
      if (!writer) return;
      writer->begin_stream(200, "text/event-stream");
      std::thread other([&] {
        for (int j = 0; j < 50; ++j) writer->write("data: other\n\n");
      });
      for (int j = 0; j < 50; ++j) writer->write("data: one\n\n");
      other.join();
      writer->end();
    }
  });
  for (int i = 0; i < 60; ++i) {
    TestClient client = connect();
    client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n");
    if (i % 3 == 0) client.reset();
    if (i % 3 == 1) {
      EXPECT_TRUE(client.read_response().is_complete);
    }
  }
  answering.join();
  expect_alive();
}

TEST(HttpServer, SaysWhyItCannotListen) {
  HttpServerOptions options;
  options.port = 0;
  Result<std::unique_ptr<HttpServer>> first = HttpServer::start(options, Router());
  ASSERT_TRUE(first.ok());
  options.port = (*first)->port();
  Result<std::unique_ptr<HttpServer>> second = HttpServer::start(options, Router());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::io_error);
  options.host = "no such host";
  Result<std::unique_ptr<HttpServer>> third = HttpServer::start(options, Router());
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().code(), Code::invalid_input);
}

}  // namespace
}  // namespace weir
