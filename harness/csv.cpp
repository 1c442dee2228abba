// SPDX-License-Identifier: MIT
#include "harness/csv.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "harness/error.hpp"
#include "harness/text.hpp"

namespace attn {

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

std::string csv_words(std::string_view text) {
  const bool formula = !text.empty() && std::string_view("=+-@").find(text[0]) != text.npos;
  return (formula ? "it says: " : "") + printable(text);
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) line += ',';
    line += csv_field(fields[i]);
  }
  return line + '\n';
}

std::optional<std::vector<std::string>> parse_csv_line(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        fields.back() += c;
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += '"';
        ++i;
      } else {
        quoted = false;
        if (i + 1 < line.size() && line[i + 1] != ',') return std::nullopt;
      }
    } else if (c == '"') {
      if (!fields.back().empty()) return std::nullopt;
      quoted = true;
    } else if (c == ',') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted) return std::nullopt;
  return fields;
}

std::string csv_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : std::string();
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno != EINTR) return false;
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

void replace_file(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const auto fail = [&](const char* verb) {
    const int error = errno;
    if (fd >= 0) ::close(fd);
    ::unlink(fresh.c_str());
    file_error(fmt::format("cannot {} {}: {}", verb, path, std::strerror(error)));
  };
  if (fd < 0 || !write_all(fd, text)) fail("write");
  if (::fsync(fd) != 0) fail("sync");
  // Some file systems say only now that there was no space.
  if (::close(std::exchange(fd, -1)) != 0) fail("write");
  if (::rename(fresh.c_str(), path.c_str()) != 0) fail("replace");
}

void overwrite_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) file_error(fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

std::string read_file(const std::string& path) {
  struct stat kind {};
  if (::stat(path.c_str(), &kind) == 0 && !S_ISREG(kind.st_mode)) {
    file_error(fmt::format("cannot read {}: it is not a regular file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) file_error(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace attn
