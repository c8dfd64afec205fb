#include "model/synth_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/bytes.h"
#include "base/check.h"
#include "gguf.h"
#include "model/random_tiles.h"
#include "model/synth_vocab.h"

namespace weir {
namespace {

constexpr size_t kMaxTensors = 4096;
constexpr size_t kWriteBytes = 8 * static_cast<size_t>(kMiB);
constexpr float kNormSpread = 0.1f;
constexpr float kRouterDeviation = 4.0f;

// The types llama.cpp's quantizer falls back to where a row is no multiple of 256.
ggml_type fallback(ggml_type type) {
  switch (type) {
    case GGML_TYPE_Q2_K:
    case GGML_TYPE_Q3_K:
      return GGML_TYPE_Q4_0;
    case GGML_TYPE_Q4_K:
      return GGML_TYPE_Q5_0;
    case GGML_TYPE_Q5_K:
      return GGML_TYPE_Q5_1;
    case GGML_TYPE_Q6_K:
      return GGML_TYPE_Q8_0;
    default:
      return GGML_TYPE_F16;
  }
}

struct FileCloser {
  void operator()(FILE* file) const { std::fclose(file); }
};

}  // namespace

SynthFile::SynthFile(ggml_type weights, uint64_t seed) : weights_(weights), seed_(seed) {
  WEIR_CHECK(is_synth_type(weights));
  gguf_ = gguf_init_empty();
  context_ = ggml_init({kMaxTensors * ggml_tensor_overhead(), nullptr, true});
  WEIR_CHECK(gguf_ && context_);
}

SynthFile::~SynthFile() {
  gguf_free(gguf_);
  ggml_free(context_);
}

void SynthFile::key(const std::string& name, uint32_t value) {
  gguf_set_val_u32(gguf_, name.c_str(), value);
}
void SynthFile::key(const std::string& name, float value) {
  gguf_set_val_f32(gguf_, name.c_str(), value);
}
void SynthFile::key(const std::string& name, const std::string& value) {
  gguf_set_val_str(gguf_, name.c_str(), value.c_str());
}

void SynthFile::flag(const std::string& name, bool value) {
  gguf_set_val_bool(gguf_, name.c_str(), value);
}
void SynthFile::array(const std::string& name, const std::vector<uint32_t>& values) {
  gguf_set_arr_data(gguf_, name.c_str(), GGUF_TYPE_UINT32, values.data(), values.size());
}
void SynthFile::array(const std::string& name, const std::vector<float>& values) {
  gguf_set_arr_data(gguf_, name.c_str(), GGUF_TYPE_FLOAT32, values.data(), values.size());
}
void SynthFile::flags(const std::string& name, const std::vector<bool>& values) {
  const std::vector<int8_t> bytes(values.begin(), values.end());
  gguf_set_arr_data(gguf_, name.c_str(), GGUF_TYPE_BOOL, bytes.data(), bytes.size());
}

ggml_type SynthFile::type_for(const std::string& name, int64_t in) {
  if (in % ggml_blck_size(weights_) == 0) return weights_;
  ggml_type type = fallback(weights_);
  if (in % ggml_blck_size(type) != 0) type = GGML_TYPE_F16;
  if (notes_.empty())
    notes_.push_back(std::string("rows of ") + std::to_string(in) + " elements (" + name +
                     ") do not fit " + ggml_type_name(weights_) + ": such matrices are " +
                     ggml_type_name(type));
  return type;
}

SynthFile::Tensor& SynthFile::add(const std::string& name, ggml_type type,
                                  std::initializer_list<int64_t> shape) {
  WEIR_CHECK(tensors_.size() < kMaxTensors);
  ggml_tensor* tensor =
      ggml_new_tensor(context_, type, static_cast<int>(shape.size()), std::data(shape));
  ggml_set_name(tensor, name.c_str());
  gguf_add_tensor(gguf_, tensor);
  return tensors_.emplace_back(Tensor{tensor, false, 0.0f, 0.0f, {}});
}

void SynthFile::matrix(const std::string& name, int64_t in, int64_t out, float gain) {
  add(name, type_for(name, in), {in, out}).deviation = gain / std::sqrt(static_cast<float>(in));
}

void SynthFile::experts(const std::string& name, int64_t in, int64_t out, int64_t n_expert,
                        float gain) {
  add(name, type_for(name, in), {in, out, n_expert}).deviation =
      gain / std::sqrt(static_cast<float>(in));
}

void SynthFile::router(const std::string& name, int64_t in, int64_t n_expert) {
  add(name, GGML_TYPE_F32, {in, n_expert}).deviation =
      kRouterDeviation / std::sqrt(static_cast<float>(in));
}

void SynthFile::expert_biases(const std::string& name, int64_t size, int64_t n_expert,
                              float scale) {
  add(name, GGML_TYPE_F32, {size, n_expert}).deviation = scale;
}

void SynthFile::norm(const std::string& name, int64_t size, float mean) {
  vector(name, size, mean, kNormSpread * mean);
}

void SynthFile::vector(const std::string& name, int64_t size, float mean, float deviation) {
  Tensor& tensor = add(name, GGML_TYPE_F32, {size});
  tensor.is_vector = true;
  tensor.mean = mean;
  tensor.deviation = deviation;
}

void SynthFile::values(const std::string& name, std::vector<float> numbers) {
  add(name, GGML_TYPE_F32, {static_cast<int64_t>(numbers.size())}).values = std::move(numbers);
}

void SynthFile::vocabulary(int64_t size) {
  const SynthVocab vocab = make_synth_vocab(size);
  std::vector<const char*> tokens;
  tokens.reserve(vocab.tokens.size());
  for (const std::string& token : vocab.tokens) tokens.push_back(token.c_str());
  key("tokenizer.ggml.model", std::string("llama"));
  gguf_set_arr_str(gguf_, "tokenizer.ggml.tokens", tokens.data(), tokens.size());
  gguf_set_arr_data(gguf_, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocab.scores.data(),
                    vocab.scores.size());
  gguf_set_arr_data(gguf_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocab.types.data(),
                    vocab.types.size());
  key("tokenizer.ggml.padding_token_id", uint32_t{kSynthPad});
  key("tokenizer.ggml.eos_token_id", uint32_t{kSynthEos});
  key("tokenizer.ggml.bos_token_id", uint32_t{kSynthBos});
  key("tokenizer.ggml.unknown_token_id", uint32_t{kSynthUnknown});
  key("tokenizer.ggml.eot_token_id", uint32_t{kSynthTurnEnd});
  gguf_set_val_bool(gguf_, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf_, "tokenizer.ggml.add_eos_token", false);
  gguf_set_val_bool(gguf_, "tokenizer.ggml.add_space_prefix", false);
  key("tokenizer.chat_template", std::string(synth_chat_template()));
}

int64_t SynthFile::data_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += static_cast<int64_t>(ggml_nbytes(tensor.meta));
  return bytes;
}

