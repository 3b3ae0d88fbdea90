#pragma once
#include "moe/settings/model_settings.h"
#include "train/settings/technique_settings.h"

namespace moelab {

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
  bool expandable_segments = false;
  Bytes max_split;
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
            "every so many steps the allocator gives unused memory back; 0: only when needed", at_least(0));
    v.field("expandable_segments", self.expandable_segments,
            "with cuda: the caching allocator's segments grow in place, against fragmentation; false: as "
            "PYTORCH_CUDA_ALLOC_CONF says");
    v.field(
        "max_split", self.max_split,
        "with cuda: larger blocks of the caching allocator are not split, e.g. 128MiB; 0: no limit, or the "
        "one of PYTORCH_CUDA_ALLOC_CONF");
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
    v.field("every", self.every, "every so many steps each prompt is continued by 64 tokens; 0: never",
            at_least(0));
    v.field("share", self.share,
            "share of memory.limit that writing texts may take in all: the weights that it reads, a pass's "
            "activations, and keys and values",
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
    v.field("device", self.device,
            "where to train; auto: the GPU if there is one that this build can use, else the CPU");
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
