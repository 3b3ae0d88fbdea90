#include "train/activations/tensor_store.h"

#include "train/activations/compressed_store.h"
#include "train/activations/host_store.h"
#include "train/activations/nvme_store.h"

namespace moelab {

std::unique_ptr<TensorStore> make_tensor_store(const Settings& settings, c10::Device device) {
  const ActivationSettings& a = settings.activations;
  const PlacementSettings& p = settings.placement;
  // a dry run's memory is that of the device it stands for
  const bool ahead = device.is_cuda() || (device.is_meta() && settings.run.device == DeviceChoice::cuda);
  switch (a.storage) {
    case ActivationStorage::keep:
      break;
    case ActivationStorage::int8:
      return std::make_unique<CompressedStore>(BlockCode::int8, a.block);
    case ActivationStorage::fp8:
      return std::make_unique<CompressedStore>(BlockCode::e4m3, a.block);
    case ActivationStorage::host:
      return std::make_unique<HostStore>(device, ahead);
    case ActivationStorage::nvme:
      return std::make_unique<NvmeStore>(p.nvme_path, p.nvme_block.count, p.nvme_depth, device, ahead);
  }
  return nullptr;
}

}  // namespace moelab
