#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine_core.h"

namespace weir {

// weir-tiny, loaded once for all tests of a program.
inline const Model& tiny_model() {
  static const std::unique_ptr<Model> model = [] {
    Result<std::unique_ptr<Model>> loaded =
        Model::load(WEIR_SOURCE_DIR "/models/weir-tiny/weir-tiny-f16.gguf", ModelOptions{});
    if (!loaded) ADD_FAILURE() << loaded.error().message();
    return loaded.ok() ? std::move(*loaded) : nullptr;
  }();
  return *model;
}

inline KvDevice& cpu_device() {
  static const std::unique_ptr<KvDevice> device = make_cpu_device();
  return *device;
}

inline EngineOptions tiny_options() {
  EngineOptions options;
  options.kv = KvFormat::uniform(KvType::f16, 16);
  options.kv_budget = {64 * kMiB};
  options.reuse = false;  // what a request holds is all there is
  // One thread: ggml's own threads are invisible to the thread sanitizer.
  options.n_threads = 1;
  return options;
}

// The same, with the prefix index.
inline EngineOptions reuse_options(Bytes budget = {64 * kMiB}) {
  EngineOptions options = tiny_options();
  options.reuse = true;
  options.kv_budget = budget;
  return options;
}

inline std::unique_ptr<EngineCore> make_tiny_core(const EngineOptions& options = tiny_options()) {
  Result<std::unique_ptr<EngineCore>> core =
      EngineCore::create(tiny_model(), cpu_device(), options);
  EXPECT_TRUE(core.ok()) << (core.ok() ? "" : core.error().message());
  return std::move(*core);
}

// The tokens of a piece of text that no template surrounds.
inline std::vector<Token> tiny_tokens(const std::string& text) {
  return *Tokenizer(tiny_model().vocab()).tokenize(text, true, true);
}

inline std::string user_turn(const std::string& text) {
  return "<start_of_turn>user\n" + text + "<end_of_turn>\n<start_of_turn>model\n";
}

inline Request greedy(std::vector<Token> prompt, int64_t max_new) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new;
  request.sampling.temperature = 0;
  return request;
}

// Submits and steps until the reply is there.
inline Reply reply_to(EngineCore& core, Request request) {
  Reply result;
  bool is_finished = false;
  RequestEvents events;
  events.on_finish = [&](const Reply& reply) {
    result = reply;
    is_finished = true;
  };
  core.submit(std::move(request), std::move(events));
  while (!is_finished) EXPECT_TRUE(core.step());
  return result;
}

}  // namespace weir
