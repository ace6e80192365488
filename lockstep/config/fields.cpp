#include "lockstep/config/fields.h"

#include "lockstep/base/text.h"
#include "lockstep/config/values.h"

namespace lockstep::config {
namespace {

// Declares the fields of one section.
template <typename SectionType>
class Declare {
 public:
  Declare(std::vector<Section>& table, std::string name, SectionType RunConfig::*section, std::string help)
      : table_(table), section_(section) {
    table_.push_back({.name = std::move(name), .help = std::move(help), .fields = {}});
  }

  template <typename T>
  Declare& field(std::string name, T SectionType::*member, Rule rule, std::string help) {
    Section& target = table_.back();
    const std::string key = target.name + "." + name;
    target.fields.push_back({
        .section = target.name,
        .name = std::move(name),
        .type = type_text<T>(rule),
        .unit = rule.unit,
        .help = std::move(help),
        .is_text = kIsText<T>,
        .of_tables = std::is_same_v<T, OptimizerRules>,
        .print = [section = section_, member](const RunConfig& config) { return print_value(config.*section.*member); },
        .assign = [section = section_, member, rule, key](RunConfig& config, const Value& value) {
          return read_value(key, value, rule, config.*section.*member);
        },
        .reset = [section = section_, member](RunConfig& config) {
          const RunConfig unset;
          config.*section.*member = unset.*section.*member;
        },
    });
    return *this;
  }

  // The field declared last may have another value on each rank: why.
  Declare& may_differ(std::string reason) {
    table_.back().fields.back().may_differ = std::move(reason);
    return *this;
  }

