#include "train/settings/facts/storage.h"

#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"

namespace moelab {
namespace {

// The cost-model term for coding and decoding an element.
std::string_view elements_term(BlockCode code) {
  return code == BlockCode::int8 ? "int8_elements" : "fp8_elements";
}

double coded_bytes(const Settings& settings, double bytes) {
  const bool coded = storage_facts(settings.activations.storage).code.has_value();
  return coded ? bytes * kCodedBytes / element_bytes(settings) : bytes;
}

std::vector<StorageFacts> make_storages() {
  return {
      {ActivationStorage::keep, {}, Home::device},
      {ActivationStorage::int8, BlockCode::int8, Home::device,
       Technique{"int8_activations",
                 "saved activations in int8",
                 {{"activations.storage", "int8"}},
                 "Backward reads them rounded, and each is coded and decoded once.",
                 coded_bytes_text() + " bytes for 4 an activation kept",
                 {"vibee.int8_activations"}}},
      {ActivationStorage::fp8, BlockCode::e4m3, Home::device,
       Technique{"fp8_activations",
                 "saved activations in fp8",
                 {{"activations.storage", "fp8"}},
                 "As in int8, with 4 significant bits at every magnitude.",
                 coded_bytes_text() + " bytes for 4 an activation kept",
                 {"vibee.int8_activations"}}},
      {ActivationStorage::host,
       {},
       Home::host,
       Technique{"host_activations",
                 "saved activations in host memory",
                 {{"activations.storage", "host"}},
                 "Each is copied there and back; host memory holds them instead.",
                 "no activations kept but of the block under way",
                 {"verl.activation_offload", "nemo.preset_large_model"}}},
      {ActivationStorage::nvme,
       {},
       Home::nvme,
       Technique{"nvme_activations",
                 "saved activations in a file",
                 {{"activations.storage", "nvme"}, {"placement.nvme_path", "."}},
                 "Each is written to the drive and read back, which backward waits for.",
                 "no activations kept but of the block under way",
                 {"nemo.preset_large_model"}}},
      {ActivationStorage::int8_host, BlockCode::int8, Home::host,
       Technique{"int8_host_activations",
                 "saved activations in int8 in host memory",
                 {{"activations.storage", "int8_host"}},
                 "As in int8; a quarter of the bytes is copied there and back, in 16 bits half.",
                 "no activations kept but of the block under way",
                 {"vibee.int8_activations", "verl.activation_offload"}}},
      {ActivationStorage::fp8_host, BlockCode::e4m3, Home::host,
       Technique{"fp8_host_activations",
                 "saved activations in fp8 in host memory",
                 {{"activations.storage", "fp8_host"}},
                 "As in fp8; a quarter of the bytes is copied there and back, in 16 bits half.",
                 "no activations kept but of the block under way",
                 {"vibee.int8_activations", "verl.activation_offload"}}},
      {ActivationStorage::int8_nvme, BlockCode::int8, Home::nvme,
       Technique{"int8_nvme_activations",
                 "saved activations in int8 in a file",
                 {{"activations.storage", "int8_nvme"}, {"placement.nvme_path", "."}},
                 "As in int8; a quarter of the bytes is written and read back, in 16 bits half.",
                 "no activations kept but of the block under way",
                 {"vibee.int8_activations", "nemo.preset_large_model"}}},
      {ActivationStorage::fp8_nvme, BlockCode::e4m3, Home::nvme,
       Technique{"fp8_nvme_activations",
                 "saved activations in fp8 in a file",
                 {{"activations.storage", "fp8_nvme"}, {"placement.nvme_path", "."}},
                 "As in fp8; a quarter of the bytes is written and read back, in 16 bits half.",
                 "no activations kept but of the block under way",
                 {"vibee.int8_activations", "nemo.preset_large_model"}}},
  };
}

const std::vector<StorageFacts>& all_storages() {
  static const std::vector<StorageFacts> storages = make_storages();
  return storages;
}

}  // namespace

std::vector<Technique> storage_rows() {
  std::vector<Technique> rows;
  for (const StorageFacts& facts : all_storages())
    if (facts.row) rows.push_back(*facts.row);
  return rows;
}

const StorageFacts& storage_facts(ActivationStorage storage) {
  for (const StorageFacts& facts : all_storages())
    if (facts.name == storage) return facts;
  return all_storages().front();
}

double stored_bytes(const Settings& settings, double bytes, Home home) {
  return storage_facts(settings.activations.storage).home == home ? coded_bytes(settings, bytes) : 0;
}

std::vector<Cost> storage_costs(const Settings& settings, double bytes) {
  const StorageFacts& facts = storage_facts(settings.activations.storage);
  std::vector<Cost> costs;
  if (facts.code) costs.push_back({elements_term(*facts.code), bytes / element_bytes(settings)});
  if (facts.home != Home::device) costs.push_back({moved_term(facts.home), 2 * coded_bytes(settings, bytes)});
  return costs;
}

void check_storage(const Settings& settings) {
  const ActivationStorage storage = settings.activations.storage;
  require_drive(settings, "activations.storage", storage, storage_facts(storage).home);
}

}  // namespace moelab
