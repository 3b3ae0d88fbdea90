#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "train/parallel/schedule.h"
#include "train/step/stage_links.h"
#include "train/step/step_form.h"

namespace moelab {

// The passes of a step's micro-batches through this rank's stage of a pipeline, in the order of
// parallel.schedule. Each pass has the bits that it has on one rank.
class Trainer::StagePasses {
 public:
  explicit StagePasses(Trainer& trainer);

  // All passes of a step. Every stage reads the batches.
  void run(StepForm& form);
  // As moelab::evaluate: each stage works on another batch at a time.
  double evaluate(const ValidationBatches& batches, int64_t count, const std::function<bool()>& stop);
  // Drops what is under way, after run() threw.
  void drop();

  // What the last stage has read of the micro-batches, once all stages have ended their passes.
  std::vector<MicroBatchReport> of_last(std::vector<MicroBatchReport> own);

  // Time so far in passes of training steps, and in waiting for other stages.
  StageSeconds seconds() const;

 private:
  // What a backward pass begins with, and where it ends.
  struct Pass {
    std::shared_ptr<StageInput> input;   // null: the first chunk, which begins with tokens
    torch::autograd::edge_list outputs;  // of what was handed on; empty: the last chunk, …
    at::Tensor objective;                // … which has this
  };
  bool first(int64_t chunk) const { return stage_.embedding && chunk == 0; }
  bool last(int64_t chunk) const { return stage_.head && chunk + 1 == stage_.chunks; }
  int64_t micro_batch(int64_t number) const;
  void expect(const PipelineAction& action);
  void forward(StepForm& form, const PipelineAction& action);
  at::Tensor objective(StepForm& form, const PipelineAction& action, const Batch& batch, Hidden h);
  void backward(const PipelineAction& action);

  Trainer& trainer_;
  Stage stage_;
  StageLinks links_;
  std::map<int64_t, Batch> batches_;                                    // that a later chunk needs
  std::map<std::pair<int64_t, int64_t>, Pass> under_way_;               // by chunk and micro-batch
  std::chrono::steady_clock::duration forward_{}, backward_{}, end_{};  // end: waiting after all passes
};

}  // namespace moelab