 private:
  std::vector<Section>& table_;
  SectionType RunConfig::*section_;
};

std::vector<Section> declare_sections() {
  const Rule any{};
  const Rule zero_or_more{.least = 0};
  const Rule one_or_more{.least = 1};
  const Rule positive{.least = 0, .open_below = true};
  const Rule fraction{.least = 0, .below = 1};
  // Files are compared by what they hold, wherever a host has them.
  const std::string own_copy = "each host may have its own copy; what it holds is compared";
  const auto counted = [](double least, std::string unit) { return Rule{.least = least, .unit = std::move(unit)}; };
  const auto bounded = [](double least, double below, std::string unit = "") {
    return Rule{.least = least, .below = below, .unit = std::move(unit)};
  };
  std::vector<Section> table;

  Declare(table, "run", &RunConfig::run, "What the run is called and where its files go.")
      .field("name", &RunSection::name, any, "names the run directory")
      .field("dir", &RunSection::dir, any, "the run directory; runs/<name> where not given");

  Declare(table, "model", &RunConfig::model, "A preset, and what is changed of it. Unset = from the preset.")
      .field("preset", &ModelSection::preset, any, "a built-in model: gpt2-124m, gpt2-10m, llama-15m, gpt2-test, ...")
      .field("from", &ModelSection::from, any,
             "sizes and weights of a Hugging Face model directory: DIR, hf:DIR or a file in it; beside it only dropout and max_seq_len")
      .may_differ(own_copy)
      .field("family", &ModelSection::family, {.choices = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_neox", "phi3", "olmo2", "olmo3", "smollm3",
                          "gemma3_text", "mamba2", "bamba", "nemotron_h", "gpt_oss"}},
             "norms, positions, biases and the MLP of all layers")
      .field("layers", &ModelSection::layers, one_or_more, "transformer blocks")
      .field("hidden", &ModelSection::hidden, one_or_more, "width D of the residual stream")
      .field("heads", &ModelSection::heads, one_or_more, "query heads H")
      .field("kv_heads", &ModelSection::kv_heads, one_or_more, "key/value heads; must divide heads")
      .field("head_size", &ModelSection::head_size, one_or_more, "width K of a head; hidden / heads where not given")
      .field("ffn", &ModelSection::ffn, one_or_more, "width F of the feed-forward layer")
      .field("vocab_size", &ModelSection::vocab_size, one_or_more, "tokens V of the vocabulary")
      .field("max_seq_len", &ModelSection::max_seq_len, counted(1, "tokens"), "longest sequence the model can read")
      .field("tied", &ModelSection::tied, any, "the output head is the token embedding")
      .field("norm", &ModelSection::norm, any,
             "before: x + f(norm(x)), behind: x + norm(f(x)), both: x + norm(f(norm(x))); before where not given")
      .field("branches", &ModelSection::branches, any,
             "the MLP reads the sum with attention, or x as attention does: parallel by one norm, parallel_norms by its own; "
             "sequential where not given")
      .field("norm_eps", &ModelSection::norm_eps, positive, "epsilon of LayerNorm or RMSNorm")
      .field("rope_theta", &ModelSection::rope_theta, positive, "base of the rotary positions (all families but gpt2)")
      .field("dropout", &ModelSection::dropout, fraction, "probability of dropping an activation in training")
      .field("q_lora_rank", &ModelSection::q_lora_rank, one_or_more,
             "width of the latent that queries are made of: attention is multi-head latent attention; needs the four keys below")
      .field("kv_lora_rank", &ModelSection::kv_lora_rank, one_or_more, "width of the latent that keys and values are made of, and that generation caches")
      .field("qk_nope_head_dim", &ModelSection::qk_nope_head_dim, one_or_more, "width of a query and key head without positions")
      .field("qk_rope_head_dim", &ModelSection::qk_rope_head_dim, one_or_more, "further width with rotary positions, of a key that all heads share; even")
      .field("v_head_dim", &ModelSection::v_head_dim, one_or_more, "width of a value head")
      .field("experts", &ModelSection::experts, one_or_more, "experts E of a block, in the place of its MLP; the keys below need them")
      .field("experts_per_token", &ModelSection::experts_per_token, one_or_more, "experts k that a token is sent to; 2 where not given")
      .field("expert_ffn", &ModelSection::expert_ffn, one_or_more, "width F of an expert; ffn where not given")
      .field("shared_experts", &ModelSection::shared_experts, zero_or_more, "further experts that every token goes through, as one of so many times the width")
      .field("dense_layers", &ModelSection::dense_layers, zero_or_more,
             "blocks that have an MLP, not experts: the first so many, or a list that counts from 0")
      .field("router", &ModelSection::router, any,
             "a token goes to the k largest of softmax(logits), weighted with these; of the logits, weighted with their softmax; of "
             "sigmoid(logits), weighted in proportion; or each expert takes its best tokens of a sequence, which cannot generate; "
             "softmax_after_topk where not given")
      .field("router_groups", &ModelSection::router_groups, one_or_more, "equal groups of experts, ranked by their two best scores; 1 where not given")
      .field("router_top_groups", &ModelSection::router_top_groups, one_or_more,
             "best groups of which a token may choose; all where not given")
      .field("routed_scale", &ModelSection::routed_scale, positive, "factor of the weights of chosen experts; 1 where not given")
      .field("mixers", &ModelSection::mixers, any,
             "a letter for each layer, repeated in turn: M state space (Mamba-2), A attention to all tokens before, W attention within window, "
             "N attention without rotary positions, H a state space and attention beside each other behind one norm, - none; A where not given")
      .field("feed_forwards", &ModelSection::feed_forwards, any,
             "a letter for each layer, repeated in turn: D an MLP, E experts, - none; where not given E in models with experts, but for "
             "dense_layers, else D")
      .field("window", &ModelSection::window, counted(1, "tokens"),
             "how many tokens a query sees, itself included: in the layers W of mixers, and where it has none in all attention")
      .field("state_heads", &ModelSection::state_heads, one_or_more, "heads of a state space; layers M and H need this and the next two keys")
      .field("state_head_size", &ModelSection::state_head_size, one_or_more, "width P of such a head")
      .field("state_size", &ModelSection::state_size, one_or_more, "numbers N of state for each of these")
      .field("state_groups", &ModelSection::state_groups, one_or_more, "groups of heads that share B and C; divides state_heads; 1 where not given")
      .field("state_convolution", &ModelSection::state_convolution, counted(2, "tokens"),
             "tokens that the convolution ahead of the scan sees; 4 where not given")
      .field("state_chunk", &ModelSection::state_chunk, counted(1, "tokens"),
             "chunk of the scan: its results do not depend on it, its speed does; 256 where not given");

