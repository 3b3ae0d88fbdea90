#pragma once
#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/memory/ledger.h"
#include "moe/token_exchange.h"
#include "moe/transformer.h"
#include "train/activations/recompute.h"
#include "train/activations/saved_tensors.h"
#include "train/checkpoint/safetensors_file.h"
#include "train/data/token_stream.h"
#include "train/io/serial_worker.h"
#include "train/io/wait_clock.h"
#include "train/optim/optimizer.h"
#include "train/parallel/data_ranks.h"
#include "train/placement/gather_runner.h"
#include "train/placement/state_gradients.h"
#include "train/settings/settings.h"
#include "train/step/loss_scale.h"
#include "train/step/reference_model.h"
#include "train/step/step_graph.h"
#include "train/step/step_report.h"

namespace moelab {

// Rows [first, first + count) of optimizer step `step`; without tensors when the run was asked to stop before
// all of them were read.
using BatchSource = std::function<Batch(int64_t step, int64_t first, int64_t count)>;

// Mean cross entropy in nats over batches 0 … count-1, dropless, without gradients. NaN once `stop` (polled
// between batches) returns true. Ranks take turns at the batches, and all of them get the mean.
double evaluate(Transformer& model, BlockRunner& runner, const ValidationBatches& batches, int64_t count,
                const std::function<bool()>& stop = {}, Communicator& ranks = one_rank());

// The batch on `device`: on a GPU, or on meta standing in for one, its tensors are copied there.
Batch batch_on(c10::Device device, const Batch& batch);

// Options for a model that computes on `device` in precision.compute.
TransformerOptions compute_options(const PrecisionSettings& precision, c10::Device device);

// A model's checkpoint entries: fp32 weights and buffers by name.
std::vector<TensorEntry> model_state(const Transformer& model);
// After model_state() was written in place: rounds the compute copies again, to the values that products see
// under precision.store.
void round_masters(Transformer& model, const PrecisionSettings& precision = {});

// One model in training on one device. On the meta device the same steps run without data or arithmetic,
// which is how memory is predicted; the numbers in the reports are then 0.
//
// Of several data-parallel ranks, rank d of N takes micro-batch a * N + d of a step as its a-th. Every rank
// adds the gradients, losses and routing of all of them in that order, so that all ranks have the bits of one
// rank that takes N times as many micro-batches. With parallel.zero they divide the state among them, which
// changes no bit. With parallel.expert each holds some of the experts, and they exchange rows. With
// parallel.pipeline a rank has some of the layers, and micro-batches pass from stage to stage. All ranks make
// the same calls.
class Trainer {
 public:
  Trainer(const Settings& settings, c10::Device device, BatchSource batches, DataRanks ranks = {});
  ~Trainer();

  // One optimizer step: forward and backward of `accumulation` micro-batches, clip, update. Returns early,
  // with nothing updated, once `stop` (polled between micro-batches) returns true. Throws
  // c10::OutOfMemoryError when the budget was exceeded, even if a library swallowed the exception.
  StepReport step(int64_t step, const std::function<bool()>& stop = {});

  // Splits the rows of later steps differently. The product must stay the same; with optim.in_backward,
  // accumulation must be 1.
  void set_split(int64_t micro_batch, int64_t accumulation);

  // After step() threw: drops what the step left behind. True when nothing had been written yet: model and
  // optimizer are as before the step, and it may be repeated, by several ranks after met_again().
  bool abandon_step();
  // After the ranks have abandoned a step and met again: brings what updates of other ranks were under way.
  void met_again();

  // Bytes that the last update took at its peak beyond what was held when it began.
  int64_t update_bytes() const { return update_bytes_; }
  // `bytes`: update_bytes() of a dry run. Each update first allocates and frees this much, so running out of
  // memory happens before anything is written.
  void reserve_for_update(int64_t bytes) { reserved_bytes_ = bytes; }

  // As moelab::evaluate, with the model in training.
  double evaluate(const ValidationBatches& batches, int64_t count, const std::function<bool()>& stop = {});

  // Lets `read` compute with the model in training, without gradients. When the budget was exceeded, releases
  // the gathered weights and throws c10::OutOfMemoryError.
  void read_model(const std::function<void(Transformer& model, BlockRunner& runner)>& read);

  Transformer& model() {
    gathered_.all_arrive();
    return model_;
  }
  Optimizer& optimizer() { return optimizer_; }

