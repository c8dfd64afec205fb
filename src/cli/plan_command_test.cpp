#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/commands.h"
#include "geometry/builtin.h"
#include "geometry/testing/gguf_bytes.h"

namespace weir {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int exit_code;
  std::string out, err;
};

Outcome weir_command(std::vector<std::string> arguments) {
  std::vector<const char*> argv = {"weir"};
  for (const std::string& a : arguments) argv.push_back(a.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = run_weir(static_cast<int>(argv.size()), argv.data());
  const std::string out = testing::internal::GetCapturedStdout();
  return {exit_code, out, testing::internal::GetCapturedStderr()};
}

Outcome plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return weir_command(std::move(arguments));
}

json plan_json(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Outcome run = plan(std::move(arguments));
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return json::parse(run.out);
}

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/weir-plan-" + std::to_string(getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  static std::string read(const std::string& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  std::string directory_;
};

TEST_F(PlanCommand, JsonHasTheContractsFields) {
  const json j = plan_json({"gemma-3-27b", "--context", "8192", "--context", "32k"});
  EXPECT_EQ(j.at("model"), "gemma-3-27b");
  EXPECT_EQ(j.at("layers"), 62);
  EXPECT_EQ(j.at("global_layers"), json({5, 11, 17, 23, 29, 35, 41, 47, 53, 59}));
  EXPECT_EQ(j.at("local_layers").size(), 52u);
  EXPECT_EQ(j.at("window"), 1024);
  EXPECT_EQ(j.at("kv_type"), "f16");
  EXPECT_EQ(j.at("global_bytes_per_token"), 81920);
  EXPECT_EQ(j.at("local_bytes"), 416 * kMiB);
  EXPECT_EQ(j.at("crossover_tokens"), 5325);
  ASSERT_EQ(j.at("rows").size(), 2u);
  const json& row = j.at("rows")[0];
  EXPECT_EQ(row.at("context"), 8192);
  EXPECT_EQ(row.at("global_bytes"), 640 * kMiB);
  EXPECT_EQ(row.at("local_bytes"), 416 * kMiB);
  EXPECT_EQ(row.at("resident_bytes"), 1056 * kMiB);
  EXPECT_EQ(row.at("uniform_bytes"), 3968 * kMiB);
  EXPECT_NEAR(row.at("ratio").get<double>(), 1056.0 / 3968.0, 1e-12);
}

TEST_F(PlanCommand, TheLinesAddUpToTheTotal) {
  for (const ModelFacts& m : builtin_models()) {
    for (const json& row : plan_json({m.id}).at("rows")) {
      const auto n = [&](const char* key) { return row.at(key).get<int64_t>(); };
      EXPECT_EQ(n("resident_bytes"), n("global_bytes") + n("local_bytes"));
      EXPECT_EQ(n("total_bytes"),
                n("resident_bytes") + n("headroom_bytes") + n("pool_rounding_bytes"));
      EXPECT_GE(n("resident_bytes"), n("readable_bytes")) << m.id;
      EXPECT_EQ(n("exact_resident_bytes"), n("exact_global_bytes") + n("exact_local_bytes"));
    }
  }
}

TEST_F(PlanCommand, AGgufAConfigAndAnIdAgree) {
  const ModelFacts& facts = **find_builtin("gemma-4-26b-a4b");
  std::ofstream(path("m.gguf"), std::ios::binary) << gguf_like(facts).bytes();
  std::filesystem::copy(WEIR_SOURCE_DIR "/tests/data/config/gemma-4-26b-a4b.json",
                        path("config.json"));
  const json builtin = plan_json({facts.id});
  for (const std::string& file : {path("m.gguf"), directory_}) {
    const json other = plan_json({file});
    for (const char* key :
         {"rows", "global_layers", "local_layers", "window", "crossover_tokens"}) {
      EXPECT_EQ(other.at(key), builtin.at(key)) << file << " " << key;
    }
  }
}

