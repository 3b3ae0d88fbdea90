#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moe/parameter.h"
#include "train/config/facts/precision.h"
#include "train/config/settings.h"
#include "train/optim/host_copy.h"
#include "train/optim/state_file.h"
#include "train/optim/update_rule.h"

namespace moelab {

// A tensor of the optimizer's state, for checkpoints: "NAME.master", then the rule's, such as "NAME.m".
struct NamedState {
  std::string name;
  at::Tensor tensor;
};

// A gradient that lies in the state's file instead of in a tensor.
struct StoredGradient {
  int64_t offset;
  c10::ScalarType type;
};

// The rule of optim.name over all parameters. It keeps the rule's state (Kind::optimizer) and, for a 16-bit
// value, its fp32 master (Kind::master) unless there are none.
//
// State and masters live on the device, on the host, or in a file, and each step is taken where they are:
// from a file they pass through a few tiles, part of a parameter by part, read ahead and written behind. On
// CUDA a step on the host takes the gradient down and the new value up. All homes have the same bits.
class Optimizer {
 public:
  // Takes the parameters, as add() does. On the device.
  Optimizer(std::vector<Parameter> parameters, const OptimSettings& settings, bool masters = true);
  // Without parameters yet. `file` holds the state where `home` is nvme, and gradients that are stored there.
  Optimizer(const OptimSettings& settings, bool masters, Home home, c10::Device device,
            std::shared_ptr<StateFile> file = nullptr);

  // Takes a parameter, whose tensors it shares with the model, and returns it as it is from now on. An fp32
  // value is its own master. For a bf16 or fp16 value, `master` is its fp32 initial tensor, taken over, and
  // value becomes master rounded; where `master` is undefined, it is made from value. Without `masters`
  // (values fp32 or bf16) it is dropped, and the rule steps the value, as it does itself or with stochastic
  // rounding. Away from the device the master becomes a tensor of the host, or undefined: it is in the file.
  // Throws IoError when the drive is full.
  const Parameter& add(Parameter parameter);

  // One step from the gradients that the parameters hold, each multiplied by `gradient_scale`. A parameter
  // without gradient is left alone, its state and its bias correction too. Gradients are kept.
  void step(double lr, double gradient_scale);
  // The same for the parameter at `index` alone.
  void step_parameter(size_t index, double lr, double gradient_scale);
  // A step that may be captured in a graph: its rate, number and gradient scale, and whether it is skipped,
  // are in `live` (kernels/live_step.h) when it runs. Every parameter has a gradient, and all state is on the
  // device. It is not counted: the host does that, by count_step(), when it knows.
  void step_live(const at::Tensor& live);
  // The numbers that `live` is to hold for it. All parameters have taken as many steps.
  OptimizerStep next_step(double lr) const;
  void count_step();
  // Has the parameter at `index` step from a gradient in the file; none: from the one it holds.
  void use_stored_gradient(size_t index, std::optional<StoredGradient> gradient);
  bool has_gradient(size_t index) const;

  // The parameters, to accumulate their gradients in.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // The fp32 weights of the parameter at `index`: its master itself, or, where that is no tensor, made from
  // the file or from the value and the state, on the host's ledger.
  at::Tensor weights(size_t index) const;
  // Takes fp32 weights, which may be weights(index) written to: rounds or splits them into value and state.
  void set_weights(size_t index, const at::Tensor& fp32);

  // The state by name, in the order of the parameters: the optimizer's own tensors, or copies on the host's
  // ledger of what is in the file. Without `weights` what weights() has in it is left out: masters and
  // corrections.
  std::vector<NamedState> state(bool weights = true) const;
  // Takes tensors of state() that were written to; those left out keep what they are.
  void set_state(const std::vector<NamedState>& named);
  // Steps taken by each parameter; they make the bias correction and the random numbers.
  const std::vector<int64_t>& steps() const { return steps_; }
  // After a checkpoint was read into state(): its step counts, one a parameter. Rounds the masters into the
  // 16-bit values anew.
  void restore_steps(std::vector<int64_t> steps);

  // Bytes of the rule's state alone, as its layout says, and with the masters that are not values themselves.
  int64_t rule_bytes() const;
  int64_t state_bytes() const;

 private:
  // The state of one parameter. In the file it is a record for each part of so many of the cut's rows.
  struct Held {
    std::vector<StateSlot> layout;  // of the whole
    UpdateRule::State state;        // as laid out; none in the file
    Cut cut;
    int64_t part_rows = 0;                 // 0: never cut
    int64_t offset = 0, record_bytes = 0;  // in the file
    bool master_in_file = false;
    std::optional<StoredGradient> gradient;
    int64_t rows() const { return cut.shape.front(); }
    int64_t parts() const { return (rows() + part_rows - 1) / part_rows; }
  };
  // A part of a parameter, its tensors views.
  struct Part {
    Parameter parameter;  // value, and the master if there is one
    UpdateRule::State state;
    int64_t element = 0;  // that it begins at
  };
  struct Step {
    size_t index;
    int64_t part;
    OptimizerStep numbers;
  };
  using PartWork = std::function<void(Part&)>;

  bool in_file() const { return home_ == Home::nvme; }
  bool passes_file(size_t index) const { return in_file() || held_[index].gradient.has_value(); }
  OptimizerStep numbers_of(size_t index) const;
  OptimizerStep next_numbers(size_t index, double lr, double gradient_scale);
  void run_rule(const Parameter& parameter, const at::Tensor& gradient, const UpdateRule::State& state,
                const OptimizerStep& numbers);
  at::Tensor host_copy(const at::Tensor& tensor);

  // optimizer_parts.cpp
  Parameter rows_of(size_t index, int64_t row, int64_t rows) const;
  std::vector<StateSlot> record_of(size_t index, const Parameter& part) const;
  void plan_parts(size_t index);
  void put_master(size_t index);
  Part part_of(size_t index, int64_t number, const at::Tensor& record) const;
  int64_t visited_parts(size_t index) const;
  RecordPart record_part(size_t index, int64_t number, bool change) const;
  void visit_records(size_t index, bool change, const PartWork& work) const;
  // Copies between the file and whole tensors: the master, then as laid out; undefined ones are left out.
  void exchange(size_t index, const std::vector<at::Tensor>& whole, bool into_file) const;
  std::vector<at::Tensor> whole_state(size_t index, bool weights) const;
  RecordPart gradient_part(const Step& step) const;
  at::Tensor gradient_of(const Step& step, const Part& part, const at::Tensor& bytes) const;
  void step_parts(const std::vector<size_t>& indices, double lr, double gradient_scale);

  UpdateRule rule_;
  bool masters_;
  Home home_;
  c10::Device device_;
  std::shared_ptr<StateFile> file_;
  HostCopy copies_;
  std::vector<Parameter> parameters_;
  std::vector<Held> held_;
  std::vector<int64_t> steps_;
  std::vector<int64_t> streams_;  // of random numbers: a function of the name
  OptimizerStep numbers_;         // what all parameters share
};

}  // namespace moelab
