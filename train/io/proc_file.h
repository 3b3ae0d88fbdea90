#pragma once
#include <filesystem>
#include <string>

// Reads Linux's text files below /proc.
namespace moelab {

// The value of the first line "KEY : VALUE" whose key begins with `key`; empty if there is no such line or
// file.
std::string proc_value(const std::filesystem::path& file, const std::string& key);

// The processor's name, or "unknown".
std::string cpu_name();

// The class of the processor's vector instructions, which decide how fast it multiplies in 16 bits: "AMX",
// "AVX512-BF16", "AVX-512" or "AVX2", the titles in scripts/cpu_classes.sh; "" for any other. Its name does
// not say: processors of two classes have the same one.
std::string cpu_class(const std::filesystem::path& cpuinfo = "/proc/cpuinfo");

// The name of the first NVIDIA GPU in `gpus`, the driver's folder, which has a folder per GPU; empty if there
// is none.
std::string first_gpu_name(const std::filesystem::path& gpus = "/proc/driver/nvidia/gpus");

// The release of NVIDIA's driver, such as 580.65.06, from the file in which it states its version; empty if
// there is none.
std::string nvidia_driver(const std::filesystem::path& version = "/proc/driver/nvidia/version");

}  // namespace moelab
