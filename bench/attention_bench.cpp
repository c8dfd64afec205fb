// Attention over block tables against ggml's own flash attention over contiguous K and V, with the
// shapes of gemma-3-1b's global layers: 4 heads, 1 KV head, 256 elements, f16.
//
// attention_bench prints weir's and ggml's times pair by pair, taken in turn, with the share of the
// fused multiply-add peak and of the read bandwidth that were measured in the same run.
// attention_bench --types compares every KV type with f16.
// attention_bench --benchmark_filter=. runs Google Benchmark's cases instead.
#include <benchmark/benchmark.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "attention/attend_work.h"
#include "attention/kv_device.h"
#include "attention/tile_memory.h"

namespace weir {
namespace {

// Seconds of wall time; of the calling thread's own work where it is the only one, so that what
// else the machine does is left out.
double now(int threads = 2) {
  timespec t;
  if (threads == 1 && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A team of threads that runs one function after another, spinning in between as ggml's does.
class Team {
 public:
  explicit Team(int threads) : threads_(threads) {
    for (int t = 1; t < threads; ++t) members_.emplace_back([this, t] { serve(t); });
  }
  ~Team() {
    run([](int) {}, true);
    for (std::thread& t : members_) t.join();
  }
  void run(std::function<void(int)> work, bool last = false) {
    work_ = std::move(work);
    last_ = last;
    done_.store(1);
    round_.fetch_add(1);
    work_(0);
    while (done_.load() < threads_) {
    }
  }
  int threads() const { return threads_; }

 private:
  void serve(int thread) {
    for (int round = 1;; ++round) {
      while (round_.load() < round) {
      }
      const bool last = last_;
      work_(thread);
      done_.fetch_add(1);
      if (last) return;
    }
  }
  int threads_;
  std::vector<std::thread> members_;
  std::function<void(int)> work_;
  bool last_ = false;
  std::atomic<int> round_{0}, done_{0};
};

// Vectors as wide as this build's processor has; the peak is what independent fused products reach.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) double fma_flops_avx512(int64_t rounds) {
  typedef float Vec __attribute__((vector_size(64)));
  Vec a[12];
  for (auto& x : a) x = Vec{} + 1.0f;
  Vec m = Vec{} + 0.999f, c = Vec{} + 0.001f;
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& x : a) asm volatile("vfmadd213ps %2, %1, %0" : "+v"(x) : "v"(m), "v"(c));
  }
  for (auto& x : a) benchmark::DoNotOptimize(x);
  return static_cast<double>(rounds) * 12 * 16 * 2;
}
__attribute__((target("avx2,fma"))) double fma_flops_avx2(int64_t rounds) {
  typedef float Vec __attribute__((vector_size(32)));
  Vec a[12];
  for (auto& x : a) x = Vec{} + 1.0f;
  Vec m = Vec{} + 0.999f, c = Vec{} + 0.001f;
  for (int64_t i = 0; i < rounds; ++i) {
    for (auto& x : a) asm volatile("vfmadd213ps %2, %1, %0" : "+x"(x) : "x"(m), "x"(c));
  }
  for (auto& x : a) benchmark::DoNotOptimize(x);
  return static_cast<double>(rounds) * 12 * 8 * 2;
}
double fma_flops(int64_t rounds) {
  return __builtin_cpu_supports("avx512f") ? fma_flops_avx512(rounds) : fma_flops_avx2(rounds);
}
#else
double fma_flops(int64_t rounds) {
  float a[64];
  for (float& x : a) x = 1.0f;
  for (int64_t i = 0; i < rounds; ++i) {
    for (float& x : a) x = std::fma(x, 0.999f, 0.001f);
  }
  benchmark::DoNotOptimize(a);
  return static_cast<double>(rounds) * 64 * 2;
}
#endif

double best_of(int threads, int repeats, const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = now(threads);
    body();
    best = std::min(best, now(threads) - start);
  }
  return best;
}

