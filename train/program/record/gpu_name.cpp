#include "train/program/record/gpu_name.h"

#include "kernels/operator/gpu.h"
#include "train/io/proc_file.h"

namespace moelab {

std::string gpu_name(c10::Device device) { return device.is_cuda() ? gpu_model(device) : first_gpu_name(); }

}  // namespace moelab