  // Checkpoint entries: fp32 weights and buffers by name, as in model_state(); and the optimizer's state by
  // name, without what the weights already hold (masters, corrections). Of ranks that divide the state each
  // has its parts, and all buffers.
  std::vector<TensorEntry> weights() const;
  std::vector<TensorEntry> optimizer_state() const;
  // Takes entries of weights() after they were written to: rounds or splits them into the stored copies
  // again.
  void set_weights(const std::vector<TensorEntry>& entries);
  // Takes entries of optimizer_state() after they were written to.
  void set_optimizer_state(const std::vector<TensorEntry>& entries);
  // Call after weights and state were restored: sets the optimizer's step counts, as optimizer_steps() gives
  // them.
  void restored(const std::vector<int64_t>& optimizer_steps);
  // Steps that each of the whole model's parameters has taken, in the model's order.
  std::vector<int64_t> optimizer_steps() const;
  // Whether another stage of the pipeline has the checkpoint entry of this name, and this one has not.
  bool on_other_stage(const std::string& name) const;
  // Of a pipeline, this rank's stage so far; zeros without one.
  StageSeconds stage_seconds() const;
  // Since the run was opened.
  HomeSeconds waited() const;
  // Part of a checkpoint too.
  LossScale& loss_scale() { return loss_scale_; }

  // Bytes by formula, as allocated: weights with masters; gradients once all exist (with optim.in_backward:
  // the largest); optimizer state.
  struct StateBytes {
    int64_t parameters = 0, gradients = 0, optimizer = 0;
  };
  StateBytes state_bytes() const;

 private:
  LossParts forward(const Batch& batch);
  double share_of_step(const Batch& batch) const;
  int64_t micro_batches() const { return settings_.train.accumulation * ranks_.size(); }
  // `share`: () fp32, the batch's share of the step.
  void backward(const LossParts& parts, const at::Tensor& share);
  void backward(const at::Tensor& objective);
  // trainer_stages.cpp
  void open_stage();
  double squares_of_gradients();
  void add_tied_gradients();
  bool is_tied_copy(std::string_view name) const;  // of the embedding, on the last stage
  bool saved_elsewhere(size_t index) const;
  // step_form.h
  class StepForm;
  class LaunchedStep;
  class CapturedStep;
  class StagePasses;  // stage_passes.h
  bool run_passes(StepForm& form);
  void run_step(StepForm& form);
  void update(StepForm& form);
  void report_routing(StepReport& report);
  // With optim.in_backward: decides about this gradient alone, because neither the norm of all gradients nor
  // the loss is known yet. Steps the parameter unless it is to be skipped, and drops the gradient.
  void consume_gradient(size_t index);
  void step_consumed(size_t index);
  void step_parameter(size_t index, double gradient_scale);
  void change_weights(size_t index, const std::function<void()>& change);
  static void finish_backward();
  double consumed_squares() const;
  void reserve() const;
  void reserve_on_all_ranks();
  void step_all(double gradient_scale);
  void hook_gradients();
  void take_of_experts(const at::Tensor& weight, int64_t sender, const at::Tensor& gradient);

  // What captured steps keep, with memory.cuda_graphs=step.
  struct GraphStep {
    explicit GraphStep(c10::Device device);
    StepGraph graph;
    at::Tensor tokens_ABS, targets_ABS;     // A micro-batches of B rows of S tokens; int64
    at::Tensor documents_ABS;               // int32; undefined unless rows are packed
    int64_t room = 0;                       // for the documents of any micro-batch so far
    at::Tensor share_A;                     // fp32: each micro-batch's share of the step
    at::Tensor losses_A4;                   // StepForm::losses_of() each micro-batch
    at::Tensor live;                        // kernels/update/capturable_step.h
    std::vector<MicroBatchReport> reports;  // of the micro-batches, their losses left to be read
  };
  // Throws UserError where the model has no fixed shapes on this device.
  std::unique_ptr<GraphStep> make_graph() const;

  void enter(Phase phase) const;
  void check_budget() const;

  Settings settings_;
  c10::Device device_;
  BatchSource batches_;
  DataRanks ranks_;
  mutable GatheredWeights gathered_;       // reading weights gathers them on the device for a moment
  std::shared_ptr<StateFile> state_file_;  // null: no state is on NVMe
  Optimizer optimizer_;
  std::optional<TokenExchange> exchange_;  // none: all experts are here
  Transformer model_;
  GradientStore gradients_;
  RecomputeRunner recompute_;
  GatherRunner runner_{gathered_, recompute_};
  std::optional<ReferenceModel> reference_;
  SavedTensors saved_;
  LossScale loss_scale_;
  std::optional<at::Tensor> device_loss_scale_;  // () fp64, of the current step; none without a loss scale
  double lr_ = 0;                                // of the current step
  bool written_ = false;                         // the current step has begun to update weights
  int64_t update_bytes_ = 0, reserved_bytes_ = 0;
  static constexpr double kNotConsumed = -1;
  std::vector<double> consumed_squares_;  // squared norms of gradients stepped in backward, one per parameter
  // Where state is off a CUDA device, steps in backward run here, concurrently with the device. Destroyed
  // before what its tasks use.
  static constexpr size_t kWaitingGradients = 2;
  std::unique_ptr<SerialWorker> host_steps_;
  WaitClock waits_for_host_steps_;
  std::unique_ptr<GraphStep> graph_;           // null: every step is launched
  std::unique_ptr<StagePasses> stage_passes_;  // null: this rank has the whole model
  std::vector<int64_t> restored_steps_;        // optimizer_steps() when the run began
};

}  // namespace moelab
