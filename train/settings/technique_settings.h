#pragma once
#include "kernels/memory/ledger.h"
#include "moe/settings/pieces.h"
#include "moe/settings/visitor.h"
#include "train/settings/loss_factor.h"

// The groups of settings that choose memory techniques: number types, saved activations, the optimizer, where
// state lies, and what ranks divide.
namespace moelab {

enum class ComputePrecision { fp32, bf16, fp16, fp8 };
constexpr std::array<std::string_view, 4> enum_names(ComputePrecision) {
  return {"fp32", "bf16", "fp16", "fp8"};
}

// `compute`: held in the type of the products.
enum class WeightStore { compute, fp32, bf16, fp16, fp8, int8 };
constexpr std::array<std::string_view, 6> enum_names(WeightStore) {
  return {"compute", "fp32", "bf16", "fp16", "fp8", "int8"};
}

enum class MasterWeights { fp32, none };
constexpr std::array<std::string_view, 2> enum_names(MasterWeights) { return {"fp32", "none"}; }

constexpr std::array<std::string_view, 3> enum_names(Home) { return {"device", "host", "nvme"}; }

enum class CheckpointMode { none, full, every, layers, ratio, segments };
constexpr std::array<std::string_view, 6> enum_names(CheckpointMode) {
  return {"none", "full", "every", "layers", "ratio", "segments"};
}

enum class ActivationStorage { keep, int8, fp8, host, nvme, int8_host, fp8_host, int8_nvme, fp8_nvme };
constexpr std::array<std::string_view, 9> enum_names(ActivationStorage) {
  return {"keep", "int8", "fp8", "host", "nvme", "int8_host", "fp8_host", "int8_nvme", "fp8_nvme"};
}

enum class OptimizerName { adamw, adam8bit, adamw_compact, adam_mini, lion, adafactor, sgd, muon };
constexpr std::array<std::string_view, 8> enum_names(OptimizerName) {
  return {"adamw", "adam8bit", "adamw_compact", "adam_mini", "lion", "adafactor", "sgd", "muon"};
}

enum class OptimizerState { fp32, bf16 };
constexpr std::array<std::string_view, 2> enum_names(OptimizerState) { return {"fp32", "bf16"}; }

enum class ScheduleKind { cosine, wsd };
constexpr std::array<std::string_view, 2> enum_names(ScheduleKind) { return {"cosine", "wsd"}; }

enum class GradientSums { fp32, bf16 };
constexpr std::array<std::string_view, 2> enum_names(GradientSums) { return {"fp32", "bf16"}; }

struct PrecisionSettings {
  ComputePrecision compute = ComputePrecision::fp32;
  WeightStore store = WeightStore::compute;
  MasterWeights master = MasterWeights::fp32;
  GradientSums gradient_sums = GradientSums::fp32;
  LossFactor loss_scale;
  bool tf32 = false;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("compute", self.compute,
            "type of products and activations; 16-bit types keep fp32 master weights; fp8: bf16, with the "
            "blocks' products in fp8");
    v.field("store", self.store,
            "how the blocks' weights are held between products; compute: as products take them; fp8, int8: a "
            "byte a weight and a scale for every 256, decoded a block at a time");
    v.field(
        "master", self.master,
        "what updates are added to; fp32: master weights; none: the bf16 weights, with stochastic rounding");
    v.field(
        "gradient_sums", self.gradient_sums,
        "type of the sums of 16-bit gradients over the micro-batches of a step; bf16 takes half the bytes, "
        "and rounds at each micro-batch");
    v.field("loss_scale", self.loss_scale,
            "with fp16 or bf16: factor of the loss, divided out of the gradients again; dynamic: begins at "
            "32768, is halved when a gradient is not finite and doubled after 2000 good steps; 0: dynamic "
            "with fp16, none with bf16");
    v.field("tf32", self.tf32, "on a GPU: fp32 products round their factors to 10 bits (TensorFloat-32)");
  }
};

struct ActivationSettings {
  CheckpointMode checkpoint = CheckpointMode::none;
  int64_t every = 1;
  std::vector<int64_t> layers;
  double ratio = 1.0;
  std::vector<Piece> pieces = {};
  ActivationStorage storage = ActivationStorage::keep;
  int64_t block = 256;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field(
        "checkpoint", self.checkpoint,
        "which blocks are recomputed in backward instead of being kept; segments: all, as many together as "
        "every says, from the input of the first; also activations.recompute");
    v.field(
        "every", self.every,
        "with checkpoint=every: recompute blocks 0, N, 2N, …; with checkpoint=segments: blocks of a segment",
        range(1, 4096));
    v.field("layers", self.layers, "with checkpoint=layers: the blocks to recompute, e.g. [0, 4, 8]",
            range(0, 4095));
    v.field("ratio", self.ratio, "with checkpoint=ratio: share of the blocks to recompute, spread evenly",
            range(0, 1));
    v.field(
        "pieces", self.pieces,
        "what to recompute in the other blocks, and again in the blocks of a segment; attention and moe are "
        "the two halves of a block; also activations.recompute_parts");
    v.field("storage", self.storage, "form in which what backward needs is held until then");
    v.field("block", self.block, "with storage in 8 bits: elements that share a scale", range(16, 65536));
  }
};