TEST_F(PlanCommand, TypesStandSideBySide) {
  const json j = plan_json({"gemma-3-4b", "--kv-type", "q8_0", "--kv-type", "q4_0"});
  EXPECT_EQ(j.at("kv_type"), "q8_0");
  ASSERT_EQ(j.at("by_type").size(), 2u);
  EXPECT_EQ(j.at("by_type")[1].at("global_bytes_per_token"), 5760);
  EXPECT_THAT(plan({"gemma-3-4b", "--kv-type", "q8_0", "--kv-type", "q4_0"}).out,
              HasSubstr("q4_0/token"));
  const json k_only = plan_json({"gemma-3-4b", "-ctk", "q8_0"});
  EXPECT_EQ(k_only.at("kv_type_k"), "q8_0");
  EXPECT_EQ(k_only.at("kv_type_v"), "f16");
  EXPECT_EQ(k_only.at("global_bytes_per_token"), 20480 / 2 + 10880 / 2);
  EXPECT_EQ(plan_json({"gemma-3-4b", "--kv-type-v", "q4_0"}).at("kv_type_v"), "q4_0");
}

// What names less wins. gemma-3-4b: 5 global layers, 29 local ones, 4 KV heads of 256.
TEST_F(PlanCommand, GlobalAndLocalLayersHaveTypesOfTheirOwn) {
  const int64_t f16 = 4 * 256 * 2, q8_0 = 4 * 256 / 32 * 34, q4_0 = 4 * 256 / 32 * 18;
  const json j = plan_json({"gemma-3-4b", "--kv-type", "q4_0", "-ctv", "q8_0", "--kv-type-local",
                            "f16", "--kv-type-local-k", "q8_0"});
  EXPECT_EQ(j.at("kv_type"), "global k q4_0, v q8_0; local k q8_0, v f16");
  EXPECT_EQ(j.at("kv_type_k"), "q4_0");
  EXPECT_EQ(j.at("kv_type_v"), "q8_0");
  EXPECT_EQ(j.at("kv_type_local_k"), "q8_0");
  EXPECT_EQ(j.at("kv_type_local_v"), "f16");
  EXPECT_EQ(j.at("global_bytes_per_token"), 5 * (q4_0 + q8_0));
  EXPECT_EQ(j.at("local_bytes_per_token"), 29 * (q8_0 + f16));
  EXPECT_THAT(plan({"gemma-3-4b", "--kv-type-global", "q8_0"}).out,
              HasSubstr("global q8_0; local f16"));
  for (const char* option : {"--kv-type", "--kv-type-global-v", "--kv-type-local", "-ctk"}) {
    const Outcome bad = plan({"gemma-3-4b", option, "q3_0"});
    EXPECT_EQ(bad.exit_code, 2) << option;
    EXPECT_THAT(bad.err, HasSubstr("'q3_0' is not a KV type")) << option;
  }
  EXPECT_EQ(plan({"gemma-3-4b", "--kv-rotate", "maybe"}).exit_code, 2);
  EXPECT_EQ(plan({"gemma-3-4b", "--kv-type", "q4_0", "--kv-rotate", "off"}).exit_code, 0);
}

// Field case 22: printed figures agree with each other.
TEST_F(PlanCommand, TheBudgetsAnswerFitsAndOneMoreTokenDoesNot) {
  const json j = plan_json({"gemma-3-27b", "--kv-budget", "8GiB", "--parallel", "2", "-ub", "64"});
  const int64_t n = j.at("budget").at("max_tokens");
  const auto total = [&](int64_t tokens, const std::string& parallel) {
    return plan_json({"gemma-3-27b", "--context", std::to_string(tokens), "--parallel", parallel,
                      "-ub", "64"})
        .at("rows")[0]
        .at("total_bytes")
        .get<int64_t>();
  };
  EXPECT_LE(total(n, "2"), 8 * kGiB);
  EXPECT_GT(total(n + 1, "2"), 8 * kGiB);
  for (const json& count : j.at("budget").at("conversations")) {
    const int64_t context = count.at("context"), s = count.at("conversations");
    if (s > 0) {
      EXPECT_LE(total(context, std::to_string(s)), 8 * kGiB);
    }
    EXPECT_GT(total(context, std::to_string(s + 1)), 8 * kGiB);
  }
  EXPECT_THAT(plan({"gemma-3-27b", "--kv-budget", "8GiB"}).out, HasSubstr("With 8 GiB"));
  EXPECT_TRUE(
      plan_json({"mistral-7b-v0.1", "--kv-budget", "8GiB"}).at("budget").at("is_unlimited"));
  EXPECT_THAT(plan({"gemma-3-27b", "--kv-budget", "1MiB"}).out, HasSubstr("not one token"));
}

