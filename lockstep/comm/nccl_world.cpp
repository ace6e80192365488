#include "lockstep/comm/nccl_world.h"

#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <list>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/base/units.h"
#include "lockstep/comm/group.h"
#include "lockstep/comm/job_board.h"
#include "lockstep/comm/nccl_lane.h"
#include "lockstep/comm/nccl_verdict.h"
#include "lockstep/comm/socket_transport.h"

namespace lockstep::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLook{10};
constexpr milliseconds kBeat{1000};
constexpr milliseconds kSilence{2200};  // without a beat: the rank is stopped or lost

// The thread that looks after the groups of this rank.
class NcclWatch {
 public:
  NcclWatch(std::shared_ptr<JobBoard> board, std::shared_ptr<NcclVerdict> verdict, std::function<void()> begin)
      : board_(std::move(board)),
        verdict_(std::move(verdict)),
        thread_([this, begin = std::move(begin)] { run(begin); }) {}
  ~NcclWatch() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void add(const std::shared_ptr<NcclLane>& lane) {
    const std::lock_guard lock(mutex_);
    lanes_.push_back(lane);
  }

  // Why this rank must stop; none while all is well.
  std::optional<PeerLostError> stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

 private:
  void run(const std::function<void()>& begin) {
    try {
      begin();
      auto next_beat = steady_clock::now();
      std::unique_lock lock(mutex_);
      while (!ending_) {
        lock.unlock();
        look();
        if (steady_clock::now() >= next_beat) {
          beat();
          next_beat = steady_clock::now() + kBeat;
        }
        lock.lock();
        changed_.wait_for(lock, kLook, [this] { return ending_; });
      }
    } catch (const PeerLostError& error) {
      stop(error);  // the store has gone, and with it the rank that served it
    } catch (const std::exception& error) {
      stop(PeerLostError({.code = "LS3003", .what = cat("the watch over NCCL's calls ended: ", error.what())}));
    }
  }

  std::vector<std::shared_ptr<NcclLane>> lanes() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<NcclLane>> alive;
    std::erase_if(lanes_, [&](const std::weak_ptr<NcclLane>& lane) {
      auto locked = lane.lock();
      if (locked) alive.push_back(std::move(locked));
      return lane.expired();
    });
    return alive;
  }

  // One group that fails takes the others with it: this rank will not come to their calls either.
  void look() {
    const auto all = lanes();
    for (const auto& lane : all) lane->look();
    const std::exception_ptr problem = verdict_->failure();
    if (!problem) return;
    for (const auto& lane : all) lane->fail(problem);
  }

  void beat() {
    board_->publish();
    if (const auto aborted = board_->aborted())
      stop(PeerLostError({.code = "LS3003",
                          .what = cat("rank ", aborted->rank, " stopped the job:\n  ", aborted->reason)}));
  }

  void stop(const PeerLostError& error) {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      stopped_ = error;
    }
    const auto problem = std::make_exception_ptr(error);
    verdict_->fail(problem);
    for (const auto& lane : lanes()) lane->fail(problem);
  }

  std::shared_ptr<JobBoard> board_;
  std::shared_ptr<NcclVerdict> verdict_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<std::weak_ptr<NcclLane>> lanes_;
  std::optional<PeerLostError> stopped_;
  std::thread thread_;
};

// A communicator's view of its lane, which a group of one rank has not.
class NcclCalls : public NativeCollectives {
 public:
  NcclCalls(std::shared_ptr<NcclApi> api, std::shared_ptr<NcclVerdict> verdict, std::shared_ptr<NcclLane> lane)
      : api_(std::move(api)), verdict_(std::move(verdict)), lane_(std::move(lane)) {}
  ~NcclCalls() override {
    if (lane_) lane_->close();
  }
  bool takes(const at::Tensor& tensor) const override { return lane_ && api_->takes(tensor); }
  std::shared_ptr<NativeWork> start(NativeCall call) override { return lane_->start(std::move(call)); }
  void confirm() override { verdict_->confirm(); }

