#include "tests/emulator/ptx.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/emulator/fibers.h"
#include "tests/emulator/races.h"
#include "tests/emulator/traffic.h"

namespace moelab::emulator::ptx {
namespace {

constexpr size_t kRow = 16;  // bytes of a copy, and of a matrix's row
// Of each such piece of shared memory: whether a copy has written it, and no fence shown it to wgmma.
std::array<bool, kMostShared / kRow> hidden;

struct Copy {
  void* to;
  const void* from;  // null: zeros
};
struct Copies {
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;  // the oldest first
  std::vector<size_t> hidden;
};
std::array<Copies, kMostThreads> copies;  // of each thread

// The accesses of a copy, without those that are no memory of it.
void note(const Copy& copy, const void* where) {
  if (copy.from != nullptr) races::access(copy.from, kRow, false, false, where);
  races::access(copy.to, kRow, true, false, where);
}

void end(const Copy& copy, const void* where) {
  note(copy, where);
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, kRow);
  } else {
    std::memcpy(copy.to, copy.from, kRow);
  }
  const size_t piece = shared_offset(copy.to) / kRow;
  hidden[piece] = true;
  copies[current_thread()].hidden.push_back(piece);
}

void load(std::array<uint32_t*, 4> to, uint32_t offset, bool transposed, const void* where) {
  const void* const mine = shared_at(offset, kRow);
  races::access(mine, kRow, false, false, where);
  traffic::access(mine, kRow, false, where);
  Brought row{};
  std::memcpy(row.data(), mine, kRow);
  const Brought* const rows = bring_to_warp(row);
  const unsigned lane = current_thread() % kWarp, q = lane / 4, p = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (unsigned k = 0; k < 2; ++k) {
      const unsigned r = transposed ? 2 * p + k : q, column = transposed ? q : 2 * p + k;
      std::memcpy(&pair[k], reinterpret_cast<const char*>(rows[8 * i + r].data()) + 2 * column, 2);
    }
    std::memcpy(to[i], pair, 4);
  }
}

}  // namespace

void begin_block() {
  for (Copies& one : copies) one = {};
  hidden.fill(false);
  begin_block_of_products();
}

bool is_hidden(uint32_t offset) { return hidden[offset / kRow]; }

void fence_proxy_async_shared_cta() {
  for (const size_t piece : std::exchange(copies[current_thread()].hidden, {})) hidden[piece] = false;
}

void cp_async_cg_shared_global(uint32_t to, const void* from, size_t bytes, uint32_t copied) {
  const void* const where = __builtin_return_address(0);
  if (bytes != kRow || (copied != 0 && copied != kRow) || reinterpret_cast<uintptr_t>(from) % kRow != 0)
    trap();
  const Copy copy{shared_at(to, kRow), copied == 0 ? nullptr : from};
  note(copy, where);
  if (copied != 0) traffic::access(from, kRow, false, where);
  traffic::access(copy.to, kRow, true, where);
  std::memset(copy.to, 0xFF, kRow);
  copies[current_thread()].open.push_back(copy);
}

void cp_async_commit_group() {
  Copies& mine = copies[current_thread()];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

void cp_async_wait_group(unsigned left) {
  const void* const where = __builtin_return_address(0);
  Copies& mine = copies[current_thread()];
  while (mine.groups.size() > left) {
    for (const Copy& copy : mine.groups.front()) end(copy, where);
    mine.groups.erase(mine.groups.begin());
  }
}

void ldmatrix_sync_aligned_m8n8_x4_shared_b16(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,
                                              uint32_t row) {
  load({&d0, &d1, &d2, &d3}, row, false, __builtin_return_address(0));
}
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(uint32_t& d0, uint32_t& d1, uint32_t& d2, uint32_t& d3,
                                                    uint32_t row) {
  load({&d0, &d1, &d2, &d3}, row, true, __builtin_return_address(0));
}

// Row i of a is in registers i / 8 (terms 0 to 7) and i / 8 + 2 (terms 8 to 15) of the four lanes from
// 4 (i % 8) on; column j of b is in registers 4 and 5 of the four lanes from 4 j on.
Sums multiplied(const Factors& fragments, const Sums& c, float (*to_float)(uint16_t)) {
  const Brought* const of = bring_to_warp(fragments);
  const unsigned lane = current_thread() % kWarp, q = lane / 4, p = lane % 4;
  const auto terms = [&](unsigned first_lane, unsigned low, unsigned high) {
    std::array<double, 16> values;
    for (unsigned t = 0; t < 16; ++t) {
      const uint32_t pair = of[first_lane + t % 8 / 2][t < 8 ? low : high];
      values[t] = to_float(static_cast<uint16_t>(pair >> (t % 2 * 16)));
    }
    return values;
  };
  const std::array rows{terms(4 * q, 0, 2), terms(4 * q, 1, 3)},
      columns{terms(4 * (2 * p), 4, 5), terms(4 * (2 * p + 1), 4, 5)};
  Sums d;
  for (unsigned i = 0; i < 4; ++i) {
    double sum = c[i];
    for (unsigned t = 0; t < 16; ++t) sum += rows[i / 2][t] * columns[i % 2][t];
    d[i] = static_cast<float>(sum);
  }
  return d;
}

}  // namespace moelab::emulator::ptx
