#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moe/communicator.h"
#include "moe/parameter.h"
#include "moe/tensor_part.h"
#include "train/optim/host_copy.h"
#include "train/optim/state_file.h"
#include "train/optim/update_rule.h"
#include "train/parallel/parts.h"
#include "train/settings/facts/precision.h"
#include "train/settings/settings.h"

namespace moelab {

// A named tensor of the optimizer's state, for checkpoints: "NAME.master", then the rule's, such as "NAME.m".
struct NamedState {
  std::string name;
  at::Tensor tensor;
  std::optional<TensorPart> part = {};  // of the tensor that one rank would have; none: all of it
  size_t index = 0;                     // of its parameter; set_state() goes by the name
};

// A gradient in the state file instead of in a tensor.
struct StoredGradient {
  int64_t offset;
  c10::ScalarType type;
};

// Applies the rule of optim.name to all parameters. Holds the rule's state (Kind::optimizer) and, unless
// disabled, an fp32 master (Kind::master) for each 16-bit value.
//
// State and masters are on the device, on the host or in a file, and each update runs where they are. From a
// file they stream through a few tiles of memory, one part of a parameter after another, read ahead and
// written behind. On CUDA an update on the host copies the gradient to the host and the new value back. All
// homes give bitwise the same results.
//
// Ranks may divide it (ZeRO): then each keeps and steps its part of each parameter, with the bits that one
// rank would give that part. parameters() are these parts, flat views of the model's values, and may be
// empty. weights() and state() are of these parts too. Where the model has a part of a weight (this rank's
// experts, or its slice), the ranks that have the same part divide it.
class Optimizer {
 public:
  // Takes the parameters as add() does, with state on the device.
  Optimizer(std::vector<Parameter> parameters, const OptimSettings& settings, bool masters = true);
  // Starts without parameters. `file` holds the state if `home` is nvme, and gradients that are stored there.
  // `ranks`: those that divide the parameters among them; `expert_ranks`: those that divide the experts,
  // where data-parallel ranks have different ones.
  Optimizer(const OptimSettings& settings, bool masters, Home home, c10::Device device,
            std::shared_ptr<StateFile> file = nullptr, Communicator& ranks = one_rank(),
            Communicator& expert_ranks = one_rank());

  // Adds a parameter, whose tensors are shared with the model, and returns its final form. An fp32 value is
  // its own master. For a bf16 or fp16 value, `master` is its initial fp32 tensor, which is kept, and value
  // becomes the rounded master; if `master` is undefined, it is made from value. Without `masters` (values
  // fp32 or bf16) the master is dropped, and the rule steps the value, in its own way or with stochastic
  // rounding. Off the device, the master becomes a host tensor, or undefined if it is in the file. Of several
  // ranks that divide the parameters each keeps the master of its part. Throws IoError when the drive is
  // full.
  const Parameter& add(Parameter parameter);

  // One step from the parameters' gradients, each multiplied by `gradient_scale`. A parameter without a
  // gradient keeps its value, state and bias correction. Gradients are kept.
  void step(double lr, double gradient_scale);
  // As step(), for the parameter at `index` alone.
  void step_parameter(size_t index, double lr, double gradient_scale);
  // A step that a graph may capture: learning rate, step number, gradient scale and whether to skip are read
  // from `live` (kernels/update/capturable_step.h) when it runs. Every parameter must have a gradient, and
  // all state must be on the device. Does not count the step; the host calls count_step() when it knows that
  // the step was taken.
  void step_capturable(const at::Tensor& live);
  // The numbers for step_capturable to put into `live`. All parameters must have taken equally many steps.
  OptimizerStep next_step(double lr) const;
  void count_step();
  // Sets the gradient in the file that the parameter at `index` steps from; none: the gradient that it holds.
  void use_stored_gradient(size_t index, std::optional<StoredGradient> gradient);
  bool has_gradient(size_t index) const;

  // The parameters, or this rank's parts of them, to accumulate their gradients in.
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // The model's value that the parameter at `index` is, or is a part of.
  const at::Tensor& leaf(size_t index) const { return held_.at(index).whole.value; }
  bool divided() const { return ranks_.size() > 1; }
  // How the ranks divide the parameter at `index`.
  const Parts& parts(size_t index) const { return held_.at(index).ranks; }
  // Brings the parts of the other ranks, after they were stepped, to the model's value.
  std::unique_ptr<Transfer> gather_value(size_t index);

