#include "train/activations/tensor_store.h"

#include "train/activations/compressed_store.h"
#include "train/activations/host_store.h"
#include "train/activations/nvme_store.h"
#include "train/settings/facts/storage.h"

namespace moelab {
namespace {

// Null for Home::device.
std::unique_ptr<TensorStore> make_home_store(Home home, const Settings& settings, c10::Device device) {
  const PlacementSettings& p = settings.placement;
  // a dry run needs the memory of the device that it stands in for
  const bool ahead = device.is_cuda() || (device.is_meta() && settings.run.device == DeviceChoice::cuda);
  switch (home) {
    case Home::device:
      break;
    case Home::host:
      return std::make_unique<HostStore>(device, ahead);
    case Home::nvme:
      return std::make_unique<NvmeStore>(p.nvme_path, p.nvme_block.count, p.nvme_depth, device, ahead);
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<TensorStore> make_tensor_store(const Settings& settings, c10::Device device) {
  const StorageFacts& facts = storage_facts(settings.activations.storage);
  std::unique_ptr<TensorStore> store = make_home_store(facts.home, settings, device);
  if (!facts.code) return store;
  return std::make_unique<CompressedStore>(*facts.code, settings.activations.block, std::move(store));
}

}  // namespace moelab
