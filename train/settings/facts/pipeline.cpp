#include "train/settings/facts/pipeline.h"

#include <string>

#include "train/settings/facts/require.h"

namespace moelab {
namespace {

void check_schedule(const ParallelSettings& p) {
  const bool interleaved = p.schedule == PipelineSchedule::interleaved;
  require(interleaved == (p.chunks > 1),
          named("parallel.schedule", p.schedule) + " with " + named("parallel.chunks", p.chunks) +
              (interleaved ? ": an interleaved pipeline alternates between the chunks of a stage; set "
                             "parallel.chunks=2 or more, or parallel.schedule=1f1b"
                           : ": only an interleaved pipeline's stages have chunks; set parallel.chunks=1, or "
                             "parallel.schedule=interleaved"));
  require(p.pipeline > 1 || !interleaved,
          "parallel.schedule=interleaved with parallel.pipeline=1: there is no pipeline; set "
          "parallel.schedule=1f1b and parallel.chunks=1");
}

void check_numbers(const Settings& s, const std::string& stages) {
  const ParallelSettings& p = s.parallel;
  const std::string layers = named("model.layers", s.model.layers);
  require(p.pipeline * p.chunks <= s.model.layers,
          stages + named("parallel.chunks", p.chunks) + " and " + layers +
              ": there are more chunks than layers; set parallel.pipeline to less");
  if (p.schedule == PipelineSchedule::one_forward_one_backward) return;
  require(s.model.layers % (p.pipeline * p.chunks) == 0,
          stages + named("parallel.chunks", p.chunks) + " and " + layers +
              ": an interleaved pipeline's chunks have equally many layers; set parallel.chunks so that "
              "parallel.pipeline times parallel.chunks divides model.layers");
  require(s.train.accumulation % p.pipeline == 0,
          stages + "parallel.schedule=interleaved and " + named("train.accumulation", s.train.accumulation) +
              ": as many micro-batches as there are stages pass a chunk, then the next; set "
              "train.accumulation to a multiple of " +
              std::to_string(p.pipeline));
}

}  // namespace

void check_pipeline(const Settings& s) {
  check_schedule(s.parallel);
  if (s.parallel.pipeline == 1) return;
  const std::string stages = named("parallel.pipeline", s.parallel.pipeline) + " with ";
  check_numbers(s, stages);
  require(!s.optim.in_backward,
          stages +
              "optim.in_backward=true: the micro-batches that a pipeline needs add their gradients before "
              "the update; set optim.in_backward=false");
  require(s.sample.every == 0,
          stages + named("sample.every", s.sample.every) +
              ": no rank has all layers, to write a text; set sample.every=0, and use moelab generate with a "
              "checkpoint");
  require(s.reference.path.empty(),
          stages + named("reference.path", s.reference.path) +
              ": the frozen model is not divided into stages; set reference.path=, or parallel.pipeline=1");
  require(s.train.init.empty(),
          stages + named("train.init", s.train.init) +
              ": a stage cannot read its layers from a model folder; write a checkpoint with one rank and "
              "train.steps=0, and go on from it with --resume latest");
  require(s.memory.cuda_graphs == CudaGraphs::none,
          stages + named("memory.cuda_graphs", s.memory.cuda_graphs) +
              ": a graph cannot hand tensors to other stages; set memory.cuda_graphs=none");
  require(!s.model.tie_embeddings || s.placement.gradients != Home::nvme,
          stages +
              "placement.gradients=nvme and model.tie_embeddings=true: the first and the last stage add "
              "their gradients of the embedding, which are in a file; set placement.gradients=host, or "
              "model.tie_embeddings=false");
}

}  // namespace moelab
