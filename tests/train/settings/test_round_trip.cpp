// Printed settings read back as the same settings, and print as the same bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/temporary_folder.h"
#include "tests/train/settings/load_preset.h"
#include "train/settings/convert.h"
#include "train/settings/for_each_field.h"
#include "train/settings/load.h"
#include "train/settings/presets/presets.h"
#include "train/settings/print.h"
#include "train/settings/resolve.h"
#include "train/settings/validate.h"

namespace moelab {
namespace {

void expect_round_trip(const Settings& settings) {
  const TemporaryFolder folder;
  const std::string printed = print_settings(settings);
  const Settings again = load_settings({.config = folder.write("config.yaml", printed)});
  EXPECT_EQ(print_settings(again), printed);
  EXPECT_EQ(settings_json(again), settings_json(settings));
  EXPECT_EQ(print_settings(resolve(settings)), printed) << "resolving twice changes something";
  EXPECT_EQ(print_settings(resolve(unresolve(settings))), printed);
}

TEST(RoundTrip, Presets) {
  for (const Preset& model : model_presets()) {
    expect_round_trip(load_settings({.config = std::string(model.name)}));
    for (const Preset& gpu : run_presets()) expect_round_trip(test::load_preset(model.name, gpu.name));
    expect_round_trip(load_settings({.config = std::string(model.name), .overrides = {"run.scale=0.1"}}));
  }
}

class RandomValue {
 public:
  explicit RandomValue(unsigned seed) : random_(seed) {}

