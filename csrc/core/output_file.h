// A file that is there whole or not at all: it is written under a temporary name in the same folder
// and takes its own name, replacing what was there, when it is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace specdec {

// Checks whether a file may be written there; a link is followed. Throws OutputError with path and
// reason: no such folder, a directory of that name, no regular file.
void require_output_path(const std::string& path);

class OutputFile {
 public:
  // `path` as for MappedFile. Throws OutputError as require_output_path, or where there is no
  // permission.
  explicit OutputFile(std::string path);
  // Removes the temporary file unless commit() succeeded.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throws OutputError: disk full, quota, file too large.
  void write(const void* data, std::size_t bytes);
  void write_zeros(std::size_t bytes);
  // Writes what is held back and closes the temporary file: from here on only the name is missing.
  void complete();
  // Completes the file and gives it its name.
  void commit();
  // Removes the file that commit() named: it is part of a set that did not come about.
  void revoke();

  std::uint64_t written() const { return written_; }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail(const char* doing, int code) const;

  std::string path_;
  std::string temporary_;
  std::FILE* file_ = nullptr;
  std::uint64_t written_ = 0;
};

// Whether both paths name the same existing file.
bool is_same_file(const std::string& a, const std::string& b);

bool file_exists(const std::string& path);

}  // namespace specdec