double fma_peak(Team& team) {
  constexpr int64_t kRounds = 3'000'000;
  double flops = 0;
  const double s = best_of(team.threads(), 5, [&] {
    team.run([&](int t) {
      const double f = fma_flops(kRounds);
      if (t == 0) flops = f * team.threads();
    });
  });
  return flops / s;
}

// Memory for KV, with or without 2 MiB pages.
class Memory {
 public:
  Memory(int64_t bytes, bool huge)
      : kv_(make_cpu_memory()), size_{round_up(bytes, 2 * kMiB)}, data_(*kv_->reserve(size_)) {
    if (!kv_->commit(data_, size_, huge).ok()) std::abort();
    std::memset(data_, 0, static_cast<size_t>(size_.v));
  }
  ~Memory() { kv_->unreserve(data_, size_); }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return size_.v; }

 private:
  std::unique_ptr<KvMemory> kv_;
  Bytes size_;
  std::byte* data_;
};

double read_bandwidth(Team& team, const Memory& memory) {
  const int64_t each = memory.bytes() / team.threads() / 64 * 64;
  std::vector<uint64_t> sums(64);
  const double s = best_of(team.threads(), 5, [&] {
    team.run([&](int t) {
      const auto* p = reinterpret_cast<const uint64_t*>(memory.data() + t * each);
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < each / 8; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      for (const uint64_t x : sum) sums[static_cast<size_t>(t)] += x;
    });
  });
  benchmark::DoNotOptimize(sums.data());
  return static_cast<double>(each * team.threads()) / s;
}

struct Shape {
  int64_t n_past, n_new;
  int block_tokens;
  bool huge;
  int64_t window = 0;  // 0: global
  int n_heads = 4, n_kv_heads = 1, dim = 256;
  KvType type = KvType::f16;
};

// weir's side: blocks of 26 layers' K and V, as in a pool, of which one layer is measured. Decoding
// goes through all layers in turn, so that nothing is left in the caches.
class WeirCase {
 public:
  WeirCase(const Shape& s, int layers, int threads)
      : s_(s), layers_(layers), device_(make_cpu_device()) {
    shape_ = {.n_heads = s.n_heads,
              .n_kv_heads = s.n_kv_heads,
              .k_dim = s.dim,
              .v_dim = s.dim,
              .k_type = s.type,
              .v_type = s.type,
              .block_tokens = s.block_tokens,
              .k_rotated = is_rotated(s.type, KvRotation::automatic),
              .v_rotated = is_rotated(s.type, KvRotation::automatic)};
    const int64_t k = s.n_kv_heads * k_tile_bytes(shape_), v = s.n_kv_heads * v_tile_bytes(shape_);
    const int64_t n_blocks = ceil_div(s.n_past + s.n_new, s.block_tokens);
    memory_ = std::make_unique<Memory>(n_blocks * layers * (k + v), s.huge);
    blocks_.resize(static_cast<size_t>(layers));
    for (int l = 0; l < layers; ++l) {
      for (int64_t b = 0; b < n_blocks; ++b) {
        std::byte* at = memory_->data() + (b * layers + l) * (k + v);
        blocks_[static_cast<size_t>(l)].push_back({at, at + k});
      }
      rows_.push_back(
          {.blocks = blocks_[static_cast<size_t>(l)],
           .n_past = s.n_past,
           .n_new = s.n_new,
           .retention = s.window ? Retention{LayerKind::sliding, s.window} : Retention{}});
    }
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto* half = reinterpret_cast<uint16_t*>(memory_->data());
    // Halves of random sign and a magnitude between 1/4 and 1: also scales of quantized rows, whose
    // integers may be anything.
    for (int64_t i = 0; i < memory_->bytes() / 2; ++i) {
      half[i] = static_cast<uint16_t>((random() & 0x83ff) | 0x3400);
    }
    q_.resize(static_cast<size_t>(s.n_new * s.n_heads * s.dim));
    for (float& x : q_) x = uniform(random);
    out_.resize(q_.size());
    work_.plan(shape_, {rows_.data(), 1}, threads);
    workspace_.resize(static_cast<size_t>(work_.workspace_floats()) + 16);
    const auto misfit = reinterpret_cast<uintptr_t>(workspace_.data()) / sizeof(float) % 16;
    work_.set_workspace(workspace_.data() + (16 - misfit) % 16);
  }

