#include "model/weight_loader.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/quote.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace weir {
namespace {

constexpr uint64_t kMaxPerLayer = 65536;  // elements of an array with one a layer
constexpr size_t kAlignment = 64;         // of tensors in copied memory: a cache line

// Types that ggml's matrix product takes on the left.
bool can_multiply(ggml_type type) { return ggml_get_type_traits_cpu(type)->vec_dot != nullptr; }

// Types whose rows ggml can look up.
bool can_look_up(ggml_type type) {
  return can_multiply(type) && (type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// The CPU's buffer types that hold matrices in another form than the file's: AMX tiles, rows
// interleaved for wide instructions, ...
std::vector<ggml_backend_buffer_type*> extra_buffer_types() {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (!cpu) return {};
  auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
      ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
  std::vector<ggml_backend_buffer_type*> types;
  if (get)
    for (ggml_backend_buffer_type_t* type = get(cpu); type && *type; ++type) types.push_back(*type);
  return types;
}

}  // namespace

void Weights::ContextFree::operator()(ggml_context* context) const { ggml_free(context); }

WeightLoader::WeightLoader(const GgufFile& file, const KvGeometry& geometry,
                           const ModelOptions& options)
    : file_(file), geometry_(geometry), options_(options) {
  if (options.repack) extra_types_ = extra_buffer_types();
  // A tensor can be asked for in two forms.
  context_.reset(
      ggml_init({(2 * file.tensors().size() + 16) * ggml_tensor_overhead(), nullptr, true}));
  WEIR_CHECK(context_);
}

WeightLoader::~WeightLoader() = default;

void WeightLoader::fail(Code code, const std::string& what) {
  if (status_.ok()) status_ = Status(code, what);
}

std::string WeightLoader::full_key(std::string_view key) const {
  return geometry_.arch + "." + std::string(key);
}

int64_t WeightLoader::integer(std::string_view key) {
  Result<std::optional<int64_t>> value = file_.integer(full_key(key));
  if (!value)
    fail(value.error().code(), value.error().message());
  else if (!*value)
    fail(Code::corrupt, "key " + full_key(key) + " is missing");
  return value && *value ? **value : 0;
}

int64_t WeightLoader::integer(std::string_view key, int64_t otherwise) {
  return file_.find(full_key(key)) ? integer(key) : otherwise;
}

float WeightLoader::number(std::string_view key) {
  Result<std::optional<double>> value = file_.number(full_key(key));
  if (!value)
    fail(value.error().code(), value.error().message());
  else if (!*value)
    fail(Code::corrupt, "key " + full_key(key) + " is missing");
  else if (!std::isfinite(**value))
    fail(Code::corrupt, "key " + full_key(key) + " is not finite");
  return value && *value ? static_cast<float>(**value) : 0.0f;
}

float WeightLoader::number(std::string_view key, float otherwise) {
  return file_.find(full_key(key)) ? number(key) : otherwise;
}

float WeightLoader::positive(std::string_view key) {
  const float value = number(key);
  if (!(value > 0)) fail(Code::corrupt, "key " + full_key(key) + " is not positive");
  return value;
}

float WeightLoader::positive(std::string_view key, float otherwise) {
  return has_key(key) ? positive(key) : otherwise;
}

bool WeightLoader::flag(std::string_view key, bool otherwise) {
  Result<std::optional<bool>> value = file_.boolean(full_key(key));
  if (!value) fail(value.error().code(), value.error().message());
  return value ? value->value_or(otherwise) : otherwise;
}

std::string WeightLoader::text(std::string_view key, const std::string& otherwise) {
  Result<std::optional<std::string>> value = file_.string(full_key(key));
  if (!value) fail(value.error().code(), value.error().message());
  return value && *value ? **value : otherwise;
}

template <typename T>
std::vector<T> WeightLoader::spread(std::string_view key,
                                    const Result<std::optional<std::vector<T>>>& values,
                                    std::optional<T> otherwise) {
  const size_t n_layers = geometry_.layers.size();
  std::vector<T> out(n_layers, otherwise.value_or(T{}));
  if (!values) {
    fail(values.error().code(), values.error().message());
  } else if (!*values) {
    if (!otherwise) fail(Code::corrupt, "key " + full_key(key) + " is missing");
  } else if (!file_.find(full_key(key))->is_array()) {
    out.assign(n_layers, (*values)->front());
  } else if ((*values)->size() < n_layers) {
    fail(Code::corrupt, "key " + full_key(key) + " has " + std::to_string((*values)->size()) +
                            " elements for " + std::to_string(n_layers) + " layers");
  } else {
    out.assign((*values)->begin(), (*values)->begin() + static_cast<ptrdiff_t>(n_layers));
  }
  return out;
}

std::vector<int64_t> WeightLoader::per_layer(std::string_view key) {
  return spread<int64_t>(key, file_.integers(full_key(key), kMaxPerLayer), std::nullopt);
}

std::vector<int64_t> WeightLoader::per_layer(std::string_view key, int64_t otherwise) {
  return spread<int64_t>(key, file_.integers(full_key(key), kMaxPerLayer), otherwise);
}

std::vector<float> WeightLoader::numbers_per_layer(std::string_view key, float otherwise) {
  const std::vector<double> wide =
      spread<double>(key, file_.numbers(full_key(key), kMaxPerLayer), otherwise);
  if (std::any_of(wide.begin(), wide.end(), [](double x) { return std::isnan(x); }))
    fail(Code::corrupt, "key " + full_key(key) + " is not a number");
  return {wide.begin(), wide.end()};
}

int64_t WeightLoader::context() const {
  return options_.context > 0 ? options_.context : geometry_.max_context;
}

int64_t WeightLoader::row_length(std::string_view tensor) const {
  const GgufTensor* found = file_.find_tensor(tensor);
  return found ? found->shape[0] : 0;
}

int64_t WeightLoader::row_count(std::string_view tensor) const {
  const GgufTensor* found = file_.find_tensor(tensor);
  return found ? found->shape[1] : 0;
}

const GgufTensor* WeightLoader::checked(const std::string& name, int64_t in, int64_t rows,
                                        int64_t n_expert) {
  if (!status_.ok()) return nullptr;
  const GgufTensor* found = file_.find_tensor(name);
  if (!found) {
    fail(Code::not_found, "tensor " + name + " is missing");
    return nullptr;
  }
  const std::array<int64_t, 4> expected{in, rows, n_expert, 1};
  if (found->shape != expected) {
    const size_t n_dims = static_cast<size_t>(std::max(found->n_dims, 1));
    fail(Code::corrupt, "tensor " + name + " has the shape " +
                            shape_text(std::span(found->shape).first(n_dims)) + "; expected " +
                            shape_text(std::span(expected).first(n_expert > 1 ? 3
                                                                 : rows > 1   ? 2
                                                                              : 1)));
    return nullptr;
  }
  // weir's list of types and the library's must agree before the library sees the data.
  const auto type = static_cast<ggml_type>(found->type);
  if (found->type >= GGML_TYPE_COUNT ||
      ggml_row_size(type, in) * static_cast<uint64_t>(rows * n_expert) != found->bytes) {
    fail(Code::unsupported, "tensor " + name + " has type " + found->type_facts->name +
                                ", which this build of ggml does not know");
    return nullptr;
  }
  return found;
}

ggml_tensor* WeightLoader::want(const GgufTensor& source, ggml_backend_buffer_type* extra) {
  for (const Wanted& known : wanted_)
    if (known.source == &source && known.extra == extra) return known.tensor;
  const auto type = static_cast<ggml_type>(source.type);
  ggml_tensor* tensor =
      ggml_new_tensor(context_.get(), type, std::max(source.n_dims, 1), source.shape.data());
  ggml_set_name(tensor, source.name.c_str());
  wanted_.push_back({&source, tensor, extra});
  return tensor;
}

// The first extra buffer type in which the CPU can multiply with this matrix, or with one of many
// that each token picks.
ggml_backend_buffer_type* WeightLoader::extra_type_for(const GgufTensor& source, bool by_expert) {
  constexpr int64_t kTokens = 512;
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  for (ggml_backend_buffer_type* candidate : extra_types_) {
    std::unique_ptr<ggml_context, Weights::ContextFree> scratch(
        ggml_init({4 * ggml_tensor_overhead(), nullptr, true}));
    ggml_context* ctx = scratch.get();
    ggml_tensor* weight = ggml_new_tensor_3d(ctx, static_cast<ggml_type>(source.type),
                                             source.shape[0], source.shape[1], source.shape[2]);
    ggml_tensor* product = nullptr;
    if (by_expert) {
      ggml_tensor* x = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, source.shape[0], 1, kTokens);
      ggml_tensor* picked = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, kTokens);
      product = ggml_mul_mat_id(ctx, weight, x, picked);
    } else {
      ggml_tensor* x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, source.shape[0], kTokens);
      product = ggml_mul_mat(ctx, weight, x);
    }
    // An empty buffer of that type tells the device where the weight would lie.
    weight->buffer = ggml_backend_buft_alloc_buffer(candidate, 0);
    const bool supported = weight->buffer && ggml_backend_dev_supports_op(cpu, product);
    ggml_backend_buffer_free(weight->buffer);
    if (supported) return candidate;
  }
  return nullptr;
}

