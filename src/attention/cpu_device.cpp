#include <string>

#include "attention/kv_device.h"
#include "attention/simd_attend.h"

namespace weir {
namespace {

class CpuDevice final : public KvDevice {
 public:
  KvMemory& memory() override { return *memory_; }
  const char* name() const override { return name_.c_str(); }
  void store(const StoreArgs& args, int thread, int n_threads) override {
    simd_store(args, thread, n_threads);
  }
  void attend(const AttendArgs& args, int thread, int n_threads) override {
    simd_attend(args, thread, n_threads);
  }

 private:
  std::unique_ptr<KvMemory> memory_ = make_cpu_memory();
  std::string name_ = std::string("cpu ") + simd_name();
};

}  // namespace

std::unique_ptr<KvDevice> make_cpu_device() { return std::make_unique<CpuDevice>(); }

}  // namespace weir