  void operator()(const Field&, bool& value) { value = random_() % 2 == 0; }
  void operator()(const Field& field, int64_t& value) {
    const double high = std::min(field.constraint.high, 1e15), low = field.constraint.low;
    value = std::min<int64_t>(int64_t(high), int64_t(low + std::pow(10, 15 * unit()) - 1));
  }
  void operator()(const Field& field, double& value) {
    const double high = std::min(field.constraint.high, 1e30);
    value = std::max(field.constraint.low, high * (random_() % 3 == 0 ? unit() : std::pow(10, -40 * unit())));
  }
  void operator()(const Field&, Bytes& value) {
    static constexpr int64_t units[] = {1, 1000, 1024, 1'000'000, 1 << 20, 1'000'000'000, 1 << 30};
    value.count = int64_t(random_() % 10000) * units[random_() % 7];
  }
  void operator()(const Field&, std::string& value) {
    static const std::vector<std::string> pieces = {
        "a",   "7",    "-",   "#", ":", " ", "\"", "\\",   "'",   "é", "true", "~",    "{",
        "1e5", "null", "x=y", "*", "&", "%", "|",  "日本", "\\n", ".", "0x1F", "!!int"};
    value.clear();
    for (size_t count = random_() % 5; count > 0; --count) value += pieces[random_() % pieces.size()];
  }
  void operator()(const Field& field, LossFactor& value) {
    value = {.dynamic = random_() % 2 == 0};
    if (!value.dynamic) (*this)(field, value.fixed);
  }
  template <class T>
  void operator()(const Field& field, std::vector<T>& value) {
    value.resize(random_() % 4);
    for (T& element : value) (*this)(field, element);
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void operator()(const Field&, Enum& value) {
    value = static_cast<Enum>(random_() % enum_names(value).size());
  }

 private:
  double unit() { return std::uniform_real_distribution<double>()(random_); }
  std::mt19937 random_;
};

// Random values everywhere, then consistent values for the few settings that depend on each other.
Settings random_settings(unsigned seed) {
  Settings s;
  for_each_field(s, RandomValue(seed));
  s.model.preset = "moe-nano", s.run.preset = seed % 2 ? "" : "gpu-8gb", s.run.scale = 1;
  s.model.heads = 4 << seed % 3, s.model.kv_heads = seed % 2 ? 0 : 2,
  s.model.head_dim = seed % 5 ? 2 * int64_t(seed % 9 + 1) : 0;
  s.model.d_model = 128, s.model.d_expert = 1 + seed, s.model.experts = 64,
  s.model.experts_per_token = 1 + seed % 8;
  s.model.capacity_factor = std::min(s.model.capacity_factor, 4.0);
  if (s.model.router == RouterKind::expert_choice) s.model.dispatch = Dispatch::capacity;
  s.train.sequence = 512, s.train.micro_batch = 1 + seed;
  s.train.tokens_per_device = s.train.micro_batch > 1 ? 0 : 700;
  s.data.workers += s.data.workers == 0;
  if (s.memory.limit.count < 1024) s.memory.limit.count = 0;
  s.activations.layers.clear();
  if (s.activations.checkpoint == CheckpointMode::layers) s.activations.layers = {0};
  std::vector<Piece>& pieces = s.activations.pieces;
  std::sort(pieces.begin(), pieces.end());
  pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
  if (s.model.dispatch == Dispatch::onehot) std::erase(pieces, Piece::expert_hidden);
  s.optim.betas = {0.1 * double(seed % 10), 0.95};
  s.optim.min_lr = std::min(s.optim.lr, s.optim.min_lr);
  if (s.optim.name != OptimizerName::adamw) s.optim.state = OptimizerState::fp32;
  if (s.optim.name == OptimizerName::adamw_compact) s.precision.compute = ComputePrecision::bf16;
  const bool scaled =
      s.precision.compute == ComputePrecision::fp16 || s.precision.compute == ComputePrecision::bf16;
  if (!scaled) s.precision.loss_scale = {};
  s.parallel.tensor = s.parallel.pipeline = s.parallel.expert = s.parallel.chunks = 1;
  s.parallel.schedule = PipelineSchedule::one_forward_one_backward;
  const bool several_ranks = s.parallel.data > 1;
  if (s.precision.compute == ComputePrecision::fp16 || !s.precision.loss_scale.automatic())
    s.optim.in_backward = false;
  if (s.parallel.zero == 3) s.memory.cuda_graphs = CudaGraphs::none;
  if (s.parallel.zero > 1) s.parallel.reduce = Reduction::micro_batch;
  const bool segments = s.activations.checkpoint == CheckpointMode::segments;
  if (s.parallel.zero < 3 || segments) s.placement.reshard_after_forward = true;
  const bool fp8 = s.precision.compute == ComputePrecision::fp8;
  if (fp8) s.model.dispatch = Dispatch::capacity;
  const bool bare = fp8 || s.precision.compute == ComputePrecision::bf16;
  if (!bare) s.precision.gradient_sums = GradientSums::fp32;
  if (!bare || s.optim.name == OptimizerName::adamw_compact) s.precision.master = MasterWeights::fp32;
  const bool coded = s.precision.store == WeightStore::int8 || s.precision.store == WeightStore::fp8;
  const bool masters = s.precision.compute != ComputePrecision::fp32 &&
                       s.precision.master == MasterWeights::fp32 &&
                       s.optim.name != OptimizerName::adamw_compact;
  if (!coded || !masters) s.precision.store = WeightStore::compute;
  if (s.optim.in_backward) s.train.accumulation = 1, s.placement.gradients = Home::device;
  s.placement.nvme_path += "drive", s.placement.nvme_block = {4096 * (1 + int64_t{seed})};
  s.eval.batches += 1;
  s.memory.target = 0.1, s.memory.warning = 0, s.memory.critical = 0, s.memory.emergency = 0;
  DynamicBatchSettings& dynamic = s.memory.dynamic_batch;
  dynamic.min = std::min(dynamic.min, s.train.micro_batch), dynamic.max = 400 + seed;
  dynamic.enabled = dynamic.enabled && s.memory.recover && !s.optim.in_backward && !several_ranks;
  s.memory.max_split.count = (seed % 3 ? 21 + int64_t{seed} : 0) << 20;
  if (s.run.device == DeviceChoice::cpu) {
    s.memory.cuda_graphs = CudaGraphs::none;
    s.memory.expandable_segments = false;
    s.memory.max_split = {};
  }
  if (several_ranks && captures_step(s.memory.cuda_graphs)) s.memory.cuda_graphs = CudaGraphs::decode;
  if (s.memory.cuda_graphs != CudaGraphs::none) {
    s.placement.parameters = Home::device, s.precision.store = WeightStore::compute;
  }
  if (captures_step(s.memory.cuda_graphs)) {
    s.model.dispatch = Dispatch::capacity, s.activations.storage = ActivationStorage::keep;
    s.placement.gradients = s.placement.optimizer = Home::device, s.optim.in_backward = false;
    s.reference.path.clear();
    s.optim.name = OptimizerName::adamw;  // not every rule can be captured in a graph
  }
  s.sample.prompt += "once";
  if (s.model.router == RouterKind::expert_choice) s.sample.every = 0;
  for (char& c : s.run.name) c = c == '/' ? '_' : c;
  if (s.run.name == "." || s.run.name == "..") s.run.name = "dots";
  return resolve(s);
}

TEST(RoundTrip, RandomSettings) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    const Settings settings = random_settings(seed);
    ASSERT_NO_THROW(validate(settings)) << print_settings(settings);
    expect_round_trip(settings);
    if (HasFailure()) FAIL() << "seed " << seed << "\n" << print_settings(settings);
  }
}

TEST(RoundTrip, NumbersAreExactAndHaveAPointBeforeTheExponent) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const double number = std::ldexp(double(random() >> 11), int(random() % 400) - 250);
    const std::string text = value_text(number);
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), number) << text;
    double again = 0;
    ASSERT_TRUE(read_value({Value::Kind::plain, text, {}, 1}, {}, again)) << text;
    EXPECT_EQ(again, number) << text;
    EXPECT_TRUE(text.find('e') == text.npos || text.find('.') < text.find('e')) << text;
  }
  EXPECT_EQ(value_text(3e-4), "0.0003");
  EXPECT_EQ(value_text(1e-8), "1.0e-08");
  EXPECT_EQ(value_text(10000.0), "10000");
}

TEST(Print, Text) {
  const std::string text = print_settings(
      load_settings({.config = "moe-pico", .preset = "gpu-12gb", .overrides = {"data.path=a b"}}));
  for (const char* line :
       {"model:\n  preset: moe-pico\n", "\n  limit: 12GiB\n", "\n  betas: [0.9, 0.95]\n", "\n  layers: []\n",
        "\n  path: \"a b\"\n", "\n  validation: \"\"\n", "\n  device: auto\n", "\n  eps: 1.0e-08\n",
        "\n  compute: bf16\n", "\n  dir: runs/moe-pico/checkpoints\n", "\n  quiet: false\n"})
    EXPECT_NE(text.find(line), text.npos) << line << "is not in\n" << text;
}

TEST(Print, Json) {
  const nlohmann::ordered_json json = settings_json(load_settings({.preset = "gpu-8gb"}));
  EXPECT_EQ(json["memory"]["limit"], int64_t{8} << 30);
  EXPECT_EQ(json["model"]["dispatch"], "capacity");
  EXPECT_EQ(json["optim"]["betas"].dump(), "[0.9,0.95]");
  EXPECT_EQ(json.begin().key(), "model");
}

}  // namespace
}  // namespace moelab
