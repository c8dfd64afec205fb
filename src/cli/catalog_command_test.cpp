#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"

namespace weir {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int exit_code;
  std::string out, err;
};

Outcome catalog(std::vector<std::string> arguments) {
  std::vector<const char*> argv = {"weir", "catalog"};
  for (const std::string& a : arguments) argv.push_back(a.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int exit_code = run_weir(static_cast<int>(argv.size()), argv.data());
  const std::string out = testing::internal::GetCapturedStdout();
  return {exit_code, out, testing::internal::GetCapturedStderr()};
}

class CatalogCommand : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "/weir-catalog-" + std::to_string(getpid());
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // An entry of the catalog with one field changed, as a file of the user's.
  std::string file_with(const std::string& id, const std::string& pointer, const json& value) {
    json entry = json::parse(catalog({"show", id, "--json"}).out);
    if (!pointer.empty()) entry[json::json_pointer(pointer)] = value;
    const std::string path = directory_ + "/" + id + ".json";
    std::ofstream(path) << entry.dump();
    return path;
  }
  std::string directory_;
};

TEST_F(CatalogCommand, ListNamesEveryEntry) {
  const json list = json::parse(catalog({"list", "--json"}).out);
  const Outcome text = catalog({"list"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_GE(list.at("entries").size(), 41u);
  for (const json& entry : list["entries"]) {
    EXPECT_THAT(text.out, HasSubstr(entry.at("id").get<std::string>()));
    if (entry["id"] == "gemma-3-4b") {
      EXPECT_EQ(entry.at("global_bytes_per_token"), 20480);
      EXPECT_EQ(entry.at("local_bytes"), 121634816);
      EXPECT_GE(entry.at("claims"), 6);
    }
  }
  EXPECT_THAT(text.out, HasSubstr("smallthinker-4b-a0.6b *"));
}

TEST_F(CatalogCommand, ShowHasFiguresClaimsAndSources) {
  const Outcome run = catalog({"show", "gemma-4-31b"});
  EXPECT_EQ(run.exit_code, 0);
  for (const char* part : {"10 global layers: 4 KV heads × 512 + 512", "50 local layers",
                           "20.78 GiB", "q4_0", "stored once", "ik_llama.cpp issue 1607",
                           "holds in part", "does not hold", "9.446 %", "source: "}) {
    EXPECT_THAT(run.out, HasSubstr(part));
  }
  EXPECT_THAT(catalog({"show", "gemma-3-1b"}).out, HasSubstr("Measured"));
}

TEST_F(CatalogCommand, VerifyHasALineForEachClaim) {
  const Outcome run = catalog({"verify"});
  EXPECT_EQ(run.exit_code, 0) << run.out;
  EXPECT_THAT(run.out, HasSubstr("effective-32k: does not hold: claimed 28160 B, computed 24192 B "
                                 "(+16.4 %). "));
  EXPECT_THAT(run.out, HasSubstr("local: holds: claimed 200 MiB"));
  EXPECT_THAT(run.out, HasSubstr(", 0 disagreements\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("DISAGREES")));
  const json all = json::parse(catalog({"verify", "--json"}).out);
  EXPECT_EQ(all.at("disagreements"), 0);
  const json one = json::parse(catalog({"verify", "gemma-4-31b", "--json"}).out);
  ASSERT_EQ(one.at("entries").size(), 1u);
  const json& claim = one["entries"][0].at("claims").at(1);
  EXPECT_EQ(claim.at("verdict"), "fails");
  EXPECT_EQ(claim.at("points").size(), 8u);
  EXPECT_NEAR(claim["points"][7].at("computed").get<double>(), 9.446023, 1e-6);
}

TEST_F(CatalogCommand, AUsersEntryIsVerifiedLikeOurs) {
  const std::string good = file_with("gemma-3-4b", "", {});
  EXPECT_EQ(catalog({"verify", good}).exit_code, 0);
  EXPECT_EQ(catalog({"verify", directory_}).exit_code, 0);
  EXPECT_THAT(catalog({"show", good}).out, HasSubstr("Gemma 3 4B"));

  const std::string bad = file_with("gpt-oss-20b", "/derived/codecs/f16/local_bytes", 1);
  for (const std::string& target : {bad, directory_}) {
    const Outcome run = catalog({"verify", target});
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(run.out, HasSubstr("DISAGREES derived.codecs.f16.local_bytes: the entry says 1"));
    EXPECT_THAT(run.out, HasSubstr(", 1 disagreement\n"));
  }
  EXPECT_EQ(json::parse(catalog({"verify", bad, "--json"}).out).at("disagreements"), 1);
}

TEST_F(CatalogCommand, WrongInputIsOneLineAndCode2) {
  const std::string broken = directory_ + "/broken.json";
  std::ofstream(broken) << "{\"format\": 1";
  const std::string empty = directory_ + "/empty";
  std::filesystem::create_directories(empty);
  const std::string misspelt = file_with("gemma-3-4b", "/claims/0/hold", true);
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{}, ""},
      {{"forget"}, ""},
      {{"show"}, ""},
      {{"show", "gemma-3-4"}, "gemma-3-4b"},
      {{"show", "/no/such/entry.json"}, "/no/such/entry.json"},
      {{"verify", broken}, "broken.json"},
      {{"verify", directory_}, "broken.json"},
      {{"verify", empty}, "holds no entries"},
      {{"verify", misspelt}, "'hold'"},
      {{"measure", "gemma-3-270m", "--tokens", "0"}, "tokens"},
      {{"measure", "gemma-3-270m", "--tokens", "8", "--layers", "19"}, "18 layers"},
      {{"measure", "gemma-3-270m", "--tokens", "8", "--kv-type", "q9"}, "q9"},
  };
  for (const auto& [arguments, named] : wrong) {
    const Outcome run = catalog(arguments);
    EXPECT_EQ(run.exit_code, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_THAT(run.err, HasSubstr(named));
    EXPECT_EQ(run.out, "");
  }
}

// Random weights of the exact shapes, the first two layers: both local, window 512.
TEST_F(CatalogCommand, MeasureRunsTheModelAndVerifyRunsItAgain) {
  const Outcome run = catalog({"measure", "gemma-3-270m", "--tokens", "40", "--layers", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json measured = json::parse(run.out);
  EXPECT_EQ(measured.at("global_bytes"), 0);
  EXPECT_EQ(measured.at("resident_bytes"), 48 * 2 * 1024);  // 3 blocks of 16, 1 KiB a row
  EXPECT_THAT(measured.at("command"), HasSubstr("catalog measure gemma-3-270m --tokens 40"));

  const std::string good = file_with("gemma-3-270m", "/measured", json::array({measured}));
  EXPECT_EQ(catalog({"verify", good, "--measure"}).exit_code, 0);
  json wrong = measured;
  wrong["resident_bytes"] = 1;
  const Outcome again = catalog(
      {"verify", file_with("gemma-3-270m", "/measured", json::array({wrong})), "--measure"});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.out, HasSubstr("measured again: 98304 B resident"));
}

}  // namespace
}  // namespace weir
