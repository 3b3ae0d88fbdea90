#pragma once
#include "kernels/memory/ledger.h"
#include "moe/settings/model_settings.h"
#include "moe/settings/pieces.h"
#include "train/settings/loss_factor.h"

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

enum class CheckpointMode { none, full, every, layers, ratio };
constexpr std::array<std::string_view, 5> enum_names(CheckpointMode) {
  return {"none", "full", "every", "layers", "ratio"};
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

enum class MemoryProfile { aggressive, balanced, conservative };
constexpr std::array<std::string_view, 3> enum_names(MemoryProfile) {
  return {"aggressive", "balanced", "conservative"};
}

enum class HostAllocator { system, jemalloc, tcmalloc };
constexpr std::array<std::string_view, 3> enum_names(HostAllocator) {
  return {"system", "jemalloc", "tcmalloc"};
}

enum class CudaGraphs { none, decode, step, both };
constexpr bool captures_step(CudaGraphs g) { return g == CudaGraphs::step || g == CudaGraphs::both; }
constexpr bool captures_decode(CudaGraphs g) { return g == CudaGraphs::decode || g == CudaGraphs::both; }
constexpr std::array<std::string_view, 4> enum_names(CudaGraphs) {
  return {"none", "decode", "step", "both"};
}

enum class SnapshotWhen { never, oom, step };
constexpr std::array<std::string_view, 3> enum_names(SnapshotWhen) { return {"never", "oom", "step"}; }

enum class DeviceChoice { automatic, cpu, cuda };
constexpr std::array<std::string_view, 3> enum_names(DeviceChoice) { return {"auto", "cpu", "cuda"}; }

struct PrecisionSettings {
  ComputePrecision compute = ComputePrecision::fp32;
  WeightStore store = WeightStore::compute;
  MasterWeights master = MasterWeights::fp32;
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
    v.field("checkpoint", self.checkpoint,
            "which blocks are recomputed in backward instead of being kept; also activations.recompute");
    v.field("every", self.every, "with checkpoint=every: recompute blocks 0, N, 2N, …", range(1, 4096));
    v.field("layers", self.layers, "with checkpoint=layers: the blocks to recompute, e.g. [0, 4, 8]",
            range(0, 4095));
    v.field("ratio", self.ratio, "with checkpoint=ratio: share of the blocks to recompute, spread evenly",
            range(0, 1));
    v.field("pieces", self.pieces,
            "what to recompute in the other blocks; attention and moe are the two halves of a block; also "
            "activations.recompute_parts");
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

// The ranks of a run, which torchrun or scripts/ranks.sh starts.
// When data-parallel ranks add their gradients.
enum class Reduction { micro_batch, step };
constexpr std::array<std::string_view, 2> enum_names(Reduction) { return {"micro_batch", "step"}; }

struct ParallelSettings {
  int64_t data = 0;
  int64_t zero = 0;
  int64_t tensor = 1;
  int64_t pipeline = 1;
  int64_t expert = 1;
  Reduction reduce = Reduction::micro_batch;
  bool check = false;
  double timeout = 300;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("data", self.data,
            "ranks that hold the same model and share the rows of a step; 0: all that the others leave",
            range(0, 1 << 20));
    v.field("zero", self.zero,
            "what the data-parallel ranks divide among them (ZeRO): 0 nothing, 1 and 2 optimizer state, "
            "masters and gradients, 3 also weights",
            range(0, 3));
    v.field("tensor", self.tensor, "ranks that share each weight matrix; only 1 so far", range(1, 1 << 20));
    v.field("pipeline", self.pipeline, "ranks that share the layers; only 1 so far", range(1, 1 << 20));
    v.field("expert", self.expert, "data-parallel ranks that share the experts; only 1 so far",
            range(1, 1 << 20));
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

struct TrainSettings {
  int64_t steps = 200;
  int64_t micro_batch = 8;
  int64_t accumulation = 1;
  int64_t sequence = 256;
  int64_t tokens_per_device = 0;
  int64_t seed = 1;
  std::string init;

  // Tokens in a row of a batch.
  int64_t row() const { return tokens_per_device > 0 ? tokens_per_device : sequence; }

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("steps", self.steps, "optimizer steps", range(0, 1e12));
    v.field("micro_batch", self.micro_batch, "sequences in a forward pass", range(1, 1 << 20));
    v.field("accumulation", self.accumulation, "micro-batches in an optimizer step", range(1, 1 << 20));
    v.field("sequence", self.sequence,
            "tokens in a sequence; with tokens_per_device: most tokens of a document", range(1, 1 << 24));
    v.field("tokens_per_device", self.tokens_per_device,
            "tokens in a forward pass that packs whole documents into one row; documents see nothing of each "
            "other, and longer ones are cut. 0: no packing; a row is one sequence of the text, wherever "
            "documents end",
            range(0, 1 << 24));
    v.field("seed", self.seed, "everything random follows from it", range(0, 9e15));
    v.field("init", self.init,
            "folder of weights to start from (Hugging Face, checkpoint or run), which also gives the model's "
            "shape; empty: random weights");
  }
};

struct EvalSettings {
  int64_t every = 0;
  int64_t batches = 16;
  int64_t micro_batch = 0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("every", self.every, "steps between evaluations on held-out text; 0: at the end only",
            at_least(0));
    v.field("batches", self.batches, "batches in an evaluation; 0: no evaluation", at_least(0));
    v.field("micro_batch", self.micro_batch, "sequences in a batch; 0: train.micro_batch", range(0, 1 << 20));
  }
};

// A frozen model that the loss keeps the trained model close to.
struct ReferenceSettings {
  std::string path;
  double kl = 0.04;
  Home placement = Home::device;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field(
        "path", self.path,
        "frozen model of the same shape to stay close to: a checkpoint or Hugging Face folder; empty: none");
    v.field("kl", self.kl, "weight in the loss of KL(policy || reference), averaged over tokens",
            range(0, 1e6));
    v.field(
        "placement", self.placement,
        "where the reference's block weights lie between uses; a block's come to the device while it runs");
  }
};