bool WeightLoader::check_multiplied(const GgufTensor* source) {
  if (!source || can_multiply(static_cast<ggml_type>(source->type))) return source;
  fail(Code::unsupported, "tensor " + source->name + " has type " + source->type_facts->name +
                              ", which cannot be multiplied with");
  return false;
}

ggml_tensor* WeightLoader::multiplied(const GgufTensor* source, bool by_expert) {
  return check_multiplied(source) ? want(*source, extra_type_for(*source, by_expert)) : nullptr;
}

ggml_tensor* WeightLoader::matrices(const std::string& name, int64_t in, int64_t out, int64_t n) {
  const GgufTensor* source = checked(name, in, out, n);
  return check_multiplied(source) ? want(*source, nullptr) : nullptr;
}

ggml_tensor* WeightLoader::matrix(const std::string& name, int64_t in, int64_t out) {
  return multiplied(checked(name, in, out), false);
}

ggml_tensor* WeightLoader::experts(const std::string& name, int64_t in, int64_t out,
                                   int64_t n_expert) {
  return multiplied(checked(name, in, out, n_expert), true);
}

ggml_tensor* WeightLoader::table(const std::string& name, int64_t in, int64_t rows) {
  const GgufTensor* source = checked(name, in, rows);
  if (!source) return nullptr;
  if (!can_look_up(static_cast<ggml_type>(source->type))) {
    fail(Code::unsupported, "tensor " + name + " has type " + source->type_facts->name +
                                ", whose rows cannot be looked up");
    return nullptr;
  }
  return want(*source, nullptr);
}