  Declare(table, "moe", &RunConfig::moe,
          "How experts are trained. Capacity and balance are judged by sequence or by the last batch: no layout changes them.")
      .field("capacity_factor", &MoeSection::capacity_factor, {.least = 0, .below = 1e9, .open_below = true},
             "an expert takes at most this * k * seq_len / E tokens of a sequence, rounded up; unset = all that are sent to it")
      .field("drop", &MoeSection::drop, any, "with capacity_factor: an expert keeps the tokens of greatest weight, or the first ones")
      .field("balance", &MoeSection::balance, any,
             "aux: a loss on uneven load; bias: a bias of the choice goes up where the load is low; expert_choice needs none")
      .field("scope", &MoeSection::scope, any,
             "what capacity and the loss of balance aux go by: the load of experts within each sequence, or that of the whole last step")
      .field("aux_coefficient", &MoeSection::aux_coefficient, zero_or_more, "with balance aux: weight of that loss")
      .field("z_coefficient", &MoeSection::z_coefficient, zero_or_more, "weight of the squared logsumexp of a router's logits; 0 = off")
      .field("bias_rate", &MoeSection::bias_rate, positive, "with balance bias: how far a step moves it")
      .field("imbalance_limit", &MoeSection::imbalance_limit, {.least = 1, .below = 1e9},
             "a rank has room for this times the rows that balanced routing sends it; where more come the layer runs in rounds; unset = "
             "room for the worst case")
      .field("static_buffers", &MoeSection::static_buffers, any,
             "messages to experts have the size of the worst case, or of capacity_factor, and no rank asks for the counts of others");

  Declare(table, "data", &RunConfig::data, "What is trained on. Paths are relative to the working directory.")
      .field("train", &DataSection::train, any, "prefix of the .bin/.idx pair of training tokens")
      .may_differ(own_copy)
      .field("validation", &DataSection::validation, any, "prefix of the .bin/.idx pair that is held out")
      .may_differ(own_copy)
      .field("tokenizer", &DataSection::tokenizer, any, "what made the tokens: a tokenizer.json, its directory or hf:DIR")
      .may_differ(own_copy)
      .field("shuffle", &DataSection::shuffle, any,
             "sample i is drawn by (seed, i); false = in the order of the files")
      .field("pack", &DataSection::pack, any,
             "stream: the tokens of all documents, cut every seq_len; documents: whole ones, as many as fit into a sequence")
      .field("document_mask", &DataSection::document_mask, any,
             "a token sees those of its own document alone; unset = with pack documents")
      .field("reset_positions", &DataSection::reset_positions, any,
             "positions count from the beginning of each document; unset = with document_mask");

  Declare(table, "train", &RunConfig::train, "The loop.")
      .field("steps", &TrainSection::steps, counted(1, "steps"), "optimizer steps to train")
      .field("seq_len", &TrainSection::seq_len, bounded(1, kSizesBelow, "tokens"),
             "length S of a sequence; where not given at most what the model can read")
      .field("global_batch", &TrainSection::global_batch, bounded(1, kSizesBelow, "sequences"),
             "batch of one step, over all ranks; where not given the first from 32 on that the ranks share evenly")
      .field("micro_batch", &TrainSection::micro_batch, bounded(1, kSizesBelow, "sequences"),
             "batch of one forward pass of one rank; where not given the largest up to 8 that fits global_batch")
      .field("seed", &TrainSection::seed, zero_or_more, "of initial values, data order and dropout")
      .field("precision", &TrainSection::precision, any, "of forward and backward; master weights are fp32")
      .field("device", &TrainSection::device, any, "where a rank computes")
      .field("eval_every", &TrainSection::eval_every, counted(0, "steps"), "between validation losses; 0 = never")
      .field("eval_samples", &TrainSection::eval_samples, bounded(1, kSizesBelow, "sequences"),
             "of one validation loss, over all ranks")
      .field("log_every", &TrainSection::log_every, counted(1, "steps"), "between lines of metrics")
      .field("threads", &TrainSection::threads, bounded(0, 1 << 16),
             "compute threads of a rank; 0 = cores / ranks of the host")
      .may_differ("hosts have different numbers of cores")
      .field("nonfinite", &TrainSection::nonfinite, any,
             "where a gradient is not finite: stop, or skip the step on all ranks and go on with the next batch")
      .field("comm_timeout", &TrainSection::comm_timeout, {.least = 0, .below = 1e9, .open_below = true},
             "longest wait for another rank; then it is lost")
      .field("join_timeout", &TrainSection::join_timeout, {.least = 0, .below = 1e9, .open_below = true},
             "longest wait for all ranks at the start, where another launcher starts them")
      .field("check_replicas_every", &TrainSection::check_replicas_every, counted(0, "steps"),
             "between comparisons of what ranks must hold alike; 0 = only before each checkpoint");