  void run(Team& team) {
    for (int l = 0; l < layers_; ++l) {
      const TokenMatrix q{q_.data(), int64_t{s_.n_heads} * s_.dim, s_.dim};
      const TokenMatrix out{out_.data(), int64_t{s_.n_heads} * s_.dim, s_.dim};
      const AttendArgs args{
          shape_, {.scale = 1.0f / 16}, {&rows_[static_cast<size_t>(l)], 1}, q, out, &work_};
      team.run([&](int t) { device_->attend(args, t, team.threads()); });
    }
  }

  // Products of visible keys only, K and V.
  double flops() const {
    double keys = 0;
    for (int64_t i = 0; i < s_.n_new; ++i) {
      keys += static_cast<double>(visible_keys(rows_[0].retention, s_.n_past + i));
    }
    return keys * s_.n_heads * s_.dim * 4 * layers_;
  }
  double kv_bytes() const {
    const auto keys =
        static_cast<double>(s_.window ? std::min(s_.n_past + s_.n_new, s_.window + s_.n_new - 1)
                                      : s_.n_past + s_.n_new);
    return keys * static_cast<double>(s_.n_kv_heads * kv_row_bytes(s_.type, s_.dim) * 2 * layers_);
  }
  const Memory& memory() const { return *memory_; }

 private:
  Shape s_;
  int layers_;
  std::unique_ptr<KvDevice> device_;
  HeadShape shape_;
  std::unique_ptr<Memory> memory_;
  std::vector<std::vector<TilePair>> blocks_;
  std::vector<SequenceRows> rows_;
  std::vector<float> q_, out_, workspace_;
  AttendWork work_;
};

// ggml's side: ggml_flash_attn_ext over one contiguous f16 K and V per layer, causal mask.
class GgmlCase {
 public:
  GgmlCase(const Shape& s, int layers, int threads) {
    const int64_t n_kv = round_up(s.n_past + s.n_new, 256);  // as llama.cpp pads it
    const int64_t row = s.dim * s.n_kv_heads * 2;
    memory_ = std::make_unique<Memory>(layers * n_kv * row * 2, s.huge);
    ctx_ = ggml_init({size_t{16} << 20, nullptr, true});
    const auto tensor = [&](ggml_type type, int64_t a, int64_t b, int64_t c) {
      return ggml_new_tensor_4d(ctx_, type, a, b, c, 1);
    };
    ggml_tensor* q = tensor(GGML_TYPE_F32, s.dim, s.n_new, s.n_heads);
    ggml_tensor* mask = tensor(GGML_TYPE_F16, n_kv, s.n_new, 1);
    q_.resize(static_cast<size_t>(ggml_nelements(q)));
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& x : q_) x = uniform(random);
    q->data = q_.data();
    mask_.resize(static_cast<size_t>(ggml_nelements(mask)));
    for (int64_t i = 0; i < s.n_new; ++i) {
      for (int64_t j = 0; j < n_kv; ++j) {
        const int64_t at = s.n_past + i;
        const bool seen = j <= at && (s.window == 0 || j > at - s.window);
        mask_[static_cast<size_t>(i * n_kv + j)] = ggml_fp32_to_fp16(seen ? 0.0f : -INFINITY);
      }
    }
    mask->data = mask_.data();
    auto* half = reinterpret_cast<uint16_t*>(memory_->data());
    for (int64_t i = 0; i < memory_->bytes() / 2; ++i) {
      half[i] = static_cast<uint16_t>((random() & 0x83ff) | 0x3400);
    }
    graph_ = ggml_new_graph(ctx_);
    out_.resize(q_.size());
    for (int l = 0; l < layers; ++l) {
      ggml_tensor* k = tensor(GGML_TYPE_F16, s.dim, n_kv, s.n_kv_heads);
      ggml_tensor* v = tensor(GGML_TYPE_F16, s.dim, n_kv, s.n_kv_heads);
      k->data = memory_->data() + (2 * l) * n_kv * row;
      v->data = memory_->data() + (2 * l + 1) * n_kv * row;
      ggml_tensor* out = ggml_flash_attn_ext(ctx_, q, k, v, mask, 1.0f / 16, 0, 0);
      out->data = out_.data();
      ggml_build_forward_expand(graph_, out);
    }
    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    pool_ = ggml_threadpool_new(&params);
    plan_ = ggml_graph_plan(graph_, threads, pool_);
    work_.resize(plan_.work_size + 64);
    plan_.work_data = work_.data();
  }
  ~GgmlCase() {
    ggml_threadpool_free(pool_);
    ggml_free(ctx_);
  }
  void run() { ggml_graph_compute(graph_, &plan_); }

 private:
  std::unique_ptr<Memory> memory_;
  ggml_context* ctx_;
  ggml_cgraph* graph_;
  ggml_threadpool* pool_;
  ggml_cplan plan_;
  std::vector<float> q_, out_;
  std::vector<ggml_fp16_t> mask_;
  std::vector<uint8_t> work_;
};

