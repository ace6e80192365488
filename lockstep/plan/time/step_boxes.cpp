#include "lockstep/plan/time/step_boxes.h"

namespace lockstep::plan {

void StepBoxes::work(int stage, const program::Action& action, double begin, double end) {
  if (!wanted_ || end <= begin) return;
  const program::KindWords& words = program::words_of(action.kind);
  std::string label(words.letter.empty() ? words.name : words.letter);
  if (action.microbatch >= 0) label += std::to_string(action.microbatch);
  TimedBox* before = boxes_.empty() ? nullptr : &boxes_.back();
  if (before && before->stage == stage && before->lane == 'c' && before->label == label && before->end == begin)
    before->end = end;
  else
    boxes_.push_back({.stage = stage, .lane = 'c', .label = std::move(label), .start = begin, .end = end});
}

void StepBoxes::trip(int stage, const program::Action& action, bool over_nics, double begin, double end) {
  if (!wanted_ || end <= begin) return;
  boxes_.push_back({.stage = stage, .lane = over_nics ? 'n' : 't', .label = text(action), .start = begin, .end = end});
}

void StepBoxes::take_off(int stage, int number, const program::Action& action) {
  if (wanted_) flying_[{stage, number}] = text(action);
}

void StepBoxes::land(int stage, int number, const Flight& flight) {
  const auto flying = flying_.find({stage, number});
  if (flying == flying_.end()) return;
  if (flight.end > flight.begin)
    boxes_.push_back({.stage = stage,
                      .lane = flight.carrier == Carrier::kNics ? 'n' : 't',
                      .label = std::move(flying->second),
                      .start = flight.begin,
                      .end = flight.end});
  flying_.erase(flying);
}

}  // namespace lockstep::plan
