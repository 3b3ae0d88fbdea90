#include "train/io/whole_file.h"

#include <fstream>
#include <system_error>

#include "moe/settings/error.h"

namespace moelab {

namespace fs = std::filesystem;

void write_whole(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + ".tmp";
  std::ofstream out(temporary, std::ios::binary);
  out << text;
  out.close();
  std::error_code failed, unknown;
  if (out) fs::rename(temporary, path, failed);
  if (out && !failed) return;
  fs::remove(temporary, unknown);
  throw UserError("cannot write " + path.string() + ": is the disk full or the folder read-only?");
}

}  // namespace moelab