TEST_F(PlanCommand, WritesChartAndPageThatNeedNothingElse) {
  const Outcome run =
      plan({"gpt-oss-20b", "--svg", path("c.svg"), "--html", path("p.html"), "--kv-budget", "4G"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string svg = read(path("c.svg")), html = read(path("p.html"));
  EXPECT_THAT(svg, HasSubstr("<svg"));
  EXPECT_THAT(svg, HasSubstr("128 tokens"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr(svg));
  for (const std::string& text : {svg, html}) {
    EXPECT_THAT(text, Not(HasSubstr("href")));
    EXPECT_THAT(text, Not(HasSubstr("url(")));
    EXPECT_THAT(text, Not(HasSubstr("nan")));
  }
  EXPECT_EQ(plan({"gpt-oss-20b", "--svg", directory_ + "/no/such/c.svg"}).exit_code, 1);
}

TEST_F(PlanCommand, NamesFromFilesAreEscaped) {
  GgufBytes g;
  g.string("general.architecture", "a<b>&").string("general.name", "<script>\n\"x\" \xff");
  g.u32("a<b>&.block_count", 2).u32("a<b>&.attention.head_count", 2);
  g.u32("a<b>&.embedding_length", 64);
  std::ofstream(path("m.gguf"), std::ios::binary) << g.bytes();
  ASSERT_EQ(plan({path("m.gguf"), "--html", path("p.html")}).exit_code, 0);
  EXPECT_THAT(read(path("p.html")), Not(HasSubstr("<script>")));
  EXPECT_THAT(plan_json({path("m.gguf")}).at("name").get<std::string>(), HasSubstr("\\x0a"));
}

TEST_F(PlanCommand, TheTableIsUnderstoodAtAGlance) {
  const std::string out = plan({"gemma-3-27b"}).out;
  for (const char* part : {"10 global", "52 local", "80 KiB", "416 MiB", "the last 1024", "128k",
                           "16.8 %", "From 5325 tokens on", "headroom for a step", "total"}) {
    EXPECT_THAT(out, HasSubstr(part));
  }
  EXPECT_THAT(plan({"smallthinker-4b-a0.6b"}).out, HasSubstr("UNVERIFIED"));
  EXPECT_FALSE(plan_json({"smallthinker-4b-a0.6b"}).at("verified").get<bool>());
}

TEST_F(PlanCommand, WrongInputIsOneLineAndCode2) {
  const std::vector<std::vector<std::string>> wrong = {
      {"plan"},
      {"plan", "gemma-3-27"},
      {"plan", "/no/such/file.gguf"},
      {"plan", "gemma-3-4b", "--context", "0"},
      {"plan", "gemma-3-4b", "--context", "many"},
      {"plan", "gemma-3-4b", "--context", "1T"},
      {"plan", "gemma-3-4b", "--kv-type", "q9"},
      {"plan", "gemma-3-4b", "--kv-budget", "-1"},
      {"plan", "gemma-3-4b", "--parallel", "0"},
      {"plan", "gemma-3-4b", "--parallel", "x"},
      {"plan", "gemma-3-4b", "-ub", "0"},
      {"plan", "gemma-3-4b", "--nonsense"},
      {"nonsense"},
      {},
  };
  for (const auto& arguments : wrong) {
    const Outcome run = weir_command(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_EQ(run.out, "");
  }
}

TEST_F(PlanCommand, HelpAndVersionAreNoErrors) {
  EXPECT_THAT(weir_command({"--version"}).out, HasSubstr("weir "));
  EXPECT_THAT(weir_command({"--help"}).out, HasSubstr("plan"));
  const Outcome help = plan({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("--kv-budget"));
}

}  // namespace
}  // namespace weir
