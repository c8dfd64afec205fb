// `weir serve` as a user meets it: a process of its own, a port, a signal.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "http/testing/test_client.h"

namespace weir {
namespace {

using nlohmann::json;

const std::string kTiny = WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-f16.gguf";

// `weir serve` with these arguments; what it prints can be read. Killed if it still runs at the
// end.
class Server {
 public:
  explicit Server(const std::vector<std::string>& arguments) {
    int out[2], errors[2];
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(errors[1], STDERR_FILENO);
      std::vector<char*> argv = {const_cast<char*>(WEIR_PROGRAM), const_cast<char*>("serve")};
      for (const std::string& argument : arguments)
        argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(WEIR_PROGRAM, argv.data());
      _exit(127);
    }
    close(out[1]);
    close(errors[1]);
    out_ = out[0];
    errors_ = errors[0];
  }
  ~Server() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(errors_);
  }

  // The port it says it listens on; 0 if it ends before.
  uint16_t port() {
    const std::string line = read_until(out_, '\n');
    const size_t colon = line.rfind(':');
    if (!line.starts_with("listening on http://127.0.0.1:")) return 0;
    return static_cast<uint16_t>(std::atoi(line.c_str() + colon + 1));
  }
  void terminate() { kill(pid_, SIGTERM); }
  // Waits for its end: the exit code, or -1 if a signal ended it.
  int exit_code() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // All that it said of errors. Only once it has ended.
  std::string errors() { return read_until(errors_, '\0'); }

 private:
  static std::string read_until(int fd, char end) {
    std::string text;
    for (char c; read(fd, &c, 1) == 1 && c != end;) text += c;
    return text;
  }

  pid_t pid_ = -1;
  int out_ = -1, errors_ = -1;
};

std::vector<std::string> usual(std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"-m",          kTiny,   "-t",     "1",
                                        "--kv-budget", "32MiB", "--port", "0"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void expect_one_line(Server& server, int exit_code, const std::string& named) {
  EXPECT_EQ(server.exit_code(), exit_code);
  const std::string errors = server.errors();
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
  EXPECT_NE(errors.find(named), std::string::npos) << errors;
}

TEST(Serve, AnswersAndStopsWhenAsked) {
  Server server(usual());
  const uint16_t port = server.port();
  ASSERT_NE(port, 0);
  TestClient client(port);
  EXPECT_EQ(client.get("/health").status, 200);
  const TestClient::Response response = client.post(
      "/v1/completions", R"({"prompt":"Once upon a time","max_tokens":8,"temperature":0})");
  EXPECT_EQ(response.status, 200);
  const json answer = json::parse(response.body, nullptr, false);
  EXPECT_FALSE(answer["choices"][0]["text"].get<std::string>().empty());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
  server.terminate();
  EXPECT_EQ(server.exit_code(), 0);
  EXPECT_FALSE(TestClient(port).is_connected());
  const std::string errors = server.errors();
  for (const char* part : {"weights", "KV budget", "32 MiB", "compute", "stopping"})
    EXPECT_NE(errors.find(part), std::string::npos) << part << " in\n" << errors;
}

// A reply that runs when the signal comes is finished, and nobody new is let in.
TEST(Serve, AReplyFinishesBeforeTheProcessDoes) {
  Server server(usual({"--grace", "60"}));
  const uint16_t port = server.port();
  ASSERT_NE(port, 0);
  TestClient client(port);
  const std::string body = R"({"prompt":"Once","max_tokens":300,"ignore_eos":true,"stream":true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.read_some();
  server.terminate();
  const TestClient::Response response = client.read_response();
  EXPECT_TRUE(response.is_complete);
  EXPECT_NE(response.body.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(server.exit_code(), 0);
}

// Without time to finish, it is cut, and told so.
TEST(Serve, AReplyWithoutGraceIsCutWithItsReason) {
  Server server(usual({"--grace", "0"}));
  const uint16_t port = server.port();
  ASSERT_NE(port, 0);
  TestClient client(port);
  const std::string body = R"({"prompt":"Once","max_tokens":1900,"ignore_eos":true,"stream":true})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.read_some();
  server.terminate();
  const TestClient::Response response = client.read_response();
  EXPECT_NE(response.body.find("\"code\":\"cancelled\""), std::string::npos) << response.body;
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  EXPECT_EQ(server.exit_code(), 0);
}

TEST(Serve, AStartThatFailsIsOneLine) {
  Server no_model({"-m", "/no/such/file", "--port", "0"});
  expect_one_line(no_model, 2, "/no/such/file");
  Server no_host(usual({"--host", "192.0.2.1"}));  // an address of no machine
  expect_one_line(no_host, 1, "192.0.2.1");
  Server no_room({"-m", kTiny, "-t", "1", "--port", "0", "--kv-budget", "1KiB"});
  expect_one_line(no_room, 2, "1 KiB");
  Server no_keys(usual({"--api-key-file", "/no/such/keys"}));
  expect_one_line(no_keys, 2, "/no/such/keys");

  // What no request could be answered with.
  Server bad_sampling(usual({"--top-p", "0"}));
  expect_one_line(bad_sampling, 2, "top-p");
  Server bad_grammar(usual({"--grammar", "root ::= ("}));
  expect_one_line(bad_grammar, 2, "grammar");
  Server bytes_to_rewind(usual({"--rewind-bound", "8MiB"}));
  expect_one_line(bytes_to_rewind, 2, "--rewind-bound");
  Server bad_origin(usual({"--cors", "example.org"}));
  EXPECT_EQ(bad_origin.exit_code(), 2);
  EXPECT_NE(bad_origin.errors().find("example.org"), std::string::npos);

  Server first(usual());
  const uint16_t port = first.port();
  ASSERT_NE(port, 0);
  Server second({"-m", kTiny, "-t", "1", "--kv-budget", "32MiB", "--port", std::to_string(port)});
  expect_one_line(second, 1, std::to_string(port));
  EXPECT_EQ(TestClient(port).get("/health").status, 200);
}

// The banner promises what the budget holds, not what the model could.
TEST(Serve, TheBannerNamesTheContextThatFits) {
  Server server({"-m", kTiny, "-t", "1", "--port", "0", "--kv-budget", "1MiB", "-c", "999999"});
  ASSERT_NE(server.port(), 0);
  server.terminate();
  EXPECT_EQ(server.exit_code(), 0);
  const std::string errors = server.errors();
  EXPECT_NE(errors.find("-c 999999 is beyond"), std::string::npos) << errors;
  const std::string before = "a conversation has at most ";
  const size_t at = errors.find(before);
  ASSERT_NE(at, std::string::npos) << errors;
  const int tokens = std::atoi(errors.c_str() + at + before.size());
  EXPECT_GT(tokens, 16);
  EXPECT_LT(tokens, 2048);
}

// Field case 31: an option that changes nothing for this model is announced.
TEST(Serve, OptionsWithoutEffectAreAnnounced) {
  Server server(usual({"--kv-share", "off", "--kv-type-local", "q8_0", "--repeat-last-n", "-1"}));
  ASSERT_NE(server.port(), 0);
  server.terminate();
  EXPECT_EQ(server.exit_code(), 0);
  const std::string errors = server.errors();
  EXPECT_NE(errors.find("--kv-share has no effect"), std::string::npos) << errors;
  EXPECT_EQ(errors.find("--kv-type-local has no effect"), std::string::npos) << errors;
}

}  // namespace
}  // namespace weir