// `out` is the part of the tensor's data that starts at byte `done`, whole rows.
void SynthFile::fill(const Tensor& tensor, RandomTiles& tiles, SynthRandom& random, size_t done,
                     std::span<std::byte> out) const {
  if (!tensor.values.empty()) {
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(tensor.values.data()) + done,
                out.size());
  } else if (tensor.is_vector) {
    float* numbers = reinterpret_cast<float*>(out.data());
    for (size_t i = 0; i < out.size() / sizeof(float); ++i)
      numbers[i] = tensor.mean + tensor.deviation * random.gaussian();
  } else {
    const ggml_type type = tensor.meta->type;
    const size_t row = ggml_row_size(type, tensor.meta->ne[0]);
    tiles.fill(type, tensor.deviation, static_cast<int64_t>(row / ggml_type_size(type)), out);
  }
}

Status SynthFile::write(const std::string& path, const std::function<void(float)>& progress) {
  // The finished file takes the target's place, so that must not be a device or a pipe.
  std::error_code none;
  if (std::filesystem::exists(path, none) && !std::filesystem::is_regular_file(path, none)) {
    return Status(Code::invalid_input, "cannot write " + path + ": it is not a regular file");
  }
  const std::string partial = path + ".tmp";
  std::unique_ptr<FILE, FileCloser> file(std::fopen(partial.c_str(), "wb"));
  auto failed = [&] {
    const std::string reason = std::strerror(errno);
    file.reset();
    std::remove(partial.c_str());
    return Status(Code::io_error, "cannot write " + path + ": " + reason);
  };
  if (!file) return failed();
  errno = 0;
  if (!gguf_write_to_file_ptr(gguf_, file.get(), true)) return failed();

  RandomTiles tiles(seed_);
  SynthRandom random(seed_ ^ 0x5eed);
  const size_t alignment = gguf_get_alignment(gguf_);
  const float total = static_cast<float>(data_bytes());
  float written = 0;
  std::vector<std::byte> buffer;
  for (const Tensor& tensor : tensors_) {
    const ggml_type type = tensor.meta->type;
    const size_t size = ggml_nbytes(tensor.meta), row = ggml_row_size(type, tensor.meta->ne[0]);
    // Whole rows at a time: the runs of a row do not depend on how the file is cut into writes.
    const size_t step = std::max<size_t>(1, kWriteBytes / row) * row;
    for (size_t done = 0; done < size; done += buffer.size()) {
      buffer.resize(std::min(step, size - done));
      fill(tensor, tiles, random, done, buffer);
      if (std::fwrite(buffer.data(), 1, buffer.size(), file.get()) != buffer.size())
        return failed();
      written += static_cast<float>(buffer.size());
      if (progress) progress(written / total);
    }
    const std::vector<char> padding((alignment - size % alignment) % alignment);
    if (std::fwrite(padding.data(), 1, padding.size(), file.get()) != padding.size())
      return failed();
  }
  if (std::fclose(file.release()) != 0 || std::rename(partial.c_str(), path.c_str()) != 0)
    return failed();
  return {};
}

}  // namespace weir
