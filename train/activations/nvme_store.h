#pragma once
#include <filesystem>

#include "train/activations/tensor_store.h"

namespace moelab {

// The file for a step's activations, and the tiles that buffer its data in memory.
class NvmeFile;

// Moves tensors that autograd saved to an unnamed file (Home::nvme) and back, exactly. Writes run
// concurrently with forward. Buffers in memory: `tiles` tiles of tile_bytes, Home::host, pinned on CUDA.
class NvmeStore : public TensorStore {
 public:
  // `device`: the tensors' device; meta makes no file. `ahead`: a thread serves the file concurrently with
  // the model, and fetches for backward one block ahead (FetchAhead). Throws IoError when no file can be made
  // in `folder`.
  NvmeStore(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles, c10::Device device,
            bool ahead);
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block(bool last) override;
  double waited_seconds() const override;

 private:
  std::shared_ptr<NvmeFile> file_;
};

}  // namespace moelab