struct DataSettings {
  std::string path;
  std::string validation;
  int64_t workers = 1;
  int64_t prefetch = 2;
  int64_t buffer = 4096;
  bool pin = true;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("path", self.path, "folder or file of token shards, or a weighted mix: 0.7*DIR1,0.3*DIR2");
    v.field("validation", self.validation, "held-out shards; empty: the val shards in data.path");
    v.field("workers", self.workers, "threads that read batches ahead", range(0, 256));
    v.field("prefetch", self.prefetch,
            "batches that each worker reads ahead; 0: each batch is read when it is needed", range(0, 1024));
    v.field("buffer", self.buffer,
            "with train.tokens_per_device: documents to choose from when a row is filled", range(1, 1 << 24));
    v.field("pin", self.pin,
            "with cuda: batches lie in page-locked memory, so that copies to the GPU run beside other work");
  }
};

struct DynamicBatchSettings {
  bool enabled = false;
  int64_t min = 4;
  int64_t max = 16;
  double target = 0.90;
  int64_t every = 100;
  bool smooth = true;
};

struct MemorySettings {
  Bytes limit;
  MemoryProfile profile = MemoryProfile::balanced;
  double target = 0;
  double warning = 0;
  double critical = 0;
  double emergency = 0;
  bool recover = true;
  DynamicBatchSettings dynamic_batch;
  int64_t empty_cache_every = 0;
  HostAllocator host_allocator = HostAllocator::system;
  CudaGraphs cuda_graphs = CudaGraphs::none;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("limit", self.limit, "memory budget of the device, e.g. 8GiB; 0: none");
    v.field("profile", self.profile, "thresholds of the memory monitor, as shares of the limit");
    v.field("target", self.target,
            "share of the limit up to which the micro-batch may grow back; 0: the profile's", range(0, 1));
    v.field("warning", self.warning, "share of the limit from which the status is warning; 0: the profile's",
            range(0, 1));
    v.field("critical", self.critical,
            "share of the limit from which the micro-batch shrinks; 0: the profile's", range(0, 1));
    v.field("emergency", self.emergency,
            "share of the limit from which cached memory is given back too; 0: the profile's", range(0, 1));
    v.field("recover", self.recover,
            "at the critical threshold, and after running out of memory, go on with smaller micro-batches "
            "and more of them");
    v.field("dynamic_batch.enabled", self.dynamic_batch.enabled,
            "let the micro-batch grow past train.micro_batch; a step keeps its rows");
    v.field("dynamic_batch.min", self.dynamic_batch.min,
            "smallest micro-batch at a threshold; running out of memory may go below", range(1, 1 << 20));
    v.field("dynamic_batch.max", self.dynamic_batch.max, "largest micro-batch", range(1, 1 << 20));
    v.field("dynamic_batch.target", self.dynamic_batch.target,
            "share of the limit up to which the micro-batch may grow", range(0.01, 1));
    v.field("dynamic_batch.every", self.dynamic_batch.every,
            "steps without a change before the micro-batch grows; with enabled=false, before it grows back "
            "to train.micro_batch",
            range(1, 1e12));
    v.field("dynamic_batch.smooth", self.dynamic_batch.smooth, "grow one doubling at a time");
    v.field("empty_cache_every", self.empty_cache_every,
            "steps between two times that the allocator gives unused memory back; 0: only when needed",
            at_least(0));
    v.field("host_allocator", self.host_allocator,
            "malloc of the program; for another than the system's the program starts itself anew");
    v.field("cuda_graphs", self.cuda_graphs,
            "with cuda: what is captured once as a CUDA graph and then replayed; step: the training step; "
            "decode: each token that is written");
  }
};