  Declare(table, "optimizer", &RunConfig::optimizer,
          "How parameters are updated; weight decay is decoupled, and on those of two or more dimensions.")
      .field("kind", &OptimizerSection::kind, any, "muon = of the matrices of blocks; AdamW of embeddings, head, norms and biases")
      .field("lr", &OptimizerSection::lr, positive, "peak learning rate")
      .field("min_lr", &OptimizerSection::min_lr, zero_or_more,
             "learning rate at the last step; lr / 10 where not given")
      .field("warmup_steps", &OptimizerSection::warmup_steps, counted(0, "steps"),
             "linear from 0 to lr; at most steps / 10 where not given")
      .field("schedule", &OptimizerSection::schedule, any, "the way from lr to min_lr")
      .field("weight_decay", &OptimizerSection::weight_decay, zero_or_more,
             "a step shrinks these parameters by lr * this")
      .field("beta1", &OptimizerSection::beta1, fraction, "decay of the first moment")
      .field("beta2", &OptimizerSection::beta2, fraction, "decay of the second moment")
      .field("eps", &OptimizerSection::eps, positive, "added to the root of the second moment")
      .field("max_grad_norm", &OptimizerSection::max_grad_norm, zero_or_more, "clip the global norm to this; 0 = off")
      .field("momentum", &OptimizerSection::momentum, fraction, "of Muon: decay of the running mean of gradients")
      .field("nesterov", &OptimizerSection::nesterov, any, "of Muon: the gradient counts once more beside the mean")
      .field("ns_steps", &OptimizerSection::ns_steps, bounded(1, 100), "of Muon: Newton-Schulz iterations of a step")
      .field("ns_precision", &OptimizerSection::ns_precision, any, "of Muon: what these compute in, and what travels for them")
      .field("muon_scale", &OptimizerSection::muon_scale, any,
             "of Muon: factor of the learning rate, sqrt(max(1, rows / columns)) or 0.2 sqrt(max(rows, columns))")
      .field("muon_lr", &OptimizerSection::muon_lr, positive, "of Muon: peak learning rate, on the same way as lr; lr where not given")
      .field("muon_weight_decay", &OptimizerSection::muon_weight_decay, zero_or_more, "of Muon: weight_decay where not given")
      .field("rules", &OptimizerSection::rules, any,
             "exceptions, the first that names a parameter counts: [[optimizer.rules]] with match (a name, * for any text) or class "
             "(matrix, embedding, head, norm, bias, router), and optimizer, lr (a factor) or decay");

