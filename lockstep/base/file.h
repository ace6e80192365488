// Whole files and folders. Every failure is an error that names the path and what the system said.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

// The content; a DataError LS1203 where the file is missing (with the nearest name in its folder) or cannot be read.
std::string read_file(const std::filesystem::path& path);

// Replaces the file as a whole: written beside it, synced, renamed, the folder synced. A reader sees the old content
// or the new one. EnvironmentError LS3101 on failure; the old content is then untouched.
void write_file(const std::filesystem::path& path, std::string_view content);

// Makes directory entries (creations, renames) durable.
void sync_directory(const std::filesystem::path& directory);

// DataError LS1203 naming the nearest existing name, unless `path` is an existing regular file.
void require_file(const std::filesystem::path& path);

}  // namespace lockstep