// Texts that a run writes during training.
struct SampleSettings {
  int64_t every = 0;
  double share = 0.3;
  int64_t max_sequences = 8;
  int64_t max_batched_tokens = 1024;
  std::string prompt;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("every", self.every,
            "steps between two times that each prompt is continued by 64 tokens; 0: never", at_least(0));
    v.field("share", self.share, "share of memory.limit for the keys and values of texts being written",
            range(0, 1));
    v.field("max_sequences", self.max_sequences, "texts written at a time; the others wait", range(1, 65536));
    v.field("max_batched_tokens", self.max_batched_tokens,
            "tokens of all texts in a forward pass; longer prompts are read in parts", range(1, 1 << 20));
    v.field("prompt", self.prompt, "text to continue, or @FILE with one text a line");
  }
};

struct MonitorSettings {
  int64_t every = 50;
  bool quiet = false;
  SnapshotWhen snapshot = SnapshotWhen::never;
  int64_t profile_steps = 0;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("every", self.every, "steps between two lines of the memory dashboard; 0: none", at_least(0));
    v.field("quiet", self.quiet, "no dashboard, and at most one warning");
    v.field("snapshot", self.snapshot,
            "write what the device holds into run.dir; oom: when memory runs out; step: also after a step "
            "during which SIGUSR1 came");
    v.field("profile_steps", self.profile_steps,
            "steps after the warm-up whose operators are recorded into run.dir, which slows them; 0: none",
            range(0, 1000));
  }
};

struct CheckpointSettings {
  int64_t every = 0;
  int64_t keep = 2;
  std::string dir;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("every", self.every, "steps between two saved checkpoints; 0: at the end only", at_least(0));
    v.field("keep", self.keep, "how many of the newest checkpoints to keep; 0: save none", range(0, 1e6));
    v.field("dir", self.dir, "where checkpoints go; empty: run.dir/checkpoints");
  }
};

struct RunSettings {
  std::string name;
  std::string dir;
  std::string preset;
  DeviceChoice device = DeviceChoice::automatic;
  double scale = 1;
  int64_t threads = 0;
  int64_t log_every = 10;
  bool deterministic = false;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.field("name", self.name, "name of the run; empty: the model's preset");
    v.field("dir", self.dir, "folder the run leaves its files in; empty: runs/NAME");
    v.field("preset", self.preset, "GPU size or profile, e.g. gpu-8gb; moelab train --help lists them");
    v.field("device", self.device, "where to train; auto: the CPU, as long as nothing has been run on a GPU");
    v.field("scale", self.scale,
            "miniature: widths, vocabulary and sequence shrink by its root, the memory limit by it",
            range(1e-6, 1));
    v.field("threads", self.threads, "CPU threads; 0: one a core", range(0, 1024));
    v.field("log_every", self.log_every, "steps between two progress lines; 0: none", at_least(0));
    v.field("deterministic", self.deterministic, "refuse algorithms whose results differ between runs");
  }
};

// All settings of a run. The names are also those of metrics and reports.
struct Settings {
  ModelSettings model;
  AttentionSettings attention;
  PrecisionSettings precision;
  ActivationSettings activations;
  OptimSettings optim;
  PlacementSettings placement;
  ParallelSettings parallel;
  TrainSettings train;
  EvalSettings eval;
  ReferenceSettings reference;
  DataSettings data;
  MemorySettings memory;
  SampleSettings sample;
  MonitorSettings monitor;
  CheckpointSettings checkpoint;
  RunSettings run;

  template <class Self, class Visitor>
  static void visit(Self& self, Visitor& v) {
    v.group("model", self.model);
    v.group("attention", self.attention);
    v.group("precision", self.precision);
    v.group("activations", self.activations);
    v.group("optim", self.optim);
    v.group("placement", self.placement);
    v.group("parallel", self.parallel);
    v.group("train", self.train);
    v.group("eval", self.eval);
    v.group("reference", self.reference);
    v.group("data", self.data);
    v.group("memory", self.memory);
    v.group("sample", self.sample);
    v.group("monitor", self.monitor);
    v.group("checkpoint", self.checkpoint);
    v.group("run", self.run);
  }
};

}  // namespace moelab