  const Rule ranks_or_zero = bounded(0, kMostRanks + 1);
  Declare(table, "parallel", &RunConfig::parallel, "The layout: the product of the axes is the number of ranks.")
      .field("dp", &ParallelSection::dp, ranks_or_zero, "data-parallel ranks; 0 = all that were started / (tp * cp * pp)")
      .field("zero", &ParallelSection::zero, {.least = 0, .below = 4},
             "what data-parallel ranks share out: 1 optimizer state, 2 also gradients, 3 also parameters")
      .field("fsdp", &ParallelSection::fsdp, any, "the same as zero = 3")
      .field("dp_replicate", &ParallelSection::dp_replicate, ranks_or_zero,
             "HSDP: groups that each hold all shards; 0 = dp / dp_shard")
      .field("dp_shard", &ParallelSection::dp_shard, ranks_or_zero,
             "ranks among which states are shared out; 0 = dp / dp_replicate with zero, else 1")
      .field("prefetch", &ParallelSection::prefetch, bounded(0, 1 << 16, "layers"),
             "with zero 3: how far ahead of their use parameters are gathered")
      .field("prefetch_limit", &ParallelSection::prefetch_limit, zero_or_more,
             "most bytes of gathered parameters that wait for their layer")
      .field("reshard_after_forward", &ParallelSection::reshard_after_forward, any,
             "with zero 3: drop gathered parameters after forward, gather them again for backward")
      .field("reshard_after_microbatch", &ParallelSection::reshard_after_microbatch, any,
             "with zero 3: drop gathered parameters after each microbatch")
      .field("reduce_precision", &ParallelSection::reduce_precision, any,
             "with zero: of gradients on their way to the owner of a shard; they are summed in fp32 always")
      .field("tp", &ParallelSection::tp, bounded(1, kMostRanks + 1, "ranks"), "ranks that share one copy of the model, cut inside every layer")
      .field("pp", &ParallelSection::pp, bounded(1, kMostRanks + 1, "ranks"), "pipeline ranks: each holds one or several stretches of layers")
      .field("schedule", &ParallelSection::schedule, any,
             "order in which a pipeline runs its stages; file:PATH = the one of a CSV grid")
      .field("virtual_stages", &ParallelSection::virtual_stages, bounded(0, 1 << 16),
             "stages of a pipeline rank; 0 = 2 with interleaved, zb-v and dualpipe-v, with file:PATH those of the grid, else 1")
      .field("layers_per_stage", &ParallelSection::layers_per_stage, zero_or_more,
             "blocks of every stage, in order; empty = balanced by cost")
      .field("post_validation", &ParallelSection::post_validation, any,
             "of a pipeline: update before the gradient norm of all stages is known, take it back where it had to be clipped; "
             "auto = with zb-h2 and zb-v where nothing speaks against it")
      .field("sequence_parallel", &ParallelSection::sequence_parallel, any,
             "with tp: norms, dropout and residual sums act on 1/tp of the rows")
      .field("row_groups", &ParallelSection::row_groups, any,
             "with tp: norms and biases that every rank holds whole, but applies to its own rows or heads, are parameter groups of "
             "their own, summed over dp x tp during backward and shared out over tp too; otherwise one call sums them over tp at the end")
      .field("ep", &ParallelSection::ep, bounded(1, kMostRanks + 1, "ranks"),
             "ranks that share out the experts of a block; ep * etp divides dp * cp * tp, over whose ranks they lie")
      .field("etp", &ParallelSection::etp, bounded(1, kMostRanks + 1, "ranks"), "ranks that share each expert, cut as tp cuts an MLP")
      .field("dispatcher", &ParallelSection::dispatcher, any,
             "how tokens come to experts on other ranks: each to its ranks; all to all ranks; or one copy to a node, forwarded inside it")
      .field("ranks_per_node", &ParallelSection::ranks_per_node, ranks_or_zero,
             "with dispatcher hierarchical: neighbouring ranks on one node; divides ep * etp")
      .field("cp", &ParallelSection::cp, bounded(1, kMostRanks + 1, "ranks"), "ranks that each hold a part of every sequence")
      .field("context", &ParallelSection::context, any,
             "with cp: keys and values go round; heads are exchanged for tokens; keys and values are gathered; or heads inside "
             "context_inner ranks and a ring across them")
      .field("context_inner", &ParallelSection::context_inner, bounded(1, kMostRanks + 1, "ranks"),
             "with context 2d: ranks that exchange heads for tokens; divides cp")
      .field("context_split", &ParallelSection::context_split, any,
             "with cp: a rank holds an early and a late piece of a sequence, equal work of causal attention, or one piece")
      .field("data_parallel", &ParallelSection::data_parallel, any, "how gradients are summed")
      .field("bucket_mib", &ParallelSection::bucket_mib, {.least = 0, .below = 1e9, .open_below = true, .unit = "MiB"},
             "gradients reduced as one")
      .field("overlap", &ParallelSection::overlap, any, "communicate while the backward pass goes on")
      .field("overlap_experts", &ParallelSection::overlap_experts, any,
             "divide blocks of experts where tokens leave the rank and come back, and run F of one microbatch beside backward of another; "
             "with interleaved, zb-v, dualpipe-v, or without pipeline")
      .field("backend", &ParallelSection::backend, any,
             "what carries messages; auto = nccl on GPUs, shared_memory on one host, mpi on several under mpirun");