struct OptimSettings {
  OptimizerName name = OptimizerName::adamw;
  OptimizerState state = OptimizerState::fp32;
  double lr = 1e-3;
  double min_lr = 1e-4;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;
  ScheduleKind schedule = ScheduleKind::cosine;
  int64_t warmup = 20;
  bool in_backward = false;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("name", self.name, "update rule");
    v.field("state", self.state, "type of AdamW's moments; bf16 is rounded stochastically");
    v.field("lr", self.lr, "learning rate after warm-up; Muon's matrices take 67 times as much",
            range(0, 1e3));
    v.field("min_lr", self.min_lr, "learning rate at the end of the schedule", range(0, 1e3));
    v.field("betas", self.betas,
            "decay of the first and second moment; Lion's two; the first is SGD's momentum",
            range(0, 0.999999));
    v.field("eps", self.eps, "epsilon of the Adam family", range(0, 1));
    v.field("weight_decay", self.weight_decay, "weight decay of matrices; norms and biases have none",
            range(0, 1e3));
    v.field("clip", self.clip,
            "largest norm of all gradients together, or of each gradient alone with in_backward; 0: off",
            at_least(0));
    v.field("schedule", self.schedule, "after warm-up: cosine, or wsd (constant, then a linear decay)");
    v.field("warmup", self.warmup, "steps of linear warm-up", at_least(0));
    v.field("in_backward", self.in_backward,
            "update each weight as soon as backward has its gradient, and drop the gradient");
  }
};

struct PlacementSettings {
  Home parameters = Home::device;
  Home gradients = Home::device;
  Home optimizer = Home::device;
  std::string nvme_path;
  Bytes nvme_block{1 << 20};
  int64_t nvme_depth = 4;
  bool reshard_after_forward = true;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field(
        "parameters", self.parameters,
        "where the blocks' weights and masters lie between uses; a block's come to the device while it runs");
    v.field("gradients", self.gradients, "where gradients lie between backward and the update");
    v.field("optimizer", self.optimizer,
            "where the optimizer's state and the masters lie; the update runs there, with nvme on the host");
    v.field("nvme_path", self.nvme_path,
            "folder on the drive for what lies on nvme; its file has no name and goes when the run ends");
    v.field("nvme_block", self.nvme_block, "bytes of one read or write on nvme, a multiple of 4096");
    v.field("nvme_depth", self.nvme_depth, "reads or writes under way on nvme at a time", range(1, 4));
    v.field("reshard_after_forward", self.reshard_after_forward,
            "with parallel.zero=3: a block's weights go after its forward pass and are gathered again for "
            "backward; false keeps them until then");
  }
};

// When data-parallel ranks add their gradients.
enum class Reduction { micro_batch, step };
constexpr std::array<std::string_view, 2> enum_names(Reduction) { return {"micro_batch", "step"}; }

// The order in which the stages of a pipeline take the micro-batches of a step.
enum class PipelineSchedule { one_forward_one_backward, interleaved };
constexpr std::array<std::string_view, 2> enum_names(PipelineSchedule) { return {"1f1b", "interleaved"}; }

// The ranks of a run, which torchrun or scripts/ranks.sh starts.
struct ParallelSettings {
  int64_t data = 0;
  int64_t zero = 0;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t expert = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int64_t chunks = 1;
  Reduction reduce = Reduction::micro_batch;
  bool check = false;
  double timeout = 300;

  // Of a run that says how many data-parallel ranks it has.
  int64_t ranks() const { return (data > 1 ? data : 1) * tensor * pipeline; }

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("data", self.data,
            "ranks that hold the same model and share the rows of a step; 0: all that the others leave",
            range(0, 1 << 20));
    v.field("zero", self.zero,
            "what the data-parallel ranks divide among them (ZeRO): 0 nothing, 1 and 2 optimizer state, "
            "masters and gradients, 3 also weights",
            range(0, 3));
    v.field(
        "tensor", self.tensor,
        "ranks that share each weight matrix and take the same rows: each has its part of the heads, of the "
        "experts' width and of the vocabulary",
        range(1, 1 << 20));
    v.field("pipeline", self.pipeline,
            "ranks that share the layers, as stages of a pipeline that a step's micro-batches pass",
            range(1, 1 << 20));
    v.field("expert", self.expert,
            "data-parallel ranks that share the experts: each holds its part of them, and all other weights",
            range(1, 1 << 20));
    v.field("schedule", self.schedule,
            "order of a pipeline's passes: 1f1b, where a stage alternates forward and backward passes; or "
            "interleaved, where it also alternates between its chunks, and waits less");
    v.field("chunks", self.chunks,
            "runs of consecutive layers that a stage of an interleaved pipeline has, each with layers of the "
            "other stages in between",
            range(1, 1 << 10));
    v.field(
        "reduce", self.reduce,
        "when ranks add their gradients: micro_batch, with the bits of one rank; or step, which sends less "
        "with train.accumulation above 1, adds in another order, and with parallel.zero=1 holds whole "
        "gradients");
    v.field("check", self.check,
            "compare every call that ranks make of each other before it is made: slow, for finding a defect");
    v.field("timeout", self.timeout, "seconds that a rank waits for another before the run ends",
            range(0.1, 1e6));
  }
};

}  // namespace moelab