 private:
  std::shared_ptr<NcclApi> api_;
  std::shared_ptr<NcclVerdict> verdict_;
  std::shared_ptr<NcclLane> lane_;
};

class NcclWorld : public World {
 public:
  NcclWorld(int rank, int size, std::shared_ptr<Store> store, const NcclOptions& options, std::shared_ptr<NcclApi> api)
      : rank_(rank),
        size_(size),
        store_(std::move(store)),
        options_(options),
        api_(std::move(api)),
        board_(std::make_shared<JobBoard>(store_, rank)),
        verdict_(std::make_shared<NcclVerdict>(board_)),
        watch_(board_, verdict_, [api = api_, device = options.local_rank] { api->use_device(device); }) {
    board_->publish();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return "nccl"; }
  void abort(const std::string& reason) override { board_->abort(reason); }
  std::string startup() const override {
    return cat("nccl: ", joined_, joined_ == 1 ? " group" : " groups", " joined in ", format_duration(joining_seconds_), " (",
               api_->version(), ")");
  }

  std::unique_ptr<Communicator> communicator(const std::vector<int>& ranks, const std::string& axis) override {
    const int own = group_rank(axis, ranks, rank_, size_);
    const std::string name = group_name(axis, ranks);
    const std::string key = cat("group/", name, "#", made_[name]++);
    board_->set(name, {});
    const CommunicatorOptions given{.axis = axis, .ranks = ranks, .deadline = options_.deadline};
    auto transport = make_socket_transport(store_, host_group(name, key, ranks, own));
    auto calls = std::make_unique<NcclCalls>(api_, verdict_, ranks.size() == 1 ? nullptr : join_lane(key, ranks, own, name));
    return std::make_unique<Communicator>(std::move(transport), std::move(calls), given);
  }

 private:
  std::shared_ptr<NcclLane> join_lane(const std::string& key, const std::vector<int>& ranks, int own,
                                      const std::string& name) {
    const auto began = steady_clock::now();
    auto lane = std::make_shared<NcclLane>(begin_group(key, ranks, own), board_, verdict_,
                                           NcclLaneOptions{.name = name, .ranks = ranks, .deadline = options_.deadline});
    board_->publish();  // peers that wait for us see that we have made the group
    watch_.add(lane);
    lane->join();
    joining_seconds_ += std::chrono::duration<double>(steady_clock::now() - began).count();
    ++joined_;
    return lane;
  }

  SocketGroup host_group(const std::string& name, const std::string& key, const std::vector<int>& ranks, int own) {
    return {.name = name,
            .key = key,
            .ranks = ranks,
            .rank = own,
            .address = options_.address,
            .token = options_.token,
            .report = [board = board_, name](int rank) { return board->report(rank, name); },
            .missing = [this](const Waiting& first) { return missing(first); },
            .stopped = [this] { return watch_.stopped(); },
            .note = [board = board_, name](const Progress& progress) { board->set(name, progress); },
            .note_wait = [board = board_, name](int waits_for) { board->set_wait(name, waits_for); },
            .note_awaiting = [board = board_, name](int change) { board->add_awaiting(name, change); }};
  }

  // Looks first whose notes still change: a rank that is stopped says for ever for whom it waits.
  Missing missing(const Waiting& first) {
    const auto beats = [this] {
      std::map<int, int64_t> all;
      for (int rank = 0; rank < size_; ++rank) all[rank] = board_->beat(rank);
      return all;
    };
    const std::map<int, int64_t> before = beats();
    for (const auto until = steady_clock::now() + kSilence; steady_clock::now() < until; std::this_thread::sleep_for(kLook))
      if (const auto problem = watch_.stopped()) throw *problem;
    std::set<int> silent;
    for (const auto& [rank, beat] : beats())
      if (rank != rank_ && beat == before.at(rank)) silent.insert(rank);
    return follow_on_board(*board_, first, silent);
  }

