#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "train/checkpoint/manifest.h"
#include "train/checkpoint/safetensors_file.h"

namespace moelab {

// The tensors of a checkpoint, each of them whole in one file, or in parts in the files of several ranks.
class CheckpointTensors {
 public:
  struct Piece {
    size_t file;
    int64_t first, count;  // elements, in row-major order
    int64_t at = 0;        // the first of them in the file's tensor
  };
  struct Saved {
    SafetensorsType type;
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;  // by `first`; those without elements are left out
  };

  // A file of whole tensors.
  explicit CheckpointTensors(SafetensorsFile file);
  // `tensors`: what the manifest says of each file. Throws UserError, beginning with `where`, unless the
  // parts of every tensor are of one type and shape and cover it without gap or overlap.
  CheckpointTensors(std::vector<SafetensorsFile> files,
                    const std::vector<std::map<std::string, ManifestTensor>>& tensors, std::string where);

  const std::string& where() const { return where_; }  // for messages
  const std::map<std::string, Saved>& tensors() const { return tensors_; }
  // The whole tensor on the CPU, row-major: of the file's mapping, valid and unchanged as long as this, if it
  // is whole there; else a copy. Throws UserError if no tensor has that name.
  at::Tensor tensor(const std::string& name) const;
  // Copies that part, as many elements as `into` has. `into` has the saved type, and any device; if it is not
  // contiguous, the tensor must be whole in one file.
  void copy_to(const std::string& name, const TensorPart& part, const at::Tensor& into) const;

 private:
  const SafetensorsInfo& info(const std::string& name, const Piece& piece) const;
  void copy_run(const std::string& name, int64_t first, const at::Tensor& into) const;

  std::vector<SafetensorsFile> files_;
  std::string where_;
  std::map<std::string, Saved> tensors_;
};

// Copies into every entry, in place, what was saved of the tensor or part with its name. First compares
// names, shapes and types in both directions: throws UserError for a tensor that was not saved, one that no
// entry asks for, or one that differs. `elsewhere`: whether other ranks ask for a name.
void restore(const CheckpointTensors& saved, const std::vector<TensorEntry>& into,
             const std::function<bool(const std::string& name)>& elsewhere = {});

}  // namespace moelab
