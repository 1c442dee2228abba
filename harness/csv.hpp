// SPDX-License-Identifier: MIT
// RFC 4180 fields and lines, numbers in the C locale.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attn {

std::string csv_field(std::string_view text);  // quoted where it must be
// Somebody else's words as a cell: on one line, and never a formula that a spreadsheet would execute.
std::string csv_words(std::string_view text);
std::string csv_line(const std::vector<std::string>& fields);  // ends with a newline

// One line without its newline; nothing when a quote is left open or misplaced.
std::optional<std::vector<std::string>> parse_csv_line(std::string_view line);

// The shortest text that reads back as the same double; empty for values that are not finite.
std::string csv_number(double value);

// Writes all of `text`, in one call where the file takes it; false: `errno` says why not. A full disk
// takes a part first and says so at the next call.
bool write_all(int fd, std::string_view text);
// Replaces `path` by `text`: written beside it, synced, renamed. Throws CommandError (file).
void replace_file(const std::string& path, std::string_view text);
// Writes into what is there, be it a file, a link or a device. Throws CommandError (file).
void overwrite_file(const std::string& path, std::string_view text);
// Of a regular file: a device or a pipe might never end. Throws CommandError (file).
std::string read_file(const std::string& path);

}  // namespace attn
