#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "train/step/trainer.h"

namespace moelab {

// One step in one of its two forms: launched operator by operator, or as a CUDA graph captures it.
// Trainer::run_step() is the step of both; a form answers what differs. Both give the same bits.
class Trainer::StepForm {
 public:
  StepForm(Trainer& trainer, int64_t step, const std::function<bool()>& stop, StepReport& report)
      : trainer_(trainer), step_(step), stop_(stop), report_(report) {}
  virtual ~StepForm() = default;

  // Whether the step is to end before its next micro-batch.
  virtual bool stopped() = 0;
  // Micro-batch i, on the device; without tensors when the run was asked to stop while it was read.
  virtual Batch batch(int64_t i) = 0;
  // Its share of the step, () fp32.
  virtual at::Tensor share(int64_t i) = 0;
  // Takes its losses, before the update.
  virtual void take_losses(int64_t i, const LossParts& parts) = 0;
  // Takes the routing of all micro-batches, before the update, or leaves it to decide().
  virtual void take_routing() = 0;

  // Decides about the update and makes sure of its memory. False: the step is skipped, which the form may
  // leave to the device.
  virtual bool decide() = 0;
  virtual std::vector<at::Tensor> router_biases() = 0;
  virtual void update_weights() = 0;

 protected:
  bool stop_asked();
  // Whether the micro-batch was read. If not, the step is interrupted.
  bool was_read(const Batch& batch);
  // Adds a micro-batch of each data-parallel rank to the report, in rank order; `own` is this rank's.
  void add_to_report(const MicroBatchReport& own);
  // A micro-batch's losses, left on the device: (4) fp32, as MicroBatchReport::take_losses() takes them.
  at::Tensor losses_of(const LossParts& parts) const;
  // Adds micro-batches, whose losses are the rows of losses_A4, and the routing to the report. Returns
  // `more`, fp64 on the device, as the host has read it. The host waits once, for all of them.
  at::Tensor read_losses(std::vector<MicroBatchReport> reports, const at::Tensor& losses_A4,
                         const at::Tensor& more);

  Trainer& trainer_;
  int64_t step_;
  const std::function<bool()>& stop_;
  StepReport& report_;
};

// The host queues each operator and decides. It reads each micro-batch's losses; on a GPU it reads once, when
// it decides: the losses of all micro-batches, their routing and the gradients' squares.
class Trainer::LaunchedStep : public StepForm {
 public:
  using StepForm::StepForm;
  void run() { trainer_.run_step(*this); }

  bool stopped() override { return stop_asked(); }
  Batch batch(int64_t i) override;
  at::Tensor share(int64_t i) override;
  void take_losses(int64_t i, const LossParts& parts) override;
  void take_routing() override;
  bool decide() override;
  std::vector<at::Tensor> router_biases() override { return trainer_.model_.next_router_biases(); }
  void update_weights() override;

 private:
  double read_squares();

  Batch batch_;                               // the last micro-batch, as it was read
  std::map<int64_t, MicroBatchReport> read_;  // of each micro-batch: its share of the step, and its counts
  std::vector<MicroBatchReport> reports_;     // on a GPU or in a pipeline, of the micro-batches so far
  std::vector<at::Tensor> losses_;            // theirs
  StepDecision decision_;
};

// Whatever differs between steps is in tensors at fixed addresses (GraphStep), and the device itself decides.
// Where there are no graphs the same code is launched directly.
class Trainer::CapturedStep : public StepForm {
 public:
  using StepForm::StepForm;
  void run();

  bool stopped() override { return false; }  // asked before the step: a graph runs whole
  Batch batch(int64_t i) override;
  at::Tensor share(int64_t i) override { return graph().share_A[i]; }
  void take_losses(int64_t i, const LossParts& parts) override;
  void take_routing() override {}  // with the outcome: reading it would wait for the device
  bool decide() override;
  std::vector<at::Tensor> router_biases() override;
  void update_weights() override;

 private:
  GraphStep& graph() { return *trainer_.graph_; }
  bool fill_places();  // false: the run was asked to stop first
  void make_room(int64_t room);
  void read_outcome();
};

}  // namespace moelab
