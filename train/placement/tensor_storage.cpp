#include "train/placement/tensor_storage.h"

namespace moelab {

// On meta there is no data pointer, but a record of the bytes.
bool has_memory(const at::Tensor& tensor) { return tensor.storage().data_ptr().get_context() != nullptr; }

void make_memory(const at::Tensor& tensor, Kind kind) {
  const KindScope kind_scope(kind);
  const HomeScope home_scope(Home::device);
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(tensor.nbytes()));
}

void drop_memory(const at::Tensor& tensor) {
  TORCH_CHECK(
      tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes(),
      "memory that another tensor may use cannot be dropped");
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(storage->allocator()->allocate(0));
}

}  // namespace moelab
