// The program as a user meets it: build/weir in a process of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace {

const std::string kTiny = WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-f16.gguf";
const std::string kText = WEIR_SOURCE_DIR "/models/weir-tiny/heldout.txt";

struct Outcome {
  int exit_code = -1;
  std::string output;
};

// Standard output, or standard error alone with `errors`.
Outcome weir(const std::string& arguments, bool errors = false) {
  const std::string command =
      std::string(WEIR_PROGRAM) + " " + arguments + (errors ? " 2>&1 >/dev/null" : " 2>/dev/null");
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return outcome;
  std::array<char, 4096> buffer;
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    outcome.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

nlohmann::json json_of(const std::string& arguments) {
  const Outcome outcome = weir(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << arguments;
  return nlohmann::json::parse(outcome.output, nullptr, false);
}

// One line that names the fault, and the exit code of bad input.
void expect_refused(const std::string& arguments, const std::string& named) {
  const Outcome outcome = weir(arguments, true);
  EXPECT_EQ(outcome.exit_code, 2) << arguments << ": " << outcome.output;
  EXPECT_EQ(std::count(outcome.output.begin(), outcome.output.end(), '\n'), 1) << outcome.output;
  EXPECT_NE(outcome.output.find(named), std::string::npos) << outcome.output;
}

TEST(Cli, RunTellsWhatItsKvCost) {
  const auto json = json_of("run -m " + kTiny + " -p 'Once upon a time' -n 8 --temp 0 --json -t 1");
  EXPECT_EQ(json["usage"]["completion_tokens"], 8);
  EXPECT_EQ(json["usage"]["cached_tokens"], 0);
  EXPECT_EQ(json["tokens"].size(), 8u);
  const auto& kv = json["kv"];
  EXPECT_EQ(kv["resident_bytes"], kv["planned_bytes"]);
  EXPECT_EQ(kv["resident_bytes"],
            kv["global_bytes"].get<int64_t>() + kv["local_bytes"].get<int64_t>());
  EXPECT_LE(kv["resident_bytes"], kv["peak_bytes"]);
  EXPECT_LE(kv["peak_bytes"], kv["budget_bytes"]);
  EXPECT_GT(json["timings"]["decode_tps"], 0);
}

TEST(Cli, RunReadsAFileAndKeepsItsBudget) {
  const auto json =
      json_of("run -m " + kTiny + " -f " + WEIR_SOURCE_DIR + "/models/weir-tiny/demo.txt" +
              " -n 2000 --ignore-eos --kv-budget 1500KiB --json -t 1");
  EXPECT_EQ(json["finish_reason"], "budget_full");
  EXPECT_LE(json["kv"]["peak_bytes"], 1500 * 1024);
}

TEST(Cli, VerifyAgreesWithLlamaCpp) {
  for (const std::string type : {"f32", "f16"}) {
    for (const std::string step : {"1", "3", "7", "64", "128", "129", "512"}) {
      const auto json = json_of("verify -m " + kTiny + " -f " + kText + " -n 1500 --kv-type " +
                                type + " -ub " + step + " --json -t 1");
      EXPECT_EQ(json["tokens"], 1500);
      EXPECT_LE(json["nmse"], type == "f32" ? 1e-6 : 1e-5);
      EXPECT_LT(json["kv_bytes"], json["peer_kv_bytes"]);
    }
  }
}

// Quantized weights: within what llama.cpp's two attentions differ by.
TEST(Cli, VerifyKnowsTheNoiseOfQuantizedWeights) {
  const auto json = json_of(std::string("verify -m ") + WEIR_SOURCE_DIR +
                            "/models/weir-tiny/weir-tiny-q8_0.gguf -f " + kText +
                            " -n 700 --kv-type f32 --json -t 1");
  EXPECT_EQ(json["verified"], true);
  EXPECT_LE(json["nmse"].get<double>(), 2 * json["peer_noise_nmse"].get<double>());
  EXPECT_EQ(json["argmax_differs_beyond_noise"], 0);
}

TEST(Cli, PerplexityIsLlamaCpps) {
  const auto json =
      json_of("perplexity -m " + kTiny + " -f " + kText + " -c 512 --peer --json -t 2");
  EXPECT_NEAR(json["ratio"].get<double>(), 1.0, 1e-3);
}

// Several types in one run, each beside f32 KV; the first one's figures stand outside the list,
// too.
TEST(Cli, PerplexityComparesKvTypes) {
  const std::string slice = std::filesystem::temp_directory_path() / "weir-perplexity.txt";
  std::ifstream text(kText);
  std::string start(9000, '\0');
  text.read(start.data(), std::ssize(start));
  std::ofstream(slice) << start;
  const auto json = json_of("perplexity -m " + kTiny + " -f " + slice +
                            " -c 1024 --kv-type q8_0 --kv-type q4_0 --kv-type f32 --json -t 1");
  std::filesystem::remove(slice);
  ASSERT_EQ(json["by_type"].size(), 3u);
  EXPECT_EQ(json["kv_type"], "q8_0");
  EXPECT_EQ(json["perplexity"], json["by_type"][0]["perplexity"]);
  EXPECT_LT(json["by_type"][0]["kl_divergence"], 1e-3);
  EXPECT_GT(json["by_type"][1]["kl_divergence"], json["by_type"][0]["kl_divergence"]);
  EXPECT_LT(json["by_type"][1]["top1_agreement"], json["by_type"][0]["top1_agreement"]);
  EXPECT_EQ(json["by_type"][2]["kl_divergence"], 0);
  EXPECT_EQ(json["by_type"][2]["perplexity"], json["f32_perplexity"]);
  const auto bytes = [&](size_t i) { return json["by_type"][i]["kv_bytes"].get<int64_t>(); };
  EXPECT_EQ(bytes(0) * 128, bytes(2) * 34);  // 32 elements: 34 bytes of 128
  EXPECT_EQ(bytes(1) * 128, bytes(2) * 18);
}

TEST(Cli, RunsWithEveryKvType) {
  int64_t last = INT64_MAX;
  for (const std::string type : {"f32", "f16", "q8_0", "q6_0", "q5_0", "q4_0"}) {
    const auto json =
        json_of("run -m " + kTiny + " -p Once -n 8 --temp 0 -t 1 --json --kv-type " + type);
    const auto resident = json["kv"]["resident_bytes"].get<int64_t>();
    EXPECT_EQ(json["kv"]["planned_bytes"], resident) << type;
    EXPECT_LT(resident, last) << type;
    last = resident;
  }
  const auto mixed = json_of("run -m " + kTiny + " -p Once -n 8 --temp 0 -t 1 --json" +
                             " -ctk q8_0 -ctv q4_0 --kv-type-local f16 --kv-rotate on");
  EXPECT_EQ(mixed["kv"]["planned_bytes"], mixed["kv"]["resident_bytes"]);
  for (const std::string command : {"perplexity -f " + kText, std::string("verify"),
                                    std::string("run -p x"), std::string("bench")}) {
    EXPECT_EQ(weir(command + " -m " + kTiny + " --kv-rotate sometimes").exit_code, 2) << command;
  }
  // Only commands that compare take several types.
  EXPECT_EQ(weir("run -p x -m " + kTiny + " --kv-type q8_0 --kv-type q4_0").exit_code, 2);
}

TEST(Cli, BenchComparesPairByPair) {
  const auto json =
      json_of("bench -m " + kTiny + " --depths 0,256 -p 64 -n 4 -r 2 --peer --json -t 1");
  ASSERT_EQ(json["rows"].size(), 2u);
  for (const auto& row : json["rows"]) {
    for (const char* field :
         {"prefill_tps", "decode_tps", "kv_bytes", "peer_prefill_tps", "peer_decode_tps",
          "peer_kv_bytes", "prefill_ratio", "decode_ratio"}) {
      EXPECT_GT(row[field], 0) << field;
    }
  }
}

TEST(Cli, CatalogVerifiesItselfAndFindsWhatIsWrong) {
  EXPECT_EQ(json_of("catalog verify --json")["disagreements"], 0);
  auto entry = json_of("catalog show gemma-3-27b --json");
  entry["derived"]["crossover_tokens"] = 5324;
  const std::string file = std::filesystem::temp_directory_path() / "weir-cli-catalog.json";
  std::ofstream(file) << entry;
  const Outcome outcome = weir("catalog verify " + file);
  std::filesystem::remove(file);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.output.find("5324, its geometry gives 5325"), std::string::npos)
      << outcome.output;
}

TEST(Cli, ChatFromAPipe) {
  const std::string script = std::filesystem::temp_directory_path() / "weir-cli-chat.txt";
  std::ofstream(script) << "My name is Matilda.\n/fork\nWhat is my name?\n/undo\n/regen\n/kv\n"
                           "/go 0\n/go 9\n/new\n/help\n/quit\n";
  const Outcome outcome = weir("chat -m " + kTiny + " --temp 0 -n 40 -t 1 < " + script);
  std::filesystem::remove(script);
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* part :
       {"Your name is Matilda", "KV memory after", "global", "local", "uniform",
        "(the last turn is taken back)", "(now on branch 0)", "(branches are 0 to 1)"}) {
    EXPECT_NE(outcome.output.find(part), std::string::npos) << part << " in\n" << outcome.output;
  }
}

