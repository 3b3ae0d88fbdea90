#pragma once
// The one precompiled header of every target that includes LibTorch. torch/torch.h is left out on purpose:
// nothing here uses its modules or data loaders, and it doubles the time.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
