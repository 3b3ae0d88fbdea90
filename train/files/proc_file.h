#pragma once
#include <filesystem>
#include <string>

// What Linux tells in text files below /proc.
namespace moelab {

// The value of the first line "KEY : VALUE" whose key begins so; empty when there is none, or no such file.
std::string proc_value(const std::filesystem::path& file, const std::string& key);

// The processor's name, or "unknown".
std::string cpu_name();

// The name of the first NVIDIA GPU below `gpus`, the driver's folder with a folder for each; empty where
// there is none.
std::string first_gpu_name(const std::filesystem::path& gpus = "/proc/driver/nvidia/gpus");

}  // namespace moelab
