#include "lockstep/comm/rendezvous.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{10000};          // of one attempt, once something listens
constexpr milliseconds kFarewell{5000};               // that the store outlives the meeting, for those who still look
constexpr milliseconds kShortest{5}, kLongest{200};  // between two looks

std::string waited(const RendezvousOptions& options) {
  return format_duration(std::chrono::duration<double>(options.deadline).count());
}

// Looks until `done`, ever more rarely; false when the deadline has passed.
template <typename Done>
bool look_until(Clock::time_point end, const Done& done) {
  for (milliseconds pause = kShortest;; pause = std::min(2 * pause, kLongest)) {
    if (done()) return true;
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(pause);
  }
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}
std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

class TcpStore : public Store {
 public:
  TcpStore(c10::intrusive_ptr<c10d::TCPStore> store, std::string place, std::string prefix)
      : store_(std::move(store)), place_(std::move(place)), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::string& value) override {
    guarded([&] { store_->set(prefix_ + key, bytes_of(value)); });
  }
  bool has(const std::string& key) override {
    return guarded([&] { return store_->check({prefix_ + key}); });
  }
  std::string get(const std::string& key, milliseconds deadline) override {
    if (!look_until(Clock::now() + deadline, [&] { return has(key); }))
      throw PeerLostError({.code = "LS3126",
                           .what = cat("'", key, "' did not appear in the store at ", place_, " within ",
                                       format_duration(std::chrono::duration<double>(deadline).count())),
                           .way_out = "another rank was to leave it there: its log may say why it did not"});
    return guarded([&] { return text_of(store_->get(prefix_ + key)); });
  }
  int64_t add(const std::string& key, int64_t amount) override {
    return guarded([&] { return store_->add(prefix_ + key, amount); });
  }
  // Sets a key that nobody has set; false where somebody has.
  bool claim(const std::string& key) {
    return guarded([&] { return store_->add(prefix_ + key, 1) == 1; });
  }

 private:
  template <typename Call>
  auto guarded(const Call& call) -> decltype(call()) {
    try {
      return call();
    } catch (const c10::Error& error) {
      throw PeerLostError({.code = "LS3127",
                           .what = cat("the store at ", place_, " does not answer: ", error.what_without_backtrace()),
                           .way_out = "rank 0, or torchrun's agent, serves it: its log may say why it ended"});
    }
  }

  c10::intrusive_ptr<c10d::TCPStore> store_;
  std::string place_;
  std::string prefix_;
};

c10::intrusive_ptr<c10d::TCPStore> connect_store(const RendezvousOptions& options, Clock::time_point end) {
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(options.place.port);
  tcp.waitWorkers = false;
  tcp.timeout = kConnectTime;
  if (options.serve) {
    // A stranger on the network must at least know the token's hash to be taken for a rank.
    if (options.token.empty() && options.listening_fd < 0 && !is_loopback(options.place))
      throw EnvironmentError(
          {.code = "LS3124",
           .what = cat("rank 0 would listen at ", options.place.text(), " on the network without a job token"),
           .way_out = "export LOCKSTEP_JOB_TOKEN, some secret text, the same for all ranks of this job"});
    const int listener = options.listening_fd >= 0 ? options.listening_fd : listen_at(options.place);
    tcp.isServer = true;
    tcp.port = static_cast<uint16_t>(port_of(listener));
    tcp.masterListenFd = listener;
  } else if (!look_until(end, [&] { return accepts_connections(options.place); })) {
    throw PeerLostError({.code = "LS3123",
                         .what = cat("rank 0 never came: nothing listens at ", options.place.text(), "; rank ",
                                     options.rank, " has waited ", waited(options)),
                         .way_out = cat("start all ", options.world_size, " ranks of the job")});
  }
  try {
    return c10::make_intrusive<c10d::TCPStore>(options.place.host, tcp);
  } catch (const c10::Error& error) {
    throw EnvironmentError(
        {.code = "LS3125",
         .what = cat("what listens at ", options.place.text(), " is no store: ", error.what_without_backtrace()),
         .way_out = "give the job a port of its own"});
  }
}

// Both sides say what job they are of: rank 0 first, the others compare.
void compare_jobs(TcpStore& hall, const RendezvousOptions& options, milliseconds left) {
  const std::string ours = cat(hash_text(hash64(options.token)), " ", options.world_size);
  if (options.rank == 0) return hall.set("job", ours);
  const std::string theirs = hall.get("job", left);
  if (theirs == ours) return;
  if (theirs.starts_with(hash_text(hash64(options.token))))
    throw ConfigError({.code = "LS3005",
                       .what = cat("rank ", options.rank, " was told of ", options.world_size, " ranks, rank 0 of ",
                                   theirs.substr(theirs.find(' ') + 1)),
                       .way_out = "start all ranks with the same world size"});
  throw EnvironmentError(
      {.code = "LS3124",
       .what = cat("rank ", options.rank, " brought another job token than rank 0 at ", options.place.text(), " has"),
       .way_out = "give all ranks of a job the same LOCKSTEP_JOB_TOKEN, and each job a port of its own"});
}

void wait_for_all(TcpStore& store, const RendezvousOptions& options, Clock::time_point end) {
  if (!store.claim(cat("rank ", options.rank)))
    throw ConfigError({.code = "LS3005",
                       .what = cat("rank ", options.rank, " has joined this job before"),
                       .way_out = "give every rank its own number"});
  store.add("ranks", 1);
  const auto all = [&](const char* counter) { return store.add(counter, 0) == options.world_size; };
  if (look_until(end, [&] { return all("ranks"); })) {
    store.add("saw all", 1);
    // Whoever serves may end soon: not before the others have looked.
    if (options.serve) look_until(Clock::now() + kFarewell, [&] { return all("saw all"); });
    return;
  }
  std::vector<std::string> missing;
  for (int rank = 0; rank < options.world_size; ++rank)
    if (!store.has(cat("rank ", rank))) missing.push_back(std::to_string(rank));
  throw PeerLostError({.code = "LS3123",
                       .what = cat(missing.size() == 1 ? "rank " : "ranks ", join(missing, ", "), " never came; rank ",
                                   options.rank, " has waited ", waited(options)),
                       .way_out = cat("start all ", options.world_size, " ranks of the job")});
}

}  // namespace

std::shared_ptr<Store> open_store(const RendezvousOptions& options) {
  LOCKSTEP_CHECK(options.rank >= 0 && options.rank < options.world_size, "rank ", options.rank, " of ",
                 options.world_size);
  const Clock::time_point end = Clock::now() + options.deadline;
  const c10::intrusive_ptr<c10d::TCPStore> tcp = connect_store(options, end);
  const std::string attempt = cat("lockstep/", options.attempt, "/");
  TcpStore hall(tcp, options.place.text(), attempt);
  const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
  compare_jobs(hall, options, std::max(milliseconds(0), left));
  auto store =
      std::make_shared<TcpStore>(tcp, options.place.text(), cat(attempt, hash_text(hash64(options.token)), "/"));
  wait_for_all(*store, options, end);
  return store;
}

}  // namespace lockstep::comm