  // The fp32 weights of the parameter at `index`: the master itself; or, if that is not a tensor, a copy
  // (host's ledger) from the file or from value and state.
  at::Tensor weights(size_t index) const;
  // What parameters()[index], and so weights(index), is of the whole weight; none: all of it.
  std::optional<TensorPart> part(size_t index) const;
  // Takes fp32 weights, which may be a modified weights(index): rounds or splits them into value and state.
  void set_weights(size_t index, const at::Tensor& fp32);

  // The state by name, in parameter order: the optimizer's own tensors, or copies (host's ledger) of what is
  // in the file. Without `weights`, leaves out what weights() contains: masters and corrections.
  std::vector<NamedState> state(bool weights = true) const;
  // Takes tensors of state() that were written to; state not listed stays unchanged.
  void set_state(const std::vector<NamedState>& named);
  // Steps taken by each parameter; they determine the bias correction and the random numbers.
  const std::vector<int64_t>& steps() const { return steps_; }
  // After a checkpoint was read into state(): sets the step counts, one per parameter, and rounds the masters
  // into the 16-bit values again.
  void restore_steps(std::vector<int64_t> steps);

  // Bytes of the rule's state alone, by its layout; and together with masters that are separate from the
  // values.
  int64_t rule_bytes() const;
  int64_t state_bytes() const;
  // How long steps have stood still for copies between the device and state on the host; the file counts its
  // own waits.
  double waited_seconds() const { return copies_.waited_seconds(); }

 private:
  // The state of one parameter. In the file it is stored in records, each of `part_rows` rows of `cut`.
  struct Held {
    Parameter whole;                // without a master; its value is the model's
    Parts ranks;                    // of `whole`, if ranks divide it
    int64_t first = 0;              // this rank's first element in the weight
    std::vector<StateSlot> layout;  // of the parameter, which may be a part
    UpdateRule::State state;        // in layout's order; empty if in the file
    Cut cut;
    int64_t part_rows = 0;                 // 0: never cut, or empty
    int64_t offset = 0, record_bytes = 0;  // in the file
    bool master_in_file = false;
    std::optional<StoredGradient> gradient;
    int64_t rows() const { return cut.shape.front(); }
    int64_t parts() const { return part_rows == 0 ? 0 : (rows() + part_rows - 1) / part_rows; }
  };
  // A part of a parameter; its tensors are views.
  struct Part {
    Parameter parameter;  // value, and the master if there is one
    UpdateRule::State state;
    int64_t element = 0;  // its first element in the parameter
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
  // The master, then the layout's tensors; those that do not exist are undefined. Without `weights`, so are
  // those that weights() contains.
  std::vector<at::Tensor> tensors_of(size_t index, bool weights) const;
  void set_tensors_of(size_t index, const std::vector<at::Tensor>& given);

  // optimizer_ranks.cpp
  Communicator& ranks_of(const Parameter& parameter) const {
    return parameter.exchanged ? expert_ranks_ : ranks_;
  }
  Parameter own_part(Parameter whole, Held& held) const;
  std::vector<std::optional<TensorPart>> parts_of_tensors(size_t index) const;

  // optimizer_parts.cpp
  static Parameter rows_of(const Parameter& p, const Cut& cut, int64_t row, int64_t rows);
  Parameter rows_of(size_t index, int64_t row, int64_t rows) const;
  std::vector<StateSlot> record_of(size_t index, const Parameter& part) const;
  void plan_parts(size_t index);
  void put_master(size_t index);
  Part part_of(size_t index, int64_t number, const at::Tensor& record) const;
  int64_t visited_parts(size_t index) const;
  RecordPart record_part(size_t index, int64_t number, bool change) const;
  void visit_records(size_t index, bool change, const PartWork& work) const;
  // Copies between the file and whole tensors: the master first, then the layout's; undefined ones are
  // skipped.
  void exchange(size_t index, const std::vector<at::Tensor>& whole, bool into_file) const;
  RecordPart gradient_part(const Step& step) const;
  at::Tensor gradient_of(const Step& step, const Part& part, const at::Tensor& bytes) const;
  void step_parts(const std::vector<size_t>& indices, double lr, double gradient_scale);

  UpdateRule rule_;
  bool masters_;
  Home home_;
  c10::Device device_;
  std::shared_ptr<StateFile> file_;
  Communicator &ranks_, &expert_ranks_;
  HostCopy copies_;
  std::vector<Parameter> parameters_;
  std::vector<Held> held_;
  std::vector<int64_t> steps_;
  std::vector<int64_t> streams_;  // seeds of random numbers, from the parameters' names
  OptimizerStep numbers_;         // those that all parameters share
};

}  // namespace moelab
