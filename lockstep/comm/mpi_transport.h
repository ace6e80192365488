// One group over MPI. Messages go in pieces of 128 KiB through buffers of our own, several under way each way, so that a
// sum reads what arrives while the next piece comes, and nothing that fails leaves MPI with the memory of a tensor.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/mpi_job.h"
#include "lockstep/comm/transport.h"

namespace lockstep::comm {

struct MpiGroup {
  std::string name;          // "dp[0,1]"
  uint64_t key = 0;          // the same on all members
  std::vector<int> ranks;    // world ranks in group order
  std::vector<int> tags{};   // of the messages with each member
  int rank = 0;              // of this process, in the group
};

class MpiTransport : public Transport {
 public:
  MpiTransport(std::shared_ptr<MpiJob> job, MpiGroup group);
  ~MpiTransport() override;

  int rank() const override { return group_.rank; }
  int size() const override { return static_cast<int>(group_.ranks.size()); }
  std::string backend() const override { return "mpi"; }

  void send(int peer, std::span<const std::byte> bytes, Deadline deadline) override;
  void recv(int peer, std::span<std::byte> bytes, Deadline deadline) override;
  void send_recv(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                 Deadline deadline) override;
  void send_recv(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                 Deadline deadline) override;
  void publish(const Progress& progress) override;
  void add_awaiting(int change) override { member_->add_awaiting(change); }
  void cancel() override { cancelled_ = true; }

 private:
  static constexpr size_t kPiece = 128 * 1024;
  static constexpr size_t kDepth = 8;  // pieces under way in one direction
  struct alignas(64) Piece {
    std::array<std::byte, kPiece> bytes;
  };
  struct Pieces {
    std::array<Piece, kDepth> out, in;
  };
  // One direction of a message: pieces [done, started) are under way.
  struct Stream {
    int member = -1;
    size_t size = 0;     // bytes
    size_t started = 0;  // pieces
    size_t done = 0;
    std::array<MpiRequest, kDepth> requests{};

    size_t pieces() const { return (size + kPiece - 1) / kPiece; }
    bool complete() const { return done == pieces(); }
    bool can_start() const { return started < pieces() && started - done < kDepth; }
    size_t offset(size_t piece) const { return piece * kPiece; }
    size_t bytes(size_t piece) const { return std::min(kPiece, size - offset(piece)); }
  };
  struct Wait {
    Deadline began;
    Deadline deadline;
    Deadline idle_since{};  // zero: not idle
    Deadline next_look{};   // at the peer's health
    Deadline gone_since{};  // zero: as far as we know it is there
  };

  void exchange(int to, std::span<const std::byte> out, int from, size_t in_size, const Consumer& consume,
                Deadline deadline);
  bool advance_out(Stream& stream, std::span<const std::byte> bytes);
  bool advance_in(Stream& stream, const Consumer& consume);
  void pause(Wait& wait, int peer);
  void look_around(Wait& wait, int peer, Deadline now);
  void withdraw(Stream& out, Stream& in);
  void check_stopped() const;
  bool gone(int member) const;
  MemberReport own_report() const;
  MemberReport report_of(int rank, uint64_t group, std::optional<MpiMember::Status> status) const;
  PeerLostError lost(int peer, Deadline began, const std::string& mpi_says = "") const;
  int world_rank(int member) const { return group_.ranks[static_cast<size_t>(member)]; }

  std::shared_ptr<MpiJob> job_;
  MpiGroup group_;
  std::shared_ptr<MpiMember> member_;
  std::shared_ptr<Pieces> pieces_;  // made with the first message
  Progress progress_{.call = named_label("a call")};
  std::atomic<bool> cancelled_ = false;
  bool light_sleep_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace lockstep::comm
