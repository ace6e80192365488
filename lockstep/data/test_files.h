// For the tests of this room: files to work on, a tokenizer trained on the excerpt, and the message of a refusal.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/data/bpe_trainer.h"
#include "support/folders.h"

namespace lockstep::data {

inline std::filesystem::path fresh_folder(const std::string& name) { return support::fresh_folder("data-" + name); }

inline std::string excerpt() {
  return read_file(LOCKSTEP_SOURCE_DIR "/tests/fixtures/austen-64k.txt");
}

inline std::string trained_json(int64_t vocab_size = 600) {
  BpeTrainer trainer({.vocab_size = vocab_size});
  trainer.add(excerpt());
  return trainer.train().tokenizer_json();
}

// "LS1210 message" of the Error that `work` throws, or "nothing thrown".
inline std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.message().code + " " + error.what();
  }
  return "nothing thrown";
}

// Text that is hard on tokenizers: scripts, combining marks, emoji of several code points, white space, controls.
inline const std::vector<std::string>& hard_strings() {
  static const std::vector<std::string> strings = {
      "",
      " ",
      "   \n\n  \t x  ",
      "I'll don't we've O'BRIEN'S 'tis",
      "na\u00efve caf\u00e9 cafe\u0301 \u1e69 \u0073\u0323\u0307",
      "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3002\u4e2d\u6587\u3001\ud55c\uad6d\uc5b4",
      "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467 \U0001F1E9\U0001F1EA \u2764\ufe0f",
      "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
      "a\u00a0b\u2003c\u3000d\u200be\u180ef\u0085g\u2028h",
      "1234567890 \u0661\u0662\u0663 \u00bd \u2167 x\u00b2",
      std::string("nul\0byte \x01\x7f", 11),
      "<|endoftext|> a<|endoftext|>b <|endoftext <|endoftext|><|endoftext|>",
      "tabs\tand\r\nlines\r\n\r\n  indented\n",
      "!!!??? ... --- ___ +++ ### \u2014 \u2026 \u201cquoted\u201d",
  };
  return strings;
}

}  // namespace lockstep::data