double median(std::vector<double>& x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// Median of pairs taken in turn, so that what else the machine does falls on both.
struct Pair {
  double weir_s, ggml_s, ratio;
};
Pair measure(WeirCase& weir, GgmlCase& ggml, Team& team, int pairs) {
  std::vector<double> a, b, ratio;
  weir.run(team);
  ggml.run();
  for (int i = 0; i < pairs; ++i) {
    const double t0 = now(team.threads());
    weir.run(team);
    const double t1 = now(team.threads());
    ggml.run();
    const double t2 = now(team.threads());
    a.push_back(t1 - t0);
    b.push_back(t2 - t1);
    ratio.push_back((t2 - t1) / (t1 - t0));
  }
  return {median(a), median(b), median(ratio)};
}

int layers_for(const Shape& s) {
  // Decoding: enough layers that their KV does not fit a cache. Reading a prompt: one.
  const int64_t layer = (s.n_past + s.n_new) * s.dim * s.n_kv_heads * 4;
  return s.n_new > 1 ? 1 : static_cast<int>(std::max<int64_t>(4, 256 * kMiB / layer));
}

void table(int pairs) {
  for (const int threads : {1, 2}) {
    Team team(threads);
    const double peak = fma_peak(team);
    for (const bool huge : {true, false}) {
      const Memory memory(256 * kMiB, huge);
      const double bandwidth = read_bandwidth(team, memory);
      std::printf("\n%d thread%s, %s pages: %.0f GFLOP/s fused peak, %.1f GB/s read\n", threads,
                  threads > 1 ? "s" : "", huge ? "2 MiB" : "4 KiB", peak / 1e9, bandwidth / 1e9);
      std::printf("%-22s %4s %10s %10s %9s %7s %7s\n", "", "B", "weir ms", "ggml ms", "", "of",
                  "x ggml");
      for (const Shape base :
           {Shape{0, 512, 0, huge}, Shape{4096, 512, 0, huge}, Shape{16384, 512, 0, huge},
            Shape{32768, 512, 0, huge}, Shape{16384, 512, 0, huge, 512}, Shape{4095, 1, 0, huge},
            Shape{16383, 1, 0, huge}, Shape{32767, 1, 0, huge}, Shape{16383, 1, 0, huge, 512}}) {
        if (!huge && base.n_new > 1) continue;
        const int layers = layers_for(base);
        GgmlCase ggml(base, layers, threads);
        for (const int B : {16, 32, 64}) {
          Shape s = base;
          s.block_tokens = B;
          WeirCase weir(s, layers, threads);
          const Pair p = measure(weir, ggml, team, base.n_new > 1 ? pairs : 2 * pairs + 1);
          char name[64];
          std::snprintf(name, sizeof name, "%s at %lld%s", s.n_new > 1 ? "prefill 512" : "decode",
                        static_cast<long long>(s.n_past + (s.n_new == 1)), s.window ? " w512" : "");
          if (s.n_new > 1) {
            const double rate = weir.flops() / p.weir_s;
            std::printf("%-22s %4d %10.2f %10.2f %5.0f GF/s %5.0f %% %7.2f\n", name, B,
                        p.weir_s * 1e3, p.ggml_s * 1e3, rate / 1e9, 100 * rate / peak, p.ratio);
          } else {
            const double rate = weir.kv_bytes() / p.weir_s;
            std::printf("%-22s %4d %10.3f %10.3f %5.1f GB/s %5.0f %% %7.2f\n", name, B,
                        p.weir_s * 1e3 / layers, p.ggml_s * 1e3 / layers, rate / 1e9,
                        100 * rate / bandwidth, p.ratio);
          }
          std::fflush(stdout);
        }
      }
    }
  }
}

// Every KV type beside f16, in turn; one thread, CPU time.
void types(int pairs) {
  Team team(1);
  std::printf("%-22s %-6s %10s %10s %9s %8s\n", "", "", "ms", "f16 ms", "GB/s", "x f16");
  for (const auto& [n_past, n_new] :
       {std::pair<int64_t, int64_t>{4095, 1}, {16383, 1}, {32767, 1}, {4096, 512}, {16384, 512}}) {
    Shape base{n_past, n_new, 32, true};
    const int layers = layers_for(base);
    WeirCase f16(base, layers, 1);
    f16.run(team);
    for (const KvType type :
         {KvType::f32, KvType::bf16, KvType::q8_0, KvType::q6_0, KvType::q5_0, KvType::q4_0}) {
      Shape s = base;
      s.type = type;
      WeirCase other(s, layers, 1);
      other.run(team);
      std::vector<double> a, b, ratio;
      for (int i = 0; i < pairs; ++i) {
        const double t0 = now(1);
        other.run(team);
        const double t1 = now(1);
        f16.run(team);
        const double t2 = now(1);
        a.push_back(t1 - t0);
        b.push_back(t2 - t1);
        ratio.push_back((t2 - t1) / (t1 - t0));
      }
      char name[64];
      std::snprintf(name, sizeof name, "%s at %lld", n_new > 1 ? "prefill 512" : "decode",
                    static_cast<long long>(n_past + (n_new == 1)));
      std::printf("%-22s %-6s %10.3f %10.3f %9.1f %8.2f\n", name, kv_type_name(type),
                  median(a) * 1e3 / layers, median(b) * 1e3 / layers,
                  other.kv_bytes() / median(a) / 1e9, median(ratio));
      std::fflush(stdout);
    }
  }
}

// Args: n_past, n_new, B, threads.
void attend_case(benchmark::State& state) {
  const Shape s{state.range(0), state.range(1), static_cast<int>(state.range(2)), true};
  const int threads = static_cast<int>(state.range(3));
  Team team(threads);
  WeirCase weir(s, layers_for(s), threads);
  for (auto _ : state) weir.run(team);
  const auto n = static_cast<double>(state.iterations());
  state.counters["FLOP/s"] = benchmark::Counter(weir.flops() * n, benchmark::Counter::kIsRate);
  state.counters["B/s"] = benchmark::Counter(weir.kv_bytes() * n, benchmark::Counter::kIsRate);
}
BENCHMARK(attend_case)
    ->ArgsProduct({{0, 4096, 16384, 32768}, {512}, {16, 32, 64}, {1, 2}})
    ->ArgsProduct({{4095, 16383, 32767}, {1}, {16, 32, 64}, {1, 2}})
    ->UseRealTime();

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc == 1) {
    weir::table(5);
    return 0;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--types") {
    weir::types(5);
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