TEST(Cli, BadInputIsOneLineThatSaysWhatToDo) {
  expect_refused("run -m /no/such/file -p x", "/no/such/file");
  expect_refused("run -m " + kText + " -p x", "heldout.txt");
  expect_refused("run -m " + kTiny, "-p");
  expect_refused("run -m " + kTiny + " -p x -f y", "-p");
  expect_refused("run -m " + kTiny + " -p x --kv-type f7", "f7");
  expect_refused("run -m " + kTiny + " -p x --kv-budget 12parsecs", "12parsecs");
  expect_refused("run -m " + kTiny + " -p x --kv-budget 1KiB", "1 KiB");
  expect_refused("run -m " + kTiny + " -p x --top-p 7", "top-p");
  expect_refused("verify -m " + kTiny + " --max-nmse nan", "max-nmse");
  expect_refused("run -m " + kTiny + " -p x -t 600", "threads");
  expect_refused("run -m " + kTiny + " -p x -c 999999999999", "ctx-size");
  expect_refused("run -m " + kTiny + " -p x --seed 4294967297", "seed");
  expect_refused("run -m " + kTiny + " -f /tmp", "/tmp");
  expect_refused("run -m " + kTiny + " -f /dev/null", "/dev/null");
  expect_refused("bench -m " + kTiny + " -p 9223372036854775807", "n-prompt");
  expect_refused("run -m " + kTiny + " -f " + kText + " -c 128", "128");
  expect_refused("run -m " + kTiny + " -f " + kText + " -c 100000 --kv-budget 2MiB",
                 "largest context");
  expect_refused("nonsense", "nonsense");
  expect_refused("verify -m " + kTiny + " --kv-type q8_0", "weir perplexity");
  expect_refused("verify -m " + kTiny + " --kv-type-local f32", "global and local");
  expect_refused("verify -m " + kTiny + " -n 1073741824", "context of");
  expect_refused("verify -m " + kTiny + " -f /no/such/text", "/no/such/text");
  expect_refused("plan no-such-model", "no-such-model");
}