ggml_tensor* WeightLoader::numbers(const GgufTensor* source) {
  if (!source) return nullptr;
  if (source->type != GGML_TYPE_F32) {
    fail(Code::unsupported,
         "tensor " + source->name + " has type " + source->type_facts->name + "; expected f32");
    return nullptr;
  }
  return want(*source, nullptr);
}

ggml_tensor* WeightLoader::vector(const std::string& name, int64_t size) {
  return numbers(checked(name, size, 1));
}

ggml_tensor* WeightLoader::expert_vectors(const std::string& name, int64_t size, int64_t n_expert) {
  return numbers(checked(name, size, n_expert));
}

ggml_tensor* WeightLoader::positive_vector(const std::string& name, int64_t size) {
  ggml_tensor* tensor = vector(name, size);
  if (!tensor) return nullptr;
  std::vector<float> values(static_cast<size_t>(size));
  std::memcpy(values.data(), file_.data(*file_.find_tensor(name)).data(), size * sizeof(float));
  if (!std::all_of(values.begin(), values.end(), [](float x) { return x > 0; })) {
    fail(Code::corrupt, "tensor " + name + " holds a number that is not positive");
    return nullptr;
  }
  return tensor;
}

ggml_tensor* WeightLoader::matrix_if_present(const std::string& name, int64_t in, int64_t out) {
  return has(name) ? matrix(name, in, out) : nullptr;
}

ggml_tensor* WeightLoader::vector_if_present(const std::string& name, int64_t size) {
  return has(name) ? vector(name, size) : nullptr;
}

