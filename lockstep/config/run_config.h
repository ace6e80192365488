// What a run is: every value a user can set, as plain structs with their defaults. Sections and members carry the names
// of the TOML keys: `[optimizer] lr` is `config.optimizer.lr`. fields.cpp declares range, unit and help of each;
// load.h reads them from files and overrides; check.h judges them together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/layer_words.h"

namespace lockstep::config {

// The words of an enum, which files use, stand behind it in the order of its values.
using Words = std::vector<std::string>;

enum class Precision { kFp32, kBf16 };  // of forward and backward; master weights and sums are fp32 always
inline Words choices_of(Precision) { return {"fp32", "bf16"}; }
constexpr int64_t bytes_of(Precision precision) { return precision == Precision::kBf16 ? 2 : 4; }  // an element

enum class Device { kCpu, kCuda };
inline Words choices_of(Device) { return {"cpu", "cuda"}; }
enum class LrSchedule { kCosine, kLinear, kWsd, kConstant };  // after the warm-up
inline Words choices_of(LrSchedule) { return {"cosine", "linear", "wsd", "constant"}; }

enum class DataParallel { kRing, kParameterServer };
inline Words choices_of(DataParallel) { return {"ring", "parameter_server"}; }
enum class NonFinite { kStop, kSkip };  // what a step does whose gradient is not finite
inline Words choices_of(NonFinite) { return {"stop", "skip"}; }

enum class Backend { kAuto, kSharedMemory, kMpi, kNccl };  // what carries the ranks' messages; launch/backend_choice.h resolves kAuto
inline Words choices_of(Backend) { return {"auto", "shared_memory", "mpi", "nccl"}; }

enum class PostValidation { kAuto, kOn, kOff };
inline Words choices_of(PostValidation) { return {"auto", "on", "off"}; }

// So many words at the end of an enum's are not for users: a field refuses them.
template <typename T>
inline constexpr size_t kWordsWithin = 0;

// The words are ids of arch/optimizer.h. One of whole matrices has AdamW beside it for the rest. kBalance is that of the bias of a
// router with balance = "bias", and of nothing else.
enum class OptimizerKind { kAdamW, kMuon, kBalance };
inline Words choices_of(OptimizerKind) { return {"adamw", "muon", "balance"}; }
template <>
inline constexpr size_t kWordsWithin<OptimizerKind> = 1;

// What Muon's learning rate is multiplied with, for a matrix of rows x columns.
enum class MuonScale {
  kOriginal,       // sqrt(max(1, rows / columns))
  kMatchRmsAdamW,  // 0.2 sqrt(max(rows, columns)): updates as large as AdamW's (Liu et al., Muon is Scalable for LLM Training, 2025)
};
inline Words choices_of(MuonScale) { return {"original", "match_rms_adamw"}; }

// Where the norms of a block's branches stand: x + f(norm(x)), x + norm(f(x)) (OLMo 2), x + norm(f(norm(x))) (Gemma 2).
enum class NormPlace { kBefore, kBehind, kBoth };
inline Words choices_of(NormPlace) { return {"before", "behind", "both"}; }

// The MLP reads the sum behind attention, or the same x as attention: by one norm (GPT-J, PaLM), or each by its own (GPT-NeoX).
enum class BranchOrder { kSequential, kParallel, kParallelNorms };
inline Words choices_of(BranchOrder) { return {"sequential", "parallel", "parallel_norms"}; }

// What a parameter is in the model. Matrices are those of blocks; biases of norms are biases.
enum class ParameterClass { kMatrix, kEmbedding, kHead, kNorm, kBias, kRouter };
inline Words choices_of(ParameterClass) { return {"matrix", "embedding", "head", "norm", "bias", "router"}; }

// How a router scores experts and chooses the k of a token (model.experts_per_token). kSoftmax: the k largest of
// p = softmax(logits), weighted with p (Fedus et al. 2022, Switch Transformers). kSoftmaxAfterTopk: the k largest
// logits, weighted with the softmax over these alone (Jiang et al. 2024, Mixtral). kSigmoid: sigmoid scores, the chosen ones
// divided by their sum (DeepSeek-AI 2024, DeepSeek-V3). kExpertChoice: experts choose tokens (Zhou et al. 2022); the later tokens
// of a sequence take part in the choice of the earlier, so it trains and evaluates but does not generate.
enum class Router { kSoftmax, kSoftmaxAfterTopk, kSigmoid, kExpertChoice };
inline Words choices_of(Router) { return {"softmax", "softmax_after_topk", "sigmoid", "expert_choice"}; }

// Which tokens an expert keeps where more were sent to it than its capacity.
enum class Drop { kProbability, kPosition };  // those of greatest weight; the first of the sequence
inline Words choices_of(Drop) { return {"probability", "position"}; }

// The tokens whose counts the auxiliary loss and the capacity go by: those of each sequence, or the whole batch of the step before.
enum class MoeScope { kSequence, kLastStep };
inline Words choices_of(MoeScope) { return {"sequence", "last_step"}; }

// What keeps the load of the experts even: nothing; a loss (Shazeer et al. 2017; Lepikhin et al. 2021); a bias of the choice that
// follows the load, without a gradient (Wang et al. 2024, Auxiliary-Loss-Free Load Balancing).
enum class Balance { kNone, kAux, kBias };
inline Words choices_of(Balance) { return {"none", "aux", "bias"}; }

// How rows come to experts on other ranks and back: each where it is wanted; every row to every rank of ep x etp; one copy of a row to
// each node that wants it, and from there on to its ranks.
enum class Dispatcher { kAllToAll, kAllGather, kHierarchical };
inline Words choices_of(Dispatcher) { return {"all_to_all", "all_gather", "hierarchical"}; }

// Where keys and values of other tokens come from, where the ranks of cp hold parts of every sequence: they go round (Liu et al., Ring
// Attention, 2023); every rank gets all tokens of some heads (Jacobs et al., DeepSpeed Ulysses, 2023); all keys and values to every
// rank; or heads inside groups of context_inner ranks, and a ring across them (Fang and Zhao, USP, 2024).
enum class ContextKind { kRing, kAllToAll, kAllGather, k2d };
inline Words choices_of(ContextKind) { return {"ring", "all_to_all", "all_gather", "2d"}; }

// Which tokens of a sequence a rank of cp holds: of 2 cp pieces the r-th and the r-th from the end, so that each rank has as much of
// causal attention's work; or one piece.
enum class ContextSplit { kZigzag, kContiguous };
inline Words choices_of(ContextSplit) { return {"zigzag", "contiguous"}; }

// How documents become sequences: all tokens as one stream that is cut every seq_len; or whole documents, as many as fit.
enum class Pack { kStream, kDocuments };
inline Words choices_of(Pack) { return {"stream", "documents"}; }

enum class Offloaded { kOptimizer, kParameters, kActivations };  // what lives on the host
inline Words choices_of(Offloaded) { return {"optimizer", "parameters", "activations"}; }

// What of a block is computed again in backward instead of being kept (Chen et al. 2016; Korthikanti et al. 2022). In
// ascending order of work.
enum class Recompute {
  kNone,
  kSelective,  // norms, activations and pointwise work: GEMM and attention outputs are kept
  kFull,       // everything: the layer's input alone is kept
};
inline Words choices_of(Recompute) { return {"none", "selective", "full"}; }

// The order in which the ranks of a pipeline run their stages: program/passes/schedules.h. The last has a path.
enum class ScheduleKind { kNaive, kGPipe, kOneFOneB, kInterleaved, kZbH1, kZbH2, kZbV, kDualPipeV, kFile };
inline Words choices_of(ScheduleKind) {
  return {"naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "file"};
}
// The second half of the stages comes back over the ranks: the last stage is on the first rank. Else stage s is on rank
// s mod pp.
constexpr bool v_shaped(ScheduleKind kind) { return kind == ScheduleKind::kZbV || kind == ScheduleKind::kDualPipeV; }
// Which neighbours of a rank's list are of two microbatches that need not wait for each other, whatever the stages beside it do: a
// backward pass and the F behind it, or an F and the backward pass (zb-v: I, dualpipe-v: B) behind it. Where each F and each B of a
// pipeline is awaited by the next stage at once, as with 1f1b over several ranks, there are none: run together, both end later. Nor
// are there with fewer microbatches than ranks in a V: what comes back waits for what still goes down.
enum class Pairs { kNone, kBackwardFirst, kForwardFirst };
constexpr Pairs pairs_of(ScheduleKind kind, int pp, int64_t microbatches) {
  if (microbatches < 2) return Pairs::kNone;
  if (pp == 1) return kind == ScheduleKind::kOneFOneB ? Pairs::kBackwardFirst : Pairs::kNone;
  if (kind == ScheduleKind::kInterleaved) return Pairs::kBackwardFirst;
  return v_shaped(kind) && microbatches >= pp ? Pairs::kForwardFirst : Pairs::kNone;
}

// A schedule by name, or that of a CSV grid in a file.
struct PipelineSchedule {
  ScheduleKind kind = ScheduleKind::kOneFOneB;
  std::string file{};                 // kFile: its path
  std::optional<std::string> grid{};  // kFile: its text, once read_schedule() (check.h) has read it
  // As written: what the file holds follows from its path.
  bool operator==(const PipelineSchedule& other) const { return kind == other.kind && file == other.file; }
};

// How often: every so many steps, or every so many seconds of wall-clock time. Exactly one is set.
struct Interval {
  std::optional<int64_t> steps{};
  std::optional<double> seconds{};
  bool operator==(const Interval&) const = default;
};

// Wall-clock time.
struct Duration {
  double seconds = 0;
  bool operator==(const Duration&) const = default;
};

// Bytes of memory.
struct Bytes {
  int64_t count = 0;
  bool operator==(const Bytes&) const = default;
};

// Several values of an enum, in the order given.
template <typename T>
struct List {
  std::vector<T> list{};
  bool has(T value) const { return std::find(list.begin(), list.end(), value) != list.end(); }
  bool operator==(const List&) const = default;
};

// Several counts, in the order given.
struct Counts {
  std::vector<int> list{};
  bool operator==(const Counts&) const = default;
};

// The blocks of a model with experts that have an MLP instead, counted from 0: the first so many, or those of a list.
struct DenseLayers {
  std::optional<int> first{};
  std::vector<int> list{};  // where `first` is not set
  bool operator==(const DenseLayers&) const = default;
};

struct RunSection {
  std::string name = "run";
  std::string dir{};  // load_config fills runs/<name> where it is not given
  bool operator==(const RunSection&) const = default;
};

// A preset and what the user changes of it; arch/ makes the model of it. Unset = from the preset (vocab_size: from the
// preset, or else from the tokenizer).
struct ModelSection {
  std::string preset{};  // empty = none: the fields alone describe the model
  std::string from{};    // a model directory of Hugging Face (base/source.h), its sizes and its weights; empty = not given
  std::optional<std::string> family{};  // of arch/model_config.h: "gpt2"
  std::optional<int64_t> layers{};
  std::optional<int64_t> hidden{};
  std::optional<int64_t> heads{};
  std::optional<int64_t> kv_heads{};
  std::optional<int64_t> head_size{};
  std::optional<int64_t> ffn{};
  std::optional<int64_t> vocab_size{};
  std::optional<int64_t> max_seq_len{};
  std::optional<bool> tied{};
  std::optional<NormPlace> norm{};
  std::optional<BranchOrder> branches{};
  std::optional<double> norm_eps{};
  std::optional<double> rope_theta{};
  std::optional<double> dropout{};
  std::optional<int64_t> q_lora_rank{};        // latent attention; all five together
  std::optional<int64_t> kv_lora_rank{};
  std::optional<int64_t> qk_nope_head_dim{};   // of a head of q and k: without positions ...
  std::optional<int64_t> qk_rope_head_dim{};   // ... and with
  std::optional<int64_t> v_head_dim{};
  std::optional<int64_t> experts{};            // E of a block; unset = from the preset, or none. The other fields need them
  std::optional<int64_t> experts_per_token{};  // k
  std::optional<int64_t> expert_ffn{};
  std::optional<int64_t> shared_experts{};     // that every token goes through
  std::optional<DenseLayers> dense_layers{};
  std::optional<Router> router{};
  std::optional<int64_t> router_groups{};      // equal groups of neighbouring experts
  std::optional<int64_t> router_top_groups{};  // of which a token may go to so many
  std::optional<double> routed_scale{};        // of the weights of the experts that are chosen
  std::optional<std::string> mixers{};         // a letter of kMixers a layer, in turn; unset: attention in all
  std::optional<std::string> feed_forwards{};  // a letter of kFeedForwards a layer, in turn; unset: experts where there are any, else an MLP
  std::optional<int64_t> window{};             // tokens that a query sees: of layers W, or where mixers has none of all attention
  // Of state spaces, the layers M and H: the first three together; unset groups: 1; of the convolution and the chunks of the scan their tokens.
  std::optional<int64_t> state_heads{}, state_head_size{}, state_size{}, state_groups{}, state_convolution{}, state_chunk{};
  bool operator==(const ModelSection&) const = default;
};

// How the experts of a model are trained; with experts only. Capacity, auxiliary loss and the choice of an expert are over the
// tokens of one sequence each or over a whole batch, so none of them depends on the layout.
struct MoeSection {
  std::optional<double> capacity_factor{};  // an expert takes ceil(capacity_factor S k / E) tokens of a sequence; unset = all that come
  Drop drop = Drop::kProbability;           // with capacity_factor
  Balance balance = Balance::kAux;
  MoeScope scope = MoeScope::kSequence;
  double aux_coefficient = 0.01;  // with balance "aux"
  double z_coefficient = 0;       // of the square of logsumexp(logits) (Zoph et al. 2022, ST-MoE)
  double bias_rate = 0.001;       // with balance "bias": of a step
  // Beyond so many times the rows of balanced routing a layer runs in rounds; unset = a rank has room for the worst case.
  std::optional<double> imbalance_limit{};
  bool static_buffers = false;    // messages between ranks have the size of the bound, and no rank asks another for its counts
  bool operator==(const MoeSection&) const = default;
};

struct DataSection {
  std::string train{};       // prefix of a .bin/.idx pair; empty = not given
  std::string validation{};  // the same
  std::string tokenizer{};   // as base/source.h says
  bool shuffle = true;
  Pack pack = Pack::kStream;
  std::optional<bool> document_mask{};    // tokens see their own document alone; unset: with pack documents
  std::optional<bool> reset_positions{};  // positions count from the beginning of a document; unset: with document_mask
  bool masks_documents() const { return document_mask.value_or(pack == Pack::kDocuments); }
  bool resets_positions() const { return reset_positions.value_or(masks_documents()); }
  bool operator==(const DataSection&) const = default;
};

struct TrainSection {
  int64_t steps = 1000;
  int64_t seq_len = 256;      // tokens of a sequence
  int64_t global_batch = 32;  // sequences of an optimizer step, over all ranks
  int64_t micro_batch = 8;    // sequences of one forward pass of one rank
  int64_t seed = 1234;
  Precision precision = Precision::kFp32;
  Device device = Device::kCpu;
  int64_t eval_every = 100;   // steps; 0 = never
  int64_t eval_samples = 64;  // validation sequences of one evaluation, over all ranks
  int64_t log_every = 10;     // steps
  int threads = 0;            // compute threads of a rank; 0 = cores / ranks of this host
  NonFinite nonfinite = NonFinite::kStop;
  Duration comm_timeout{60};   // of every wait for another rank; then it counts as lost
  Duration join_timeout{300};  // of the wait for all ranks at the start
  int64_t check_replicas_every = 100;  // steps; 0 = only before a checkpoint
  bool operator==(const TrainSection&) const = default;
};

// How parameters are updated that a pattern and a class name: both where both are given. What is unset stays as it is without the rule.
struct OptimizerRule {
  std::string match{};  // of the whole name, * for any text; empty = any
  std::optional<ParameterClass> of{};
  std::optional<OptimizerKind> optimizer{};
  std::optional<double> lr{};     // factor of the learning rate
  std::optional<double> decay{};  // weight decay
  bool operator==(const OptimizerRule&) const = default;
};

// Of a parameter the first that names it.
struct OptimizerRules {
  std::vector<OptimizerRule> list{};
  bool operator==(const OptimizerRules&) const = default;
};

// Weight decay is decoupled, on parameters of two or more dimensions.
struct OptimizerSection {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 3e-4;             // the peak, reached after the warm-up
  double min_lr = 3e-5;         // at the last step; load_config fills lr / 10 where it is not given
  int64_t warmup_steps = 100;   // load_config lowers the default to steps / 10 in a short run
  LrSchedule schedule = LrSchedule::kCosine;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double max_grad_norm = 1.0;  // 0 = no clipping
  double momentum = 0.95;      // from here on of Muon
  bool nesterov = true;
  int ns_steps = 5;  // of the Newton-Schulz iteration, and its type
  Precision ns_precision = Precision::kBf16;
  MuonScale muon_scale = MuonScale::kMatchRmsAdamW;
  std::optional<double> muon_lr{};            // its peak; unset = lr
  std::optional<double> muon_weight_decay{};  // unset = weight_decay
  OptimizerRules rules{};
  double bias_rate = MoeSection{}.bias_rate;  // of kBalance; no key: program::make_layout puts [moe] bias_rate here
  bool operator==(const OptimizerSection&) const = default;
};

struct ParallelSection {
  int dp = 0;  // data-parallel ranks; 0 = as many as were started / tp
  int zero = 0;          // what data-parallel ranks share out: 1 optimizer state, 2 also gradients, 3 also parameters
  bool fsdp = false;     // the same as zero = 3
  int dp_replicate = 0;  // HSDP: groups that each hold all shards; 0 = dp / dp_shard
  int dp_shard = 0;      // ranks of such a group; 0 = dp / dp_replicate
  int prefetch = 1;      // zero 3: layers whose parameters are gathered ahead of their use
  Bytes prefetch_limit{int64_t{1} << 30};  // at most so many bytes of them wait for their layer
  bool reshard_after_forward = true;     // zero 3: drop a layer's gathered parameters until its backward
  bool reshard_after_microbatch = true;  // zero 3: drop them until the next microbatch
  Precision reduce_precision = Precision::kFp32;  // of gradients on the wire, with zero; sums are fp32 always
  int tp = 1;  // ranks that hold one copy of the model together, each a part of every layer
  int pp = 1;                       // pipeline ranks: stretches of layers
  PipelineSchedule schedule{};      // of a pipeline
  int virtual_stages = 0;           // stages of a pipeline rank; 0 = as the schedule has it: 2 interleaved, zb-v, dualpipe-v, else 1
  Counts layers_per_stage{};        // blocks of every stage; empty = balanced by cost
  PostValidation post_validation = PostValidation::kAuto;  // update ahead of the gradient norm, checked in the next step
  bool sequence_parallel = true;  // with tp: norms, dropout and sums of a layer are cut by rows
  bool row_groups = false;        // with tp: what every rank holds whole is summed over dp x tp, in buckets of its own
  int ep = 1;                     // ranks that share out the experts of a block, each whole ones
  int etp = 1;                    // ranks that share every expert, each a part of it; ep x etp divides the ranks of a stage
  Dispatcher dispatcher = Dispatcher::kAllToAll;
  int ranks_per_node = 0;         // of a hierarchical dispatcher: ranks r / ranks_per_node are on one node
  int cp = 1;                     // ranks that each hold a part of every sequence
  ContextKind context = ContextKind::kRing;
  int context_inner = 1;          // of context 2d: ranks that share out heads; divides cp
  ContextSplit context_split = ContextSplit::kZigzag;
  DataParallel data_parallel = DataParallel::kRing;
  double bucket_mib = 25;  // MiB of fp32 gradients reduced as one
  bool overlap = true;     // communicate while the backward pass goes on
  bool overlap_experts = false;  // tokens travel to experts and back beside the work of another microbatch
  Backend backend = Backend::kAuto;
  bool operator==(const ParallelSection&) const = default;
};

struct MemorySection {
  List<Recompute> recompute{{Recompute::kNone}};  // one value for all blocks, or one per block
  List<Offloaded> offload{};
  Bytes device_limit{0};    // of a rank; 0 = what there is
  Bytes host_limit{0};      // of what a rank offloads to the host; 0 = none
  std::string disk_path{};  // takes what the host has no room for; empty = nothing goes to disk
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  Interval every{.steps = std::nullopt, .seconds = 1800.0};
  int64_t keep = 3;             // the newest ones; 0 = all
  bool asynchronous = true;     // written by a thread beside the next steps
  Duration stall_timeout{600};  // of such a save without any progress
  std::string resume = "auto";  // where a run without checkpoints begins: "auto", "none" = from nothing; or a path
  bool operator==(const CheckpointSection&) const = default;
};

struct TraceSection {
  std::string steps{};  // "10" or "10-12": whose actions are timed; empty = none
  bool operator==(const TraceSection&) const = default;
};

struct RunConfig {
  RunSection run{};
  ModelSection model{};
  MoeSection moe{};
  DataSection data{};
  TrainSection train{};
  OptimizerSection optimizer{};
  ParallelSection parallel{};
  MemorySection memory{};
  CheckpointSection checkpoint{};
  TraceSection trace{};
  bool operator==(const RunConfig&) const = default;
};

}  // namespace lockstep::config