TEST(Cli, OutputThatCannotBeWrittenIsAFailure) {
  for (const std::string& command :
       std::vector<std::string>{"run -m " + kTiny + " -p x -n 4 --temp 0 -t 1", "plan gemma-3-1b",
                                "--version", "run -m " + kTiny + " -p x -n 4 --json -t 1"}) {
    EXPECT_EQ(weir(command + " >/dev/full").exit_code, 1) << command;
  }
}

TEST(Cli, SynthReplacesNothingButFiles) {
  expect_refused("synth --like gemma-3-270m --layers 1 --vocab 400 -o /dev/full", "regular file");
}

TEST(Cli, HostileGrammarsAreRefused) {
  expect_refused("run -m " + kTiny + " -p x -n 4 -t 1 --grammar 'root ::= \"a\"{5,2}'",
                 "at most 2");
  expect_refused("run -m " + kTiny + " -p x -n 4 -t 1 --grammar 'root ::= " +
                     std::string(30000, '(') + "\"a\"" + std::string(30000, ')') + "'",
                 "200 deep");
}

TEST(Cli, CutOffModelFilesAreNamed) {
  const std::string cut = std::filesystem::temp_directory_path() / "weir-cli-cut.gguf";
  const auto size = static_cast<int64_t>(std::filesystem::file_size(kTiny));
  for (const int64_t keep :
       {int64_t{0}, int64_t{3}, int64_t{64}, int64_t{5000}, size / 2, size - 1}) {
    std::filesystem::copy_file(kTiny, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, static_cast<uintmax_t>(keep));
    expect_refused("run -m " + cut + " -p x", "weir-cli-cut.gguf");
  }
  std::filesystem::remove(cut);
}

}  // namespace