void WeightLoader::report(uint64_t bytes) {
  done_bytes_ += bytes;
  if (options_.progress)
    options_.progress(static_cast<float>(done_bytes_) /
                      static_cast<float>(std::max<uint64_t>(total_bytes_, 1)));
}

Status WeightLoader::place_plain(Weights& weights) {
  // The library wants 32-byte alignment, which a file with a smaller one may not give.
  const bool mappable = std::all_of(wanted_.begin(), wanted_.end(), [](const Wanted& w) {
    return w.extra || w.source->file_offset % 32 == 0;
  });
  if (!options_.huge_pages && mappable) {
    weights.memory_.push_back(WeightMemory::borrow(file_.bytes()));
    const WeightMemory& memory = weights.memory_.back();
    for (const Wanted& w : wanted_) {
      if (w.extra) continue;
      ggml_backend_tensor_alloc(memory.buffer(), w.tensor, memory.base() + w.source->file_offset);
      report(w.source->bytes);
      weights.mapped_ = true;
    }
    return {};
  }
  size_t size = 0;
  const auto padded = [](uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  for (const Wanted& w : wanted_)
    if (!w.extra) size += padded(w.source->bytes);
  if (size == 0) return {};
  Result<WeightMemory> memory = WeightMemory::allocate({static_cast<int64_t>(size)});
  if (!memory) return memory.error();
  std::vector<const Wanted*> copies;
  std::byte* at = memory->base();
  for (const Wanted& w : wanted_) {
    if (w.extra) continue;
    ggml_backend_tensor_alloc(memory->buffer(), w.tensor, at);
    at += padded(w.source->bytes);
    copies.push_back(&w);
  }
  // The system clears the new pages while they are first written, which takes longer than the copy:
  // several threads share that.
  std::atomic<size_t> next{0};
  std::mutex report_mutex;
  const auto copy = [&] {
    for (size_t i = next++; i < copies.size(); i = next++) {
      const std::span<const std::byte> data = file_.data(*copies[i]->source);
      std::memcpy(copies[i]->tensor->data, data.data(), data.size());
      drop_mapped_pages(data);
      std::lock_guard lock(report_mutex);
      report(data.size());
    }
  };
  std::vector<std::thread> helpers(std::clamp(std::thread::hardware_concurrency(), 1u, 4u) - 1);
  for (std::thread& helper : helpers) helper = std::thread(copy);
  copy();
  for (std::thread& helper : helpers) helper.join();
  weights.memory_.push_back(std::move(*memory));
  return {};
}

Status WeightLoader::place_extra(ggml_backend_buffer_type* type, Weights& weights) {
  const size_t alignment = ggml_backend_buft_get_alignment(type);
  const auto padded = [&](const ggml_tensor* tensor) {
    return GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), alignment);
  };
  size_t size = 0;
  for (const Wanted& w : wanted_)
    if (w.extra == type) size += padded(w.tensor);
  if (size == 0) return {};
  ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, size);
  if (!buffer)
    return Status(Code::io_error,
                  "no memory for " + format_bytes({static_cast<int64_t>(size)}) + " of weights");
  weights.memory_.push_back(WeightMemory::adopt(buffer, options_.huge_pages));
  std::byte* at = weights.memory_.back().base();
  for (const Wanted& w : wanted_) {
    if (w.extra != type) continue;
    const std::span<const std::byte> data = file_.data(*w.source);
    if (ggml_backend_tensor_alloc(buffer, w.tensor, at) != GGML_STATUS_SUCCESS)
      return Status(Code::internal, "ggml could not place tensor " + w.source->name);
    ggml_backend_tensor_set(w.tensor, data.data(), 0, data.size());
    drop_mapped_pages(data);
    at += padded(w.tensor);
    report(data.size());
  }
  return {};
}

Result<Weights> WeightLoader::load() {
  if (!status_.ok()) return status_;
  Weights weights;
  for (const Wanted& w : wanted_) total_bytes_ += w.source->bytes;
  weights.bytes_ = {static_cast<int64_t>(total_bytes_)};
  for (ggml_backend_buffer_type* type : extra_types_)
    if (Status status = place_extra(type, weights); !status.ok()) return status;
  if (Status status = place_plain(weights); !status.ok()) return status;
  weights.context_ = std::move(context_);
  return weights;
}

}  // namespace weir