  Declare(table, "memory", &RunConfig::memory, "What a rank keeps, and where.")
      .field("recompute", &MemorySection::recompute, any,
             "what backward computes again instead of keeping it; one word for all blocks or one for each")
      .field("offload", &MemorySection::offload, any, "what lives on the host and comes to the device for its use")
      .field("device_limit", &MemorySection::device_limit, zero_or_more,
             "most memory of a rank's device; 0 = what there is")
      .field("host_limit", &MemorySection::host_limit, zero_or_more,
             "most host memory of what a rank offloads; 0 = what there is")
      .field("disk_path", &MemorySection::disk_path, any,
             "folder that takes what is offloaded beyond host_limit; empty = nothing")
      .may_differ("each host has a disk of its own");

  Declare(table, "checkpoint", &RunConfig::checkpoint, "When to save, and where to start from.")
      .field("every", &CheckpointSection::every, zero_or_more, "steps, or a duration as \"30min\"; 0 = at the end only")
      .field("keep", &CheckpointSection::keep, zero_or_more, "newest checkpoints to keep; 0 = all")
      .field("asynchronous", &CheckpointSection::asynchronous, any, "written beside the next steps, from a copy in memory")
      .field("stall_timeout", &CheckpointSection::stall_timeout, {.least = 0, .below = 1e9, .open_below = true},
             "longest time without progress of such a save; then the run stops")
      .field("resume", &CheckpointSection::resume, any,
             "where a run without checkpoints of its own begins: from nothing (\"auto\", \"none\") or at a path; one with them goes on "
             "from its newest whole one; the path of one of its own steps goes back to it, once");

  Declare(table, "trace", &RunConfig::trace, "What a step spends its time on, action by action.")
      .field("steps", &TraceSection::steps, any,
             "\"10\" or \"10-12\": their actions are timed, RUN/report.html draws the last of them; empty = none");
  return table;
}

std::vector<std::string> names_in(const Section& section) {
  std::vector<std::string> names;
  for (const Field& field : section.fields) names.push_back(field.name);
  return names;
}

const Section* find_section(std::string_view name) {
  for (const Section& section : sections()) {
    if (section.name == name) return &section;
  }
  return nullptr;
}

}  // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> table = declare_sections();
  return table;
}

const Field* find_field(std::string_view key) {
  const size_t dot = std::min(key.find('.'), key.size());
  return find_field(key.substr(0, dot), key.substr(std::min(dot + 1, key.size())));
}

const Field* find_field(std::string_view section, std::string_view name) {
  if (const Section* found = find_section(section)) {
    for (const Field& field : found->fields) {
      if (field.name == name) return &field;
    }
  }
  return nullptr;
}

Complaint unknown_section(const std::string& section) {
  std::vector<std::string> names;
  for (const Section& known : sections()) names.push_back(known.name);
  const std::string near = nearest(section, names);
  return {.code = "LS1041",
          .what = cat("unknown section '", section, "'"),
          .hint = near.empty() ? "the sections are " + join(names, ", ") : cat("did you mean '", near, "'?")};
}

Complaint unknown_key(const std::string& section, const std::string& name) {
  const Section* found = find_section(section);
  if (!found) return unknown_section(section);
  std::string near = nearest(name, names_in(*found));
  if (!near.empty()) near = section + "." + near;
  for (const Section& other : sections()) {
    if (find_field(other.name, name)) near = other.name + "." + name;
  }
  return {.code = "LS1042",
          .what = cat("unknown key '", section, ".", name, "'"),
          .hint = near.empty() ? cat("[", section, "] has ", join(names_in(*found), ", "))
                               : cat("did you mean '", near, "'?")};
}

Value parse_value(const Field& field, const std::string& text) {
  const bool quoted = text.size() >= 2 && text.front() == '"' && text.back() == '"';
  if (quoted) return text.substr(1, text.size() - 2);
  if (field.is_text) return text;
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    std::vector<std::string> words;
    for (std::string word : split(text.substr(1, text.size() - 2), ',')) {
      std::erase_if(word, [](char c) { return c == '"' || c == ' '; });
      if (!word.empty()) words.push_back(std::move(word));
    }
    return words;
  }
  return parse_scalar(text);
}

}  // namespace lockstep::config
