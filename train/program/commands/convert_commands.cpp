#include <iostream>

#include "train/checkpoint/huggingface/convert.h"
#include "train/program/commands/commands.h"
#include "train/program/record/build_commit.h"

namespace moelab {

int import_command(const std::string& from, const std::string& to) {
  const std::string checkpoint = import_huggingface(from, to, build_commit()).string();
  std::cout << "imported " << from << " as the checkpoint " << checkpoint << "; train on with --config "
            << checkpoint << "/config.yaml train.init=" << checkpoint << "\n";
  return 0;
}

int export_command(const std::string& from, const std::string& to) {
  export_huggingface(from, to);
  std::cout << "exported " << from << " as the Hugging Face folder " << to << "\n";
  return 0;
}

}  // namespace moelab
