// SPDX-License-Identifier: MIT
#include "harness/journal.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "harness/csv.hpp"
#include "harness/error.hpp"

namespace attn {
namespace {

using testing::ElementsAre;

class JournalFile : public testing::Test {
 protected:
  ~JournalFile() override { std::filesystem::remove(path_); }

  static Event sample(const std::string& id, int process, int round, double seconds) {
    Event event{.point_id = id,
                .kind = Event::Kind::sample,
                .process = process,
                .round = round,
                .position = 0,
                .time_s = seconds};
    event.detail = {{"cache", "warm"}};
    return event;
  }
  static Event offence(const std::string& id, int process, int round) {
    Event event{.point_id = id, .kind = Event::Kind::offence, .process = process, .round = round};
    event.detail = {{"kind", "mismatch"}, {"reason", "one, \"two\""}};
    return event;
  }
  static Event finish(const std::string& id, const char* status) {
    Event event{.point_id = id, .kind = Event::Kind::finish};
    event.detail = {{"status", status}};
    return event;
  }

  // Other cases of this file may run at the same time.
  const std::string path_ =
      testing::TempDir() + "journal_test_" + std::to_string(getpid()) + ".csv";
};

TEST_F(JournalFile, ReadsBackWhatWasAppended) {
  {
    Journal journal(path_, "run");
    journal.append(sample("a", 0, 3, 0.1));
    journal.append(offence("a", 0, 4));
  }
  const auto events = read_journal(path_);
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[0].round, 3);
  EXPECT_EQ(events[0].time_s, 0.1);
  EXPECT_EQ(events[1].detail["reason"], "one, \"two\"");
}

TEST_F(JournalFile, WhatCouldNotBeReadBackIsNotWritten) {
  Journal journal(path_, "run");
  Event event = sample("a", 0, 0, 1.0);
  event.detail["names"] = {"one", "two"};
  EXPECT_THROW(journal.append(event), std::logic_error);
}

TEST_F(JournalFile, ClockAndThrottlingAreEmptyWhereNobodySaidThem) {
  {
    Journal journal(path_, "run");
    Event device = sample("a", 0, 0, 0.1);
    device.clock_mhz = 1980;
    device.throttled = true;
    journal.append(device);
    device = sample("a", 0, 1, 0.1);
    device.throttled = false;
    journal.append(device);
    journal.append(sample("a", 0, 2, 0.1));
  }
  const auto events = read_journal(path_);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0].clock_mhz, 1980);
  EXPECT_EQ(events[0].throttled, true);
  EXPECT_EQ(events[1].clock_mhz, std::nullopt);
  EXPECT_EQ(events[1].throttled, false);
  EXPECT_EQ(events[2].throttled, std::nullopt);
}

TEST_F(JournalFile, TornLastLineIsCutAndNeverGluedTo) {
  {
    Journal journal(path_, "run");
    journal.append(sample("a", 0, 0, 0.1));
    journal.append(sample("a", 0, 1, 0.2));
  }
  for (int cut = 1; cut < 40; ++cut) {  // a line is longer than that
    const std::string whole = read_file(path_);
    std::ofstream(path_, std::ios::trunc)
        << whole.substr(0, whole.size() - static_cast<std::size_t>(cut));
    EXPECT_EQ(read_journal(path_).size(), 1) << "cut " << cut;
    Journal(path_, "run").append(sample("a", 0, 1, 0.2));
    ASSERT_EQ(read_journal(path_).size(), 2) << "cut " << cut;
    EXPECT_EQ(read_file(path_), whole);
  }
}

TEST_F(JournalFile, HeaderTornByAKillIsWrittenAnew) {
  std::ofstream(path_) << "run_id,poi";
  Journal(path_, "run").append(sample("a", 0, 0, 0.5));
  EXPECT_EQ(read_journal(path_).size(), 1);
  EXPECT_TRUE(read_file(path_).starts_with("run_id,point_id,event"));
}

TEST_F(JournalFile, WhatIsCutIsNamed) {
  Journal(path_, "run").append(sample("a", 0, 0, 0.5));
  std::ofstream(path_, std::ios::app) << "run,a,samp";
  testing::internal::CaptureStderr();
  const Journal journal(path_, "run");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "attnbench: " + path_ + ":3: a torn last line is left out\n");
}

TEST_F(JournalFile, WaitsForTheLockOfADyingWorker) {
  Journal(path_, "run").append(sample("a", 0, 0, 0.5));
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  std::thread worker([fd] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::close(fd);
  });
  EXPECT_NO_THROW(Journal(path_, "run").append(sample("a", 0, 1, 0.5)));
  worker.join();
  EXPECT_EQ(read_journal(path_).size(), 2);
}

