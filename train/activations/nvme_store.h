#pragma once
#include <filesystem>

#include "train/activations/tensor_store.h"

namespace moelab {

// A file for the activations of a step and the tiles that data pass through.
class NvmeFile;

// Moves what autograd saved to a file without a name, Home::nvme, and back, bit for bit; writing goes on
// behind forward. In memory there are `tiles` tiles of tile_bytes, Home::host, pinned on CUDA.
class NvmeStore : public TensorStore {
 public:
  // `device` is that of the tensors; for meta no file is made. With `ahead`, a thread serves the file
  // beside forward, and what backward wants is fetched a block ahead (FetchAhead). Throws
  // IoError when `folder` takes no file.
  NvmeStore(const std::filesystem::path& folder, int64_t tile_bytes, int64_t tiles, c10::Device device,
            bool ahead);
  std::unique_ptr<StoredTensor> store(const at::Tensor& dense) override;
  void begin_block() override;

 private:
  std::shared_ptr<NvmeFile> file_;
};

}  // namespace moelab