  // Its first member draws the id of a group and leaves it in the store.
  std::unique_ptr<NcclGroup> begin_group(const std::string& key, const std::vector<int>& ranks, int own) {
    const std::string place = cat(key, "/id");
    if (own == 0) store_->set(place, api_->unique_id());
    const auto until = steady_clock::now() + options_.deadline;
    while (!store_->has(place)) {
      if (const auto problem = watch_.stopped()) throw *problem;
      if (steady_clock::now() > until) throw never_came(key, ranks);
      std::this_thread::sleep_for(kLook);
    }
    const std::string id = store_->get(place, options_.deadline);
    try {
      return api_->begin_group(id, own, static_cast<int>(ranks.size()));
    } catch (const NcclFailure& failure) {
      std::rethrow_exception(nccl_problem(failure, cat("making group ", key)));
    }
  }

  PeerLostError never_came(const std::string& key, const std::vector<int>& ranks) {
    const MemberReport lost = board_->report(ranks[0], key);
    return lost_member(lost, {.rank = rank_, .call = "the making"}, key,
                       std::chrono::duration<double>(options_.deadline).count());
  }

  const int rank_;
  const int size_;
  std::shared_ptr<Store> store_;
  NcclOptions options_;
  std::shared_ptr<NcclApi> api_;
  std::shared_ptr<JobBoard> board_;
  std::shared_ptr<NcclVerdict> verdict_;
  NcclWatch watch_;
  std::map<std::string, int> made_;  // groups made of the same ranks and axis: tells the second from the first
  int joined_ = 0;                   // groups of several ranks
  double joining_seconds_ = 0;       // waiting for their other ranks included
};

}  // namespace

std::unique_ptr<NcclApi> load_nccl() {
  Dl_info own{};
  std::filesystem::path folder = ".";
  if (dladdr(reinterpret_cast<const void*>(&load_nccl), &own) && own.dli_fname)
    folder = std::filesystem::weakly_canonical(own.dli_fname).parent_path();
  const std::filesystem::path file = folder / "liblockstep_nccl.so";
  if (!std::filesystem::exists(file))
    throw EnvironmentError({.code = "LS3040",
                            .what = cat("backend nccl is not built: no ", file.string()),
                            .way_out = "build with the preset cuda, against a CUDA build of PyTorch"});
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays loaded until the process ends
  void* function = library ? dlsym(library, kNcclFactory) : nullptr;
  if (!function)
    throw EnvironmentError({.code = "LS3040",
                            .what = cat(file.string(), " does not load: ", dlerror()),
                            .way_out = "the CUDA and NCCL libraries of the build must be found at run time"});
  return std::unique_ptr<NcclApi>(reinterpret_cast<NcclFactory*>(function)());
}

std::unique_ptr<World> join_nccl(int rank, int world_size, std::shared_ptr<Store> store, const NcclOptions& options) {
  return join_nccl(rank, world_size, std::move(store), options, load_nccl());
}

std::unique_ptr<World> join_nccl(int rank, int world_size, std::shared_ptr<Store> store, const NcclOptions& options,
                                 std::unique_ptr<NcclApi> api) {
  try {
    const int devices = api->devices();
    if (options.local_rank >= devices)
      throw EnvironmentError({.code = "LS3041",
                              .what = cat("rank ", rank, " is rank ", options.local_rank, " of this host, which has ",
                                          devices, devices == 1 ? " GPU" : " GPUs"),
                              .way_out = "start as many ranks on a host as it has GPUs, or share them with "
                                         "parallel.backend = \"shared_memory\" (on one host) or \"mpi\""});
    api->use_device(options.local_rank);
  } catch (const NcclFailure& failure) {
    std::rethrow_exception(nccl_problem(failure, cat("the start of rank ", rank)));
  }
  return std::make_unique<NcclWorld>(rank, world_size, std::move(store), options, std::move(api));
}

}  // namespace lockstep::comm