TEST_F(JournalFile, ADeviceIsRefusedAndNotRead) {
  std::filesystem::create_symlink("/dev/full", path_);
  EXPECT_THROW(Journal(path_, "run"), CommandError);
  EXPECT_THROW(read_journal(path_), CommandError);
}

TEST_F(JournalFile, AFileThatWasMovedAwayIsNotWrittenBeside) {
  Journal journal(path_, "run");
  std::filesystem::remove(path_);
  try {
    journal.sync();
    FAIL() << "the file is gone";
  } catch (const CommandError& error) {
    EXPECT_EQ(error.code(), Exit::file);
    EXPECT_THAT(error.what(), testing::HasSubstr(path_ + " was removed or renamed"));
  }
}

TEST_F(JournalFile, SecondWriterIsRefused) {
  Journal journal(path_, "run");
  EXPECT_THROW(Journal(path_, "run"), CommandError);
}

TEST_F(JournalFile, ForeignLinesAreLeftOut) {
  Journal(path_, "run").append(sample("a", 0, 0, 0.5));
  std::ofstream(path_, std::ios::app)
      << "garbage\nrun,a,sample,0,1,0,fast,,,{}\nrun,a,sample,0,1,0,1,,,{\n";
  std::vector<std::size_t> left_out;
  const auto note = [&](std::size_t line, const std::string& why) {
    EXPECT_EQ(why, "is no event");
    left_out.push_back(line);
  };
  EXPECT_EQ(read_journal(path_, note).size(), 1);
  EXPECT_THAT(left_out, ElementsAre(3, 4, 5));
}

TEST_F(JournalFile, ARepeatedLineIsLeftOutAndNamed) {
  Journal(path_, "run").append(offence("a", 0, 0));
  const std::string text = read_file(path_);
  std::ofstream(path_, std::ios::app) << text.substr(text.find('\n') + 1);
  std::vector<std::size_t> left_out;
  const auto events = read_journal(path_, [&](std::size_t line, const std::string& why) {
    EXPECT_EQ(why, "repeats an earlier line");
    left_out.push_back(line);
  });
  EXPECT_EQ(events.size(), 1);
  EXPECT_THAT(left_out, ElementsAre(3));
  EXPECT_FALSE(replay(events).points.at("a").convicted());
}

TEST_F(JournalFile, DetailsAreFlatAndTheirWordsText) {
  Journal(path_, "run").append(sample("a", 0, 0, 0.5));
  std::ofstream(path_, std::ios::app) << R"(run,a,offence,0,1,,,,,"{""kind"":5}")"
                                      << "\n"
                                      << R"(run,a,finish,0,,,,,,"{""status"":null}")"
                                      << "\n"
                                      << R"(run,a,check,0,,,1,,,"{""mode"":[1]}")"
                                      << "\n";
  EXPECT_EQ(read_journal(path_).size(), 1);
}

TEST_F(JournalFile, ATimeThatIsNotFiniteIsNone) {
  { const Journal journal(path_, "run"); }
  std::ofstream(path_, std::ios::app) << "run,a,check,0,,,inf,,,{}\n";
  EXPECT_EQ(replay(read_journal(path_)).points.at("a").call_seconds(), std::nullopt);
}

TEST_F(JournalFile, AForeignFileIsRefusedAgain) {
  std::ofstream(path_) << "another,header\n";
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      const Journal journal(path_, "run");
      FAIL() << "it was taken for a journal";
    } catch (const CommandError& error) {  // and not: another run holds the lock
      EXPECT_EQ(error.code(), Exit::file);
    }
  }
}

TEST_F(JournalFile, SamplesOfARoundWithAnOffenceAreSuspect) {
  const RunState state = replay({sample("honest", 0, 0, 1), sample("honest", 0, 1, 2),
                                 offence("liar", 0, 1), sample("honest", 1, 1, 3)});
  EXPECT_THAT(state.points.at("honest").times(), ElementsAre(1, 3));
  EXPECT_EQ(state.points.at("liar").offences, 1);
  EXPECT_EQ(state.processes, 2);
}

TEST_F(JournalFile, ResumedPointsStartAfresh) {
  const RunState state = replay({offence("a", 0, 0), offence("a", 1, 0), finish("a", "error"),
                                 finish("a", "resumed"), finish("b", "cutoff")});
  EXPECT_FALSE(state.points.at("a").finished());
  EXPECT_EQ(state.points.at("a").offences, 0);
  EXPECT_EQ(state.points.at("b").status(), Status::cutoff);
}

}  // namespace
}  // namespace attn
