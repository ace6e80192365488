// Rows for the tests of this room, and estimates that are easy to foretell.
#pragma once

#include <string>

#include "lockstep/base/json.h"
#include "lockstep/plan/evidence/prediction.h"

namespace lockstep::plan {

// Of SC21 (Narayanan et al. 2021), table 1: 145.6 B parameters on 1536 A100 with tp 8, pp 8, two virtual stages.
inline Json row_of_145b() {
  return parse_json(R"({
    "id": "big", "source": "paper", "kind": "train_step", "tier": "A",
    "model": {"id": "gpt-145.6B", "family": "dense", "layers": 80, "hidden": 12288, "heads": 96, "kv_heads": 96, "head_dim": 128, "ffn": 49152,
              "gated_mlp": false, "vocab": 51200, "params": 145.6e9, "moe": null, "activation": "gelu", "seq": 2048},
    "gpu": {"name": "A100-SXM4-80GB", "mem_gb": 80}, "n_gpus": 1536,
    "layout": {"tp": 8, "pp": 8, "vpp": 2, "dp": 24, "cp": 1, "ep": 1, "micro_batch": 2, "global_batch": 2304, "sequence_parallel": false,
               "recompute": "full", "zero_stage": 0, "precision": "fp16", "num_microbatches": 48},
    "measured": {"tflops_per_gpu": 148}, "derived": {"step_time_s": 24.82}})",
                    "row");
}

// Of Llama 3 8B on eight H100, all of whose choices are open.
inline Json row_of_8b() {
  return parse_json(R"({
    "id": "small", "source": "notes", "tier": "B",
    "model": {"id": "llama3-8B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336, "gated_mlp": true,
              "vocab": 128256, "params": 8.03e9, "moe": null, "seq": 8192},
    "gpu": {"name": "H100-SXM5-80GB"}, "n_gpus": 8,
    "layout": {"tp": 1, "pp": 1, "vpp": null, "dp": null, "micro_batch": null, "global_batch": 128, "recompute": null, "zero_stage": null,
               "precision": "bf16", "schedule": null},
    "measured": {"tokens_per_s_per_gpu": 9000, "memory_gib": 70}, "derived": {"step_time_s": 14.5}})",
                    "row");
}

inline std::string file_of(const std::vector<Json>& rows) {
  Json file{{"schema_version", 2}};
  file["sources"]["paper"]["cluster"] = {{"gpus_per_node", 8}, {"inter", "8x HDR InfiniBand 200 Gb/s per node for compute (25 GB/s/GPU)"}};
  file["sources"]["notes"] = {{"title", "notes"}, {"cluster", nullptr}};
  file["runs"] = rows;
  return file.dump();
}
inline PublishedRuns runs_of(const std::vector<Json>& rows) { return parse_published_runs(file_of(rows), "runs.json"); }
inline PublishedRun run_of(const Json& row) { return runs_of({row}).runs.front(); }

}  // namespace lockstep::plan
