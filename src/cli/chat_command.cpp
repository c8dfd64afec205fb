// weir chat: a conversation in the terminal, or one read from a pipe.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/chat_session.h"
#include "cli/commands.h"
#include "cli/kv_picture.h"

namespace weir {
namespace {

constexpr const char* kHelp =
    "  /kv       memory by layer kind     /undo     take back the last turn\n"
    "  /regen    another reply            /fork     branch here, over the same KV\n"
    "  /go N     go to branch N           /new      start an empty chat\n"
    "  /help     this list                /quit     leave (or Ctrl-D)\n";

struct ChatOptions {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string system_prompt;
  int64_t max_new = -1;
};

// A line from the terminal with editing and history, or from a pipe (echoed, so that the output
// reads as a conversation).
std::optional<std::string> read_line(bool is_terminal) {
  if (is_terminal) {
    char* line = readline("> ");
    if (!line) return std::nullopt;
    std::string text(line);
    std::free(line);
    if (!text.empty()) add_history(text.c_str());
    return text;
  }
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  std::fputs(("> " + line + "\n").c_str(), stdout);
  return line;
}

class ChatLoop {
 public:
  ChatLoop(LoadedEngine& loaded, ChatSession& session) : loaded_(loaded), session_(session) {}

  // False to leave.
  bool handle(const std::string& line) {
    if (line.empty()) return true;
    if (line[0] != '/') {
      show(session_.say(line, print_text));
      return true;
    }
    if (line == "/quit" || line == "/exit") return false;
    command(line);
    return true;
  }
  bool has_failed() const { return has_failed_; }

 private:
  static void print_text(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  void say(const std::string& text) { std::fputs((text + "\n").c_str(), stdout); }

  void command(const std::string& line) {
    if (line == "/kv") {
      show_kv();
    } else if (line == "/undo") {
      say(session_.undo() ? "(the last turn is taken back)" : "(there is nothing to take back)");
    } else if (line == "/regen") {
      show(session_.regenerate(print_text));
    } else if (line == "/fork") {
      say(fmt::format("(now on branch {}; /go N goes to another)", session_.fork()));
    } else if (line == "/new") {
      say(fmt::format("(a new chat, branch {})", session_.start_new()));
    } else if (line.rfind("/go ", 0) == 0) {
      char* end = nullptr;
      const long branch = std::strtol(line.c_str() + 4, &end, 10);
      const bool went = *end == '\0' && branch >= 0 && branch < session_.branches() &&
                        session_.go_to(static_cast<int>(branch));
      say(went ? fmt::format("(now on branch {})", branch)
               : fmt::format("(branches are 0 to {})", session_.branches() - 1));
    } else {
      say(kHelp);
    }
  }

  void show(const Result<Reply>& reply) {
    if (!reply) {
      report(reply.error());
      has_failed_ = true;
      return;
    }
    std::fputs("\n", stdout);
    if (reply->reason != FinishReason::end_of_turn) {
      say(fmt::format("({})", finish_reason_name(reply->reason)));
    }
    std::fflush(stdout);
    std::fputs(fmt::format("[{} prompt tokens, {} from the KV; {} reply tokens; KV {}]\n",
                           reply->usage.prompt_tokens, reply->usage.cached_tokens,
                           reply->usage.completion_tokens, format_bytes(reply->kv.resident()))
                   .c_str(),
               stderr);
  }

  void show_kv() {
    loaded_.engine->with_core([&](EngineCore& core) {
      std::fputs(draw_kv(loaded_.model->geometry(), core.cache().layout(), session_.kv(),
                         core.budget().used(), session_.kv_tokens(), core.budget().limit())
                     .c_str(),
                 stdout);
    });
  }

  LoadedEngine& loaded_;
  ChatSession& session_;
  bool has_failed_ = false;
};

int chat(const ChatOptions& options) {
  Result<SamplingParams> sampling = options.sampling.sampling();
  if (!sampling) return report(sampling.error());
  Result<LoadedEngine> loaded = load_engine(options.engine, true);
  if (!loaded) return report(loaded.error());
  Result<ChatSession> session =
      ChatSession::create(*loaded, options.system_prompt, std::move(*sampling), options.max_new);
  if (!session) return report(session.error());

  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  if (is_terminal) {
    // The line editor drops what is not a character of the locale.
    if (!std::setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    std::fputs(fmt::format("{}; type a message, or /help\n", loaded->model->description()).c_str(),
               stdout);
  }
  ChatLoop loop(*loaded, *session);
  for (;;) {
    const std::optional<std::string> line = read_line(is_terminal);
    if (!line || !loop.handle(*line)) break;
  }
  return loop.has_failed() && !is_terminal ? kWorkFailed : kDone;
}

}  // namespace

void add_chat_command(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  options->engine.add_to(*command);
  options->sampling.add_to(*command);
  command->add_option("--system", options->system_prompt, "System message");
  command->add_option("-n,--predict", options->max_new, "Most tokens of a reply (-1: no limit)")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40));
  command->callback([options, &exit_code] { exit_code = chat(*options); });
}

}  // namespace weir
