#pragma once
// The one precompiled header of every target that includes LibTorch: what most files take. A header of
// autograd's in here would cost every file a second, for templates that its inline functions leave to be
// instantiated.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>
