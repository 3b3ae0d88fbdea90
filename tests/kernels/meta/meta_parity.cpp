#include "tests/kernels/meta/meta_parity.h"

#include <ATen/Parallel.h>

#include "kernels/meta/aten_meta.h"

namespace moelab {
namespace {

struct Measured {
  Tensors outputs;
  int64_t kept, peak, scratch;
};

Measured measure(const Case& c, c10::DeviceType device, at::ScalarType dtype) {
  Ledger& ledger = device == c10::kCPU ? cpu_ledger() : meta_ledger();
  const int64_t before = ledger.allocated();
  ledger.reset_peaks();
  Tensors outputs = c.run({c10::Device(device), dtype});
  return {outputs, ledger.allocated() - before, ledger.peak() - before,
          of(ledger.by_kind_at_peak(), Kind::scratch)};
}

void expect_same_tensor(const Tensor& meta, const Tensor& cpu) {
  ASSERT_EQ(meta.defined(), cpu.defined());
  if (!cpu.defined()) return;
  EXPECT_EQ(meta.sizes(), cpu.sizes());
  EXPECT_EQ(meta.strides(), cpu.strides());
  EXPECT_EQ(meta.scalar_type(), cpu.scalar_type());
  EXPECT_TRUE(meta.is_meta());
}

void expect_parity(const Case& c, at::ScalarType dtype) {
  SCOPED_TRACE(c.name + (dtype == at::kFloat ? " fp32" : " bf16"));
  measure(c, c10::kCPU, dtype);  // libraries keep what they make on first use
  const Measured cpu = measure(c, c10::kCPU, dtype);
  const Measured meta = measure(c, c10::kMeta, dtype);
  ASSERT_EQ(meta.outputs.size(), cpu.outputs.size());
  for (size_t i = 0; i < cpu.outputs.size(); ++i) expect_same_tensor(meta.outputs[i], cpu.outputs[i]);
  EXPECT_EQ(meta.kept, cpu.kept);
  if (c.cpu_only.fp32 < 0) {
    EXPECT_LE(meta.peak, cpu.peak);
    return;
  }
  const int64_t expected = cpu.peak - (dtype == at::kFloat ? c.cpu_only.fp32 : c.cpu_only.bf16);
  if (cpu.scratch == 0) {
    EXPECT_EQ(meta.peak, expected);
  } else {  // the two peaks may be at different moments
    EXPECT_LE(meta.peak, expected);
    EXPECT_GE(meta.peak, expected - cpu.scratch);
  }
}

}  // namespace

void MetaParity::SetUpTestSuite() {
  WithAllocators::SetUpTestSuite();
  install_meta_kernels();
  at::set_num_threads(2);
}

void MetaParity::check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      EXPECT_NO_THROW(expect_parity(c, dtype)) << c.name;
    }
  }
}

}  // namespace moelab
